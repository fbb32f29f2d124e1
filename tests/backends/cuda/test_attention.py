"""Attention and the pages behind it, bit for bit as the definition has them."""

import numpy as np
import pytest
from harness.attentions import (
    ATTENTIONS,
    attention_program,
    attention_tensors,
    fill,
    together,
)
from harness.cuda_definition import definition

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.launch import attention as launching
from mtpcore.backends.cuda.visible import RANGE, visible_of
from mtpcore.backends.reference.attention import visible_places
from mtpcore.errors import BackendError, BatchError
from mtpcore.memory.pages import PageTables
from mtpcore.testing import Runner, Weights

N_QUERIES = 18
"""Query heads: nine share a key head, and three rows a tile."""


def pair(device, name, widths, n_queries=N_QUERIES, **options):
    """Return runners of a layer of attention: on the device, and of its definition."""
    tensors = attention_tensors(widths, n_queries)
    program = attention_program(ATTENTIONS[name], tensors, n_queries)
    options = {"kv_dtype": "f32", "n_ctx": 2 * RANGE, "n_batch": 80, **options}
    return [
        Runner(backend, program, Weights(tensors), **options)
        for backend in (CudaBackend(device), definition())
    ]


def same(made, wanted):
    return made.tobytes() == wanted.tobytes()


CODED = ("causal", "block, window", "cross", "latent", "block, bias", "softcap", "block, alibi")
"""Kinds of which keys and values as codes are looked at: each mask, bias and memory once."""


@pytest.mark.parametrize(
    ("kv_dtype", "widths", "name"),
    [(kv_dtype, widths, name)
     for kv_dtype, widths, names in (
         ("f32", (24, 16), ATTENTIONS), ("f16", (5, 7), ATTENTIONS), ("q8_0", (66, 80), CODED))
     for name in names],
    ids=str,
)  # fmt: skip
def test_attention_of_every_kind(device, name, kv_dtype, widths):
    is_cross = name == "cross"
    n_batch = RANGE + 80 if is_cross else 80
    runners = pair(device, name, widths, kv_dtype=kv_dtype, n_batch=n_batch)
    rng = np.random.default_rng(8)
    if is_cross:
        rows = rng.normal(size=(RANGE + 75, 32)).astype(np.float32)
        with pytest.raises(BatchError, match="nothing to attend to"):
            runners[0].feed([1], seq=1)
        for runner in runners:
            runner.memory.rewind(1, 0)
            runner.deliver(1, rows=rows)
    for n in (1, 3, 66, 9):
        tokens = rng.integers(0, 20, n)
        place = RANGE - 30 if n == 1 else None  # places below the first do not exist
        made, wanted = (r.feed(tokens, seq=1, place=place)["y"] for r in runners)
        assert same(made, wanted)
    assert runners[0].memory.digest(1) == runners[1].memory.digest(1)


@pytest.mark.parametrize("v_width", [64, 128, 200, 300, 600])
def test_values_of_every_width(device, v_width):
    runners = pair(device, "causal", (8, v_width))
    assert same(*(r.feed([3, 1, 4, 1])["y"] for r in runners))


def test_values_that_are_too_wide(emulated):
    with pytest.raises(BackendError, match="too wide"):
        pair(emulated, "causal", (8, 1025))


@pytest.mark.parametrize("name", ["causal", "sinks", "window"])
def test_sums_of_ranges_are_taken_together(device, monkeypatch, name):
    """Of all rows at once, and of a few in each go; a window begins in the middle of a range."""
    runners, n = pair(device, name, (4, 3), n_ctx=5 * RANGE), 4 * RANGE - 2
    for runner in runners:
        fill(runner, n)
    for most in (launching._MOST_SUMS, 1):
        monkeypatch.setattr(launching, "_MOST_SUMS", most)
        made, wanted = (r.feed([3, 1, 4, 1])["y"] for r in runners)
        assert same(made, wanted)
        for runner in runners:
            runner.memory.rewind(0, n)


@pytest.mark.parametrize("n_queries", [2, 6, 70], ids=lambda n: f"{n // 2} to a key head")
def test_tiles_of_any_rows(device, n_queries):
    """A row alone, and in tiles with rows of its own and of other sequences."""
    runners = pair(device, "window", (4, 8), n_queries, n_batch=160)
    for runner in runners:
        fill(runner, RANGE - 20)
    rng = np.random.default_rng(6)
    for n in (61, 1, 150):
        tokens, seqs = rng.integers(0, 20, n), rng.integers(0, 3, n)
        made, wanted = (together(r, tokens, seqs) for r in runners)
        assert same(made, wanted)
    assert [runners[0].memory.digest(seq) for seq in range(3)] == [
        runners[1].memory.digest(seq) for seq in range(3)
    ]


WAYS = {"large tiles": (0, 1 << 30), "one query": (1 << 30, 1 << 30), "own ranges": (128, 1)}


