"""Recurrent layers against fresh recomputation: whatever was taken back leaves no trace."""

from functools import cache

import numpy as np
import pytest
from harness.checkpoints import checkpoints_of, watch
from harness.hybrids import N_VOCAB, hybrid
from harness.search import searching
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import CapacityError, StateError
from mtpcore.memory import CHECKPOINTS, LOG
from mtpcore.testing import Runner

N_SEQ, N_CTX, N_BATCH = 3, 400, 40
seqs = st.integers(0, N_SEQ - 1)
ALONE, BESIDE = hybrid(attends=False), hybrid(layers=2)


def runner(backend, program=ALONE, **sizes):
    return Runner(backend, *program, n_seq=N_SEQ, n_ctx=N_CTX, n_batch=N_BATCH, **sizes)


def budgeted(backend, n_checkpoints, program=ALONE):
    """Return a runner whose checkpoints take the bytes of so many slots, and not quite one more."""
    if n_checkpoints is None:
        return runner(backend, program)
    slot_bytes = backend.state_store(program[0].states, 1, program[1]).n_bytes
    return runner(backend, program, checkpoint_bytes=(n_checkpoints + 1) * slot_bytes - 1)


def feed(one, tokens, seq=0, n_batch=N_BATCH, place=0):
    """Append tokens in parts; return hidden rows."""
    made = []
    for at in range(0, len(tokens), n_batch):
        begin = one.memory.length(seq) or place
        made.append(one.feed(tokens[at : at + n_batch], seq=seq, place=begin)["hidden"])
    return np.concatenate(made)


def feed_together(one, texts):
    """Append tokens of several sequences in one batch, cut into each other."""
    ends = {seq: one.memory.length(seq) for seq in texts}
    one.memory.reserve({seq: (end, end + len(texts[seq])) for seq, end in ends.items()})
    batch = [
        (seq, ends[seq] + i, tokens[i])
        for i in range(max(map(len, texts.values())))
        for seq, tokens in reversed(texts.items())
        if i < len(tokens)
    ]
    seq, place, tokens = (np.array(column, np.int32) for column in zip(*batch, strict=True))
    rows = CheckedBatch(
        tokens=tokens,
        positions=place[:, None].copy(),
        seq=seq,
        place=place,
        outputs=np.arange(0, dtype=np.int32),
    )
    one.plan.run(rows, one.memory)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


