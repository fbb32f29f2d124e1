"""Every memory kind against a plain list of rows, through one rule machine."""

from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from harness.memory_kinds import ListStore, RunningSum
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.reference import ReferenceStore
from mtpcore.errors import CapacityError
from mtpcore.graph import MemoryLayer
from mtpcore.memory import PAGE, SPARE, PagedKV, make_memory

N_SEQ, N_CTX, N_PAGES, DRAFT = 4, 200, 12, 4
N_LONG, N_BATCH = 700, 90
seqs = st.integers(0, N_SEQ - 1)
FRESH_DIGESTS = {}
"""Of machine, start and values: a memory's that has held nothing else; many come again."""


class Machine(RuleBasedStateMachine):
    """The model is a list of values for each sequence; a fresh memory must agree with it."""

    def make(self):
        raise NotImplementedError

    def write(self, memory, seq, begin, values):
        raise NotImplementedError

    def __init__(self):
        super().__init__()
        self.memory = self.make()
        self.memory.allow_rewind(DRAFT)
        self.rows = [[] for _ in range(N_SEQ)]
        self.starts = [0] * N_SEQ
        self.settled = [0] * N_SEQ
        self.stamp = 0

    def append(self, memory, seq, begin, values):
        for at in range(0, len(values), N_BATCH):
            part = values[at : at + N_BATCH]
            memory.reserve({seq: (begin + at, begin + at + len(part))})
            self.write(memory, seq, begin + at, part)

    def values(self, n):
        self.stamp += n
        return [float(self.stamp - n + i + 1) for i in range(n)]

    def end(self, seq):
        return self.starts[seq] + len(self.rows[seq])

    @rule(seq=seqs, n=st.integers(1, 90), start=st.integers(0, 1))
    def prefill(self, seq, n, start):
        begin = self.end(seq) if self.rows[seq] else start
        values = self.values(n)
        try:
            self.append(self.memory, seq, begin, values)
        except CapacityError:
            return
        if not self.rows[seq]:
            self.starts[seq] = begin
        self.rows[seq] += values
        self.settled[seq] = self.end(seq)

    @precondition(lambda self: any(self.rows))
    @rule(data=st.data(), k=st.integers(0, DRAFT))
    def verify(self, data, k):
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.rows[s]]))
        begin, values = self.end(seq), self.values(k + 1)
        try:
            self.append(self.memory, seq, begin, values)
        except CapacityError:
            return
        accepted = data.draw(st.integers(0, k))
        self.memory.rewind(seq, begin + 1 + accepted)
        self.rows[seq] += values[: accepted + 1]

    @rule(seq=seqs, n=st.integers(1, 250), lost=st.sets(seqs), again=st.booleans())
    def fail(self, seq, n, lost, again):
        """Rows of one sequence are appended, others lose theirs, and all is taken back."""
        with suppress(CapacityError):
            self.append(self.memory, seq, self.end(seq), self.values(n))
        for other in lost - {seq}:
            self.memory.rewind(other, 0)
        self.memory.restore(self.saved)
        if again:
            self.memory.restore(self.saved)

    @rule(seq=seqs)
    def remove(self, seq):
        self.memory.rewind(seq, 0)
        self.rows[seq], self.starts[seq] = [], 0

    @rule(seq=seqs, new=seqs)
    def fork(self, seq, new):
        if seq == new or self.rows[new]:
            return
        self.memory.fork(seq, new)
        self.rows[new], self.starts[new] = list(self.rows[seq]), self.starts[seq]

    @invariant()
    def begins_an_act(self):
        """As contexts do it before each act."""
        self.saved = self.memory.save()

    @invariant()
    def equals_fresh(self):
        for seq in range(N_SEQ):
            assert self.memory.length(seq) == self.end(seq)
            assert self.memory.first(seq) == self.starts[seq]
            held = type(self), self.starts[seq], tuple(self.rows[seq])
            if held not in FRESH_DIGESTS:
                FRESH_DIGESTS[held] = self.fresh_digest(*held[1:])
            assert self.memory.digest(seq) == FRESH_DIGESTS[held]

    def fresh_digest(self, start, values):
        fresh = self.make()
        fresh.allow_rewind(DRAFT)
        if values:
            self.append(fresh, 0, start, values)
        return fresh.digest(0)


