"""Any interleaving of acts leaves every role as if only the accepted tokens had been seen.

After each rule: I1 the target's digest, and I2 the drafter's, equal a fresh Cross's that was fed
only the committed tokens; I3 every pair (asserted inside the double) joins token p with the row of
p - 1 of the same history; I4 lengths; I5 the tokens are those of plain decoding.
"""

import numpy as np
import pytest
from harness.hashed import FUSED, N_VOCAB, SPEC, START, HashBackend, HashModel, advance, logits_of
from harness.scripted import trees_around
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mtpcore.batch import Batch
from mtpcore.context import Context
from mtpcore.cross import link
from mtpcore.errors import CapacityError, LinkError
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.spec import Tree

N_CTX, N_SEQ = 90, 4
SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=0.7, top_k=5, seed=3),
    Sampling(temperature=1.5, seed=4, stream=2),
    Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=5),
)
samplings = st.sampled_from(SAMPLINGS)


def make(skill=12, nan=0, spec=SPEC, tree=None, n_batch=16):
    backend = HashBackend(skill, nan)
    llm = Context(HashModel(spec), N_CTX, n_seq_max=N_SEQ, n_batch=n_batch, backend=backend)
    return link(llm, tree=tree), backend


class Sequence:
    """What the machine knows of one sequence: its tokens, and what plain decoding would say."""

    def __init__(self, sampling):
        self.tokens, self.n_prompt, self.sampling = [], 0, sampling

    def next_token(self):
        state = START
        for token in self.tokens:
            state = advance(state, token)
        history = np.asarray(self.tokens, np.int32)
        sampler = Sampler(self.sampling, Scratch(N_VOCAB))
        return sampler.choose(logits_of(state), history, self.n_prompt, len(history))


def grown(data, known, room):
    """A tree around what plain decoding would say after the pending token."""
    truth, later = [], Sequence(known.sampling)
    later.tokens, later.n_prompt = list(known.tokens), known.n_prompt
    for _ in range(4):
        later.tokens.append(later.next_token())
        truth.append(later.tokens[-1])
    return data.draw(trees_around(truth[1:], most=min(room, 7)))


