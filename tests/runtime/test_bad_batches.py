"""Batches that no model could process: an error with its facts, and every role as before."""

import numpy as np
import pytest
import toy
from harness.hashed import N_VOCAB, WIDTH
from harness.scripted import cross_of
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.errors import BackendError, BatchError, CapacityError, LinkError, MtpcoreError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

N_CTX, N_SEQ = 90, 4
NAN = np.full((2, WIDTH), np.nan)

# What no Batch can be made of.
MALFORMED = {
    "nothing": {},
    "float tokens": {"tokens": [1.0, 2.0]},
    "bool tokens": {"tokens": [True, False]},
    "texts": {"tokens": ["1"]},
    "None": {"tokens": [None]},
    "ragged tokens": {"tokens": [[1, 2], [3]]},
    "two axes of tokens": {"tokens": [[1, 2]]},
    "a lone token": {"tokens": 3},
    "token beyond 32 bits": {"tokens": [2**31]},
    "token beyond 64 bits": {"tokens": [2**64]},
    "token below 32 bits": {"tokens": [-(2**31) - 1]},
    "short positions": {"tokens": [1, 2], "pos": [0]},
    "three axes of positions": {"tokens": [1], "pos": [[[0]]]},
    "float positions": {"tokens": [1], "pos": [0.0]},
    "position beyond 32 bits": {"tokens": [1, 2], "pos": 2**31 - 1},
    "short sequence ids": {"tokens": [1, 2], "seq": [0]},
    "a float sequence id": {"tokens": [1], "seq": 0.0},
    "short outputs": {"tokens": [1, 2], "outputs": [True]},
    "ragged outputs": {"tokens": [1, 2], "outputs": [[True], [True, False]]},
    "outputs as numbers": {"tokens": [1, 2], "outputs": [0, 1]},
    "unknown outputs": {"tokens": [1, 2], "outputs": "first"},
    "parent of itself": {"tokens": [1, 2], "parent": [-1, 1]},
    "parent after": {"tokens": [1, 2], "parent": [1, -1]},
    "parent before all": {"tokens": [1, 2], "parent": [-1, -2]},
    "parent in another sequence": {"tokens": [1, 2], "seq": [0, 1], "parent": [-1, 0]},
    "short parents": {"tokens": [1, 2], "parent": [-1]},
    "float parents": {"tokens": [1, 2], "parent": [-1.0, 0.0]},
    "NaN embeddings": {"embeddings": NAN},
    "infinite embeddings": {"embeddings": np.full((1, WIDTH), np.inf)},
    "embeddings that overflow": {"embeddings": np.full((1, WIDTH), 1e300)},
    "one axis of embeddings": {"embeddings": np.zeros(WIDTH)},
    "complex embeddings": {"embeddings": np.zeros((1, WIDTH), complex)},
    "ragged embeddings": {"embeddings": [[1.0], [1.0, 2.0]]},
    "too few embeddings": {"tokens": [1, 2], "embeddings": np.zeros((1, WIDTH))},
    "NaN slot": {"tokens": [1, 2], "slots": {"hidden": NAN}},
    "short slot": {"tokens": [1, 2], "slots": {"hidden": np.zeros((1, WIDTH))}},
    "one axis of slot rows": {"tokens": [1, 2], "slots": {"hidden": np.zeros(2)}},
}
# What a linked context with 5 rows in sequence 0 and 3 in sequence 2 refuses.
REFUSED = {
    "empty": {"tokens": []},
    "token -1": {"tokens": [1, -1], "pos": 5},
    "token beyond the vocabulary": {"tokens": [N_VOCAB], "pos": 5},
    "sequence -1": {"tokens": [1], "seq": -1},
    "sequence beyond": {"tokens": [1, 1], "seq": [1, N_SEQ]},
    "position again": {"tokens": [1], "pos": 4},
    "position left out": {"tokens": [1], "pos": 6},
    "position of another sequence": {"tokens": [1, 1], "seq": [0, 2], "pos": [5, 5]},
    "position twice": {"tokens": [1, 1], "pos": [5, 5]},
    "positions in reverse": {"tokens": [1, 1], "pos": [6, 5]},
    "negative position": {"tokens": [1], "seq": 1, "pos": -1},
    "lowest position": {"tokens": [1], "seq": 1, "pos": -(2**31)},
    "position beyond the context": {"tokens": [1], "seq": 1, "pos": N_CTX},
    "highest positions": {"tokens": [1, 1], "seq": 1, "pos": [2**31 - 1, 2**31 - 1]},
    "longer than the context": {"tokens": [1] * 86, "pos": 5},
    "two axes of positions": {"tokens": [1], "pos": [[5, 5]]},
    "a tree's positions in a chain": {"tokens": [1, 2, 3], "pos": 5, "parent": [-1, -1, 0]},
    "a tree in a linked context": {"tokens": [1, 2], "pos": [5, 5], "parent": [-1, -1]},
    "embeddings the graph does not take": {"embeddings": np.zeros((1, WIDTH)), "pos": 5},
    "a slot the graph does not have": {
        "tokens": [1],
        "pos": 5,
        "slots": {"hidden": np.zeros((1, 4))},
    },
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_batches(name):
    with pytest.raises(BatchError) as caught:
        Batch(**MALFORMED[name])
    assert caught.value.what
    assert caught.value.got is not None or caught.value.fix or caught.value.where


@pytest.fixture
def cross():
    made, _ = cross_of("head", n_ctx=N_CTX, n_seq_max=N_SEQ)
    made.llm.process(Batch.of([1, 2, 3, 4, 5]))
    made.llm.process(Batch.of([7, 8, 9], seq=2))
    return made


def state(cross):
    return [
        (
            cross.digest(s),
            cross.tokens(s),
            cross.pending(s),
            [c.length(s) for c in cross.contexts.values()],
        )
        for s in range(N_SEQ)
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_batches_change_nothing(cross, name):
    batch, before = Batch(**REFUSED[name]), state(cross)
    with pytest.raises((BatchError, CapacityError, LinkError)) as caught:
        cross.llm.process(batch)
    assert caught.value.what
    assert caught.value.got is not None or caught.value.fix or caught.value.where
    assert state(cross) == before
    cross.llm.process(Batch.of([6], pos=5))
    assert cross.pending(0, Sampling.greedy()) is not None


def test_what_is_no_batch(cross):
    with pytest.raises(BatchError, match="takes a Batch"):
        cross.llm.process([1, 2])


wild = st.one_of(
    st.integers(-3, 8),
    st.sampled_from([-(2**31), 2**31 - 1, 2**31, 2**70, 1.0, True, None, N_CTX - 1, N_CTX]),
)


@given(
    tokens=st.lists(wild, max_size=4),
    seq=st.one_of(wild, st.lists(wild, max_size=4)),
    pos=st.one_of(wild, st.lists(wild, max_size=4)),
    parent=st.one_of(st.none(), st.lists(wild, max_size=4)),
    outputs=st.sampled_from(["all", "last", "none", "some", [True], [True, False]]),
)
def test_any_batch_is_processed_or_refused_without_a_trace(tokens, seq, pos, parent, outputs):
    cross, _ = cross_of("head", n_ctx=N_CTX, n_seq_max=N_SEQ)
    cross.llm.process(Batch.of([1, 2]))
    before = state(cross)
    try:
        batch = Batch(tokens, seq=seq, pos=pos, parent=parent, outputs=outputs)
        made = cross.llm.process(batch)
    except MtpcoreError:
        assert state(cross) == before
    else:
        assert len(made.seq) == len(tokens)
        assert state(cross) != before


ACTS = {
    "draft of no sequence": lambda c: c.draft(N_SEQ, 1),
    "draft of a bool": lambda c: c.draft(True, 1),
    "negative draft": lambda c: c.draft(0, -1),
    "half a draft": lambda c: c.draft(0, 1.5),
    "draft of an empty sequence": lambda c: c.draft(1, 2),
    "settings that are missing": lambda c: c.draft({0: 1, 2: 1}, sampling={0: Sampling.greedy()}),
    "unknown draft sampler": lambda c: c.draft(0, 2, draft_sampler="best"),
    "verify -1": lambda c: c.verify({0: [1, -1]}),
    "verify beyond": lambda c: c.verify({0: [N_VOCAB]}),
    "verify a float": lambda c: c.verify({0: [1.0]}),
    "verify too much": lambda c: c.verify({0: [1] * N_CTX}),
    "verify an empty sequence": lambda c: c.verify({0: [1], 1: []}),
    "verify and prefill": lambda c: c.verify({0: []}, prefill={0: [1]}),
    "prefill beyond": lambda c: c.verify({0: []}, prefill={1: [N_VOCAB]}),
    "accept before verify": lambda c: c.accept(0),
    "rollback beyond": lambda c: c.rollback(0, 6),
    "rollback to a float": lambda c: c.rollback(0, 1.0),
    "rollback to a bool": lambda c: c.rollback(0, True),
    "rollback of no sequence": lambda c: c.rollback(-1, 0),
    "fork to itself": lambda c: c.fork(0, 0),
    "fork onto another": lambda c: c.fork(0, 2),
    "fork from nowhere": lambda c: c.fork(-1, 1),
    "fork to nowhere": lambda c: c.fork(0, N_SEQ),
    "remove nothing": lambda c: c.remove(1.0),
    "rewind one role": lambda c: c.llm.rewind(0, 1),
    "remove in one role": lambda c: c.contexts["draft"].remove(0),
    "fork one role": lambda c: c.llm.fork(0, 1),
    "feed NaN": lambda c: c.feed("llm", "hidden", 0, 5, NAN),
    "feed one axis": lambda c: c.feed("llm", "hidden", 0, 5, NAN[0]),
    "feed texts": lambda c: c.feed("llm", "hidden", 0, 5, [["a"]]),
    "feed another width": lambda c: c.feed("llm", "hidden", 0, 5, np.zeros((1, 3))),
    "feed with a gap": lambda c: c.feed("llm", "hidden", 0, 7, np.zeros((1, WIDTH))),
    "feed at a negative place": lambda c: c.feed("llm", "hidden", 1, -1, np.zeros((1, WIDTH))),
    "feed at half a place": lambda c: c.feed("llm", "hidden", 1, 0.5, np.zeros((1, WIDTH))),
    "feed an unread tap": lambda c: c.feed("llm", "residual", 0, 5, np.zeros((1, WIDTH))),
    "feed no sequence": lambda c: c.feed("llm", "hidden", 9, 5, np.zeros((1, WIDTH))),
}


@pytest.mark.parametrize("name", ACTS)
def test_acts_that_are_refused_change_nothing(cross, name):
    for seq in (0, 2):
        cross.pending(seq, Sampling.greedy())
    before = state(cross)
    with pytest.raises((BatchError, LinkError, CapacityError)) as caught:
        ACTS[name](cross)
    assert caught.value.what
    assert state(cross) == before
    cross.verify({0: cross.draft(0, 3), 2: []})


def test_acts_of_a_free_context_check_too(tmp_path):
    context = Context(toy.load(tmp_path, toy.trunk_tensors()), 32, n_seq_max=2, backend="reference")
    context.process(Batch.of([1, 2, 3]))
    for act in (
        lambda: context.rewind(0, 4),
        lambda: context.rewind(0, 1.5),
        lambda: context.rewind(0, True),
        lambda: context.rewind(2, 0),
        lambda: context.fork(-1, 1),
        lambda: context.fork(0, 2),
        lambda: context.fork(0, 0),
        lambda: context.keep(0, [0]),
        lambda: context.length(1.0),
        lambda: context.digest("0"),
    ):
        with pytest.raises(BatchError):
            act()
        assert context.length(0) == 3
        assert context.length(1) == 0


def test_a_batch_is_a_copy():
    tokens, seq = np.array([1, 2], np.int32), np.array([0, 1], np.int32)
    batch = Batch(tokens, seq=seq)
    tokens[:], seq[:] = -7, 99
    assert batch.tokens.tolist() == [1, 2]
    assert batch.seq.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("column", "kind"),
    [("tokens", np.float32), ("seq", np.int64), ("pos", ">i4"), ("outputs", np.uint8)],
)
def test_a_column_of_another_type_is_refused(cross, column, kind):
    batch, before = Batch.of([1], pos=5), state(cross)
    setattr(batch, column, getattr(batch, column).astype(kind))
    with pytest.raises(BackendError) as caught:
        cross.llm.process(batch)
    assert caught.value.got == f"{np.dtype(kind)}[1]"
    assert state(cross) == before
