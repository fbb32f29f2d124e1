"""Any interleaving of acts leaves every role as if only the accepted tokens had been seen.

Draft, verify and accept are acts of their own: whatever else may happen happens between them too.
After each act, and without settling a drafter: I1 what the target holds of the committed tokens,
and I2 what the drafter holds so far, equal what a fresh Cross does that was fed only these tokens;
I3 waiting rows are tagged with the state and place that their reader will pair them with (every
pair itself is asserted inside the double); I4 lengths; I5 the tokens are those of plain decoding.
"""

from contextlib import nullcontext

import pytest
from harness.committed import Known, digest_before, look
from harness.hashed import FUSED, N_VOCAB, SPEC, HashBackend, HashModel, Planted, read_tag
from harness.scripted import trees_around
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mtpcore.cross import link
from mtpcore.declarations.spec import TreeShape
from mtpcore.errors import BatchError, CapacityError, LinkError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling
from mtpcore.testing.deliveries import intercept

N_CTX, N_SEQ = 90, 4
SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=0.7, top_k=5, seed=3),
    Sampling(temperature=1.5, seed=4, stream=2),
    Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=5),
)
samplings = st.sampled_from(SAMPLINGS)
seqs = st.integers(0, N_SEQ - 1)
prompts = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=30)
kinds = st.sampled_from(["coupled", "argmax"])
failures = st.sampled_from([None] * 12 + ["delivery", "delivery", 0, 1, 3, 6])
"""What raises in an act: nothing, one of its callbacks, or the backend after so many rows."""


def raising(*told):
    raise Planted("told")


def some(data, seqs):
    return data.draw(st.sets(st.sampled_from(seqs), min_size=1), "sequences")


