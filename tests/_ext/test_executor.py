"""What an executor is given is checked: an error, never a crash or a wrong read.

The plan is as small as one can be: ``y = x + x`` for rows of four values, of arrays outside the
arena, by way of a buffer inside.
"""

import gc
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from mtpcore._ext._matmul import PackedMatrix, pack
from mtpcore._ext._plan import BY_COLUMNS, IN_COPIES, Executor, use_order
from mtpcore.backends.base import CheckedBatch
from mtpcore.errors import BackendError, BatchError, MtpcoreError
from mtpcore.graph.ops import MASKS

WIDTH, N_BATCH, N_VOCAB = 4, 3, 10
X, INNER, Y = range(3)
ROW_BYTES = 4 * WIDTH
SIZES = {
    "n_threads": 1,
    "n_batch": N_BATCH,
    "capacities": [N_BATCH * ROW_BYTES] * 3,
    "copies": [0, 0, 0],
    "offsets": [None, 0, None],
    "arena_bytes": 256,
    "n_ops": 2,
    "n_vocab": N_VOCAB,
}
REFUSED = (MtpcoreError, TypeError, ValueError, OverflowError, IndexError, BufferError)


def view(buffer, n_heads=1, offset=0, row_stride=WIDTH, head_stride=WIDTH, width=WIDTH):
    return buffer, n_heads, offset, row_stride, head_stride, width


def executor(**changed):
    return Executor(**(SIZES | changed))


def finished(**changed):
    made = executor(**changed)
    made.add("add", 0, 0, [view(X), view(X)], [view(INNER)])
    made.add("copy", 0, 0, [view(INNER)], [view(Y)])
    made.finish(0.0, 0.0, 0.0)
    return made


def rows(n=2, **changed):
    order = np.arange(n, dtype=np.int32)
    given = dict(tokens=order, positions=order[:, None], seq=order, place=order, outputs=order)
    return CheckedBatch(**(given | changed))


def arrays(n=2):
    return {X: np.ones((n, WIDTH), np.float32), Y: np.zeros((n, WIDTH), np.float32)}


def test_what_fits_runs():
    given = arrays()
    finished().run(rows(), [], given.items())
    assert (given[Y] == 2).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"n_threads": 0},
        {"n_threads": 1 << 20},
        {"n_batch": 0},
        {"n_batch": -1},
        {"n_batch": 1 << 40},
        {"n_ops": -1},
        {"n_ops": 1 << 40},
        {"capacities": [48]},
        {"capacities": [48, -1, 48]},
        {"copies": [0]},
        {"copies": [0, -1, 0]},
        {"copies": [16, 0, 0]},
        {"offsets": [None, -64, None]},
        {"offsets": [None, 232, None]},
        {"offsets": [None, 1 << 70, None]},
        {"arena_bytes": -1},
        {"arena_bytes": (1 << 64) - 1},
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(changed):
    with pytest.raises(REFUSED):
        executor(**changed)


class Pages(NamedTuple):
    data: np.ndarray
    page_bytes: int
    n_pages: int
    dtype: str = "f32"


@pytest.mark.parametrize(
    "store",
    [
        Pages(np.zeros(64, np.uint8), 64, 2),
        Pages(np.zeros(64, np.uint8), -64, -1),
        Pages(np.zeros(64, np.uint8), 64, 1, "f64"),
        Pages(np.zeros(128, np.uint8)[::2], 64, 1),
        Pages(None, 64, 1),
    ],
    ids=["too few", "negative", "type", "stride", "none"],
)
def test_memory_that_its_pages_do_not_fit_is_refused(store):
    with pytest.raises(REFUSED):
        executor(stores=[store])


def test_memory_that_cannot_be_written_is_refused():
    data = np.zeros(64, np.uint8)
    data.flags.writeable = False
    with pytest.raises(REFUSED):
        executor(stores=[Pages(data, 64, 1)])