class Machine(RuleBasedStateMachine):
    """Sequences are lists of tokens; digests must be those of a fresh memory."""

    program, backend, n_checkpoints = ALONE, ReferenceBackend(), None

    def __init__(self):
        super().__init__()
        self.one = budgeted(self.backend, self.n_checkpoints, self.program)
        self.memory = self.one.memory
        watch(self.memory, N_SEQ, self.n_checkpoints)
        self.texts = [[] for _ in range(N_SEQ)]
        self.starts = [0] * N_SEQ
        self.stamp = 0

    def draw_text(self, n):
        self.stamp += 1
        return text(n, self.stamp)

    def end(self, seq):
        return self.starts[seq] + len(self.texts[seq])

    def fits(self, seq, n):
        return self.end(seq) + n <= N_CTX

    def append(self, seq, tokens, **options):
        begin = self.end(seq)
        return self.one.feed(tokens, seq=seq, place=begin, **options)["hidden"]

    @rule(seq=seqs, n=st.integers(1, 3 * N_BATCH), start=st.integers(0, 2))
    def prefill(self, seq, n, start):
        if not self.texts[seq]:
            self.starts[seq] = start
        if self.fits(seq, n):
            tokens = self.draw_text(n)
            feed(self.one, tokens, seq, place=self.starts[seq])
            self.texts[seq] += tokens
        elif not self.texts[seq]:
            self.starts[seq] = 0

    @precondition(lambda self: any(self.texts))
    @rule(data=st.data(), k=st.integers(0, LOG - 1))
    def verify(self, data, k):
        """Drafts, of which any number is accepted: every m of every k."""
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.texts[s]]))
        if not self.fits(seq, k + 1):
            return
        begin, tokens = self.end(seq), self.draw_text(k + 1)
        self.append(seq, tokens)
        if data.draw(st.booleans()):
            self.memory.save()  # the next act takes rows back
        accepted = data.draw(st.integers(0, k))
        self.memory.rewind(seq, begin + 1 + accepted)
        self.texts[seq] += tokens[: accepted + 1]

    @precondition(lambda self: any(self.texts))
    @rule(data=st.data(), k=st.integers(0, LOG - 1), has_run=st.booleans())
    def give_back(self, data, k, has_run):
        """Room for drafts that are verified otherwise, or not at all."""
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.texts[s]]))
        if not self.fits(seq, k + 1):
            return
        begin = self.end(seq)
        if has_run:
            self.append(seq, self.draw_text(k + 1))
        else:
            self.memory.reserve({seq: (begin, begin + k + 1)})
        self.memory.give_back({seq: (begin, begin + k + 1)})

    @precondition(lambda self: any(self.texts))
    @rule(data=st.data(), n=st.integers(2, LOG), again=st.booleans())
    def grow_tree(self, data, n, again):
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.texts[s]]))
        if not self.fits(seq, n):
            return
        begin, tokens = self.end(seq), self.draw_text(n)
        parent = [data.draw(st.integers(max(i - 4, -1), i - 1)) for i in range(n)]
        self.append(seq, tokens, parent=parent)
        path, row = [], data.draw(st.integers(-1, n - 1))
        while row >= 0:
            path.insert(0, row)
            row = parent[row]
        for _ in range(1 + again):
            self.memory.keep(seq, begin, path)
        self.texts[seq] += [tokens[row] for row in path]

    @rule(
        seq=seqs, n=st.integers(1, N_BATCH), cut=st.integers(0, 30), again=st.booleans(), new=seqs
    )
    def fail(self, seq, n, cut, again, new):
        """Rows are taken back, others come in their place, and all of it is undone.

        A fork that goes back to a checkpoint of the sequence is undone, too.
        """
        if not self.fits(seq, n):
            return
        if not self.texts[new] and new != seq:
            self.memory.fork(seq, new)
            self.memory.rewind(new, self.memory.recurrent.nearest(new, self.end(seq) // 2))
        cut = 0 if self.program[0].memory else cut  # pages are written again at once
        if self.memory.recurrent.nearest(seq, max(self.end(seq) - cut, 0)) == self.end(seq) - cut:
            self.memory.rewind(seq, self.end(seq) - cut)
        place = self.memory.length(seq) or self.starts[seq]
        self.one.feed(self.draw_text(n), seq=seq, place=place)
        for _ in range(1 + again):
            self.memory.restore(self.saved)

    @precondition(lambda self: any(self.texts))
    @rule(data=st.data())
    def go_back(self, data):
        """To any place: there, or not at all, and then the memory names one that it reaches."""
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.texts[s]]))
        length = data.draw(st.integers(self.starts[seq], self.end(seq)))
        nearest = self.memory.recurrent.nearest(seq, length)
        assert nearest <= length
        if nearest < length:
            with pytest.raises(CapacityError, match="is gone"):
                self.memory.rewind(seq, length)
            assert self.memory.length(seq) == self.end(seq)
        self.memory.rewind(seq, nearest)
        self.texts[seq] = self.texts[seq][: nearest - self.starts[seq]]
        if not self.texts[seq]:
            self.starts[seq] = 0

    @rule(seq=seqs)
    def remove(self, seq):
        self.memory.rewind(seq, 0)
        self.texts[seq], self.starts[seq] = [], 0

    @rule(seq=seqs, new=seqs)
    def fork(self, seq, new):
        if seq != new and not self.texts[new]:
            self.memory.fork(seq, new)
            self.texts[new], self.starts[new] = list(self.texts[seq]), self.starts[seq]

    @rule(seq=seqs, new=seqs)
    def dump_and_load(self, seq, new):
        """What was dumped goes on under another number, or its own, without checkpoints."""
        if seq != new and self.texts[new]:
            return
        dumped = [b"".join(part.dump(seq)) for part in self.memory.parts]
        for part, data in zip(self.memory.parts, dumped, strict=True):
            assert len(data) <= part.most_bytes(N_CTX)
        if seq == new:
            self.memory.rewind(seq, 0)
        for part, data in zip(self.memory.parts, dumped, strict=True):
            part.load(new, memoryview(data))
        assert dumped == [b"".join(part.dump(new)) for part in self.memory.parts]
        self.texts[new], self.starts[new] = list(self.texts[seq]), self.starts[seq]

    @precondition(lambda self: sum(map(bool, self.texts)) > 1)
    @rule(n=st.integers(1, 9))
    def grow_together(self, n):
        """Rows of all sequences in one batch, cut into each other; forks share their slots."""
        grown = [seq for seq in range(N_SEQ) if self.texts[seq] and self.fits(seq, n)]
        if not grown:
            return
        texts = {seq: self.draw_text(n) for seq in grown}
        feed_together(self.one, texts)
        for seq in grown:
            self.texts[seq] += texts[seq]

    @invariant()
    def begins_an_act(self):
        self.saved = self.memory.save()

    @invariant()
    def holds_so_many_bytes(self):
        """Where an act begins: two slots of each sequence, and checkpoints."""
        recurrent = self.memory.recurrent
        most = N_SEQ * CHECKPOINTS if self.n_checkpoints is None else self.n_checkpoints
        n_bytes = recurrent.store.base_bytes + LOG * recurrent.store.row_bytes
        assert recurrent.bytes_of(range(N_SEQ)) <= (2 * sum(map(bool, self.texts)) + most) * n_bytes

    @invariant()
    def equals_fresh(self):
        for seq in range(N_SEQ):
            assert self.memory.length(seq) == (self.end(seq) if self.texts[seq] else 0)
            assert self.memory.first(seq) == self.starts[seq]
            wanted = self.fresh_digest(tuple(self.texts[seq]), self.starts[seq])
            assert self.memory.digest(seq) == wanted

    @classmethod
    @cache
    def fresh_digest(cls, tokens, start):
        """Return the digest of a text in a memory that has held nothing else; many come again."""
        fresh = runner(cls.backend, cls.program)
        if tokens:
            feed(fresh, tokens, n_batch=23, place=start)
        return fresh.memory.digest(0)


