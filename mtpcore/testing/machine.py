"""Conformance: a rejected draft leaves no trace; states equal those of fresh contexts.

A rule machine for ``hypothesis``, which only tests install.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from numpy.typing import NDArray

from mtpcore.cross import Cross
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.errors import CapacityError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.sampling import Sampling
from mtpcore.testing.deliveries import intercept
from mtpcore.testing.subject import ContextOptions, Subject

__all__ = ["machine_of"]

N_SEQ, N_CTX = 3, 160
FAULTS = ("proposer", "delivery")
GREEDY = Sampling.greedy()
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.8, top_k=40, seed=3),
    Sampling(temperature=1.2, repetition_penalty=1.2, frequency_penalty=0.1, seed=4),
)


class Interruption(RuntimeError):
    """What the machine lets others raise."""


class Interrupter(Proposer):
    """Guesses nothing; raises once, when it has been asked ``left`` times more."""

    left: int | None = None

    def propose(self, seq: int, tokens: NDArray[np.int32], k: int) -> Sequence[int]:
        self.count()
        return []

    def deliver(self, batch: Batch, output: Output) -> None:
        self.count()

    def count(self) -> None:
        """Raise when it is time."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Interruption


def machine_of(
    subject: Subject, drafter: DrafterSpec | None = None, **options: Unpack[ContextOptions]
) -> type[RuleBasedStateMachine]:
    """Return a machine that prefills, drafts, accepts, rolls back, forks, saves, loads and removes.

    ``options`` go to the contexts; ``drafter`` is a variant of the family's. After any of these
    acts every role's digest must equal that of a new Cross which got the tokens in one batch; so
    must it after a proposer or the delivery of a batch has raised. Both draft the same in the end,
    and where a text was rolled back and goes on with other tokens.
    """

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.interrupter = Interrupter()
            self.cross = self.make(self.interrupter)
            self.texts: dict[int, list[int]] = {}

        def make(self, interrupter: Interrupter) -> Cross:
            sizes: ContextOptions = {"n_seq_max": N_SEQ, "kv_dtype": "f16", **options}
            return subject.link(N_CTX, drafter=drafter, before=interrupter, **sizes)

        @rule(seq=st.integers(0, N_SEQ - 1), n=st.integers(1, 70), seed=st.integers(0, 99))
        def prefill(self, seq: int, n: int, seed: int) -> None:
            text = self.texts.get(seq, [])
            tokens = subject.text(max(min(n, N_CTX - 12 - len(text)), 0), seed).tolist()
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
            seqs = self.choose(data, sampling)
            drafts = self.cross.draft(dict.fromkeys(seqs, k), sampling=sampling)
            if spoils:
                for ids in drafts.values():
                    if isinstance(ids, list) and ids:
                        ids[-1] = (ids[-1] + 1) % subject.model.hparams.n_vocab
            self.finish(drafts, sampling, rejects)

        @precondition(lambda self: self.ready())
        @rule(
            data=st.data(),
            fault=st.sampled_from(FAULTS),
            after=st.integers(0, 3),
            k=st.integers(1, 5),
            sampling=st.sampled_from(SAMPLINGS),
            again=st.booleans(),
        )
        def interrupted_round(
            self,
            data: st.DataObject,
            fault: str,
            after: int,
            k: int,
            sampling: Sampling,
            again: bool,
        ) -> None:
            """Let a round raise: nothing has changed, and the same round can be run."""
            seqs = self.choose(data, sampling)
            wanted = dict.fromkeys(seqs, k)
            if fault == "proposer":
                self.interrupt(after % len(seqs), lambda: self.cross.draft(wanted, None, sampling))
            drafts = self.cross.draft(wanted, sampling=sampling)
            if fault == "delivery":
                with intercept(self.cross.llm, self.interrupter.deliver):
                    self.interrupt(0, lambda: self.cross.verify(drafts, sampling))
            if again:
                self.finish(drafts, sampling, 0)

        def choose(self, data: st.DataObject, sampling: Sampling) -> set[int]:
            """Draw sequences, each with a pending token."""
            seqs = data.draw(st.sets(st.sampled_from(self.ready()), min_size=1), "sequences")
            for seq in seqs:
                if self.cross.pending(seq, sampling) is None:
                    self.repeat_last(seq)
                    self.cross.pending(seq, sampling)
            return seqs

        def interrupt(self, left: int, act: Callable[[], object]) -> None:
            """Act, and be interrupted; tokens and lengths are as before."""
            before = {seq: self.cross.pending(seq) for seq in self.texts}
            self.interrupter.left = left
            try:
                act()
            except Interruption:
                pass
            else:
                raise AssertionError("what was raised did not come out")
            for seq, text in self.texts.items():
                assert self.cross.tokens(seq) == text
                assert self.cross.llm.length(seq) == len(text)
                assert self.cross.pending(seq) == before[seq]
            assert not self.cross.llm.runner.sequences.undecided

        def finish(self, drafts: dict[int, Any], sampling: Sampling, rejects: int) -> None:
            """Verify drafts and accept some of those that may be."""
            pending = {seq: self.cross.pending(seq, sampling) for seq in drafts}
            for seq, verdict in self.cross.verify(drafts, sampling).items():
                n, newest = max(verdict.accepted - rejects, 0), pending[seq]
                assert newest is not None
                self.cross.accept(seq, n)
                self.texts[seq] = [*self.texts[seq], newest, *verdict.tokens[:n]]

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

        @precondition(lambda self: self.texts)
        @rule(data=st.data(), n=st.integers(1, 4), seed=st.integers(0, 99))
        def rewrite(self, data: st.DataObject, n: int, seed: int) -> None:
            """Roll back and go on with a few other tokens: a row that stayed shows in drafts."""
            self.roll_back(data)
            for seq in [seq for seq, text in self.texts.items() if len(text) < N_CTX - 12]:
                self.prefill(seq, n, seed)
            self.compare_drafts(self.fresh())

        @precondition(lambda self: 0 < len(self.texts) < N_SEQ)
        @rule(data=st.data())
        def fork(self, data: st.DataObject) -> None:
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            new = min(set(range(N_SEQ)) - set(self.texts))
            self.cross.fork(seq, new)
            self.texts[new] = self.texts[seq]

        @precondition(lambda self: self.texts)
        @rule(data=st.data())
        def save_and_load(self, data: st.DataObject) -> None:
            """Let a sequence go on under another number, where one is free."""
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            saved = self.cross.save(seq)
            assert saved is not None
            self.cross.remove(seq)
            text = self.texts.pop(seq)
            new = data.draw(st.sampled_from(sorted(set(range(N_SEQ)) - set(self.texts))), "new")
            self.cross.load(new, saved)
            self.texts[new] = text

        @precondition(lambda self: self.texts)
        @rule(data=st.data())
        def remove(self, data: st.DataObject) -> None:
            seq = data.draw(st.sampled_from(sorted(self.texts)), "sequence")
            self.cross.remove(seq)
            del self.texts[seq]

        @rule()
        def equals_fresh(self) -> None:
            self.compare_states(self.fresh())

        def fresh(self) -> Cross:
            """Make a Cross that has read the texts and never drafted."""
            fresh = self.make(Interrupter())
            for seq, text in self.texts.items():
                fresh.llm.process(Batch.of(text, seq=seq))
            return fresh

        def compare_states(self, fresh: Cross) -> None:
            for seq in range(N_SEQ):
                assert self.cross.tokens(seq) == self.texts.get(seq, [])
                found, wanted = self.cross.digest(seq), fresh.digest(seq)
                different = ", ".join(role for role in wanted if found[role] != wanted[role])
                assert not different, f"{subject}, sequence {seq}: not a new Cross's: {different}"

        def compare_drafts(self, fresh: Cross) -> None:
            """Draft as a new Cross does: rows of the target may wait that no digest counts."""
            for seq in self.texts:
                if self.cross.pending(seq, GREEDY) is None:
                    self.repeat_last(seq)
                if self.cross.pending(seq, GREEDY) == fresh.pending(seq, GREEDY):
                    drafts: list[Any] = [
                        cross.draft(seq, 3, GREEDY) for cross in (self.cross, fresh)
                    ]
                    found, wanted = (list(getattr(one, "tokens", one)) for one in drafts)
                    where = f"{subject}, sequence {seq}"
                    assert found == wanted, f"{where}: drafts {found}, a new Cross {wanted}"

        def teardown(self) -> None:
            fresh = self.fresh()
            self.compare_states(fresh)
            self.compare_drafts(fresh)

    Machine.__name__ = f"{subject.name.title().replace('-', '').replace(':', '')}Machine"
    return Machine
