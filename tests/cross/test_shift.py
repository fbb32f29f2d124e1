"""Dropping tokens in the midst: every role is as a fresh one that was fed what remains."""

from contextlib import nullcontext

import numpy as np
import pytest
from harness import hybrid_family
from harness.families import FAMILIES
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, BatchError, Context, LinkError, Sampling, link, load_model
from mtpcore.testing.deliveries import intercept

SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.3, seed=4),
)


def rounds(cross, seq, k, sampling, n):
    found = []
    for _ in range(n):
        draft = cross.draft(seq, k, sampling)
        found.append((draft, cross.verify({seq: draft}, sampling)[seq].tokens))
        cross.accept(seq)
    return found


def assert_fresh(cross, subject, seq, **options):
    """Digests, and what follows without penalties, are those of a Cross fed the tokens alone."""
    fresh = subject.link(threads=1, n_seq_max=2, **options)
    tokens, pending = cross.tokens(seq), cross.pending(seq)
    fresh.llm.process(Batch.of(tokens, seq=seq))
    assert fresh.digest(seq) == cross.digest(seq)
    return fresh, [*tokens, pending]


@searching(60)
@given(
    subject=st.sampled_from(FAMILIES),
    kv_dtype=st.sampled_from(["f16", "f32", "q8_0"]),
    sampling=st.sampled_from(SAMPLINGS),
    k=st.sampled_from([0, 1, 3]),
    prompt=st.integers(1, 90),
    n=st.integers(0, 4),
    n_batch=st.sampled_from([7, 512]),
    data=st.data(),
)
def test_what_remains_is_all_that_was_seen(
    subject, kv_dtype, sampling, k, prompt, n, n_batch, data
):
    options = {"kv_dtype": kv_dtype, "n_batch": n_batch}
    cross = subject.link(threads=1, n_seq_max=2, **options)
    cross.llm.process(Batch.of(subject.text(prompt), seq=1))
    rounds(cross, 1, k, sampling, n)
    tokens, pending = cross.tokens(1), cross.pending(1)
    keep = data.draw(st.integers(0, len(tokens) - 1), "keep")
    drop = data.draw(st.integers(0, len(tokens) - max(keep, 1)), "drop")
    keep = keep if drop < len(tokens) else 1
    cross.shift(1, keep=keep, drop=drop)
    assert cross.tokens(1) == [*tokens[:keep], *tokens[keep + drop :]]
    assert cross.pending(1) == pending
    fresh, text = assert_fresh(cross, subject, 1, **options)
    if pending is None:
        assert fresh.pending(1, sampling) is not None
    if sampling.repetition_penalty == 1.0:
        if pending is not None:
            fresh.remove(1)
            fresh.llm.process(Batch.of(text[:-1], seq=1))
            fresh.speculation.states[1].set_pending(pending)
        assert rounds(cross, 1, k, sampling, 2) == rounds(fresh, 1, k, sampling, 2)
        assert fresh.digest(1) == cross.digest(1)


@pytest.mark.parametrize(("keep", "drop"), [(0, 10), (3, 20), (60, 4)])
def test_recurrent_layers_begin_anew(keep, drop, tmp_path):
    """Where no state of the place is kept, all that remains is processed again."""
    subject = hybrid_family.subject(tmp_path)
    cross, fresh = (subject.link(threads=1, n_seq_max=2) for _ in range(2))
    cross.llm.process(Batch.of(subject.text(62)))
    rounds(cross, 0, 3, SAMPLINGS[0], 2)
    cross.shift(0, keep=keep, drop=min(drop, cross.llm.length(0) - keep))
    fresh.llm.process(Batch.of(cross.tokens(0)))
    assert cross.digest(0) == fresh.digest(0)


def demo(drafter="auto", **options):
    cross = link(Context(load_model("demo"), 128, n_seq_max=3, threads=1, **options), drafter)
    cross.llm.process(Batch.of(range(1, 81)))
    rounds(cross, 0, 3, SAMPLINGS[1], 2)
    return cross