class BesideAttention(Machine):
    program = BESIDE


class OnCpu(Machine):
    backend = CpuBackend()


class WithoutCheckpoints(Machine):
    n_checkpoints = 0


class WithFewCheckpoints(OnCpu):
    n_checkpoints = 2


class WithCheckpointsBesideAttention(BesideAttention):
    n_checkpoints = 9


class BesideAttentionOnCpu(BesideAttention):
    backend = CpuBackend()


TestReference = Machine.TestCase
TestBesideAttention = BesideAttention.TestCase
TestOnCpu = OnCpu.TestCase
TestBesideAttentionOnCpu = BesideAttentionOnCpu.TestCase
TestWithoutCheckpoints = WithoutCheckpoints.TestCase
TestWithFewCheckpoints = WithFewCheckpoints.TestCase
TestWithCheckpointsBesideAttention = WithCheckpointsBesideAttention.TestCase
TestReference.settings = TestBesideAttention.settings = searching(20)
TestWithoutCheckpoints.settings = TestWithCheckpointsBesideAttention.settings = searching(20)


def test_the_newest_pass_can_be_taken_back_whole():
    for n in range(1, LOG + 1):
        one = runner(ReferenceBackend())
        tokens = text(60 + n)
        feed(one, tokens[:60])
        before = one.memory.digest(0)
        for m in range(n, -1, -1):
            one.memory.save()
            one.feed(tokens[60:])
            one.memory.rewind(0, 60 + m)
            fresh = runner(ReferenceBackend())
            feed(fresh, tokens[: 60 + m])
            assert one.memory.digest(0) == fresh.memory.digest(0)
            one.memory.rewind(0, 60)
        assert one.memory.digest(0) == before


