"""Ordinary batches are placed in one compiled pass, exactly as the close look places them."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext._rows import place_rows
from mtpcore.errors import BatchError
from mtpcore.runtime.admission import Admission
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.sequences import Sequences

N_SEQ, N_CTX, N_VOCAB = 3, 12, 5


def admission_of(lengths, starts_late):
    sequences = Sequences(N_SEQ, None)
    sequences.lengths[:] = lengths
    program = SimpleNamespace(
        name="toy",
        n_axes=1,
        slots=dict,
        whole_slot=None,
        n_codes=0,
        n_per_codebook=(),
        n_tokens_at=lambda positions: None,
    )
    return Admission(program, sequences, n_vocab=N_VOCAB, n_ctx=N_CTX, starts_late=starts_late)


@st.composite
def batches(draw, lengths):
    """Rows that mostly continue their sequences, in any order; some do not."""
    begins = dict(enumerate(lengths))
    if 0 in lengths and draw(st.booleans()):
        begins[lengths.index(0)] = 2  # where only a drafter may begin
    seqs = draw(st.lists(st.integers(0, N_SEQ - 1), min_size=1, max_size=10))
    pos = []
    for s in seqs:
        pos.append(begins[s])
        begins[s] += 1
    tokens = draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=len(seqs), max_size=len(seqs)))
    spoilt = draw(st.sampled_from(["", "", "seq", "pos", "token"]))
    at, wrong = (
        draw(st.integers(0, len(seqs) - 1)),
        draw(st.sampled_from([-1, 1, 5, 12, 2**31 - 1])),
    )
    if spoilt:
        {"seq": seqs, "pos": pos, "token": tokens}[spoilt][at] = wrong
    outputs = draw(st.lists(st.booleans(), min_size=len(seqs), max_size=len(seqs)))
    return Batch(tokens, seq=seqs, pos=pos, outputs=outputs)


@searching(600)
@given(
    st.data(),
    st.lists(st.sampled_from([0, 1, 4, 11]), min_size=N_SEQ, max_size=N_SEQ),
    st.booleans(),
)
def test_the_quick_way_is_the_close_look(data, lengths, is_drafter):
    admission = admission_of(lengths, is_drafter)
    batch = data.draw(batches(lengths))
    try:
        wanted = admission._look_closer(batch)
    except BatchError:
        assert admission._chains(batch) is None
        return
    place, ranges, groups, outputs = admission._chains(batch)
    assert place.dtype == outputs.dtype == np.int32
    assert place.tolist() == wanted[0].tolist()
    assert ranges == wanted[1]
    assert {s: mine.tolist() for s, mine in groups.items()} == {
        s: mine.tolist() for s, mine in wanted[2].items()
    }
    assert outputs.tolist() == wanted[3].tolist()


@pytest.fixture
def _collecting_often():
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    yield
    gc.callbacks.clear()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("_collecting_often")
@pytest.mark.parametrize("at", range(12))
def test_outputs_that_are_asked_for_meanwhile_are_read_once(at):
    """Where memory is taken garbage may be collected, by code of anybody (CPython 3.11)."""
    n = 16
    asked, order = np.zeros(n, bool), np.arange(n, dtype=np.int32)
    begun = []

    def ask(phase, info):
        begun.append(phase)
        if len(begun) == at:
            asked[:] = True

    gc.callbacks.append(ask)
    placed = place_rows(order, order % 8, order // 8, asked, [0] * 8, n, n, False)
    gc.callbacks.pop()
    assert placed is not None
    outputs = placed[3].tolist()
    assert outputs == [*range(n - len(outputs), n)]