@pytest.mark.parametrize(
    "wrong",
    [
        view(3),
        view(-1),
        view(1 << 31),
        view(1 << 20),
        view(INNER, n_heads=0),
        view(INNER, n_heads=-1),
        view(INNER, n_heads=2),
        view(INNER, offset=-1),
        view(INNER, offset=1),
        view(INNER, row_stride=-4),
        view(INNER, row_stride=5),
        view(INNER, row_stride=1 << 62),
        view(INNER, row_stride=1 << 63),
        view(INNER, head_stride=-1),
        view(INNER, n_heads=1 << 30, head_stride=1 << 34),
        view(INNER, width=5),
        view(INNER, width=-1),
        view(INNER)[:5],
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("is_input", [True, False])
def test_views_outside_their_buffers_are_refused(wrong, is_input):
    made = executor()
    inputs, outputs = ([wrong, wrong], [view(Y)]) if is_input else ([view(X), view(X)], [wrong])
    with pytest.raises(REFUSED):
        made.add("add", 0, 0, inputs, outputs)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("none", {}),
        ("add", {"axis": 2}),
        ("add", {"axis": -1}),
        ("add", {"inputs": [view(X)] * 6}),
        ("add", {"outputs": [view(Y)] * 3}),
        ("add", {"sharing": 3}),
        ("add", {"sharing": 2}),
        ("add", {"ints": range(8)}),
        ("add", {"ints": [1 << 64]}),
        ("add", {"weights": [np.ones(WIDTH, np.float32)] * 4}),
        ("rms_norm", {"weights": [np.ones(WIDTH, np.float16)]}),
        ("rms_norm", {"weights": [np.ones(2 * WIDTH, np.float32)[::2]]}),
        ("rms_norm", {"weights": [np.ones(WIDTH - 1, np.float32)]}),
        ("rms_norm", {"weights": [np.ones((WIDTH, 0), np.float32)]}),
        ("angles", {"ints": [2]}),
        ("angles", {"ints": [-1], "numbers": np.ones(0), "axes": np.ones(0, np.int32)}),
        ("angles", {"ints": [1], "numbers": np.ones(2), "axes": np.ones(1, np.int64)}),
        ("angles", {"ints": [1], "numbers": np.ones(2, "f4"), "axes": np.ones(1, np.int32)}),
        ("embed", {}),
        ("embed", {"matrices": [None]}),
        ("embed", {"matrices": [np.ones((2, 2))]}),
        ("expert_matmul", {"ints": [0]}),
        ("attention", {"ints": [0, 0, 1, 0, 0, 1, 0], "numbers": np.ones(2)}),
        ("attention", {"weights": [None, None, np.ones(3, np.float32)]}),
    ],
    ids=str,
)
def test_operations_that_do_not_fit_their_record_are_refused(kind, given):
    made = executor()
    given = {"axis": 0, "inputs": [view(X), view(X)], "outputs": [view(Y)]} | given
    with pytest.raises(REFUSED):
        made.add(kind, 0, given.pop("axis"), given.pop("inputs"), given.pop("outputs"), **given)


