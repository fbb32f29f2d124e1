"""What is taken for the inner loop of a kernel, and how many weights it works off."""

import inner_loops
import pytest

ASSEMBLY = """
\t.text
q8_0_1:
.LFB1:
\ttestq\t%rsi, %rsi
\tjle\t.L9
.L2:
\tvpxor\t%ymm0, %ymm0, %ymm0
.L3:
\tvpbroadcastd\t(%rdx), %ymm1
\tvpmaddubsw\t(%rdi), %ymm1, %ymm2
\tvpmaddubsw\t32(%rdi), %ymm1, %ymm3
\tvpmaddwd\t%ymm2, %ymm4, %ymm2
\tcmpq\t%rax, %rdi
\tjne\t.L3
\tvpmaddubsw\t64(%rdi), %ymm1, %ymm3
\tcmpq\t%rbx, %rsi
\tjne\t.L2
.L9:
\tret
.LFE1:
f32_4:
.L4:
\tvfmadd231ps\t(%rdi), %zmm1, %zmm2
\tvfmadd231ps\t(%rdi), %zmm3, %zmm4
\tjne\t.L4
\tret
q4_0_2:
.L5:
\tsdot\tv0.4s, v1.16b, v2.16b
\tsubs\tx0, x0, #1
\tb.ne\t.L5
q4_0_3:
.L6:
\tsmmla\tv0.4s, v1.16b, v2.16b
\tsmmla\tv3.4s, v1.16b, v4.16b
\tsubs\tx0, x0, #1
\tb.ne\t.L6
q4_1_1:
.L7:
\t{vex} vpdpbusd\t%ymm1, %ymm2, %ymm3
\tjne\t.L7
"""


def test_the_innermost_loop_is_found_and_its_products_are_counted():
    loops = inner_loops.find_loops(ASSEMBLY)
    assert loops.keys() == {("q8_0", 1), ("f32", 4), ("q4_0", 2), ("q4_0", 3), ("q4_1", 1)}
    kernels = {key: inner_loops.Kernel(*key, body) for key, body in loops.items()}
    assert len(kernels["q8_0", 1].body) == 6
    assert kernels["q8_0", 1].n_products == 2 * 32
    assert kernels["f32", 4].n_products == 2 * 16
    assert kernels["q4_0", 2].n_products == 16
    assert kernels["q4_0", 2].n_weights == 8
    assert kernels["q4_0", 3].n_products == 2 * 32
    assert kernels["q4_0", 3].n_weights == 16  # eight columns of two rows, with four tokens
    assert kernels["q4_1", 1].n_products == 32


def test_bytes_of_a_weight_are_those_of_the_list_of_types():
    types = inner_loops.bytes_of_types()
    assert types["f32"] == 4
    assert types["q8_0"] == pytest.approx(34 / 32)
    assert types["q6_k"] == pytest.approx(210 / 256)


def test_what_a_core_draws_is_said_of_every_processor():
    assert inner_loops.MEMORY.keys() == {
        name for names in inner_loops.PROCESSORS.values() for name in names
    }
    assert all(memory.source for memory in inner_loops.MEMORY.values())
    assert inner_loops.MEMORY["neoverse-n1"].bytes_a_cycle == pytest.approx(8.36)


def test_a_loop_that_takes_less_than_memory_gives_is_bold():
    drawn = inner_loops.MEMORY["haswell"].bytes_a_cycle
    assert inner_loops._cell(drawn + 0.1, "haswell") == "5.8"
    assert inner_loops._cell(drawn - 0.1, "haswell") == "**5.6**"
    assert inner_loops._cell(None, "haswell") == "no model"


def test_kernels_are_priced_where_they_run():
    """A processor without VBMI chooses ``avx2`` (``core/cpu.c``)."""
    assert "skylake-avx512" not in inner_loops.PROCESSORS["avx512"]
    assert "skylake-avx512" in inner_loops.PROCESSORS["avx2"]
