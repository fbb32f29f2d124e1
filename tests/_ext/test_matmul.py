"""Products of packed matrices: values, and bits that depend on nothing but the two rows."""

import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from harness.matrices import (
    BLOCK_BYTES,
    BLOCKS_32,
    FLOATS,
    N_COLS,
    QUANTISED,
    SCALES,
    TYPES,
    WITH_MINS,
    assert_same_bits,
    block_of,
    fma,
    packed_matrix,
    quantised_tokens,
    random_rows,
    random_tokens,
    restated_product,
)
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext import _cpu, _matmul
from mtpcore.errors import BackendError, GraphError

each_type = pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
each_isa = pytest.mark.parametrize("isa", _cpu.available_isas())
small_search = searching(40)


@each_type
@pytest.mark.parametrize("n_rows", [1, 16, 45])
def test_rows_come_back_as_the_format_defines_them(type_, n_rows):
    rows = random_rows(type_, n_rows, N_COLS[type_])
    packed = _matmul.pack(rows, type_, n_rows, N_COLS[type_])
    assert_same_bits([packed.row(i) for i in range(n_rows)], dequantize(rows, type_))


@each_type
@each_isa
def test_product_is_near_the_exact_one(type_, isa):
    _cpu.use_isa(isa)
    n_rows, n_cols = 37, N_COLS[type_]
    rows, x = random_rows(type_, n_rows, n_cols), random_tokens(9, n_cols)
    w = dequantize(rows, type_).astype(np.float64)
    got = _matmul.matmul(_matmul.pack(rows, type_, n_rows, n_cols), x)
    # Each of n rounded additions errs by at most 2^-24 of a partial sum of magnitudes.
    largest = np.abs(w).max() * (2 if type_ in WITH_MINS else 1)
    bound = (n_cols + 4) * 2.0**-24 * np.abs(x).sum(1, keepdims=True) * largest
    if type_ not in FLOATS:  # activations are codes and scales
        codes, scales = quantised_tokens(x, block_of(type_))
        rounded = (codes * scales[..., None].astype(np.float64)).reshape(x.shape)
        bound = bound + np.abs(rounded - x) @ np.abs(w).T
    assert np.all(np.abs(got - x.astype(np.float64) @ w.T) <= bound)


@pytest.mark.parametrize("type_", QUANTISED, ids=lambda t: t.name)
@each_isa
def test_quantised_product_repeats_the_contract_bit_for_bit(type_, isa):
    _cpu.use_isa(isa)
    n_rows, n_cols = 70, N_COLS[type_]
    rows, x = random_rows(type_, n_rows, n_cols), random_tokens(8, n_cols)
    got = _matmul.matmul(_matmul.pack(rows, type_, n_rows, n_cols), x)
    assert_same_bits(got, restated_product(rows, type_, x))


@pytest.mark.parametrize("type_", FLOATS, ids=lambda t: t.name)
@each_isa
def test_float_product_is_one_chain_of_fma(type_, isa):
    _cpu.use_isa(isa)
    rows, x = random_rows(type_, 50, N_COLS[type_]), random_tokens(8, N_COLS[type_])
    w = dequantize(rows, type_)
    wanted = np.zeros((8, 50), np.float32)
    for k in range(N_COLS[type_]):
        wanted = fma(x[:, k, None], w[None, :, k], wanted)
    assert_same_bits(_matmul.matmul(_matmul.pack(rows, type_, 50, N_COLS[type_]), x), wanted)


@pytest.mark.parametrize("type_", QUANTISED, ids=lambda t: t.name)
@each_isa
@pytest.mark.parametrize("code", [0x00, 0x77, 0x7F, 0x80, 0xFF])  # 7: the largest of MXFP4
def test_extreme_codes_do_not_saturate(type_, isa, code):
    _cpu.use_isa(isa)
    rows = random_rows(type_, 32, 512)
    blocks = rows.reshape(32, -1, BLOCK_BYTES[type_])
    keep = [at + i for at in SCALES[type_] for i in range(1 if type_ == Type.MXFP4 else 2)]
    blocks[..., [i for i in range(blocks.shape[-1]) if i not in keep]] = code
    signs = np.array([[1] * 512, [-1] * 512, [1, -1] * 256], np.float32)
    packed, wanted = _matmul.pack(rows, type_, 32, 512), restated_product(rows, type_, signs)
    assert_same_bits(_matmul.matmul(packed, signs), wanted)
    for n in (3, 24):  # more than a tile; enough for tile registers
        many = _matmul.matmul(packed, np.tile(signs, (n, 1)))
        assert_same_bits(many, np.tile(wanted, (n, 1)))


