"""Random matrices of every tensor type, and their products as the kernels promise them."""

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from mtpcore._ext import _matmul

FLOATS = (Type.F32, Type.F16, Type.BF16)
BLOCKS_32 = (
    *(Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1),
    *(Type.IQ4_NL, Type.MXFP4),
)
BLOCKS_256 = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS)
WITH_MINS = (Type.Q4_1, Type.Q5_1, Type.Q2_K, Type.Q4_K, Type.Q5_K)
QUANTISED = BLOCKS_32 + BLOCKS_256
TYPES = FLOATS + QUANTISED
BLOCK_BYTES = {t: GGML_QUANT_SIZES[t][1] for t in BLOCKS_32 + BLOCKS_256}
SCALES = {t: [0] for t in BLOCKS_32} | {
    Type.Q4_1: [0, 2],
    Type.Q5_1: [0, 2],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_XS: [0],
}
"""Where the float16 scales lie in a block, that of the mins after; MXFP4 has a byte."""
N_COLS = {t: 77 for t in FLOATS} | {t: 7 * 32 for t in BLOCKS_32} | {t: 3 * 256 for t in BLOCKS_256}


def random_rows(type_, n_rows, n_cols, seed=0):
    """Valid rows in file layout; every bit pattern of codes and sub-scales can occur."""
    rng = np.random.default_rng(seed)
    if type_ in FLOATS:
        return quantize(rng.normal(size=(n_rows, n_cols)).astype(np.float32), type_)
    size = BLOCK_BYTES[type_]
    rows = rng.integers(0, 256, (n_rows, n_cols // block_of(type_), size), np.uint8)
    for at in SCALES[type_]:
        scales = rng.normal(0, 0.01, rows.shape[:2]).astype(np.float16)
        set_scales(rows, type_, at, scales)
    return rows.reshape(n_rows, -1)


def set_scales(blocks, type_, at, scales):
    """Write scales, of MXFP4 as powers of two at most them."""
    if type_ == Type.MXFP4:
        blocks[..., 0] = 127 + np.frexp(scales)[1]
    else:
        blocks[..., at : at + 2] = np.asarray(scales, np.float16)[..., None].view(np.uint8)


def get_scales(blocks, type_, at):
    """Return scales as float32."""
    if type_ == Type.MXFP4:
        return np.ldexp(np.float32(1), blocks[..., 0].astype(int) - 128)
    halves = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
    return halves[..., 0].astype(np.float32)


def block_of(type_):
    return 1 if type_ in FLOATS else 32 if type_ in BLOCKS_32 else 256


def random_tokens(n, n_cols, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, n_cols)) * rng.lognormal(size=(n, 1))).astype(np.float32)


def packed_matrix(type_, n_rows, n_cols=0, seed=0):
    n_cols = n_cols or N_COLS[type_]
    rows = random_rows(type_, n_rows, n_cols, seed)
    return _matmul.pack(rows, type_, n_rows, n_cols)


def bits(values):
    return np.ascontiguousarray(values).view(np.uint32)


def assert_same_bits(got, wanted):
    np.testing.assert_array_equal(bits(got), bits(wanted))


def fma(a, b, c):
    """Round a * b + c once to float32; a * b must fit a float64 exactly.

    The float64 sum is rounded to odd, after which rounding to float32 is right.
    """
    product = np.float64(a) * np.float64(b)
    total = product + c
    rest = total - product
    lost = (product - (total - rest)) + (c - rest)
    even = total.view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return odd.astype(np.float32)


def quantised_tokens(x, block):
    """Codes int[n, blocks, block] and float32 scales [n, blocks]."""
    x = x.reshape(len(x), -1, block)
    largest = np.abs(x).max(-1)
    scales = largest / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / largest
    usable = scales >= np.finfo(np.float32).tiny
    scaled = np.where(usable[..., None], x, 0) * np.where(usable, inverse, 0)[..., None]
    codes = np.rint(scaled).astype(np.int64)
    # What rounding leaves, in whole steps of 2^-14, moves the scale to the least squared error.
    rest = np.rint(16384 * (scaled.astype(np.float64) - codes)).astype(np.int64)
    along = np.float32((rest * codes).sum(-1))
    square = np.float32(np.maximum((codes * codes).sum(-1), 1))
    fitted = scales + scales * (along / (square * np.float32(16384)))
    fitted = np.maximum(fitted, np.finfo(np.float32).tiny)
    return codes, np.where(usable, fitted, np.float32(0))


def weight_integers(rows, type_):
    """Weights as integers [rows, blocks, block], with each block's float32 scale.

    For types with mins also the integers that the block's min is subtracted with.
    """
    blocks = rows.reshape(len(rows), -1, BLOCK_BYTES[type_])
    unit = blocks.copy()  # the same codes with a scale of one: dequantisation gives integers
    for at in SCALES[type_]:
        set_scales(unit, type_, at, np.full(unit.shape[:2], float(at == SCALES[type_][0])))
    integers = dequantize(unit.reshape(len(rows), -1), type_).astype(np.int64)
    parts = [integers.reshape(*blocks.shape[:2], -1)]
    if type_ in WITH_MINS:
        at, of_min = (slice(at, at + 2) for at in SCALES[type_])
        unit[..., at], unit[..., of_min] = unit[..., of_min].copy(), unit[..., at].copy()
        mins = dequantize(unit.reshape(len(rows), -1), type_).astype(np.int64)
        parts.append(mins.reshape(parts[0].shape))
    scales = [get_scales(blocks, type_, at) for at in SCALES[type_]]
    return list(zip(parts, scales, strict=True))


def restated_product(rows, type_, x):
    """The contract in NumPy: exact integers in a block, one chain of fma over blocks."""
    codes, x_scales = quantised_tokens(x, block_of(type_))
    parts = weight_integers(rows, type_)
    y = np.zeros((len(x), len(rows)), np.float32)
    for b in range(codes.shape[1]):
        for integers, scales in parts:
            sums = (codes[:, b] @ integers[:, b].T).astype(np.float32)
            y = fma(sums, x_scales[:, b, None] * scales[None, :, b], y)
    return y