@pytest.mark.parametrize("n_batch", [1, 2, 3, 5, 8])
def test_the_newest_rows_can_be_taken_back_in_whatever_parts_they_ran(n_batch):
    """A draft is verified in parts where a batch has room for fewer rows."""
    for n in (2, 9, LOG):
        one = budgeted(ReferenceBackend(), 0)
        tokens = text(60 + n)
        feed(one, tokens[:60])
        for m in range(n, -1, -1):
            one.memory.save()
            feed(one, tokens[60:], n_batch=n_batch)
            one.memory.rewind(0, 60 + m)
            fresh = runner(ReferenceBackend())
            feed(fresh, tokens[: 60 + m])
            assert one.memory.digest(0) == fresh.memory.digest(0)
            one.memory.rewind(0, 60)


def test_checkpoints_lie_after_prompts_and_become_rarer():
    one = runner(ReferenceBackend())
    recurrent = one.memory.recurrent
    tokens = text(N_CTX)
    feed(one, tokens[:100])
    for token in tokens[100:]:
        recurrent.save()
        one.feed([token])
    recurrent.save()
    reached = np.array([recurrent.nearest(0, n) == n for n in range(N_CTX + 1)])
    begins = np.flatnonzero(reached[1:] & ~reached[:-1]) + 1
    assert reached[100 - LOG : 101].all()
    assert reached[N_CTX - 1 :].all()
    assert 3 < len(begins) <= CHECKPOINTS + 2
    assert len(recurrent._chains[0].held) == CHECKPOINTS + 2
    gone = np.flatnonzero(~reached[100:])[0] + 100
    with pytest.raises(CapacityError, match=f"wanted place {gone - 1}, the nearest") as caught:
        one.memory.rewind(0, gone)
    assert caught.value.where == "sequence 0"
    one.memory.rewind(0, 100)
    fresh = runner(ReferenceBackend())
    feed(fresh, tokens[:100])
    assert one.memory.digest(0) == fresh.memory.digest(0)


def test_a_place_before_every_checkpoint_leaves_the_whole_sequence():
    one = runner(ReferenceBackend())
    feed(one, text(40))
    with pytest.raises(CapacityError, match="wanted the whole sequence"):
        one.memory.rewind(0, 5)
    assert one.memory.recurrent.nearest(0, 5) == 0
    one.memory.rewind(0, 0)
    assert one.memory.length(0) == 0


def test_longer_drafts_than_a_log_are_refused():
    memory = runner(ReferenceBackend()).memory
    memory.allow_rewind(LOG - 1)
    assert memory.longest_rewind == LOG - 1
    with pytest.raises(CapacityError, match="make drafts shorter"):
        memory.allow_rewind(LOG)


def test_a_tree_longer_than_a_log_is_refused():
    one = runner(ReferenceBackend())
    with pytest.raises(CapacityError, match="draft tree is longer"):
        one.feed(text(LOG + 1), parent=[-1, 0, *range(LOG - 1)])


def test_a_full_memory_gives_up_checkpoints_only():
    """All sequences fork one that has many, and go on apart from each other."""
    one = runner(ReferenceBackend())
    tokens = text(N_CTX)
    feed(one, tokens[:200], n_batch=20)
    for new in range(1, N_SEQ):
        one.memory.fork(0, new)
    one.memory.save()
    ends = [200] * N_SEQ
    for step in range(8):
        for seq in range(N_SEQ):
            feed(one, tokens[ends[seq] : ends[seq] + 20], seq)
            ends[seq] += 20
        if step % 3 == 2:
            one.memory.save()
    fresh = runner(ReferenceBackend())
    for seq in range(N_SEQ):
        feed(fresh, tokens[: ends[seq]], seq)
        assert one.memory.digest(seq) == fresh.memory.digest(seq)


