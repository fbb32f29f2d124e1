"""Layers with a sliding window: few pages, the same numbers, no trace of what was rejected."""

import numpy as np
import pytest
from programs import N_VOCAB, trunk

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import CapacityError
from mtpcore.memory import PAGE, SPARE, pages_for
from mtpcore.testing import Runner

WINDOWS = (8, 0, 70)
BACKENDS = {"cpu": CpuBackend, "reference": ReferenceBackend}
DRAFT = 4


@pytest.fixture(scope="module")
def source():
    return trunk(layers=len(WINDOWS), window=WINDOWS, experts=False)


def runner(source, backend="cpu", n_ctx=512, n_batch=64, **settings):
    return Runner(BACKENDS[backend](), *source, n_ctx=n_ctx, n_batch=n_batch, **settings)


def text(n):
    return np.random.default_rng(0).integers(0, N_VOCAB, n)


def feed(one, tokens, seq=0, n_batch=64):
    return np.concatenate(
        [
            one.feed(tokens[at : at + n_batch], seq=seq)["logits"]
            for at in range(0, len(tokens), n_batch)
        ]
    )


@pytest.mark.parametrize(("backend", "n"), [("cpu", 4 * PAGE), ("reference", 2 * PAGE + 20)])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_rewind_across_the_window_edge(source, backend, n, kv_dtype):
    """Drafts at every place, all rejected but some: numbers and state are the plain text's."""
    tokens, rng = text(n), np.random.default_rng(1)
    one = runner(source, backend, kv_dtype=kv_dtype)
    plain = runner(source, backend, kv_dtype=kv_dtype)
    wanted = feed(plain, tokens)
    place = 0
    while place < n:
        right = min(int(rng.integers(0, DRAFT)), n - place - 1)
        drafts = (tokens[place + 1 : place + 1 + right], (tokens[place : place + DRAFT] + 1))
        rows = np.concatenate([tokens[place : place + 1], *drafts])[: 1 + DRAFT] % N_VOCAB
        made = one.feed(rows)["logits"]
        one.memory.rewind(0, place + 1 + right)
        assert np.array_equal(made[: 1 + right], wanted[place : place + 1 + right])
        place += 1 + right
        if place % 16 < DRAFT or place > n - 8:
            fresh = runner(source, backend, kv_dtype=kv_dtype)
            feed(fresh, tokens[:place], n_batch=51)
            assert fresh.memory.digest(0) == one.memory.digest(0)


@pytest.mark.parametrize("n_batch", [1, 37, 512])
def test_rows_of_a_long_batch_see_their_windows(source, n_batch):
    tokens = text(300)
    wanted = feed(runner(source), tokens, n_batch=17)
    made = feed(runner(source, n_batch=512), tokens, n_batch=n_batch)
    assert np.array_equal(made, wanted)


def test_pages_do_not_grow_with_the_text(source):
    one = runner(source, n_ctx=4096, n_seq=2)
    tokens = text(3000)
    for seq in range(2):
        feed(one, tokens, seq)
    full, narrow, wide = one.memory.groups
    assert (narrow.window, wide.window) == (8, 70)
    assert (full.pages.uses > 0).sum() == 2 * -(-len(tokens) // PAGE)
    assert (narrow.pages.uses > 0).sum() <= 2 * 3
    assert (wide.pages.uses > 0).sum() <= 2 * 4
    for group in (narrow, wide):
        assert len(group.pages.uses) == pages_for(group.window, 2, 4096, 64) < 30
    assert one.memory.first(0) == 0


@pytest.mark.parametrize("back", [SPARE + PAGE + 8, 299])
def test_a_rewind_beyond_the_kept_rows_is_refused(source, back):
    one = runner(source)
    tokens = text(300)
    feed(one, tokens, n_batch=20)
    before = one.memory.digest(0)
    with pytest.raises(CapacityError, match=r"sliding window.*\n(.*\n)*.*fix: remove") as caught:
        one.memory.rewind(0, 300 - back)
    assert caught.value.where == f"sequence 0, place {max(300 - back - 8, 0)}"
    assert (one.memory.length(0), one.memory.digest(0)) == (300, before)
    one.memory.rewind(0, 300 - SPARE)
    assert np.array_equal(
        feed(one, tokens[300 - SPARE :]), feed(runner(source), tokens, n_batch=20)[300 - SPARE :]
    )


def test_drafts_longer_than_the_spare_rows_are_refused(source):
    memory = runner(source).memory
    memory.allow_rewind(SPARE)
    assert memory.longest_rewind == SPARE
    with pytest.raises(CapacityError, match="make drafts shorter"):
        memory.allow_rewind(SPARE + 1)
