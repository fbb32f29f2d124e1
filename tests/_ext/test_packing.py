"""Matrices that are filled group by group, and those whose rows stay in a file."""

import gc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from harness.matrices import (
    N_COLS,
    TYPES,
    assert_same_bits,
    packed_matrix,
    random_rows,
    random_tokens,
)

from mtpcore._ext import _cpu, _matmul
from mtpcore._ext._plan import Executor
from mtpcore.errors import BackendError, GraphError

each_type = pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
each_isa = pytest.mark.parametrize("isa", _cpu.available_isas())


def misaligned(rows):
    """The same bytes one byte further on, with nothing readable after them."""
    data = rows.view(np.uint8).reshape(-1)
    return np.concatenate([data[:1], data])[1:]


@each_type
@each_isa
@pytest.mark.parametrize("n_rows", [1, 17, 32, 77])
def test_rows_left_in_the_file_give_the_bits_of_packed_ones(type_, isa, n_rows):
    _cpu.use_isa("base")
    n_cols = N_COLS[type_]
    rows, x = random_rows(type_, n_rows, n_cols), random_tokens(17, n_cols)
    packed = _matmul.pack(rows, type_, n_rows, n_cols)
    wanted = _matmul.matmul(packed, x)
    _cpu.use_isa(isa)
    mapped = _matmul.map_rows(misaligned(rows), type_, n_rows, n_cols)
    assert (mapped.is_mapped, packed.is_mapped) == (True, False)
    assert mapped.nbytes == rows.nbytes
    for n in (1, 2, 5, 8, 9, 17):
        assert_same_bits(_matmul.matmul(mapped, x[:n]), wanted[:n])
    assert_same_bits(_matmul.matmul(_matmul.pack(rows, type_, n_rows, n_cols), x), wanted)
    assert_same_bits([mapped.row(i) for i in range(n_rows)], dequantize(rows, type_))


def test_rows_are_read_once():
    """Plans may hold what says which of them are packed, so it is never replaced."""
    rows = random_rows(Type.Q8_0, 32, 32)
    size = _matmul.packed_bytes(Type.Q8_0, 32, 32)
    matrix = _matmul.PackedMemory(size).take(Type.Q8_0, 32, 32)
    matrix.read_rows(rows)
    x, prepared, y = ((buffer, 1, 0, 32, 32, 32) for buffer in range(3))
    plan = Executor(
        **dict(n_threads=1, n_batch=1, n_ops=2, n_vocab=0, arena_bytes=128),
        **dict(capacities=[128] * 3, copies=[0] * 3, offsets=[None, 0, None]),
    )
    plan.add("prepare", 0, 0, [x], [prepared], ints=[matrix.activation])
    plan.add("matmul", 0, 0, [prepared], [y], matrices=[matrix], ints=[0, 1, 32])
    plan.finish(0.0, 0.0, 0.0)
    for _ in range(2):
        with pytest.raises(GraphError, match="mapped"):
            matrix.read_rows(rows)
        plan.pack()
    assert not matrix.is_mapped
    assert_same_bits(matrix.row(31), dequantize(rows, Type.Q8_0)[31])


def test_a_mapped_matrix_keeps_its_bytes_and_takes_no_others():
    rows = random_rows(Type.Q8_0, 40, 64)
    mapped = _matmul.map_rows(rows.copy(), Type.Q8_0, 40, 64)
    assert_same_bits(mapped.row(39), dequantize(rows, Type.Q8_0)[39])
    with pytest.raises(GraphError, match="mapped"):
        mapped.fill(0, rows)
    with pytest.raises(GraphError, match="number of bytes"):
        _matmul.map_rows(rows[:39], Type.Q8_0, 40, 64)
    with pytest.raises(GraphError, match="no kernels"):
        _matmul.map_rows(rows, 99, 40, 64)


def test_matrices_are_filled_in_any_order_of_groups():
    rows = random_rows(Type.Q4_K, 70, 256)
    memory = _matmul.PackedMemory(2 * _matmul.packed_bytes(Type.Q4_K, 70, 256))
    memory.take(Type.Q4_K, 70, 256)
    filled = memory.take(Type.Q4_K, 70, 256)
    assert memory.take(Type.F32, 1, 1) is None
    del memory
    for begin, end in ((64, 70), (0, 32), (32, 64)):
        filled.fill(begin, rows[begin:end])
    whole, x = _matmul.pack(rows, Type.Q4_K, 70, 256), random_tokens(3, 256)
    assert_same_bits(_matmul.matmul(filled, x), _matmul.matmul(whole, x))


@pytest.mark.parametrize(("begin", "n"), [(8, 32), (-32, 32), (0, 33), (64, 7), (96, 0), (0, 71)])
def test_only_whole_groups_are_filled(begin, n):
    packed = packed_matrix(Type.Q8_0, 70, 64)
    with pytest.raises(GraphError, match=r"outside|number of bytes"):
        packed.fill(begin, bytes(68 * n))
    with pytest.raises(GraphError, match="number of bytes"):
        packed.fill(0, bytes(68 * 32 + 1))


def test_no_two_threads_take_the_same_room():
    """Making a matrix may collect garbage, and with it run others: here a callback that takes."""
    n_bytes = _matmul.packed_bytes(Type.F32, 32, 16)
    memory = _matmul.PackedMemory(n_bytes)
    found, before = [], gc.get_threshold()

    def take_meanwhile(phase, info):
        if phase == "start" and not found:
            found.append(memory.take(Type.F32, 32, 16))

    gc.callbacks.append(take_meanwhile)
    try:
        gc.set_threshold(1)
        found.append(memory.take(Type.F32, 32, 16))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(take_meanwhile)
    assert sum(matrix is not None for matrix in found) == 1


def test_packed_matrices_are_not_made_by_hand():
    with pytest.raises(BackendError, match="pack"):
        _matmul.PackedMatrix()


def advised_bytes():
    """Return how many bytes of this process the kernel is asked to hold in huge pages."""
    found, size = 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if name == "Size:":
            size = int(rest[0]) << 10
        elif name == "VmFlags:" and "hg" in rest:
            found += size
    return found


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="no transparent huge pages"
)
def test_large_blocks_lie_in_huge_pages():
    """So large a block is always fresh from the kernel, not one that was freed before."""
    n_bytes, before = 48 << 20, advised_bytes()
    memory = _matmul.PackedMemory(n_bytes)
    assert advised_bytes() - before >= n_bytes
    assert memory.take(Type.F32, 1024, 1024) is not None