def test_slots_that_a_batch_reads_are_no_checkpoints():
    """All slots are taken; the oldest base is the one that the batch goes on from."""
    one = budgeted(ReferenceBackend(), 0)
    texts = {seq: text(20, seq) for seq in range(N_SEQ)}
    for _ in range(10):
        for seq in range(1, N_SEQ):
            more = text(20, len(texts[seq]))
            one.feed(more, seq=seq)
            texts[seq] = (texts[seq] if one.memory.length(seq) > 20 else []) + more
    texts[0] = texts[0][:18]
    one.feed(texts[0], seq=0)
    more = {seq: text(20, 7) for seq in range(N_SEQ)}
    feed_together(one, more)
    fresh = runner(ReferenceBackend())
    for seq in range(N_SEQ):
        feed(fresh, texts[seq] + more[seq], seq)
        assert one.memory.digest(seq) == fresh.memory.digest(seq)


def test_checkpoints_are_given_up_by_one_rule_for_all_sequences():
    """The ends of prompts stay longest; of several in one text those nearer to its end do."""
    one = budgeted(ReferenceBackend(), 4)
    recurrent = one.memory.recurrent
    for seq, n_parts in enumerate((1, 3)):
        feed(one, text(n_parts * N_BATCH, seq), seq)
        for token in text(30, seq):
            recurrent.save()
            one.feed([token], seq=seq)
    recurrent.save()
    assert len(checkpoints_of(recurrent, range(N_SEQ))) == 4
    places = [[held.place for held in chain.held[:-2]] for chain in recurrent._chains]
    assert places == [[40 - LOG], [40 - LOG, 80 - LOG, 120 - LOG], []]
    feed(one, text(N_BATCH, 2), 2)
    for token in text(30, 2):
        recurrent.save()
        one.feed([token], seq=2)
    recurrent.save()
    places = [[held.place for held in chain.held[:-2]] for chain in recurrent._chains]
    assert places == [[40 - LOG], [80 - LOG, 120 - LOG], [40 - LOG]]


@pytest.mark.parametrize("n_checkpoints", [0, 1, 2, 5, 40])
def test_a_budget_is_used_up(n_checkpoints):
    """However many bytes there are: of one sequence alone, with a slot for every second token."""
    one = budgeted(ReferenceBackend(), n_checkpoints)
    for token in text(150):
        one.memory.save()
        one.feed([token])
    one.memory.save()
    recurrent = one.memory.recurrent
    assert len(checkpoints_of(recurrent, range(N_SEQ))) == n_checkpoints
    slot_bytes = recurrent.store.base_bytes + LOG * recurrent.store.row_bytes
    assert recurrent.bytes_of([0]) == (n_checkpoints + 2) * slot_bytes


def test_what_one_sequence_lets_go_may_be_a_checkpoint_of_another():
    """Both were made in one act: nothing of it is needed to take that act back."""
    one = budgeted(ReferenceBackend(), 1)
    watch(one.memory, N_SEQ, 1)
    one.memory.save()
    feed(one, text(2 * N_BATCH))
    one.memory.fork(0, 1)
    feed(one, text(2 * N_BATCH, 1), 1)
    one.memory.rewind(0, 0)
    assert len(one.memory.recurrent._chains[1].held) == 3


def test_a_long_prompt_holds_so_many_bytes():
    """It opens a slot for each of its parts, all in one act."""
    one = budgeted(ReferenceBackend(), 1)
    watch(one.memory, N_SEQ, 1)
    one.memory.save()
    feed(one, text(6 * N_BATCH))
    assert len(one.memory.recurrent._chains[0].held) == 3