class CrossMachine(RuleBasedStateMachine):
    skill, nan, spec, tree = 12, 0, SPEC, None

    def __init__(self):
        super().__init__()
        self.model = HashModel(self.spec)
        self.cross, self.backend = self.make()
        self.known: dict[int, Known] = {}
        self.plain = {}

    def make(self):
        backend = HashBackend(self.skill, self.nan)
        llm = Context(self.model, N_CTX, n_seq_max=N_SEQ, n_batch=16, backend=backend)
        return link(llm, tree=self.tree), backend

    def of(self, seq):
        return self.known.get(seq) or Known(None)

    def those(self, *, decided=None, goes_on=None, room=0):
        """The sequences in such a state, with room for so many more tokens."""
        return [
            seq
            for seq, known in sorted(self.known.items())
            if decided in (None, known.verdict is None)
            and goes_on in (None, known.goes_on)
            and len(known.tokens) + room <= N_CTX
        ]

    def attempt(self, failure, act, *args, **choices):
        """Act; where something raises in it return None, and all invariants hold as before."""
        self.backend.fail_at = failure if isinstance(failure, int) else None
        try:
            with intercept(self.cross.llm, raising) if failure == "delivery" else nullcontext():
                return act(*args, **choices)
        except Planted:
            return None
        finally:
            self.backend.fail_at = None

    def refuses(self, kind, what, act, *args, **choices):
        """What is forbidden raises an error of ours, and nothing has changed."""
        before = [look(self.cross, seq) for seq in range(N_SEQ)]
        with pytest.raises(kind, match=what):
            act(*args, **choices)
        assert [look(self.cross, seq) for seq in range(N_SEQ)] == before

    # Acts

    @initialize(texts=st.lists(st.tuples(samplings, prompts), min_size=1, max_size=N_SEQ))
    def begin(self, texts):
        for seq, (sampling, tokens) in enumerate(texts):
            self.prefill(seq=seq, sampling=sampling, tokens=tokens, last=True, failure=None)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        k=st.integers(1, 8),
        kind=kinds,
        drafting=st.booleans(),
        fewer=st.booleans(),
        failure=failures,
    )
    def next_act(self, data, k, kind, drafting, fewer, failure):
        """What is next for some sequence; a search often leaves out one of the rules below."""
        known = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if known.verdict is not None:
            self.accept(data=data, fewer=fewer)
        elif known.goes_on and drafting and not len(known.drafted):
            self.draft(data=data, k=k, kind=kind, again=False, failure=failure)
        elif self.those(decided=True, goes_on=True, room=1):
            self.verify(data=data, failure=failure)

    @rule(seq=seqs, sampling=samplings, tokens=prompts, last=st.booleans(), failure=failures)
    def prefill(self, seq, sampling, tokens, last, failure):
        known = self.known.get(seq) or Known(sampling)
        pos = len(known.tokens)
        batch = Batch.of(tokens, seq=seq, pos=pos, outputs="last" if last else "none")
        if known.verdict is not None:
            after = Batch.of(tokens[:1], seq=seq, pos=self.cross.llm.length(seq))
            for one in (batch, after):
                self.refuses((LinkError, BatchError), None, self.cross.llm.process, one)
        elif pos + len(tokens) > N_CTX:
            self.refuses((BatchError, CapacityError), None, self.cross.llm.process, batch)
        elif self.attempt(failure, self.cross.llm.process, batch):
            known.process(tokens, goes_on=last)
            self.known[seq] = known

    @precondition(lambda self: self.those(goes_on=True))
    @rule(
        data=st.data(),
        k=st.integers(0, 8),
        kind=kinds,
        again=st.booleans(),
        failure=failures,
    )
    def draft(self, data, k, kind, again, failure):
        """Also while a draft is undecided: what was verified waits as if nobody had asked."""
        chosen = some(data, self.those(goes_on=True))
        wanted = dict.fromkeys(chosen, k)
        choices = {
            "sampling": {seq: self.known[seq].sampling for seq in chosen},
            "draft_sampler": kind,
        }
        before = {seq: self.cross.pending(seq) for seq in chosen}
        drafts = self.attempt(failure, self.cross.draft, wanted, **choices)
        if drafts is None:
            assert {seq: self.cross.pending(seq) for seq in chosen} == before
        for seq in chosen:
            self.known[seq].pending = self.known[seq].truth(1)[0]
        if drafts is None or again:
            first, drafts = drafts, self.cross.draft(wanted, **choices)
            assert first in (None, drafts)
        for seq, draft in drafts.items():
            room = max(N_CTX - len(self.known[seq].tokens) - 1, 0)
            assert len(draft) <= min(self.tree.n_nodes if self.tree and k else k, room)
            self.known[seq].drafted = draft

    @precondition(lambda self: self.those(decided=True, goes_on=True, room=1))
    @rule(data=st.data(), failure=failures)
    def verify(self, data, failure):
        """Verify what was drafted, if anything was, or trees; prompts may run beside it."""
        chosen = some(data, self.those(decided=True, goes_on=True, room=1))
        drafts = {seq: self.guess(data, self.known[seq]) for seq in chosen}
        beside = {}
        others = [s for s in range(N_SEQ) if s not in chosen and s not in self.those(decided=False)]
        if others and data.draw(st.booleans(), "beside prompts"):
            for seq in some(data, others):
                known = self.known.get(seq) or Known(data.draw(samplings))
                tokens = data.draw(prompts)[: N_CTX - len(known.tokens)]
                if tokens:
                    beside[seq] = known, tokens
        verdicts = self.attempt(
            failure,
            self.cross.verify,
            drafts,
            {seq: self.known[seq].sampling for seq in chosen},
            prefill={seq: tokens for seq, (_, tokens) in beside.items()},
        )
        if verdicts is None:
            return
        for seq in chosen:
            self.known[seq].pending = self.known[seq].truth(1)[0]
        for seq, (known, tokens) in beside.items():
            known.process(tokens)
            self.known[seq] = known
        assert set(verdicts) == set(chosen)
        for seq, verdict in verdicts.items():
            known = self.known[seq]
            known.verdict, known.verified = verdict, drafts[seq]
            assert [known.pending, *verdict.tokens] == known.truth(verdict.accepted + 2)

    def guess(self, data, known):
        room = N_CTX - len(known.tokens) - 1
        if data.draw(st.integers(0, 3), "another tree at 0"):
            return known.drafted
        return data.draw(trees_around(known.truth(5)[1:], most=min(room, 7)))

    @precondition(lambda self: self.those(decided=False))
    @rule(data=st.data(), fewer=st.booleans())
    def accept(self, data, fewer):
        for seq in some(data, self.those(decided=False)):
            known = self.known[seq]
            n = known.verdict.accepted
            n = data.draw(st.integers(0, n), "accepted") if fewer else n
            self.cross.accept(seq, n)
            known.accept(n)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), whole=st.booleans(), repeat=st.booleans())
    def rollback(self, data, whole, repeat):
        """Give up what was chosen, drafted and verified, and some of the text, or none of it."""
        seq = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[seq]
        n = len(known.tokens)
        n = n if whole else data.draw(st.integers(0, n), "length")
        self.cross.rollback(seq, n)
        known.cut(n)
        if repeat and n:  # with it went the newest row's logits
            self.cross.rollback(seq, n - 1)
            last = known.tokens[-1:]
            known.cut(n - 1)
            self.cross.llm.process(Batch.of(last, seq=seq, pos=n - 1))
            known.process(last)
        if not n:
            del self.known[seq]

    @precondition(lambda self: self.those(decided=True))
    @rule(data=st.data(), failure=failures)
    def shift(self, data, failure):
        """Tokens in the midst are gone; the pending one stays, chosen or not."""
        seq = data.draw(st.sampled_from(self.those(decided=True)))
        known = self.known[seq]
        n = len(known.tokens)
        keep = data.draw(st.integers(0, n), "keep")
        drop = data.draw(st.integers(0, n - keep), "drop")
        if drop == n:
            self.refuses(BatchError, "nothing would remain", self.cross.shift, seq, keep=0, drop=n)
            return
        if self.attempt(failure, self.shifted, seq, keep=keep, drop=drop):
            known.shift(keep, drop)

    def shifted(self, seq, **how):
        self.cross.shift(seq, **how)
        return True

    @precondition(lambda self: self.known)
    @rule(data=st.data(), new=seqs)
    def fork(self, data, new):
        seq = data.draw(st.sampled_from(sorted(self.known)))
        if self.known[seq].verdict is not None:
            self.refuses(LinkError, "undecided", self.cross.fork, seq, new)
        elif new in self.known:
            self.refuses(BatchError, "empty sequence", self.cross.fork, seq, new)
        else:
            self.cross.fork(seq, new)
            self.known[new] = self.known[seq].copy()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data):
        seq = data.draw(st.sampled_from(sorted(self.known)))
        self.cross.remove(seq)
        del self.known[seq]

    @precondition(lambda self: self.those(decided=True))
    @rule(data=st.data(), new=seqs, again=st.booleans(), failure=failures)
    def save_and_load(self, data, new, again, failure):
        """A sequence goes on under another number, or its own; a copy is the same state."""
        seq = data.draw(st.sampled_from(self.those(decided=True)))
        saved = self.attempt(failure, self.cross.save, seq)
        if saved is None:
            return
        if new in self.known and new != seq:
            self.refuses(BatchError, "empty sequence", self.cross.load, new, saved)
            return
        if seq == new or not again:
            self.cross.remove(seq)
        self.cross.load(new, saved)
        assert self.cross.save(new) == saved
        self.known[new] = self.known[seq].copy()
        if seq != new and not again:
            del self.known[seq]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def is_refused(self, data):
        """What has no place where a sequence stands, between verify and accept and elsewhere."""
        seq = data.draw(st.sampled_from(sorted(self.known)))
        known, cross = self.known[seq], self.cross
        verdict, sampling = known.verdict, known.sampling
        self.refuses(BatchError, "not there", cross.rollback, seq, len(known.tokens) + 1)
        self.refuses(LinkError, "call remove", cross.llm.remove, seq)
        self.refuses(LinkError, "call rollback", cross.llm.rewind, seq, 0)
        if verdict is not None:
            other = (seq + 1) % N_SEQ
            self.refuses(LinkError, "did not accept", cross.accept, seq, verdict.accepted + 1)
            self.refuses(LinkError, "did not accept", cross.accept, seq, -1)
            self.refuses(LinkError, "undecided", cross.verify, {seq: []}, sampling)
            self.refuses(LinkError, "undecided", cross.verify, {}, prefill={other: [1], seq: [1]})
            return
        self.refuses(LinkError, "nothing was verified", cross.accept, seq)
        if not known.goes_on:
            self.refuses(BatchError, "nothing to continue", cross.draft, seq, 3, sampling)
            self.refuses(BatchError, "nothing to continue", cross.verify, {seq: []}, sampling)
            return
        known.pending = cross.pending(seq, sampling)
        too_long = [0] * (N_CTX - len(known.tokens))
        for drafts in ([N_VOCAB], [-1], too_long):
            self.refuses((BatchError, CapacityError), None, cross.verify, {seq: drafts}, sampling)

    # Invariants

    def fresh(self, seq):
        """A Cross that was only ever given the committed tokens of this sequence."""
        tokens = self.known[seq].tokens
        plain = self.plain.get(seq)
        if plain is None or plain.tokens(seq) != tokens[: plain.llm.length(seq)]:
            plain = self.plain[seq] = self.make()[0]
        n = plain.llm.length(seq)
        if n < len(tokens):
            plain.llm.process(Batch.of(tokens[n:], seq=seq, pos=n))
            plain.digest(seq)  # settles its drafter
        return plain

    @invariant()
    def I1_the_target_holds_the_committed_tokens(self):
        for seq, known in self.known.items():
            own, fresh = self.cross.llm, self.fresh(seq).llm
            n = len(known.tokens)
            assert digest_before(own, seq, n) == digest_before(fresh, seq, n)
            if known.verdict is None:
                assert own.digest(seq) == fresh.digest(seq)

    @invariant()
    def I2_drafters_hold_nothing_else(self):
        """They lag behind; an entry of the pending token, left by a draft, is looked at later."""
        for seq, known in self.known.items():
            for role, fresh in self.fresh(seq).contexts.items():
                own = self.cross.contexts[role]
                if role != "llm" and own.runner.memory:
                    n = min(own.length(seq), len(known.tokens))
                    assert digest_before(own, seq, n) == digest_before(fresh, seq, n)

    @invariant()
    def I3_waiting_rows_are_those_of_their_places(self):
        """Each that a reader will ask for is there, with the tag of its place, and none beyond."""
        for one in self.cross.links:
            box = self.cross.links.inboxes(one.dst)[one.slot]
            reader, source = (self.cross.contexts[role] for role in (one.dst, one.src))
            for seq, known in self.known.items():
                states = known.states()
                end = len(states) if one.src == "llm" else source.length(seq)
                begin = min(max(reader.length(seq) - (one.pairing == "next-token"), 0), end)
                for place, row in enumerate(box.get(seq, begin, end), begin):
                    assert (*read_tag(row), row[3]) == (states[place], place, 1)
            for seq in range(N_SEQ):
                end = len(self.of(seq).told()) if one.src == "llm" else source.length(seq)
                with pytest.raises(LinkError, match="missing"):
                    box.get(seq, end, end + 1)

    @invariant()
    def I4_lengths(self):
        for seq in range(N_SEQ):
            known = self.of(seq)
            for role, one in self.cross.contexts.items():
                n = len(known.tokens)
                assert one.runner.memory is None or one.runner.memory.length(seq) == one.length(seq)
                if role == "llm":
                    assert one.length(seq) == n + known.n_undecided
                else:
                    assert one.length(seq) <= n + (known.pending is not None)

    @invariant()
    def I5_tokens(self):
        for seq in range(N_SEQ):
            known = self.of(seq)
            assert self.cross.tokens(seq) == known.tokens
            assert self.cross.pending(seq) == known.pending
            assert known.pending is None or known.pending == known.truth(1)[0]

    @rule()
    def equals_fresh(self):
        """Look by digest(), which settles drafters: a rule, for states not looked at count too."""
        fresh, _ = self.make()
        for seq, known in self.known.items():
            fresh.llm.process(Batch.of(known.tokens, seq=seq))
        for seq in range(N_SEQ):
            found, wanted = self.cross.digest(seq), fresh.digest(seq)
            if seq in self.those(decided=False):
                del found["llm"], wanted["llm"]  # it holds what is undecided
            assert found == wanted

    def teardown(self):
        self.equals_fresh()


class MisleadingMachine(CrossMachine):
    skill = 0


class BreakingMachine(CrossMachine):
    nan = 5


class FusedMachine(CrossMachine):
    spec = FUSED


class TreeMachine(CrossMachine):
    nan, tree = 2, TreeShape(depth=3, width=2, n_nodes=6)


def case(machine):
    """A round takes three steps of its own, so that a run has more of them than elsewhere."""
    machine.TestCase.settings = settings(stateful_step_count=45)
    return machine.TestCase


TestCross = case(CrossMachine)
TestMisleading = case(MisleadingMachine)
TestBreaking = case(BreakingMachine)
TestFused = case(FusedMachine)
TestTree = case(TreeMachine)
