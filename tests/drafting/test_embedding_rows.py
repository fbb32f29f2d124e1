"""Rows that wait for a drafter, against a list of what each place holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.drafting.embedding_rows import NO_ROWS, RowChunk

N = 24
actions = st.lists(
    st.tuples(st.sampled_from(["put", "until", "after"]), st.integers(0, N), st.integers(1, 5)),
    max_size=8,
)


@given(actions, st.integers(0, N), st.integers(0, N), st.integers(0, 2**32 - 1))
def test_what_each_place_holds(steps, a, b, seed):
    rng = np.random.default_rng(seed)
    rows, held = NO_ROWS, {}
    for what, place, n in steps:
        if what == "put":
            tokens = rng.integers(-1, 3, n).astype(np.int32)
            embeddings = rng.normal(size=(n, 2)).astype(np.float32)
            positions = rng.integers(0, 99, (n, 3)).astype(np.int32)
            begin = max(place, rows.end)
            begin = place if rng.random() < 0.5 else begin  # over earlier ones, or behind them
            rows = rows.put(RowChunk(begin, tokens, embeddings, positions))
            held = {p: row for p, row in held.items() if p < begin}
            held |= {begin + i: (tokens[i], embeddings[i], positions[i]) for i in range(n)}
        elif what == "until":
            rows, held = rows.until(place), {p: row for p, row in held.items() if p < place}
        else:
            rows, held = rows.after(place), {p: row for p, row in held.items() if p >= place}
    assert rows.end == max(held, default=-1) + 1
    history = rng.integers(0, 9, max(rows.end, N) + 6).astype(np.int32)  # rows may end behind N
    history[np.array([*held], np.intp)] = -1
    places = range(min(a, b), max(a, b))
    found = {}
    for batch in rows.batches(1, history, places):
        assert set(batch.seq.tolist()) == {1}
        assert not batch.outputs.any()
        begin = batch.place if batch.place is not None else int(batch.pos[0])
        for i, token in enumerate(batch.tokens.tolist()):
            assert begin + i not in found
            own = batch.embeddings is not None
            found[begin + i] = (token, batch.embeddings[i], batch.pos[i]) if own else (token,)
    assert list(found) == list(places)
    for place, row in found.items():
        wanted = held.get(place, (history[place],))
        assert all(np.array_equal(one, other) for one, other in zip(row, wanted, strict=True))
    unknown = [p for p in places if p not in held and history[p] < 0]
    assert rows.reach(history, places) == min(unknown, default=places.stop)


@pytest.mark.parametrize("name", ["demo", "demo:deepseek", "demo:mimo"])
def test_a_head_drafts_again_behind_a_first_row_that_it_does_not_read(name):
    """A NextN head has no entry of place 0, so it does not need the row that is gone."""
    tokens, rng = [5, 6, 7], np.random.default_rng(0)
    with load_model(name) as model:
        cross = link(Context(model, 64, threads=1))
        rows = np.zeros((4, model.hparams.width), np.float32)
        rows[0] = rng.normal(size=model.hparams.width)
        cross.llm.process(Batch([-1, *tokens], embeddings=rows))
        cross.pending(0, Sampling.greedy())
        drafts, digest = cross.draft(0, 3), cross.digest(0)
        assert len(drafts) == 3
        for n in (1, 2):
            cross.rollback(0, n)
            cross.llm.process(Batch.of(tokens[n - 1 :], pos=n))
            cross.pending(0, Sampling.greedy())
            assert cross.draft(0, 3) == drafts
            assert cross.digest(0) == digest
        assert cross.paused == 0