@each_type
def test_bits_do_not_depend_on_the_instruction_set(type_):
    packed, x = packed_matrix(type_, 77), random_tokens(17, N_COLS[type_])
    results = []
    for isa in _cpu.available_isas():
        _cpu.use_isa(isa)
        results.append(_matmul.matmul(packed, x))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@each_type
@each_isa
def test_bits_of_many_tokens_are_those_of_few(type_, isa):
    """From 64 tokens on tile registers are used, 32 tokens at a time; up to 512 share a pass."""
    _cpu.use_isa(isa)
    packed, x = packed_matrix(type_, 77), random_tokens(64, N_COLS[type_])
    few = np.concatenate([_matmul.matmul(packed, x[t : t + 8]) for t in range(0, 64, 8)])
    for n in (64, 65, 80, 95, 553):
        rows = np.arange(n, dtype=np.int32) % 64
        assert_same_bits(_matmul.matmul(packed, x, rows=rows), few[rows])
    x[3, 5] = math.nan
    spoilt = _matmul.matmul(packed, x)
    assert np.isnan(spoilt[3]).all()
    assert_same_bits(np.delete(spoilt, 3, 0), np.delete(few, 3, 0))


@pytest.mark.parametrize("type_", BLOCKS_32, ids=lambda t: t.name)
@each_isa
def test_bits_of_many_tokens_in_wide_matrices(type_, isa):
    """In tile registers 16 blocks are unpacked at a time, and multiplied two by two."""
    _cpu.use_isa(isa)
    for n_blocks in (16, 18, 33):
        packed, x = packed_matrix(type_, 40, 32 * n_blocks), random_tokens(70, 32 * n_blocks)
        few = np.concatenate([_matmul.matmul(packed, x[t : t + 7]) for t in range(0, 70, 7)])
        assert_same_bits(_matmul.matmul(packed, x), few)


@each_type
@each_isa
def test_bits_do_not_depend_on_how_weights_are_prefetched(type_, isa):
    _cpu.use_isa(isa)
    packed, x = packed_matrix(type_, 77), random_tokens(17, N_COLS[type_])
    for n in (1, 4, 17):
        results = []
        for fetch in _cpu.available_fetches():
            assert _cpu.use_fetch(fetch) in _cpu.available_fetches()
            assert _cpu.fetch() == fetch
            results.append(_matmul.matmul(packed, x[:n]))
        for result in results[1:]:
            assert_same_bits(result, results[0])


@each_type
@each_isa
def test_bits_do_not_depend_on_the_batch(type_, isa):
    _cpu.use_isa(isa)
    packed, x = packed_matrix(type_, 40), random_tokens(17, N_COLS[type_])
    alone = np.concatenate([_matmul.matmul(packed, row[None]) for row in x])
    for n in range(1, 18):
        for offset in {0, 1, 17 - n}:
            batch = x[offset : offset + n]
            assert_same_bits(_matmul.matmul(packed, batch), alone[offset : offset + len(batch)])


@given(data=st.data())
@small_search
def test_bits_survive_any_gather_range_and_scatter(data):
    type_ = data.draw(st.sampled_from(TYPES))
    _cpu.use_isa(data.draw(st.sampled_from(_cpu.available_isas())))
    n_rows = data.draw(st.integers(1, 130))
    n_cols = block_of(type_) * data.draw(st.integers(1, 5))
    packed, x = packed_matrix(type_, n_rows, n_cols), random_tokens(11, n_cols)
    whole = _matmul.matmul(packed, x)
    begin = 32 * data.draw(st.integers(0, (n_rows - 1) // 32))
    ends = [*range(begin + 32, n_rows, 32), n_rows]
    end = data.draw(st.sampled_from(ends))
    rows = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=19))
    out_rows = data.draw(st.permutations(range(20)))[: len(rows)]
    guarded = np.full((20, end - begin + 7), 123.0, np.float32)
    _matmul.matmul(
        packed, x, begin, end, rows=rows, out=guarded[:, 3 : end - begin + 3], out_rows=out_rows
    )
    wanted = np.full_like(guarded, 123.0)
    wanted[out_rows, 3 : end - begin + 3] = whole[rows, begin:end]
    assert_same_bits(guarded, wanted)


@each_type
@each_isa
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_bad_token_spoils_its_own_row_only(type_, isa, poison):
    _cpu.use_isa(isa)
    packed, x = packed_matrix(type_, 40), random_tokens(9, N_COLS[type_])
    clean = _matmul.matmul(packed, x)
    x[3, 5] = poison
    got = _matmul.matmul(packed, x)
    assert not np.isfinite(got[3]).any()
    assert_same_bits(np.delete(got, 3, 0), np.delete(clean, 3, 0))