class PagedMachine(Machine):
    def make(self):
        return PagedKV(ListStore(N_PAGES), N_SEQ, N_CTX, N_PAGES)

    def write(self, memory, seq, begin, values):
        for group in memory.groups:
            for place, value in enumerate(values, begin):
                page, row = group.pages.where(seq, place)
                group.store.pages[page][row] = value

    @rule(grown=st.sets(seqs, min_size=2), n=st.integers(1, 20))
    def grow_together(self, grown, n):
        """Rows of several sequences in one batch; some may share a page."""
        begins = {seq: self.end(seq) for seq in grown}
        try:
            self.memory.reserve({seq: (begin, begin + n) for seq, begin in begins.items()})
        except CapacityError:
            return
        for seq, begin in begins.items():
            values = self.values(n)
            self.write(self.memory, seq, begin, values)
            self.rows[seq] += values

    @precondition(lambda self: any(self.rows))
    @rule(data=st.data())
    def cut_tail(self, data):
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.rows[s]]))
        keep = data.draw(st.integers(0, len(self.rows[seq])))
        try:
            self.memory.rewind(seq, self.starts[seq] + keep)
        except CapacityError:
            self.refused(seq, keep)
            return
        self.rows[seq] = self.rows[seq][:keep]
        if not keep:
            self.starts[seq] = 0

    def refused(self, seq, keep):
        raise AssertionError("pages can be rewound anywhere")

    @precondition(lambda self: any(self.rows))
    @rule(data=st.data(), k=st.integers(1, 8))
    def keep_path(self, data, k):
        seq = data.draw(st.sampled_from([s for s in range(N_SEQ) if self.rows[s]]))
        path = sorted(data.draw(st.sets(st.integers(0, k - 1))))
        begin, values = self.end(seq), self.values(k)
        try:
            self.append(self.memory, seq, begin, values)
        except CapacityError:
            return
        self.memory.keep(seq, begin, path)
        self.rows[seq] += [values[i] for i in path]

    @rule(seq=seqs, new=seqs)
    def dump_and_load(self, seq, new):
        """What was dumped is held by another sequence, while the first one may be gone."""
        if self.rows[new] and new != seq:
            return
        dumped = [b"".join(group.dump(seq)) for group in self.memory.groups]
        if new == seq:
            self.memory.rewind(seq, 0)
        try:
            for group, data in zip(self.memory.groups, dumped, strict=True):
                group.load(new, memoryview(data))
        except CapacityError:
            self.memory.restore(self.saved)
            return
        self.rows[new], self.starts[new] = list(self.rows[seq]), self.starts[seq]
        self.settled[new] = self.settled[seq]
        assert dumped == [b"".join(group.dump(new)) for group in self.memory.groups]

    @invariant()
    def counts_uses(self):
        for pages in (group.pages for group in self.memory.groups):
            held = pages.tables[pages.tables >= 0]
            for page in range(len(pages.uses)):
                assert (held == page).sum() == pages.uses[page]
            assert pages.n_free == (pages.uses == 0).sum()


class WindowedMachine(PagedMachine):
    """Layers without a window beside some of two windows; room runs out with n_ctx alone."""

    windows: ClassVar = (8, 0, 70)

    def __init__(self):
        super().__init__()
        self.longest = [0] * N_SEQ

    def make(self):
        return make_memory(
            [SimpleNamespace(window=window) for window in self.windows],
            lambda layers, n_pages: ListStore(n_pages),
            n_seq=N_SEQ,
            n_ctx=N_LONG,
            n_batch=N_BATCH,
        )

    @rule(seq=seqs, n=st.integers(1, 300))
    def prefill_long(self, seq, n):
        values, begin = self.values(n), self.end(seq)
        if begin + n <= N_LONG:
            self.append(self.memory, seq, begin, values)
            self.rows[seq] += values

    @rule(seq=seqs, new=seqs)
    def fork(self, seq, new):
        """What the one no longer keeps, the other does not either."""
        if seq != new and not self.rows[new]:
            self.longest[new] = self.longest[seq]
        super().fork(seq, new)

    @rule(seq=seqs, new=seqs)
    def dump_and_load(self, seq, new):
        if seq != new and not self.rows[new]:
            self.longest[new] = self.longest[seq]
        super().dump_and_load(seq, new)

    @invariant()
    def remembers_the_longest(self):
        for seq in range(N_SEQ):
            self.longest[seq] = max(self.longest[seq], self.end(seq)) if self.rows[seq] else 0

    def refused(self, seq, keep):
        """Only what lies further back than every draft; taking back twice adds up."""
        assert self.longest[seq] - self.starts[seq] - keep > SPARE


class NarrowMachine(WindowedMachine):
    """A row sees itself only."""

    windows: ClassVar = (1,)


LAYERS = (
    MemoryLayer(layer=0, n_heads=1, k_width=6, v_width=4, latent=True),
    MemoryLayer(layer=1, n_heads=2, k_width=3, v_width=5),
)


def places_of(memory, seq, begin, n):
    """Return pages and rows in them of n places."""
    return tuple(np.array([memory.pages.where(seq, begin + i) for i in range(n)]).T)


class CpuMachine(PagedMachine):
    """Rows of a latent layer and of an ordinary one, as kernels store them."""

    def make(self):
        return PagedKV(CpuStore(LAYERS, N_PAGES, "f32"), N_SEQ, N_CTX, N_PAGES)

    def write(self, memory, seq, begin, values):
        where, values = places_of(memory, seq, begin, len(values)), np.array(values)
        for i, view in enumerate(memory.store._views):
            view[where] = values.reshape(-1, *[1] * (view.ndim - 2)) + i / 4


