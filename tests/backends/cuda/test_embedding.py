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


def test_tokens_by_position(device, table):
    tokens, positions = ints(0, 6, 5, -1, 3), np.array([[0, 9], [3, 9], [7, 9], [4, 9], [99, 9]])
    given = np.ones((5, WIDTH), np.float32)
    positions = positions.astype(np.int32)
    made = looked_up(
        device, "embed_by_position", table, [tokens, positions, given], n_parts=6, first=2
    )
    wanted = [
        formulas.embed_by_position(t, p, row, table[2], n_parts=6, first=2)
        for t, p, row in zip(tokens, positions, given, strict=True)
    ]
    assert made.tobytes() == np.stack(wanted).tobytes()


def test_codes(device, table):
    codes = np.array([[0, 13, 5], [-1, 2, 99], [-1, -1, 14]], np.int32)
    made = looked_up(device, "embed_codes", table, [codes])
    wanted = [formulas.embed_codes(row, table[2]) for row in codes]
    assert made.tobytes() == np.stack(wanted).tobytes()
