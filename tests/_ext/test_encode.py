"""Blocks made of values: llama.cpp's bytes, on every instruction set."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mtpcore._ext import _cpu
from mtpcore._ext._encode import encode, encodes
from mtpcore.gguf.types import BLOCKS, dequantize, type_name

KEPT = np.load(Path(__file__).parents[1] / "data" / "llama_cpp" / "encoded.npz")
TYPES = [kind for kind in BLOCKS if encodes(kind)]
each_type = pytest.mark.parametrize("kind", TYPES, ids=type_name)
each_isa = pytest.mark.parametrize("isa", _cpu.available_isas())
finite = st.floats(-(2.0**60), 2.0**60, width=32)


@each_isa
@each_type
@pytest.mark.parametrize("how", ["plain", "weighted"])
def test_blocks_are_those_of_ggml(kind, how, isa):
    """``tools/llama_cpp_encoded.py`` made them."""
    _cpu.use_isa(isa)
    importance = KEPT["importance"] if how == "weighted" else None
    made = encode(KEPT["values"], kind, importance)
    np.testing.assert_array_equal(made, KEPT[f"{how}/{type_name(kind)}"])


@each_type
@searching(25)
@given(data=st.data())
def test_rows_are_the_same_on_every_set_and_beside_others(kind, data):
    n_values = BLOCKS[kind][0]
    shape = data.draw(st.integers(1, 3)), n_values * data.draw(st.integers(1, 3))
    values = data.draw(arrays.arrays(np.float32, shape, elements=finite, fill=finite))
    weights = arrays.arrays(np.float32, shape[1], elements=st.floats(0, 2.0**20, width=32))
    importance = data.draw(st.none() | weights)
    _cpu.use_isa("base")
    wanted = encode(values, kind, importance)
    for isa in _cpu.available_isas():
        _cpu.use_isa(isa)
        np.testing.assert_array_equal(encode(values, kind, importance), wanted)
    for row, blocks in zip(values, wanted, strict=True):
        np.testing.assert_array_equal(encode(row[None], kind, importance)[0], blocks)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@given(values=arrays.arrays(np.float32, (2, 64), elements=st.floats(-8, 8, width=16)))
def test_blocks_are_those_of_the_gguf_package(name, values):
    """Of halves: scales of the smallest values of 32 bits have no inverse, and it then differs."""
    values = values + 0.0  # no zeros with a sign, of which NumPy may take another for the least
    wanted = quants.quantize(values, Type[name])
    np.testing.assert_array_equal(encode(values, Type[name]), wanted)


@each_type
def test_values_come_back(kind):
    """As close as the type's bits allow; closer where a column's weight says so."""
    values = np.random.default_rng(3).standard_normal((16, 512)).astype(np.float32)
    heavy = np.ones(512, np.float32)
    heavy[::8] = 100

    def error(importance):
        made = dequantize(encode(values, kind, importance), kind)
        return np.sqrt(np.mean(np.square(made - values), axis=0))

    plain = error(None)
    bits = 8 * BLOCKS[kind][1] / BLOCKS[kind][0]
    assert plain.mean() < 2.2 * 2.0**-bits * 4
    if type_name(kind) not in ("Q8_0", "MXFP4"):
        assert error(heavy)[::8].mean() < plain[::8].mean()


def test_what_does_not_fit_is_refused():
    rows = np.zeros((2, 256), np.float32)
    for given_, kind, importance in (
        (rows, Type.F16, None),
        (rows, 99, None),
        (rows, -1, None),
        (rows[:, :128].copy(), Type.Q4_K, None),
        (rows, Type.Q4_K, np.ones(255, np.float32)),
    ):
        with pytest.raises(ValueError, match=r"a type|whole blocks|number of weights"):
            encode(given_, kind, importance)