class ReferenceMachine(PagedMachine):
    def make(self):
        return PagedKV(ReferenceStore(LAYERS, N_PAGES, "f32"), N_SEQ, N_CTX, N_PAGES)

    def write(self, memory, seq, begin, values):
        where, store = places_of(memory, seq, begin, len(values)), memory.store
        rows = np.array(values)[:, None, None]
        store.keys[0][where] = rows  # and with them the latent layer's values
        store.keys[1][where], store.values[1][where] = rows + 1, rows + 2


class CodedCpuMachine(CpuMachine):
    """Codes and their scales; values are small enough for int8."""

    def make(self):
        return PagedKV(CpuStore(LAYERS, N_PAGES, "q8_0"), N_SEQ, N_CTX, N_PAGES)

    def write(self, memory, seq, begin, values):
        super().write(memory, seq, begin, [value % 89 for value in values])


class CodedReferenceMachine(ReferenceMachine):
    def make(self):
        return PagedKV(ReferenceStore(LAYERS, N_PAGES, "q8_0"), N_SEQ, N_CTX, N_PAGES)


class RecurrentMachine(Machine):
    """A state that rejected rows have advanced is restored from snapshots."""

    def make(self):
        return RunningSum(N_SEQ, N_CTX)

    def write(self, memory, seq, begin, values):
        for place, value in enumerate(values, begin):
            memory.write(seq, place, value)


TestPaged = PagedMachine.TestCase
TestWindowed = WindowedMachine.TestCase
TestNarrow = NarrowMachine.TestCase
TestCpu = CpuMachine.TestCase
TestReference = ReferenceMachine.TestCase
TestCodedCpu = CodedCpuMachine.TestCase
TestCodedReference = CodedReferenceMachine.TestCase
TestRecurrent = RecurrentMachine.TestCase


def test_t4_rewind_beyond_the_snapshots_is_refused():
    memory = RunningSum(1, N_CTX)
    memory.allow_rewind(2)
    memory.reserve({0: (0, 8)})
    for place in range(8):
        memory.write(0, place, 1.0)
    memory.reserve({0: (8, 9)})
    memory.rewind(0, 6)
    with pytest.raises(CapacityError, match="snapshot is gone"):
        memory.rewind(0, 4)
    assert memory.length(0) == 6
    with pytest.raises(CapacityError):
        memory.allow_rewind(17)


def windowed(window):
    return make_memory(
        [SimpleNamespace(window=window)],
        lambda layers, n_pages: ListStore(n_pages),
        n_seq=1,
        n_ctx=N_LONG,
        n_batch=N_BATCH,
    )


@pytest.mark.parametrize("window", [1, 8, 70])
def test_spare_rows_are_there_at_every_length(window):
    for length in range(SPARE + 1, SPARE + window + 3 * PAGE):
        memory = windowed(window)
        for at in range(0, length, N_BATCH):
            memory.reserve({0: (at, min(length, at + N_BATCH))})
        memory.reserve({0: (length, length + 1)})
        memory.rewind(0, length + 1)
        memory.rewind(0, length - SPARE)
        assert memory.length(0) == length - SPARE


def test_rows_taken_back_one_after_the_other_add_up():
    memory = windowed(1)
    memory.reserve({0: (0, 2 * PAGE + 1)})
    memory.reserve({0: (2 * PAGE + 1, 2 * PAGE + 2)})
    memory.rewind(0, PAGE + 2)
    with pytest.raises(CapacityError, match="are gone"):
        memory.rewind(0, 2)
    assert memory.length(0) == PAGE + 2


def test_sequences_that_share_a_page_and_grow_together_lose_none():
    memory = PagedKV(ListStore(2), 2, PAGE, 2)
    memory.reserve({0: (0, 10)})
    memory.fork(0, 1)
    memory.reserve({0: (10, 11), 1: (10, 11)})
    assert memory.pages.where(0, 10) != memory.pages.where(1, 10)
    memory.rewind(0, 0)
    memory.rewind(1, 0)
    assert memory.pages.n_free == 2


def test_no_rows_take_no_page():
    memory = PagedKV(ListStore(2), 1, 2 * PAGE, 2)
    memory.reserve({0: (10, 10)})
    assert memory.pages.n_free == 2


def test_full_memory_changes_nothing():
    memory = PagedKV(ListStore(2), 2, N_CTX, 2)
    memory.reserve({0: (0, PAGE + 1)})
    before = memory.digest(0), memory.pages.n_free
    with pytest.raises(CapacityError) as caught:
        memory.reserve({0: (PAGE + 1, PAGE + 2), 1: (0, 1)})
    assert caught.value.got == "0 free"
    with pytest.raises(CapacityError):
        memory.reserve({0: (PAGE + 1, N_CTX + 1)})
    assert (memory.digest(0), memory.pages.n_free) == before
    assert memory.length(0) == PAGE + 1
    assert memory.length(1) == 0