@pytest.mark.parametrize(
    ("way", "name", "kv_dtype", "widths"),
    [("large tiles", "sinks", "f16", (136, 64)), ("large tiles", "causal", "q8_0", (160, 64)),
     ("large tiles", "latent", "f16", (144, 128)), ("one query", "window", "f32", (8, 132)),
     ("own ranges", "bias", "q8_0", (16, 192)), ("own ranges", "latent", "f16", (144, 128)),
     ("own ranges", "window", "f16", (136, 65))],
)  # fmt: skip
def test_how_queries_and_ranges_are_shared_out_changes_no_bit(
    device, monkeypatch, way, name, kv_dtype, widths
):
    """Rows of several sequences, one of which begins a range among them."""
    for limit, n in zip(("_FEW_BLOCKS", "_MANY_BLOCKS"), WAYS[way], strict=True):
        monkeypatch.setattr(launching, limit, n)
    runners = pair(device, name, widths, 12, kv_dtype=kv_dtype, n_batch=RANGE)
    runners[1].feed(np.arange(RANGE - 3) % 20)
    stored, read = (runner.memory.groups[0] for runner in runners)
    stored.load(0, memoryview(b"".join(read.dump(0))))
    for n in (1, 7):
        made, wanted = (together(r, np.arange(n), np.arange(n) // 5) for r in runners)
        assert same(made, wanted)


@pytest.mark.parametrize(
    ("asked", "tile"),
    [((16, 1, 4, 64), (1, 1)), ((16, 8, 4, 64), (2, 4)), ((16, 8, 4, 32), (1, 4)),
     ((16, 512, 4, 8), (4, 4)), ((16, 1, 128, 1), (1, 1)), ((8, 3, 16, 64), (1, 8)),
     ((16, 1, 1, 1), (1, 1))],
)  # fmt: skip
def test_tiles_are_smaller_where_there_are_few(asked, tile):
    """Of so many queries at most, for rows, heads that share a key head, key heads and ranges."""
    assert launching._tile_for(*asked) == launching._Tile(*tile)


@pytest.mark.parametrize(
    ("asked", "n_tiles"),
    [((512, 65536, 1, 256), 1), ((128, 512, 8, 32), 1), ((128, 512, 8, 0), 1),
     ((128, 512, 8, 256), 4), ((128, 128, 8, 256), 8), ((96, 192, 4, 256), 8)],
)  # fmt: skip
def test_as_few_tiles_are_joined_as_make_whole_blocks(asked, n_tiles):
    """Of values of a tile's heads, of a key head's, key heads, and codes of a block."""
    assert launching._n_joined(*asked) == n_tiles


def test_a_lone_row_has_no_takers_but_one(emulated, monkeypatch):
    grids, launch = [], launching.Launch

    def note(kernel, grid, *rest, **options):
        if kernel.name == "attention":
            grids.append(grid)
        return launch(kernel, grid, *rest, **options)

    runner, _ = pair(emulated, "causal", (8, 16), 2, n_ctx=RANGE)
    monkeypatch.setattr(launching, "Launch", note)
    runner.feed([3])
    assert grids == [(2, 1)]  # two key heads, one range


def test_window_s_rows_in_two_ranges(device):
    """Rows of a tile begin in different ranges, and end in different ones."""
    runners = pair(device, "window", (4, 3), 2)
    for runner in runners:
        fill(runner, RANGE + 21)  # a window of 37
    made, wanted = (r.feed(np.arange(40) % 20)["y"] for r in runners)
    assert same(made, wanted)


@pytest.mark.parametrize("place", [62, RANGE - 2])
@pytest.mark.parametrize("name", ["window", "sinks"])
def test_rows_of_a_tree_see_their_path(device, name, place):
    """From the end of a page on, and from that of a range."""
    runners = pair(device, name, (24, 16), kv_dtype="f16", n_batch=RANGE)
    for runner in runners:
        runner.feed(np.arange(place) % 20)
    parent = [-1, 0, 0, 1, 3, -1, 5, 4]
    made, wanted = (r.feed(np.arange(8), parent=parent)["y"] for r in runners)
    assert same(made, wanted)
    for runner in runners:
        runner.memory.keep(0, place, [0, 1, 3, 4, 7])
    assert runners[0].memory.digest(0) == runners[1].memory.digest(0)
    assert same(*(r.feed([7])["y"] for r in runners))


@pytest.mark.parametrize("mask", ["causal", "block", "spans"])
@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize("is_tree", [False, True])
def test_visible_places_are_those_of_the_definition(mask, window, is_tree):
    if is_tree and mask != "causal":
        pytest.skip("trees have no other masks")
    pages = PageTables(3, 256, 12, lambda src, dst: None)
    pages.reserve({0: (3, 40), 2: (0, 12)})
    pages.rewind(0, 36)
    pages.reserve({0: (36, 40)})
    batch = CheckedBatch(
        tokens=np.zeros(7, np.int32),
        positions=np.zeros((7, 1), np.int32),
        seq=np.array([0, 2, 0, 0, 2, 0, 2], np.int32),
        place=np.array([36, 9, 37, 38, 10, 39, 11], np.int32),
        outputs=np.zeros(0, np.int32),
        parent=np.array([-1, -1, 0, 0, 1, 3, -1], np.int32) if is_tree else None,
        until=None if is_tree else np.array([38, 12, 38, 40, 12, 40, 12], np.int32),
    )

    class Memory:
        def __init__(self):
            self.pages = pages

        def length(self, seq):
            return pages.length.item(seq)

    for t, (begin, end, base, own) in enumerate(visible_of(batch, pages, mask, window).tolist()):
        seen = []
        for number in range(begin, end):
            row = t
            for _ in range(end - 1 - number if number >= base else 0):
                row = batch.parent[row]
            seen.append(number if number < base else batch.place.item(row))
        assert seen == visible_places(batch, t, Memory(), mask, window).tolist()
        assert own == (batch.place[t] if mask == "block" else end - 1)