@pytest.mark.parametrize("type_", [t for t in TYPES if t != Type.MXFP4], ids=lambda t: t.name)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_bad_weights_spoil_their_own_output_only(type_, poison):
    rows, x = random_rows(type_, 40, N_COLS[type_]), random_tokens(9, N_COLS[type_])
    clean = _matmul.matmul(_matmul.pack(rows, type_, 40, N_COLS[type_]), x)
    if type_ in FLOATS:
        rows.reshape(40, -1).view(np.uint8)[21] = quantize(
            np.full((1, N_COLS[type_]), poison, np.float32), type_
        ).view(np.uint8)
    else:
        at = SCALES[type_][0]
        rows[21, at : at + 2] = np.frombuffer(np.float16(poison).tobytes(), np.uint8)
    packed = _matmul.pack(rows, type_, 40, N_COLS[type_])
    results = []
    for isa in _cpu.available_isas():
        _cpu.use_isa(isa)
        results.append(_matmul.matmul(packed, x))
    assert not np.isfinite(results[0][:, 21]).any()
    assert_same_bits(np.delete(results[0], 21, 1), np.delete(clean, 21, 1))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@each_type
@each_isa
def test_zero_and_tiny_blocks_give_zero(type_, isa):
    _cpu.use_isa(isa)
    x = np.zeros((3, N_COLS[type_]), np.float32)
    if type_ not in FLOATS:
        x[1] = 1e-40
        x[2] = np.finfo(np.float32).tiny
    assert not _matmul.matmul(packed_matrix(type_, 33), x).any()


def test_every_power_of_two_scales_mxfp4():
    rows = random_rows(Type.MXFP4, 256, 64)
    rows[:, 0] = rows[:, 17] = np.arange(256)
    packed = _matmul.pack(rows, Type.MXFP4, 256, 64)
    with np.errstate(over="ignore"):  # 12 times the largest
        wanted = dequantize(rows, Type.MXFP4)
    assert_same_bits([packed.row(i) for i in range(256)], wanted)
    x = np.float32(2.0**-20) * random_tokens(3, 64)
    for isa in _cpu.available_isas():
        _cpu.use_isa(isa)
        assert_same_bits(_matmul.matmul(packed, x), restated_product(rows, Type.MXFP4, x))


@each_isa
def test_codes_round_to_nearest_even_at_any_size(isa):
    _cpu.use_isa(isa)
    rows = random_rows(Type.Q8_0, 32, 64)
    halves = np.arange(-32, 32) + np.float32(0.5)
    halves[[0, 32]] = 127.0, -127.0
    x = np.outer(np.float32([1, 2e-36, 2e32]), halves).astype(np.float32)
    got = _matmul.matmul(_matmul.pack(rows, Type.Q8_0, 32, 64), x)
    assert_same_bits(got, restated_product(rows, Type.Q8_0, x))


@each_isa
@pytest.mark.parametrize("size", [1, 1e-38, np.finfo(np.float32).tiny, 1e36])
@pytest.mark.parametrize("rest", [-0.4375, 0.375])
def test_scales_suit_their_codes_at_any_size(isa, size, rest):
    """Activations lie beside their codes, on one side; no scale becomes subnormal by that."""
    _cpu.use_isa(isa)
    x = np.full((1, 64), 10 + rest, np.float32)
    x[0, [0, 32]] = 127
    x *= np.float32(size)
    rows = random_rows(Type.Q8_0, 32, 64)
    got = _matmul.matmul(_matmul.pack(rows, Type.Q8_0, 32, 64), x)
    assert_same_bits(got, restated_product(rows, Type.Q8_0, x))


