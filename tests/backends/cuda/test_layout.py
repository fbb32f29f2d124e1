"""Packed matrices hold the numbers that gguf reads from the file."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness.generated import FLOATS, NATIVE, QUANTISED, random_matrix

from mtpcore.backends.cuda.layout import FORMATS, NATIVE_TYPES, pack
from mtpcore.errors import BackendError

SHAPE = (2, 37, 512)


def codes_of(packed, layout):
    """Return codes [tiles, 16, columns] as the kernel's bit operations find them in lanes."""
    low, high = packed.low, packed.high
    low_bits, high_bits = layout.widths
    n_tiles, n_steps = low.shape[:2]
    codes = np.zeros((n_tiles, 16, n_steps * 32), np.int64)
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for register in range(4):
            row, first = g + register % 2 * 8, register // 2 * 16 + 4 * q
            for byte in range(4):
                if low_bits == 8:
                    code = low[:, :, lane, 4 * register + byte].view(np.int8).astype(np.int64)
                elif layout.table:
                    at = register % 2 * 4 + register // 2 * 2 + byte // 2
                    code = low[:, :, lane, at].astype(np.int64) >> byte % 2 * 4 & 15
                elif low_bits == 4:
                    word = low[:, :, lane, register % 2 * 4 + byte].astype(np.int64)
                    code = word >> register // 2 * 4 & 15
                else:
                    code = low[:, :, lane, byte].astype(np.int64) >> 2 * register & 3
                if high_bits == 2:
                    upper = high[:, :, lane, byte].astype(np.int64) >> 2 * register & 3
                elif high_bits == 1:
                    bit = byte // 2 * 4 + register
                    upper = high[:, :, lane, byte % 2].astype(np.int64) >> bit & 1
                else:
                    upper = 0
                codes[:, row, first + byte :: 32] = code | upper << low_bits
    return codes


def values_of(packed, layout):
    """Return the packed weights as float64."""
    codes = codes_of(packed, layout)
    table = np.array(layout.table)
    whole = (table[codes] if layout.table else codes - layout.offset).astype(np.float64)
    n_blocks = packed.scales.shape[1]
    blocks = whole.reshape(*whole.shape[:2], n_blocks, layout.block)
    scales = np.moveaxis(packed.scales, 3, 1)  # tiles, rows, blocks, scales
    if layout.exponents:
        scales = np.ldexp(1.0, scales.astype(np.int64) - 128)
    else:
        scales = scales.view(np.float16).astype(np.float64)
    sets = () if packed.factors is None else np.moveaxis(packed.factors, 2, 0)
    spread = [np.repeat(np.swapaxes(part, 1, 2), layout.sub, axis=-1) for part in sets]
    if layout.nibbles:
        factors, minima = spread[0] & 15, spread[0] >> 4
    else:
        factors = spread[0].view(np.int8) if spread else 1
        minima = spread[1] if len(spread) > 1 else -1
    values = scales[..., :1] * (factors * blocks)
    if layout.minima:
        values = values - scales[..., 1:] * minima
    return values.reshape(*whole.shape)


@pytest.mark.parametrize("kind", QUANTISED)
def test_lanes_hold_what_the_file_holds(kind):
    n_matrices, n_rows, n_cols = SHAPE
    raw = random_matrix(np.random.default_rng(0), kind, *SHAPE)
    packed = pack(raw.reshape(-1), int(Type[kind]), SHAPE)
    values = values_of(packed, FORMATS[Type[kind]]).reshape(n_matrices, -1, n_cols)
    wanted = quants.dequantize(raw, Type[kind])
    # gguf rounds to float32 after each product.
    assert np.allclose(values[:, :n_rows], wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
    assert not values[:, n_rows:].any()
    bytes_of_file = raw.nbytes * (values.shape[1] / n_rows)
    planes = (packed.low, packed.high, packed.factors, packed.scales)
    assert sum(plane.nbytes for plane in planes if plane is not None) <= 1.04 * bytes_of_file


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("n_cols", [4, 7, 512])
def test_float_rows_are_filled_up(kind, n_cols):
    raw = random_matrix(np.random.default_rng(1), kind, 5, n_cols).reshape(5, -1)
    packed = pack(raw.reshape(-1), int(Type[kind]), (5, n_cols))
    assert (packed.low[:, : raw.shape[1]] == raw).all()
    assert not packed.low[:, raw.shape[1] :].any()
    assert packed.low.shape[1] % (4 * raw.shape[1] // n_cols) == 0


def test_types_are_those_of_the_cpu():
    assert {Type(kind).name for kind in NATIVE_TYPES} == set(NATIVE)


@pytest.mark.parametrize(("kind", "n_cols"), [("IQ2_XS", 256), ("Q4_K", 128)])
def test_matrix_without_kernel_is_named(kind, n_cols):
    with pytest.raises(BackendError, match="no CUDA kernel for a matrix") as caught:
        pack(np.zeros(1 << 12, np.uint8), int(Type[kind]), (16, n_cols))
    assert caught.value.got == f"{kind}, {n_cols} columns"