@pytest.mark.parametrize("kind", ["scale_by", "shift_by"])
def test_weights_that_are_not_given_are_refused(kind):
    made = executor(n_ops=1)
    made.add(kind, 0, 0, [view(X)], [view(Y)])
    with pytest.raises(BackendError, match="no weight for each value"):
        made.finish(0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", ["scale_by", "shift_by"])
def test_weights_of_each_head_are_for_each_of_its_values(kind):
    halves, two = view(X, 2, head_stride=2, width=2), np.ones(4, np.float32)
    made = executor(n_ops=2)
    made.add(kind, 0, 0, [halves], [HALVES], weights=[two], ints=[2])
    for weights in (two[:2], np.ones(8, np.float32)):
        with pytest.raises(BackendError, match="not a weight for each value"):
            made.add(kind, 0, 0, [halves], [HALVES], weights=[weights], ints=[2])
    made.add(kind, 0, 0, [halves], [HALVES], weights=[two], ints=[3])
    with pytest.raises(BackendError, match="are not for each of its values"):
        made.finish(0.0, 0.0, 0.0)


LISTS, WIDE = 1, 64  # another use of the buffer in the arena; columns of two blocks


def matrix(n_rows=WIDTH, n_cols=WIDTH):
    return pack(np.ones((n_rows, n_cols), np.float32).view(np.uint8), 0, n_rows, n_cols)


def prepare(*given, kind=0, **changed):
    return "prepare", 0, [view(X)], [view(INNER)], {"ints": [kind], **changed}


def matmul(inputs, ints=(0, 1, 32), axis=0, n_rows=WIDTH, n_cols=WIDTH, **changed):
    return (
        *("matmul", axis, inputs, [view(Y)]),
        {"matrices": [matrix(n_rows, n_cols)], "ints": ints, **changed},
    )


COLUMNS = {"sharing": BY_COLUMNS}
COPIES = {"sharing": IN_COPIES}
ONE_LINE = {"copies": [0, 64, 0], "capacities": [N_BATCH * 256, N_BATCH * 256, 48]}
ONE_LINE |= {"arena_bytes": 1024, "n_threads": 2}
WIDE_ROWS = view(X, row_stride=WIDE, width=WIDE)
ONE_ROW = 0, [view(X)], [view(Y)]
HALVES = view(Y, 2, head_stride=2, width=2)
WIDE_SIZES = {"capacities": [N_BATCH * 4 * WIDE] * 3, "arena_bytes": 1024}


@pytest.mark.parametrize(
    ("misfit", "steps", "sizes"),
    [
        ("nothing to read", [matmul([])], {}),
        ("nothing to write", [("prepare", 0, [view(X)], [], {"ints": [0]})], {}),
        ("nothing to write", [("sort_by_head", 0, [], [], {})], {}),
        ("no whole blocks", [prepare(kind=3)], {}),
        ("no whole blocks", [prepare(kind=-1)], {}),
        ("no whole blocks", [prepare(kind=1)], {}),
        ("another width", [matmul([view(INNER)])], {}),
        ("another width", [prepare(), matmul([view(INNER)], n_cols=2)], {}),
        ("another width", [prepare(), matmul([view(INNER)], axis=1)], {}),
        ("units that are not", [prepare(), matmul([view(INNER)], ints=[0, 1, 33])], {}),
        ("units that are not", [prepare(), matmul([view(INNER)], ints=[1, 1, 32])], {}),
        ("units that are not", [prepare(), matmul([view(INNER)], ints=[-1, 1, 32])], {}),
        ("units that are not", [prepare(), matmul([view(INNER)], ints=[0, 1 << 62, 32])], {}),
        ("different shapes", [("take", 0, [view(X)], [view(Y)], {})], {}),
        ("different shapes", [("clamp", 0, [view(X, width=3)], [view(Y)], {})], {}),
        ("numbers of xIELU", [("xielu", *ONE_ROW, {})], {}),
        ("different shapes", [("gaussian_topk", 0, [view(X, width=3)], [view(Y)], {})], {}),
        ("factor for each head", [("mul_heads", 0, [view(X), view(X)], [view(Y)], {})], {}),
        ("factor for each head", [("mul_heads", 0, [view(X), HALVES], [view(Y)], {})], {}),
        ("no parts of these", [("scale_by_position", *ONE_ROW, {"ints": [0, 0]})], {}),
        ("no parts of these", [("scale_by_position", *ONE_ROW, {"ints": [1, -1]})], {}),
        ("no parts of these", [("scale_by_position", *ONE_ROW, {"ints": [1, 1 << 31]})], {}),
        ("of other positions", [("scale_by_position", 1, *ONE_ROW[1:], {"ints": [1, 0]})], {}),
        ("equal parts", [("copy", 0, [view(X)], [view(Y)], {**COLUMNS, "n_units": 3})], {}),
        ("equal parts", [("angles", 0, [], [view(Y)], {**COLUMNS, "n_units": 1})], {}),
        (
            "equal parts",
            [("prepare", 0, [WIDE_ROWS], [view(INNER)], {"ints": [1], **COLUMNS, "n_units": 4})],
            WIDE_SIZES,
        ),
        ("copies", [("copy", 0, [view(X)], [view(INNER)], COPIES)], {}),
        ("copies", [("copy", 0, [view(X)], [view(INNER, row_stride=0)], {})], ONE_LINE),
        (
            "no room for prepared",
            [("prepare", 0, [WIDE_ROWS], [view(INNER, row_stride=0)], {"ints": [0], **COPIES})],
            ONE_LINE,
        ),
        (
            "no room for the lists",
            [("sort_by_position", 0, [], [view(LISTS, width=1)], {"ints": [13, 0], **COPIES})],
            ONE_LINE,
        ),
        ("no room", [("sort_by_position", 0, [], [view(LISTS, width=1)], {"ints": [0]})], {}),
        (
            "no room for the lists",  # their size in bytes is a small number, modulo 2^64
            [("sort_by_position", 0, [], [view(LISTS, width=1)], {"ints": [(1 << 62) - 7]})],
            {},
        ),
    ],
)
def test_plans_that_would_leave_their_buffers_are_not_made(misfit, steps, sizes):
    made = executor(n_ops=len(steps), **sizes)
    for kind, axis, inputs, outputs, further in steps:
        numbers = {"numbers": np.ones(1), "axes": np.ones(0, np.int32)} if kind == "angles" else {}
        made.add(kind, 0, axis, inputs, outputs, **numbers, **further)
    with pytest.raises(BackendError, match=misfit):
        made.finish(0.0, 0.0, 0.0)


IDS = view(INNER, width=2)


def route(n_used=2):
    return "route", 0, [view(X)], [IDS, IDS], {"ints": [n_used, 0, 0, 1, 1, 1]}


def scale_chosen(n_experts=4, ids=IDS, axis=0, **changed):
    weights = changed.pop("weights", [np.ones(n_experts, np.float32)])
    return (
        *("scale_chosen", axis, [view(X, 2, head_stride=2, width=2), ids], [HALVES]),
        {"ints": [n_experts], "weights": weights, **changed},
    )


@pytest.mark.parametrize(
    "steps",
    [
        [route(), scale_chosen(3)],
        [route(), scale_chosen(weights=[None])],
        [route(), scale_chosen(ids=view(INNER, offset=1, width=2))],
        [route(), scale_chosen(ids=view(INNER, width=1))],
        [route(), scale_chosen(axis=1)],
        [route(1), scale_chosen()],
        [("copy", 0, [view(X)], [view(INNER)], {}), scale_chosen()],
        [scale_chosen()],
    ],
)
def test_factors_are_those_of_experts_that_a_route_chose(steps):
    made = executor(n_ops=len(steps))
    for kind, axis, inputs, outputs, further in steps:
        made.add(kind, 0, axis, inputs, outputs, **further)
    with pytest.raises(BackendError, match=r"ids of more experts|different shapes"):
        made.finish(0.0, 0.0, 0.0)


def group_ids(n_experts=4, n_of_group=2, ids=IDS, axis=0, to=IDS):
    return "group_ids", axis, [ids], [to], {"ints": [n_experts, n_of_group]}


def pair_ids(n_first, column, n_second, to=IDS):
    return "pair_ids", 0, [IDS, IDS], [to], {"ints": [n_first, column, n_second]}


def given_ids(n=3, ids=IDS, to=IDS, axis=0):
    return "given_ids", axis, [ids], [to], {"ints": [n]}


@pytest.mark.parametrize(
    ("steps", "misfit"),
    [
        ([given_ids(0)], "ids of nothing"),
        ([given_ids(2**31)], "ids of nothing"),
        ([given_ids(to=view(INNER, width=1))], "not an id for each"),
        ([given_ids(3), scale_chosen(3)], "ids of more experts"),
        ([given_ids(3), scale_chosen(4, axis=1)], "ids of more experts"),
        ([given_ids(3), pair_ids(0, 0, 4)], "more pairs"),
        ([given_ids(3), pair_ids(4, 0, 2**30)], "more pairs"),
        ([given_ids(3), pair_ids(4, 9, 4)], "ids of more than"),
        ([given_ids(3), pair_ids(3, 0, 4)], "ids of more than"),
        ([given_ids(3), pair_ids(4, 0, 3)], "ids of more than"),
        ([pair_ids(4, 0, 4)], "ids of more than"),
        ([given_ids(3), pair_ids(4, 0, 4, to=view(INNER, width=1))], "not a pair"),
        ([given_ids(3), pair_ids(4, 0, 4), scale_chosen(12)], "ids of more experts"),
    ],
)
def test_given_ids_are_in_range(steps, misfit):
    made = executor(n_ops=len(steps))
    for kind, axis, inputs, outputs, further in steps:
        made.add(kind, 0, axis, inputs, outputs, **further)
    with pytest.raises(BackendError, match=misfit):
        made.finish(0.0, 0.0, 0.0)


def token_ids(n_first, n_second=N_VOCAB, absent=-1, axis=0, to=IDS):
    return "token_ids", axis, [IDS], [to], {"ints": [n_first, n_second, absent]}


def sorted_ids(n, leaves_last=1):
    return "sort_by_expert", 0, [IDS], [view(Y, width=2)], {"ints": [n, leaves_last]}


@pytest.mark.parametrize(
    ("steps", "misfit"),
    [
        ([given_ids(3), token_ids(4, N_VOCAB - 1)], "a row for each token"),
        ([given_ids(3), token_ids(4, absent=N_VOCAB)], "a row for each token"),
        ([given_ids(3), token_ids(4, absent=-2)], "a row for each token"),
        ([given_ids(3), token_ids(4, axis=1)], "a row for each token"),
        ([given_ids(3), token_ids(4, 2**30)], "more rows than"),
        ([given_ids(3), token_ids(0)], "more rows than"),
        ([given_ids(3), token_ids(3)], "more tables than"),
        ([token_ids(4)], "more tables than"),
        ([given_ids(3), token_ids(4, to=view(INNER, width=1))], "not a row for each id"),
        ([given_ids(3), token_ids(4), scale_chosen(3 * N_VOCAB)], "ids of more experts"),
        ([given_ids(3), sorted_ids(2)], "ids of more experts"),
        ([given_ids(3), sorted_ids(3, 0)], "ids of more experts"),
        ([given_ids(3), sorted_ids(3, 2)], "lists of nothing"),
        ([given_ids(3), sorted_ids(0)], "lists of nothing"),
    ],
)
def test_rows_of_tables_are_those_that_there_are(steps, misfit):
    made = executor(n_ops=len(steps))
    for kind, axis, inputs, outputs, further in steps:
        made.add(kind, 0, axis, inputs, outputs, **further)
    with pytest.raises(BackendError, match=misfit):
        made.finish(0.0, 0.0, 0.0)


def add_chosen(y=None, x=None, ids=IDS, shares=IDS, to=HALVES):
    halves = view(X, 2, head_stride=2, width=2)
    return "add_chosen", 0, [y or view(X, width=2), x or halves, ids, shares], [to], {"ints": [3]}


@pytest.mark.parametrize(
    ("step", "misfit"),
    [
        (add_chosen(), "different shapes"),
        (add_chosen(to=view(INNER, width=1)), "different shapes"),
        (add_chosen(x=view(X), to=view(INNER, width=2)), "not an id and a share"),
        (add_chosen(ids=view(INNER, width=1), to=view(INNER, width=2)), "not an id and a share"),
        (add_chosen(shares=view(INNER, width=1), to=view(INNER, width=2)), "not an id and a share"),
    ],
)
def test_what_is_chosen_has_ids_and_shares(step, misfit):
    made = executor(n_ops=1)
    kind, axis, inputs, outputs, further = step
    made.add(kind, 0, axis, inputs, outputs, **further)
    with pytest.raises(BackendError, match=misfit):
        made.finish(0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("steps", "misfit"),
    [
        ([route(), group_ids(3, 1)], "ids of more experts"),
        ([route(), group_ids(axis=1)], "ids of more experts"),
        ([route(1), group_ids()], "ids of more experts"),
        ([group_ids()], "ids of more experts"),
        ([route(), group_ids(4, 0)], "groups of different sizes"),
        ([route(), group_ids(4, -2)], "groups of different sizes"),
        ([route(), group_ids(4, 3)], "groups of different sizes"),
        ([route(), group_ids(to=view(INNER, width=1))], "not a group for each id"),
        ([route(), group_ids(), scale_chosen(1)], "ids of more experts"),
        ([route(), group_ids(), scale_chosen(2, axis=1)], "ids of more experts"),
        ([route(), group_ids(), group_ids(1, 1)], "ids of more experts"),
    ],
)
def test_groups_are_those_of_experts_that_a_route_chose(steps, misfit):
    made = executor(n_ops=len(steps))
    for kind, axis, inputs, outputs, further in steps:
        made.add(kind, 0, axis, inputs, outputs, **further)
    with pytest.raises(BackendError, match=misfit):
        made.finish(0.0, 0.0, 0.0)


def test_numbers_of_xielu_are_four():
    made, numbers = executor(n_ops=1), np.ones(5, np.float32)
    for n in (3, 5):
        with pytest.raises(BackendError, match="not a weight for each value"):
            made.add("xielu", 0, *ONE_ROW, weights=[numbers[:n]])


def test_factors_are_one_for_each_expert():
    made = executor()
    kind, axis, inputs, outputs, further = scale_chosen(4, weights=[np.ones(3, np.float32)])
    with pytest.raises(BackendError, match="not a weight for each value"):
        made.add(kind, 0, axis, inputs, outputs, **further)


def test_rows_without_a_token_are_refused_where_nothing_stands_for_them():
    made = executor(n_ops=1)
    made.add("embed", 0, 0, [], [view(Y)], matrices=[matrix(N_VOCAB)])
    made.finish(0.0, 0.0, 0.0)
    given = {"tokens": np.array([-1, 1], np.int32), "embeddings": np.zeros((2, WIDTH), np.float32)}
    with pytest.raises(BatchError, match="token id out of range"):
        made.run(rows(**given), [], [(Y, np.zeros((2, WIDTH), np.float32))])


def test_positions_without_axes_are_refused():
    """A plan without rotation reads the first one, too: rows may be parted by it."""
    with pytest.raises(BatchError, match="fewer axes"):
        finished().run(rows(positions=np.zeros((2, 0), np.int32)), [], arrays().items())


@pytest.mark.parametrize("mask", MASKS)
def test_rows_see_no_place_that_is_not_reserved(mask):
    """Nobody stores keys here: a row has no place of its own only where it sees all there is."""
    store = Pages(np.zeros(1 << 14, np.uint8), 1 << 13, 2)
    made = executor(n_ops=1, stores=[store])
    ints = [0, 4096, 1, 0, MASKS.index(mask), 1, 0]
    made.add("attention", 0, 0, [view(X)], [view(Y)], ints=ints, f=1.0)
    made.finish(0.0, 0.0, 0.0)
    tables, length = np.array([[0]], np.int32), np.array([2], np.int32)
    pages = SimpleNamespace(tables=tables, first=np.zeros(1, np.int32), length=length)
    seq = np.zeros(2, np.int32)
    for place in ([0, 1], [1, 2], [500, 501]):
        batch = rows(seq=seq, place=np.array(place, np.int32))
        if mask == "block" or place == [0, 1]:
            made.run(batch, [pages], arrays().items())
        else:
            with pytest.raises(BatchError, match="not reserved"):
                made.run(batch, [pages], arrays().items())


def test_a_refused_operation_leaves_nothing_behind():
    made = executor()
    with pytest.raises(BackendError):
        made.add("rms_norm", 0, 0, [view(X)], [view(INNER)], weights=[np.ones(9, np.float32)])
    made.add("add", 0, 0, [view(X), view(X)], [view(INNER)])
    made.add("copy", 0, 0, [view(INNER)], [view(Y)])
    made.finish(0.0, 0.0, 0.0)
    given = arrays()
    made.run(rows(), [], given.items())
    assert (given[Y] == 2).all()


def test_a_plan_is_made_once_and_whole():
    made = executor()
    made.add("add", 0, 0, [view(X), view(X)], [view(INNER)])
    with pytest.raises(BackendError, match="not as many operations"):
        made.finish(0.0, 0.0, 0.0)
    with pytest.raises(BackendError, match="not finished"):
        made.run(rows(), [], arrays().items())
    made.add("copy", 0, 0, [view(INNER)], [view(Y)])
    with pytest.raises(BackendError, match="more operations"):
        made.add("copy", 0, 0, [view(INNER)], [view(Y)])
    made.finish(0.0, 0.0, 0.0)
    with pytest.raises(BackendError, match="finished"):
        made.finish(0.0, 0.0, 0.0)
    with pytest.raises(BackendError, match="finished"):
        made.add("copy", 0, 0, [view(INNER)], [view(Y)])


def test_half_built_objects_are_not_to_be_had():
    with pytest.raises(TypeError):
        Executor.__new__(Executor)
    made = executor(n_ops=1)
    made.add("embed", 0, 0, [], [view(Y)], matrices=[PackedMatrix.__new__(PackedMatrix)])
    with pytest.raises(BackendError, match="row for each token"):
        made.finish(0.0, 0.0, 0.0)


def test_tokens_without_a_table_are_refused():
    """Ids are not checked where nobody looks them up."""
    table = pack(np.ones((N_VOCAB, WIDTH), np.float32).view(np.uint8), 0, N_VOCAB, WIDTH)
    for n_vocab in (0, N_VOCAB + 1):
        made = executor(n_vocab=n_vocab, n_ops=1)
        made.add("embed", 0, 0, [], [view(Y)], matrices=[table])
        with pytest.raises(BackendError, match="row for each token"):
            made.finish(0.0, 0.0, 0.0)


def read_only(array):
    array.flags.writeable = False
    return array


def test_arrays_that_are_only_read_may_be_read_only():
    given = arrays()
    given[X] = read_only(given[X])
    finished().run(rows(), [], given.items())
    assert (given[Y] == 2).all()


@pytest.mark.parametrize(
    "changed",
    [
        {Y: read_only(np.zeros((2, WIDTH), np.float32))},
        {Y: np.zeros((1, WIDTH), np.float32)},
        {X: np.zeros((2, WIDTH - 1), np.float32)},
        {X: np.zeros((2, WIDTH), np.float16)},
        {X: np.zeros((2, WIDTH), np.float64)},
        {X: np.zeros((4, WIDTH), np.float32)[::2]},
        {X: None},
        {X: b"1234" * 8},
        {INNER: np.zeros((2, WIDTH), np.float32)},
        {3: np.zeros((2, WIDTH), np.float32)},
        {-1: np.zeros((2, WIDTH), np.float32)},
        {1 << 40: np.zeros((2, WIDTH), np.float32)},
    ],
    ids=lambda changed: f"{next(iter(changed))}-{type(next(iter(changed.values()))).__name__}",
)
def test_arrays_that_do_not_fit_are_refused(changed):
    with pytest.raises(REFUSED):
        finished().run(rows(), [], (arrays() | changed).items())


@pytest.mark.parametrize("missing", [X, Y])
def test_an_array_of_an_earlier_run_is_not_used_again(missing):
    made, given = finished(), arrays()
    made.run(rows(), [], given.items())
    del given[missing]
    gc.collect()
    with pytest.raises(BatchError, match="does not fit the rows"):
        made.run(rows(), [], given.items())


@pytest.mark.parametrize(
    "changed",
    [
        {"n": N_BATCH + 1},
        {"tokens": np.array([0, N_VOCAB], np.int32)},
        {"tokens": np.array([0, -1], np.int32)},
        {"tokens": np.array([0], np.int32)},
        {"tokens": None},
        {"tokens": [0, 1]},
        {"seq": np.array([0, -1], np.int32)},
        {"place": np.array([0, -1], np.int32)},
        {"seq": np.zeros(2, np.int32), "place": np.array([1, 0], np.int32)},
        {"seq": np.zeros(2, np.int32), "place": np.array([1, 1], np.int32)},
        {"outputs": np.array([2], np.int32)},
        {"outputs": np.array([-1], np.int32)},
        {"outputs": np.array([0, 1, 1], np.int32)},
        {"parent": np.array([-1, 1], np.int32)},
        {"parent": np.array([-1, -2], np.int32)},
        {"parent": np.array([-1], np.int32)},
        {"embeddings": np.zeros((2, WIDTH), np.float32), "tokens": np.array([0, -2], np.int32)},
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused(changed):
    with pytest.raises(REFUSED):
        finished().run(rows(**changed), [], arrays(4).items())


@pytest.mark.parametrize("logits", [X, INNER, Y, 3, 1 << 30])
def test_logits_that_no_matmul_computes_are_refused(logits):
    made = finished()
    assert not made.can_choose(logits)
    with pytest.raises((*REFUSED, AttributeError)):
        made.run(rows(), [], arrays().items(), logits, np.zeros((2, WIDTH), np.float32))


@pytest.mark.parametrize("seconds", [-1.0, 1e30, float("inf"), float("nan")])
def test_a_time_to_pack_is_a_number(seconds):
    made = executor(n_ops=1)
    made.add("copy", 0, 0, [view(X)], [view(Y)])
    with pytest.raises(BackendError, match="impossible time"):
        made.finish(0.0, 0.0, 0.0, 0, seconds)


def test_orders_that_do_not_exist_are_refused():
    with pytest.raises(BackendError, match="first to last"):
        use_order("backwards")
