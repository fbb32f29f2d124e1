"""Rows of tables bit for bit as their types define them."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness.cuda_steps import carry_out, matrix
from harness.generated import NATIVE, random_matrix

from mtpcore.backends.cuda.launch.embedding import LAUNCHERS
from mtpcore.backends.reference import formulas

N_ROWS, WIDTH = 42, 512


@pytest.fixture(scope="module", params=NATIVE)
def table(request):
    raw = random_matrix(np.random.default_rng(0), request.param, N_ROWS, WIDTH)
    return request.param, raw, quants.dequantize(raw, Type[request.param])


def looked_up(device, op, table, inputs, **attrs):
    kind, raw, _ = table
    w = matrix(device, kind, raw, (N_ROWS, WIDTH))
    (made,) = carry_out(device, LAUNCHERS[op], inputs, [w], ((WIDTH,), np.float32), **attrs)
    return made


def ints(*values):
    return np.array(values, np.int32)


def test_tokens(device, table):
    """The last row of a tile of 16, rows of the tile that is not full, and rows given instead."""
    tokens = ints(0, 15, -1, 41, 16, 7, -1)
    given = np.random.default_rng(1).normal(size=(len(tokens), WIDTH)).astype(np.float32)
    made = looked_up(device, "embed", table, [tokens, given], scale=1.0, absent=-1)
    wanted = np.where((tokens < 0)[:, None], given, table[2][tokens])
    assert made.tobytes() == wanted.tobytes()
    made = looked_up(device, "embed", table, [tokens], scale=3.7, absent=9)
    wanted = [formulas.embed(t, table[2], scale=3.7, absent=9) for t in tokens]
    assert made.tobytes() == np.stack(wanted).tobytes()


@pytest.mark.parametrize(("n_parts", "n_first"), [(6, 0), (5, 10), (1, 42)])
def test_tokens_by_position(device, table, n_parts, n_first):
    """Equal parts, and a first one that is larger: other parts lack its last tokens."""
    tokens, positions = ints(0, 6, 9, -1, 3, 9), np.zeros((6, 2), np.int32)
    positions[:, 0] = 0, 2, 7, 4, 99, 1
    given = np.ones((6, WIDTH), np.float32)
    attrs = {"n_parts": n_parts, "first": 2, "n_first": n_first}
    made = looked_up(device, "embed_by_position", table, [tokens, positions, given], **attrs)
    wanted = [
        formulas.embed_by_position(t, p, row, table[2], **attrs)
        for t, p, row in zip(tokens, positions, given, strict=True)
    ]
    assert made.tobytes() == np.stack(wanted).tobytes()


def test_positions(device, table):
    positions = ints(0, 15, 41, 42, 99)[:, None]
    made = looked_up(device, "embed_positions", table, [positions])
    wanted = [formulas.embed_positions(row, table[2]) for row in positions]
    assert made.tobytes() == np.stack(wanted).tobytes()


@pytest.mark.parametrize("n_first", [0, 12])
def test_codes(device, table, n_first):
    codes = np.array([[0, 13, 5], [-1, 2, 99], [-1, -1, 14], [13, 14, 13]], np.int32)
    made = looked_up(device, "embed_codes", table, [codes], n_first=n_first)
    wanted = [formulas.embed_codes(row, table[2], n_first=n_first) for row in codes]
    assert made.tobytes() == np.stack(wanted).tobytes()


def test_ids(device, table):
    ids = np.array([[0, 13, 5], [14, 14, 1]], np.int32)
    kind, raw, _ = table
    w = matrix(device, kind, raw, (N_ROWS, WIDTH))
    out = (3, WIDTH), np.float32
    (made,) = carry_out(device, LAUNCHERS["embed_ids"], [ids], [w], out)
    assert made.tobytes() == np.stack([formulas.embed_ids(row, table[2]) for row in ids]).tobytes()


def test_embedding_rows(device):
    tokens = ints(3, -1, 0, -1)
    given = np.random.default_rng(1).normal(size=(4, WIDTH)).astype(np.float32)
    given[0] = np.nan  # what stands where a token does is not read
    out = (WIDTH,), np.float32
    (made,) = carry_out(device, LAUNCHERS["embedding_rows"], [tokens, given], [], out)
    wanted = [formulas.embedding_rows(t, row) for t, row in zip(tokens, given, strict=True)]
    assert made.tobytes() == np.stack(wanted).tobytes()
