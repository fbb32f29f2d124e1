"""What the model of cost counts in a listing, and what it makes of it."""

import msgspec
import pytest
from costs.gpus import GPUS
from costs.model import Launched, price, resident
from costs.sass import Pace, parse, pipe_of
from costs.work import OF_KERNEL
from cuda_costs import ASKED_BY, RESULT

from mtpcore.backends.cuda.launch import KERNELS

LISTING = """
\t.text.sums:
        /*0000*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0010*/                   LDC.64 R8, c[0x0][0x218] ;
        /*0020*/                   ISETP.GE.AND P0, PT, R0, RZ, PT ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
.L_x_1:
.L_x_0:
        /*0050*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0060*/                   LDG.E.CONSTANT R10, desc[UR4][R8.64] ;
        /*0070*/                   IMMA.16832.S8.S8 R12, R4.ROW, R10.COL, RZ ;
        /*0080*/                   IADD3 R2, R2, 0x10, RZ ;
        /*0090*/                   ISETP.GE.AND P1, PT, R2, R3, PT ;
        /*00a0*/              @!P1 BRA `(.L_x_0) ;
        /*00b0*/                   STG.E desc[UR4][R8.64], R12 ;
        /*00c0*/                   EXIT ;
.L_x_2:
        /*00d0*/                   BRA `(.L_x_2);
        /*00e0*/                   NOP;
"""
LOOP = (5, 10)
H200 = GPUS[-1]


def test_a_listing_is_read():
    code = parse(LISTING)
    assert code.loops() == [LOOP]
    assert len(code.instructions) == 13
    load, product = code.instructions[5], code.instructions[7]
    assert load.writes == ("R4", "R5", "R6", "R7")
    assert {*product.reads} == {"R4", "R5", "R6", "R7", "R10", "R11"}
    assert product.writes == ("R12", "R13", "R14", "R15")
    assert (load.pipe, product.pipe) == ("load", "tensor")
    assert code.instructions[10].reads == ("P1",)
    assert code.instructions[9].writes[0] == "P1"


def test_where_addresses_come_from():
    """Not from what a register held before both halves of it were written, nor from a predicate."""
    code = parse(
        """
        /*0000*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0010*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0020*/               @P0 LDC.64 R2, c[0x0][0x218] ;
        /*0030*/               @P0 LDG.E R4, desc[UR4][R2.64] ;
        /*0040*/              @!P0 LDC.64 R2, c[0x0][0x220] ;
        /*0050*/                   LDG.E R5, desc[UR4][R2.64] ;
        /*0060*/                   ISETP.NE.AND P0, PT, R4, RZ, PT ;
        /*0070*/               @P0 LDC.64 R2, c[0x0][0x228] ;
        /*0080*/                   LDG.E R6, desc[UR4][R2.64] ;
        /*0090*/                   EXIT ;
"""
    )
    assert [code.sources[at] for at in (3, 5, 8)] == [{1}, {1, 2}, {1, 2, 3}]


def test_the_way_into_a_loop_is_found_and_its_turns_are_counted():
    """The jump over EXIT is taken: nothing else leads to the loop."""
    counts = parse(LISTING).counts({LOOP: 10})
    assert (counts["tensor"], counts["load"]) == (10, 21)
    assert counts.total() == 4 + 10 * 6 + 2


def test_a_warp_waits_for_memory_in_each_turn():
    code, pace = parse(LISTING), Pace(memory=700, l2=200)
    once, ten = (code.cycles(pace, {0}, {LOOP: n}) for n in (1, 10))
    assert 700 < once < 800
    assert ten - once == pytest.approx(9 * 706, rel=0.01)
    long = code.cycles(pace, {0}, {LOOP: 200})
    assert long - once == pytest.approx(199 * 706, rel=0.01)
    assert code.cycles(pace, set(), {LOOP: 10}) < 10 * 300  # all in L2


def test_copies_that_are_under_way_are_waited_for_by_group():
    text = """
        /*0000*/  LDC.64 R2, c[0x0][0x210] ;
        /*0010*/  LDGSTS.E.128 [R8], desc[UR4][R2.64] ;
        /*0020*/  LDGDEPBAR ;
        /*0030*/  LDGSTS.E.128 [R8+0x200], desc[UR4][R2.64+0x200] ;
        /*0040*/  LDGDEPBAR ;
        /*0050*/  DEPBAR.LE SB0, {} ;
        /*0060*/  LDS.128 R4, [R8] ;
        /*0070*/  IADD3 R5, R4, 0x1, RZ ;
        /*0080*/  EXIT ;
    """
    all_landed, one_on_its_way, both = (
        parse(text.format(n)).cycles(Pace(700, 200), {0}, {}) for n in ("0x0", "0x1", "0x2")
    )
    assert both < 100 < one_on_its_way < all_landed


@pytest.mark.parametrize(
    ("registers", "shared", "blocks"),
    [(32, 0, 8), (96, 4096, 2), (97, 0, 2), (128, 0, 2), (255, 0, 1), (32, 100 << 10, 2)],
)
def test_blocks_that_fit_a_multiprocessor(registers, shared, blocks):
    assert resident(H200, registers, shared, 256) == blocks


def test_the_longest_bound_is_the_time():
    """A copy's bytes bound a launch with many; the rounds of its blocks one with few."""
    launch = Launched(132 * 8, 256, 4.3e9, {LOOP: 4}, {0})
    many = price(H200, parse(LISTING), launch, 32, 0)
    assert (many.bound, many.bounds["memory"]) == ("memory", pytest.approx(1e-3))
    few = price(H200, parse(LISTING), msgspec.structs.replace(launch, n_bytes=1.0), 32, 0)
    assert few.bound == "latency"
    assert few.bounds["latency"] == pytest.approx(4 * 726 / 1.83e9, rel=0.05)
    assert many.share < 1
    assert few.seconds < many.seconds


@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("I2FP.F32.S32", "alu"),
        ("I2F", "convert"),
        ("IMAD.WIDE", "multiply"),
        ("HADD2.F32", "float"),
        ("LDGSTS.E.BYPASS.128", "load"),
        ("LDGDEPBAR", "control"),
        ("ULDC.64", "uniform"),
        ("LOP3.LUT", "alu"),
    ],
)
def test_pipes(name, pipe):
    assert pipe_of(name) == pipe


def test_every_kernel_is_priced_or_said_not_to_be():
    names = {kernel.name for kernel in KERNELS}
    assert names <= {*OF_KERNEL, *ASKED_BY}
    assert not {*OF_KERNEL} & {*ASKED_BY}
    text = RESULT.read_text()
    missing = names - {*OF_KERNEL}
    assert all(f"| {name} | " in text for name in missing)