def test_any_number_of_bytes_is_a_budget():
    """More checkpoints than help are never kept, nor is there memory for them."""
    one = runner(CpuBackend(), checkpoint_bytes=1 << 53)
    feed(one, text(300), n_batch=1)
    one.memory.save()
    assert one.memory.recurrent.store.n_slots == N_SEQ * (4 + 64)
    assert all(one.memory.recurrent.nearest(0, n) == n for n in range(300))


def test_a_failed_act_leaves_what_takes_back_the_newest_rows():
    """They are more than a log has: what was there before them is in the slot before."""
    one, fresh = budgeted(ReferenceBackend(), 0), runner(ReferenceBackend())
    feed(one, text(40))
    one.feed(text(LOG + 3), seq=0)
    saved = one.memory.save()
    feed(one, text(3 * N_BATCH, 1))
    one.memory.restore(saved)
    one.memory.rewind(0, 40)
    feed(fresh, text(40))
    assert one.memory.digest(0) == fresh.memory.digest(0)


def test_what_a_failed_act_gave_up_does_not_come_back():
    """A long prompt takes the slots of checkpoints; after it the act is taken back."""
    one = budgeted(ReferenceBackend(), 2)
    feed(one, text(4 * N_BATCH))
    before, saved = one.memory.digest(0), one.memory.save()
    feed(one, text(5 * N_BATCH, 1))
    one.memory.restore(saved)
    assert one.memory.digest(0) == before
    fresh = runner(ReferenceBackend())
    feed(fresh, text(4 * N_BATCH)[:-5])
    one.memory.rewind(0, 4 * N_BATCH - 5)
    assert one.memory.digest(0) == fresh.memory.digest(0)
    one.memory.rewind(0, 3 * N_BATCH)
    fresh.memory.rewind(0, 0)
    feed(fresh, text(4 * N_BATCH)[: 3 * N_BATCH])
    assert one.memory.digest(0) == fresh.memory.digest(0)


def test_the_newest_rows_can_be_taken_back_after_a_load():
    for n in (5, LOG, 60, 61 + LOG):
        one, other = runner(ReferenceBackend()), runner(ReferenceBackend())
        feed(one, text(n)[:60])
        for token in text(n)[60:]:
            one.memory.save()
            one.feed([token])
        for part, copy in zip(one.memory.parts, other.memory.parts, strict=True):
            copy.load(1, memoryview(b"".join(part.dump(0))))
        newest = n if n <= 60 else 1  # rows of the newest pass
        for back in range(1, min(newest + 1, LOG)):
            other.memory.rewind(1, n - back)
            one.memory.rewind(0, n - back)
            assert other.memory.digest(1) == one.memory.digest(0)


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (1, 3, "3 slots"),
        (1, 1, "further bytes"),
        (0, 70, "impossible states"),
        (2, 10**9, "impossible states|cut short"),
        (3, LOG + 1, "impossible states"),
        (3, 2**63, "impossible states"),
        (4, 2, "impossible states"),
    ],
)
def test_forged_states_are_refused(at, value, match):
    one = runner(ReferenceBackend())
    feed(one, text(60))
    feed(one, text(5))
    recurrent = one.memory.recurrent
    data = bytearray(b"".join(recurrent.dump(0)))
    data[8 * at : 8 * at + 8] = value.to_bytes(8, "little")
    one.memory.save()
    with pytest.raises(StateError, match=match):
        recurrent.load(1, memoryview(data))
    one.memory.restore(one.memory.save())
    sound = b"".join(recurrent.dump(0))
    for size in (0, 15, 16, 39, 41, len(sound) - 1):
        saved = one.memory.save()
        with pytest.raises(StateError, match=r"cut short|impossible"):
            recurrent.load(2, memoryview(sound)[:size])
        one.memory.restore(saved)