class CrossMachine(RuleBasedStateMachine):
    skill, nan, spec, tree = 12, 0, SPEC, None

    def __init__(self):
        super().__init__()
        self.cross, self.backend = make(self.skill, self.nan, self.spec, self.tree)
        self.known: dict[int, Sequence] = {}

    def ready(self):
        return [s for s, known in self.known.items() if len(known.tokens) < N_CTX]

    @rule(seq=st.integers(0, N_SEQ - 1), sampling=samplings, data=st.data())
    def prefill(self, seq, sampling, data):
        tokens = data.draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=30))
        known = self.known.get(seq) or Sequence(sampling)
        pos = len(known.tokens)
        try:
            self.cross.llm.process(Batch.of(tokens, seq=seq, pos=pos))
        except CapacityError:
            assert pos + len(tokens) > N_CTX
            return
        except Exception as error:
            if "position lies outside" in str(error) and pos + len(tokens) > N_CTX:
                return
            raise
        if self.cross.pending(seq) is None and self.known.get(seq) is None:
            self.known[seq] = known
        pending_was_first = bool(known.tokens) and tokens[0] == getattr(known, "pending", None)
        known.tokens += tokens
        if not pending_was_first:
            known.n_prompt = len(known.tokens)
        known.pending = None

    @precondition(lambda self: self.ready())
    @rule(
        data=st.data(),
        k=st.integers(0, 8),
        argmax=st.booleans(),
        drafting=st.booleans(),
        again=st.booleans(),
        trees=st.booleans(),
        finish=st.sampled_from(["accept", "fewer", "rollback"]),
    )
    def round(self, data, k, argmax, drafting, again, trees, finish):
        chosen = data.draw(st.sets(st.sampled_from(self.ready()), min_size=1))
        settings_of = {s: self.known[s].sampling for s in chosen}
        kind = "argmax" if argmax else "coupled"
        drafts = {s: [] for s in chosen}
        if drafting:
            drafts = self.cross.draft(
                dict.fromkeys(chosen, k), sampling=settings_of, draft_sampler=kind
            )
        if drafting and again:
            assert drafts == self.cross.draft(
                dict.fromkeys(chosen, k), sampling=settings_of, draft_sampler=kind
            )
        for seq, ids in drafts.items():
            room = N_CTX - len(self.known[seq].tokens) - 1
            assert len(ids) <= min(self.tree.n_nodes if self.tree and k else k, room)
            if trees and data.draw(st.booleans()):
                drafts[seq] = grown(data, self.known[seq], room)
        verdicts = self.cross.verify(drafts, settings_of)
        for seq, verdict in verdicts.items():
            known = self.known[seq]
            pending = self.cross.pending(seq)
            assert pending == known.next_token()
            before = list(known.tokens)
            with pytest.raises(LinkError):
                self.cross.accept(seq, verdict.accepted + 1)
            if finish == "rollback":
                self.cross.rollback(seq, len(before))
                known.pending = None
                self.rechoose(seq)
                continue
            n = verdict.accepted if finish == "accept" else verdict.accepted // 2
            self.cross.accept(seq, n)
            known.tokens.append(pending)
            for token in verdict.tokens[:n]:
                assert token == known.next_token()
                known.tokens.append(token)
            assert self.cross.pending(seq) == known.next_token()
            known.pending = self.cross.pending(seq)

    def rechoose(self, seq):
        """After a rollback the newest row's logits are gone: process its token again."""
        known = self.known[seq]
        last = known.tokens[-1]
        self.cross.rollback(seq, len(known.tokens) - 1)
        known.n_prompt = min(known.n_prompt, len(known.tokens) - 1)
        self.cross.llm.process(Batch.of([last], seq=seq, pos=len(known.tokens) - 1))
        known.n_prompt = len(known.tokens)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cut_tail(self, data):
        seq = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[seq]
        n = data.draw(st.integers(1, len(known.tokens)))
        self.cross.rollback(seq, n)
        known.tokens = known.tokens[:n]
        known.n_prompt = min(known.n_prompt, n)
        self.rechoose(seq)
        known.pending = None

    @precondition(lambda self: self.known)
    @rule(data=st.data(), new=st.integers(0, N_SEQ - 1))
    def fork(self, data, new):
        seq = data.draw(st.sampled_from(sorted(self.known)))
        if new in self.known:
            return
        self.cross.fork(seq, new)
        old = self.known[seq]
        copy = Sequence(old.sampling)
        copy.tokens, copy.n_prompt = list(old.tokens), old.n_prompt
        copy.pending = getattr(old, "pending", None)
        self.known[new] = copy

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data):
        seq = data.draw(st.sampled_from(sorted(self.known)))
        self.cross.remove(seq)
        del self.known[seq]

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), after=st.integers(0, 6), trees=st.booleans())
    def interrupted(self, data, after, trees):
        """T14: whatever raises inside draft or verify, contents are as before and a retry works."""
        seq = data.draw(st.sampled_from(self.ready()))
        sampling = self.known[seq].sampling
        before = self.cross.digest(seq)
        self.backend.fail_at, raised = after, ""
        try:
            drafts = self.cross.draft({seq: 3}, sampling=sampling)
            if trees:
                room = N_CTX - len(self.known[seq].tokens) - 1
                drafts = {seq: grown(data, self.known[seq], room)}
            self.cross.verify(drafts, sampling)
        except RuntimeError as error:
            raised = str(error)
        if raised:
            assert raised == "planted"
            assert self.cross.digest(seq) == before
        else:
            self.cross.accept(seq, 0)
            known = self.known[seq]
            known.tokens.append(known.next_token())
            known.pending = self.cross.pending(seq)
        self.backend.fail_at = None

    @precondition(lambda self: self.ready())
    @rule(data=st.data())
    def watcher_raises(self, data):
        """T14: a callback that raises undoes the batch in every role."""
        seq = data.draw(st.sampled_from(self.ready()))

        def watch(batch, output):
            raise RuntimeError("watched")

        before = self.cross.digest(seq)
        self.cross.llm.watchers.append(watch)
        with pytest.raises(RuntimeError, match="watched"):
            self.cross.verify({seq: []}, self.known[seq].sampling)
        self.cross.llm.watchers.remove(watch)
        assert self.cross.digest(seq) == before

    @invariant()
    def lengths(self):
        for seq in range(N_SEQ):
            known = self.known.get(seq)
            tokens = known.tokens if known else []
            assert self.cross.tokens(seq) == tokens
            assert self.cross.llm.length(seq) == len(tokens)

    @rule()
    def equals_fresh(self):
        """A rule and no invariant: looking settles drafters, and states not looked at count too."""
        fresh, _ = make(self.skill, self.nan, self.spec, self.tree)
        for seq, known in self.known.items():
            fresh.llm.process(Batch.of(known.tokens, seq=seq))
        for seq in range(N_SEQ):
            assert self.cross.digest(seq) == fresh.digest(seq)

    def teardown(self):
        self.equals_fresh()


class MisleadingMachine(CrossMachine):
    skill = 0


class BreakingMachine(CrossMachine):
    nan = 5


class FusedMachine(CrossMachine):
    spec = FUSED


class TreeMachine(CrossMachine):
    nan, tree = 2, Tree(depth=3, width=2, n_nodes=6)


TestCross = CrossMachine.TestCase
TestMisleading = MisleadingMachine.TestCase
TestBreaking = BreakingMachine.TestCase
TestFused = FusedMachine.TestCase
TestTree = TreeMachine.TestCase
