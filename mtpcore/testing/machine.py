"""Conformance: whatever was done, the state is that of a fresh context fed the accepted tokens.

A rule machine for ``hypothesis``, which only tests install.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from mtpcore.batch import Batch
from mtpcore.errors import CapacityError
from mtpcore.sampling import Sampling
from mtpcore.spec import DrafterSpec
from mtpcore.testing.subject import Subject

__all__ = ["machine_of"]

N_SEQ, N_CTX = 3, 160
SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=0.8, top_k=40, seed=3),
    Sampling(temperature=1.2, repetition_penalty=1.2, frequency_penalty=0.1, seed=4),
)


def machine_of(
    subject: Subject, drafter: DrafterSpec | None = None, **options: Any
) -> type[RuleBasedStateMachine]:
    """Return a machine that prefills, drafts, verifies, accepts, takes back, forks and removes.

    ``options`` go to the contexts; ``drafter`` is a variant of the family's. After any of these
    acts every role's digest must equal that of a new Cross which got the tokens in one batch.
    """

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.cross = self.make()
            self.texts: dict[int, list[int]] = {}

        def make(self) -> Any:
            made = {"n_seq_max": N_SEQ, "kv_dtype": "f16", **options}
            return subject.link(N_CTX, drafter=drafter, **made)

        @rule(seq=st.integers(0, N_SEQ - 1), n=st.integers(1, 70), seed=st.integers(0, 99))
        def prefill(self, seq: int, n: int, seed: int) -> None:
            text = self.texts.get(seq, [])
            tokens = subject.text(min(n, N_CTX - 12 - len(text)), seed).tolist()
            if tokens:
                self.cross.llm.process(Batch.of(tokens, seq=seq, pos=len(text)))
                self.texts[seq] = [*text, *tokens]

        def ready(self) -> list[int]:
            return [seq for seq, text in self.texts.items() if len(text) < N_CTX - 1]

        @precondition(lambda self: self.ready())
        @rule(
            data=st.data(),
            k=st.integers(0, 5),
            sampling=st.sampled_from(SAMPLINGS),
            rejects=st.integers(0, 3),
            spoils=st.booleans(),
        )
        def round(
            self, data: st.DataObject, k: int, sampling: Sampling, rejects: int, spoils: bool
        ) -> None:
            """Draft for some sequences; some drafts are spoilt, and some accepted ones given up."""
            seqs = data.draw(st.sets(st.sampled_from(self.ready()), min_size=1), "sequences")
            for seq in seqs:
                if self.cross.pending(seq, sampling) is None:
                    self.repeat_last(seq)
            drafts = self.cross.draft(dict.fromkeys(seqs, k), sampling=sampling)
            if spoils:
                for ids in drafts.values():
                    if isinstance(ids, list) and ids:
                        ids[-1] = (ids[-1] + 1) % subject.model.hparams.n_vocab
            pending = {seq: self.cross.pending(seq, sampling) for seq in seqs}
            for seq, verdict in self.cross.verify(drafts, sampling).items():
                n = max(verdict.accepted - rejects, 0)
                self.cross.accept(seq, n)
                self.texts[seq] = [*self.texts[seq], pending[seq], *verdict.tokens[:n]]

        def repeat_last(self, seq: int) -> None:
            """Process the newest token once more: after a rollback its logits are gone."""
            n = len(self.texts[seq]) - 1
            self.cross.rollback(seq, n)
            self.cross.llm.process(Batch.of(self.texts[seq][n:], seq=seq, pos=n))

        @precondition(lambda self: self.texts)
        @rule(data=st.data())
        def roll_back(self, data: st.DataObject) -> None:
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            n = data.draw(st.integers(1, len(self.texts[seq])), "length")
            before = self.cross.digest(seq)
            try:
                self.cross.rollback(seq, n)
            except CapacityError:  # a window holds no older rows
                assert self.cross.digest(seq) == before
                return
            self.texts[seq] = self.texts[seq][:n]

        @precondition(lambda self: 0 < len(self.texts) < N_SEQ)
        @rule(data=st.data())
        def fork(self, data: st.DataObject) -> None:
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            new = min(set(range(N_SEQ)) - set(self.texts))
            self.cross.fork(seq, new)
            self.texts[new] = self.texts[seq]

        @precondition(lambda self: self.texts)
        @rule(data=st.data())
        def remove(self, data: st.DataObject) -> None:
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            self.cross.remove(seq)
            del self.texts[seq]

        @rule()
        def equals_fresh(self) -> None:
            """Compare with a Cross that never drafted."""
            fresh = self.make()
            for seq, text in self.texts.items():
                fresh.llm.process(Batch.of(text, seq=seq))
            for seq in range(N_SEQ):
                assert self.cross.tokens(seq) == self.texts.get(seq, [])
                assert self.cross.digest(seq) == fresh.digest(seq), f"{subject}, sequence {seq}"

        def teardown(self) -> None:
            self.equals_fresh()

    Machine.__name__ = f"{subject.name.title().replace('-', '').replace(':', '')}Machine"
    return Machine