def test_threads_share_a_matrix():
    packed, x = packed_matrix(Type.Q4_K, 256, 1024), random_tokens(12, 1024)
    wanted, results = _matmul.matmul(packed, x), [None] * 4

    def multiply(i):
        for _ in range(20):
            results[i] = _matmul.matmul(packed, x)

    threads = [threading.Thread(target=multiply, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert_same_bits(result, wanted)


@pytest.mark.parametrize(
    ("type_", "n_cols", "n_tokens", "edges"),
    [(Type.F32, 4096, 100, (31, 32, 47, 48)), (Type.Q4_K, 256, 530, (511, 512))],
    ids=["by bytes", "by kept sums"],
)
def test_wide_prompts_are_walked_in_blocks(type_, n_cols, n_tokens, edges):
    packed, x = packed_matrix(type_, 33, n_cols), random_tokens(n_tokens, n_cols)
    asked = [0, *edges, n_tokens - 1]
    alone = [_matmul.matmul(packed, x[i : i + 1])[0] for i in asked]
    assert_same_bits(_matmul.matmul(packed, x)[asked], alone)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((bytes(34), 99, 1, 32), "no kernels"),
        ((bytes(34), -1, 1, 32), "no kernels"),
        ((bytes(34), Type.Q8_0, 1, 33), "whole blocks"),
        ((bytes(33), Type.Q8_0, 1, 32), "number of bytes"),
        ((bytes(34), Type.Q8_0, 2, 32), "number of bytes"),
        ((bytes(34), Type.Q8_0, 0, 32), "impossible size"),
        ((bytes(34), Type.Q8_0, 1, -32), "impossible size"),
        ((bytes(34), Type.Q8_0, 2**62, 2**62), "impossible size"),
    ],
)
def test_pack_refuses_what_does_not_fit(arguments, what):
    with pytest.raises(GraphError, match=what):
        _matmul.pack(*arguments)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"x": np.zeros((2, 63))}, "do not fit the matrix"),
        ({"row_begin": 8}, "row range"),
        ({"row_begin": -32}, "row range"),
        ({"row_end": 33}, "row range"),
        ({"row_begin": 32, "row_end": 32}, "row range"),
        ({"row_end": 96}, "row range"),
        ({"rows": [2]}, "out of range"),
        ({"rows": [-1]}, "out of range"),
        ({"out": np.zeros((1, 70), np.float32)}, "output does not fit"),
        ({"out": np.zeros((2, 69), np.float32)}, "output does not fit"),
        ({"out": np.zeros((2, 140), np.float32)[:, ::2]}, "output does not fit"),
        ({"rows": [1 << 32]}, "out of range"),
        ({"rows": [-(1 << 32)]}, "out of range"),
        ({"rows": [0.0]}, "integers in a row"),
        ({"rows": [[0]]}, "integers in a row"),
        ({"out_rows": [0, 2]}, "out of range"),
        ({"out_rows": [0]}, "output does not fit"),
    ],
)
def test_matmul_refuses_what_does_not_fit(changes, what):
    packed = packed_matrix(Type.Q8_0, 70, 64)
    with pytest.raises(GraphError, match=what):
        _matmul.matmul(**({"packed": packed, "x": np.zeros((2, 64))} | changes))


def test_no_tokens_give_no_rows():
    assert _matmul.matmul(packed_matrix(Type.F16, 5, 3), np.zeros((0, 3))).shape == (0, 5)


@pytest.mark.parametrize("index", [-1, 5])
def test_rows_outside_the_matrix_are_refused(index):
    with pytest.raises(GraphError, match="outside"):
        packed_matrix(Type.F16, 5, 3).row(index)


def test_unknown_instruction_sets_are_refused():
    before = _cpu.isa()
    with pytest.raises(BackendError, match="sse9"):
        _cpu.use_isa("sse9")
    assert _cpu.isa() == before


def test_unknown_ways_to_prefetch_are_refused():
    before = _cpu.fetch()
    with pytest.raises(BackendError, match="lines-l2 or pages or none or auto; got 'books'"):
        _cpu.use_fetch("books")
    assert _cpu.fetch() == before


def environment_with(**names):
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | names


def import_with(**names):
    code = "from mtpcore._ext import _cpu; print(_cpu.isa(), _cpu.fetch())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_with(**names),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("MTPCORE_ISA", "avx3", "this machine cannot use"),
        (
            "MTPCORE_FETCH",
            "books",
            "no such way to prefetch weights; wanted lines or lines-l2 or pages or none",
        ),
    ],
)
@pytest.mark.parametrize("command", [("run", "demo", "-p", "a", "-n", "1"), ("inspect", "demo")])
def test_an_unknown_name_in_the_environment_is_an_error_of_one_line(name, value, what, command):
    environment = environment_with(**{name: value})
    command = [sys.executable, "-m", "mtpcore", *command]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"environment variable {name}: {what}" in refused.stderr
    assert f"{value!r}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_environment_names_the_instruction_set():
    assert import_with(MTPCORE_ISA="base")[0] == "base"
    assert import_with(MTPCORE_ISA="")[0] == _cpu.available_isas()[-1]


def test_environment_names_how_weights_are_prefetched():
    for fetch in ("lines", "lines-l2", "pages", "none", "auto"):
        assert import_with(MTPCORE_FETCH=fetch)[1] == fetch
    assert import_with(MTPCORE_FETCH="")[1] == "auto"