class Cut(Exception):
    pass


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_shift_that_is_cut_off_changes_nothing(forked, late, monkeypatch):
    """Rows that were written over are there again, also those of pages that are shared."""
    cross = demo()
    if forked:
        cross.fork(0, 1)
    before = cross.save(0)
    others = cross.digest(1)

    def cut(*told):
        raise Cut

    def shift_and_cut(*told):
        type(cross.speculation).shift(cross.speculation, *told)
        raise Cut

    for keep, drop in ((0, 5), (3, 70), (70, 3)):
        with monkeypatch.context() as patched:
            if late:
                patched.setattr(cross.speculation, "shift", shift_and_cut)
            with nullcontext() if late else intercept(cross.llm, cut), pytest.raises(Cut):
                cross.shift(0, keep=keep, drop=drop)
        assert cross.save(0) == before
        assert cross.digest(1) == others
    cross.shift(0, keep=3, drop=70)
    assert cross.digest(1) == others


def test_a_full_context_has_room_for_it():
    """All sequences are full; rows are processed again in the pages that are there."""
    cross = link(Context(load_model("demo"), 64, n_seq_max=2, threads=1))
    text = np.random.default_rng(0).integers(0, 200, 64)
    for seq in (0, 1):
        cross.llm.process(Batch.of(text, seq=seq))
        cross.pending(seq, SAMPLINGS[0])
    for _ in range(2):
        cross.shift(0, keep=2, drop=20)
        cross.shift(1, keep=2, drop=20)
        assert cross.digest(0) == cross.digest(1)
    assert cross.llm.length(0) == 24


def test_the_end_can_be_dropped():
    """Where the newest row's logits are wanted, that row is processed again."""
    cross, fresh = (link(Context(load_model("demo"), 64, threads=1)) for _ in range(2))
    cross.llm.process(Batch.of([1, 2, 3, 4, 5]))
    cross.shift(0, keep=2, drop=3)
    fresh.llm.process(Batch.of([1, 2]))
    assert cross.pending(0, SAMPLINGS[1]) == fresh.pending(0, SAMPLINGS[1])


def test_the_prompt_stays_prompt():
    cross = link(Context(load_model("demo"), 128, threads=1))
    cross.llm.process(Batch.of(range(10)))
    rounds(cross, 0, 3, SAMPLINGS[2], 3)
    cross.shift(0, keep=2, drop=5)
    assert cross.speculation.states[0].n_prompt == 5
    cross.shift(0, keep=1, drop=5)
    assert cross.speculation.states[0].n_prompt == 1


def test_what_is_refused():
    cross = demo()
    before = cross.save(0)
    n = cross.llm.length(0)
    for how in ({"keep": n + 1, "drop": 0}, {"keep": 3, "drop": n - 2}, {"keep": -1, "drop": 0}):
        with pytest.raises(BatchError):
            cross.shift(0, **how)
    with pytest.raises(BatchError, match="nothing would remain"):
        cross.shift(0, keep=0, drop=n)
    assert cross.save(0) == before
    cross.verify({0: [1, 2]}, SAMPLINGS[0])
    with pytest.raises(LinkError, match="undecided"):
        cross.shift(0, keep=1, drop=1)


def test_embedding_rows_can_be_kept_or_dropped_but_not_moved():
    cross = link(Context(load_model("demo"), 128, threads=1))
    rows = np.ones((2, cross.llm.model.hparams.width), np.float32)
    cross.llm.process(Batch.of([5, 6, 7]))
    cross.llm.process(Batch(embeddings=rows, pos=[3, 4]))
    cross.llm.process(Batch.of([8, 9], pos=5))
    with pytest.raises(BatchError, match="embedding rows"):
        cross.shift(0, keep=1, drop=1)
    assert cross.tokens(0) == [5, 6, 7, -1, -1, 8, 9]
    cross.shift(0, keep=5, drop=1)
    assert cross.tokens(0) == [5, 6, 7, -1, -1, 9]
    cross.shift(0, keep=2, drop=3)
    assert cross.tokens(0) == [5, 6, 9]
