"""Products bit for bit: the definition's numbers in the order of the CUDA kernels' sums."""

import functools

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness.cuda_orders import Product
from harness.cuda_steps import carry_out, execute, matrix
from harness.generated import FLOATS, NATIVE, QUANTISED, random_matrix

from mtpcore.backends.cuda.launch import products
from mtpcore.backends.cuda.launch.codes import Codes, arrays_of
from mtpcore.backends.cuda.launch.codes import quantise as quantise_rows
from mtpcore.backends.cuda.launch.products import (
    KERNELS,
    LAUNCHERS,
    SLOTS,
    ClusteredMatrix,
    Slots,
    route_few,
)
from mtpcore.backends.cuda.launch.step import Step
from mtpcore.backends.reference import formulas
from mtpcore.backends.reference.activation import BLOCK_OF_TYPE, quantise
from mtpcore.backends.reference.arithmetic import candidates, experts
from mtpcore.backends.reference.matrix import QuantisedMatrix
from mtpcore.errors import BackendError

ONE_OF_EACH = ("F32", "Q8_0", "Q4_K")
"""A float type, one in blocks of 32 and one in blocks of 256."""


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@functools.cache
def raw_matrix(kind, *shape):
    return random_matrix(np.random.default_rng(0), kind, *shape)


def width_of(kind, n_blocks):
    return n_blocks * max(BLOCK_OF_TYPE.get(int(Type[kind]), 0), 32)


def defined(kind, raw):
    """Return a matrix, or a list of them, of the written-down order."""
    if raw.ndim == 3:
        return [defined(kind, part) for part in raw]
    return Product(int(Type[kind]), raw)


def formula_of(kind, raw):
    """Return the matrix as the reference backend's formulas take it."""
    values = quants.dequantize(raw, Type[kind]).astype(np.float64)
    block = BLOCK_OF_TYPE.get(int(Type[kind]), 0)
    return QuantisedMatrix(values, block) if block else values


def product(device, op, kind, raw, shape, inputs, row_shape, *weights, **attrs):
    w = matrix(device, kind, raw, shape)
    (made,) = carry_out(
        device, LAUNCHERS[op], inputs, [w, *weights], (row_shape, np.float32), **attrs
    )
    return made


@pytest.mark.parametrize("kind", NATIVE)
def test_rows_times_a_matrix_in_the_order_written_down(device, kind):
    """Eleven blocks divide unevenly among warps, 37 rows and 9 slots among tiles of either size."""
    shape = (37, width_of(kind, 11))
    raw, x, bias = raw_matrix(kind, *shape), floats(1, 9, shape[1]), floats(2, shape[0])
    wanted = defined(kind, raw).times(x) + bias
    few = product(device, "matmul", kind, raw, shape, [x[:3]], (37,), bias)
    many = product(device, "matmul", kind, raw, shape, [x], (37,), bias)
    assert (few == wanted[:3]).all()
    assert (many == wanted).all()
    formula = np.stack([formula_of(kind, raw) @ row for row in x]) + bias
    # A few roundings of sums of terms of size 1.
    assert np.abs(many - formula).max() < 1e-5 * np.sqrt(shape[1]) * np.abs(formula).max()


@pytest.mark.parametrize("kind", QUANTISED)
def test_warps_that_go_through_all_columns_make_the_same_sums(device, kind, monkeypatch):
    """Five row tiles, of which the last has no neighbour, and two tiles of slots."""
    shape = (69, width_of(kind, 11))
    raw, x, bias = raw_matrix(kind, *shape), floats(17, 35, shape[1]), floats(18, shape[0])
    with monkeypatch.context() as patch:
        patch.setattr(products, "_MANY", 2)
        made = product(device, "matmul", kind, raw, shape, [x], (69,), bias)
    assert (made == defined(kind, raw).times(x) + bias).all()
    few = product(device, "matmul", kind, raw, shape, [x[30:]], (69,), bias)
    assert (few == made[30:]).all()


def test_tiles_keep_a_gpu_busy():
    """Many slots share their columns among warps; long rows of them need no other warp's sums."""

    w = products.DeviceMatrix(int(Type.Q8_0), 1, 4096, 32, None, None, None, None)

    def tiles_of(n_slots, *n_rows):
        return products._wide_tiles(n_rows, products.slots_of_rows(w, n_slots))

    assert tiles_of(32, 4096) == products.WIDE
    assert tiles_of(512, 4096) == tiles_of(512, 1024, 1024, 1024) == products.LONG
    assert tiles_of(512, 1024) == products.WIDE


@pytest.mark.parametrize(("n_tiles", "n_ctas"), [(1, 1), (6, 6), (7, 4), (8, 4), (9, 3), (40, 4)])
def test_few_blocks_share_many_tiles_evenly(monkeypatch, n_tiles, n_ctas):
    monkeypatch.setattr(products, "_AT_ONCE", 6)
    monkeypatch.setattr(products, "_SHARING", 4)
    assert products._sharing(n_tiles) == n_ctas


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_blocks_that_share_tiles_have_the_bits_of_single_ones(device, monkeypatch, kind):
    """Of seven tiles, the last one in part; a warp has one to three pieces of a tile."""
    shape = (6 * 16 + 3, width_of(kind, 20))
    raw, x = raw_matrix(kind, *shape), floats(3, 5, shape[1])
    made = []
    for n in (7, 1, 2, 3):
        monkeypatch.setattr(products, "_AT_ONCE", n)
        monkeypatch.setattr(products, "_SHARING", n)
        made.append(product(device, "matmul", kind, raw, shape, [x], (shape[0],)))
    assert all(one.tobytes() == made[0].tobytes() for one in made[1:])


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_row_has_the_same_bits_alone_and_in_batches(device, kind):
    shape = (18, width_of(kind, 3))
    raw, x = raw_matrix(kind, *shape), floats(3, 40, shape[1])
    together = product(device, "matmul", kind, raw, shape, [x], (18,))
    for first, n in ((0, 1), (39, 1), (4, 2), (7, 8), (0, 9), (5, 33)):
        part = product(device, "matmul", kind, raw, shape, [x[first : first + n]], (18,))
        assert (part == together[first : first + n]).all(), (first, n)


@pytest.mark.parametrize("n_cols", [1, 6, 1023, 2600, 3333])
def test_float_rows_of_any_width(device, n_cols):
    raw, x = raw_matrix("F16", 5, n_cols), floats(4, 3, n_cols)
    made = product(device, "matmul", "F16", raw, (5, n_cols), [x], (5,))
    assert (made == defined("F16", raw).times(x)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_non_finite_activation_reaches_every_output_of_its_row_only(device, bad, kind):
    shape = (20, width_of(kind, 2))
    raw, x = raw_matrix(kind, *shape), floats(5, 3, shape[1])
    clean = product(device, "matmul", kind, raw, shape, [x], (20,))
    x[1, 40] = bad
    made = product(device, "matmul", kind, raw, shape, [x], (20,))
    assert np.isnan(made[1]).all()
    assert (made[[0, 2]] == clean[[0, 2]]).all()


def test_rows_of_many_heads_are_no_more_than_a_grid_takes(device):
    """Those of 128 heads of 512 rows, as one."""
    x, n = np.ones((1 << 16, 32), np.float32), 1 << 16
    made = Codes(
        32,
        device.empty((n, 32), np.int8),
        device.empty((n, 1), np.float32),
        device.empty((n, 2), np.int16),
    )
    execute(device, [quantise_rows(device.upload(x), made, n)])
    assert np.array_equal(device.download(made.scales, n), np.full((n, 1), 1 / 127, np.float32))


@pytest.mark.parametrize("block", [32, 256])
def test_activations_are_quantised_as_defined(device, block):
    x = floats(6, 6, 768) * np.float32(10.0) ** np.arange(-40, 20, 10)[:, None].astype(np.float32)
    x[4, 256:512] = 0
    x[5, 3] = np.inf
    made = Codes(
        block,
        device.empty((6, 768), np.int8),
        device.empty((6, 768 // block), np.float32),
        device.empty((6, 48), np.int16),
    )
    execute(device, [quantise_rows(device.upload(x), made, 6)])
    arrays = arrays_of(made)
    laid, got_scales, got_sums = (
        device.download(arrays[of], 6) for of in ("codes", "scales", "sums")
    )
    # by q of a lane, then by step and half of 32 columns
    laid = laid.reshape(6, -1, 4, block // 32, 2, 4)
    got_codes = laid.transpose(0, 1, 3, 4, 2, 5).reshape(6, -1, block)
    got_sums = got_sums.view(np.int32)
    if block == 256:  # in two bytes each
        parts = got_sums.view(np.int8).reshape(6, -1, 4, 2, 4).astype(np.int32)
        got_sums = parts[:, :, :, 0] + 256 * parts[:, :, :, 1]
    width = 16 if block == 256 else 32
    for row, *got in zip(x, got_codes, got_scales, got_sums, strict=True):
        wanted, wanted_scales = quantise(row, block)
        assert (got[0] == wanted.reshape(-1, block)).all()
        assert np.array_equal(got[1], wanted_scales, equal_nan=True)
        assert (got[2].reshape(-1) == wanted.reshape(-1, width).sum(axis=1)).all()


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("n_rows", [1, 5, 30])
@pytest.mark.parametrize("has_row_each", [False, True])
def test_experts(device, kind, n_rows, has_row_each):
    """Of 30 rows an expert gets more than a tile of 8, or of 32, and one gets none."""
    n_experts, n_used, shape = 5, 2, (5, 18, width_of(kind, 2))
    raw, bias = raw_matrix(kind, *shape), floats(7, n_experts, 18)
    rng = np.random.default_rng(8)
    ids = np.stack([rng.permutation([0, 1, 1, 3])[:n_used] for _ in range(n_rows)])
    ids[:, 1] = np.where(ids[:, 1] == ids[:, 0], 4, ids[:, 1])
    ids = ids.astype(np.int32)
    x = floats(9, n_rows, *((n_used,) if has_row_each else ()), shape[2])
    made = product(device, "expert_matmul", kind, raw, shape, [x, ids], (n_used, 18), bias)
    assert (made == experts.expert_matmul(x, ids, defined(kind, raw), bias)).all()
    last = product(
        device, "expert_matmul", kind, raw, shape, [x[-1:], ids[-1:]], (n_used, 18), bias
    )
    assert (last == made[-1:]).all()


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("n_rows", [1, 11, 67])
def test_heads(device, kind, n_rows):
    """Of 67 rows a head has three tiles, or nine of floats."""
    shape = (3, 18, width_of(kind, 1))
    raw, x = raw_matrix(kind, *shape), floats(10, n_rows, 3, shape[2])
    made = product(device, "head_matmul", kind, raw, shape, [x], (3, 18))
    assert (made == experts.head_matmul(x, defined(kind, raw))).all()


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("n_rows", [1, 11])
def test_ranks_share_a_matrix(device, kind, n_rows):
    shape = (18, width_of(kind, 1))
    raw, x, bias = raw_matrix(kind, *shape), floats(11, n_rows, 3, shape[1]), floats(12, 18)
    made = product(device, "rank_matmul", kind, raw, shape, [x], (3, 18), bias)
    assert (made == candidates.rank_matmul(x, defined(kind, raw), bias)).all()


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_more_tiles_than_a_grid_takes_are_several_launches(device, kind, monkeypatch):
    """Of rows, of heads and of experts; here a grid takes two."""
    monkeypatch.setattr(products, "_MOST_TILES", 2)
    n_rows, shape = 67, (3, 18, width_of(kind, 1))
    raw, x = raw_matrix(kind, *shape), floats(19, n_rows, 3, shape[2])
    heads = product(device, "head_matmul", kind, raw, shape, [x], (3, 18))
    assert (heads == experts.head_matmul(x, defined(kind, raw))).all()
    ids = np.random.default_rng(20).integers(0, 3, (n_rows, 2)).astype(np.int32)
    x = x[:, 0].copy()
    made = product(device, "expert_matmul", kind, raw, shape, [x, ids], (2, 18))
    assert (made == experts.expert_matmul(x, ids, defined(kind, raw), None)).all()
    rows = product(device, "matmul", kind, raw[0], shape[1:], [x], (18,))
    assert (rows == defined(kind, raw[0]).times(x)).all()


@pytest.mark.parametrize(
    ("n_rows", "n_used", "n_matrices"),
    [(1, 4, 256), (7, 1, 3), (37, 2, 300), (700, 3, 40), (33, 2, 2500), (20, 1, 8192)],
)
def test_slots_are_sorted_by_matrix(device, n_rows, n_used, n_matrices):
    """Ascending, in as few tiles as there can be; of ids that there are not, the nearest."""
    rng = np.random.default_rng(n_rows)
    ids = rng.integers(-1, n_matrices + 1, (n_rows, n_used)).astype(np.int32)
    ids[::3] = n_matrices // 2  # more than a tile
    w = products.DeviceMatrix(int(Type.Q8_0), n_matrices, 16, 32, None, None, None, None)
    step = Step((device.empty((n_rows, 32), np.float32),), (w,), (), {}, scratch_of(device), None)
    slots, group = products.slots_of_experts(step, w, step.inputs[0], device.upload(ids), n_rows)
    execute(device, [group])
    matrices = device.download(slots.matrices, slots.n_tiles)
    width, _ = products._width(w, slots.n // n_matrices)
    n_bytes = 4 * slots.n_tiles * width
    members = np.frombuffer(device.read(slots.members, 0, n_bytes), np.int32)
    members = members.reshape(slots.n_tiles, width)
    chosen = ids.reshape(-1).clip(0, n_matrices - 1)
    wanted = []
    for i in np.unique(chosen):
        alike = np.flatnonzero(chosen == i)
        for tile in np.split(alike, range(width, len(alike), width)):
            wanted.append((i, [*tile, *[-1] * (width - len(tile))]))
    n_used_tiles = len(wanted)
    assert (matrices[n_used_tiles:] == -1).all()
    assert matrices[:n_used_tiles].tolist() == [i for i, _ in wanted]
    assert members[:n_used_tiles].tolist() == [tile for _, tile in wanted]


def scratch_of(device):
    return lambda name, shape, dtype: device.empty(shape, dtype)


def test_more_matrices_than_can_be_counted_are_refused(emulated):
    w = products.DeviceMatrix(int(Type.Q8_0), 8193, 16, 32, None, None, None, None)
    x, ids = (emulated.empty((1, n), np.float32) for n in (32, 2))
    step = Step((x,), (w,), (), {}, scratch_of(emulated), None)
    with pytest.raises(BackendError, match="too many matrices") as caught:
        products.slots_of_experts(step, w, x, ids, 1)
    assert caught.value.got == 8193


def test_positions_choose_matrices(device):
    """Positions before the first matrix and behind the last one take the nearest."""
    shape, first = (4, 18, 64), 3
    raw, x = raw_matrix("Q8_0", *shape), floats(11, 6, 64)
    positions = np.array([[0, 9], [3, 9], [4, 9], [4, 9], [6, 9], [99, 9]], np.int32)
    made = product(
        device, "matmul_by_position", "Q8_0", raw, shape, [x, positions], (18,), first=first
    )
    wanted = experts.matmul_by_position(x, positions, defined("Q8_0", raw), first=first)
    assert (made == wanted).all()


def test_rows_that_were_chosen_have_their_own_positions(device):
    shape, chosen = (4, 18, 64), np.array([1, 2, 5], np.int32)
    raw, x = raw_matrix("Q8_0", *shape), floats(12, 3, 64)
    positions = np.array([[0], [3], [1], [0], [0], [2]], np.int32)
    made = product(
        device,
        *("matmul_by_position", "Q8_0", raw, shape, [x, positions], (18,)),
        first=0,
        chosen=chosen,
    )
    wanted = experts.matmul_by_position(x, positions[chosen], defined("Q8_0", raw), first=0)
    assert (made == wanted).all()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_clusters_are_multiplied_alone(device, kind):
    rng = np.random.default_rng(13)
    raw, x = raw_matrix(kind, 42, 64), floats(13, 4, 64)
    ordering = rng.permutation(42).astype(np.int32)
    ids = np.stack([rng.permutation(6)[:2] for _ in range(4)]).astype(np.int32)
    stack = matrix(device, kind, raw[ordering], (6, 7, 64))
    (made,) = carry_out(
        device,
        LAUNCHERS["cluster_matmul"],
        [x, ids],
        [ClusteredMatrix(stack, device.upload(ordering))],
        ((42,), np.float32),
        n_clusters=6,
    )
    wanted = experts.cluster_matmul(
        x, ids, defined(kind, raw), ordering.astype(np.float32), n_clusters=6
    )
    assert (made == wanted).all()


def routing(**changed):
    plain = {
        "n_used": 3,
        "gate": "softmax",
        "normalise": True,
        "scale": 1.0,
        "n_groups": 1,
        "n_groups_used": 1,
        "n_best_of_group": 2,
    }
    return plain | changed


@pytest.mark.parametrize(
    ("n_experts", "weighted", "attrs"),
    [
        (8, "", routing()),
        (40, "", routing(gate="sigmoid", normalise=False, scale=2.5)),
        (64, "correction", routing(gate="sigmoid", n_used=8, n_groups=8, n_groups_used=3)),
        (48, "correction", routing(n_groups=6, n_groups_used=2, n_best_of_group=1)),
        (12, "correction bias factors", routing(n_groups=12, n_groups_used=5, n_used=5)),
        (3, "bias", routing(n_used=3)),
    ],
)
def test_routing_is_the_definition(device, n_experts, weighted, attrs):
    x, raw = floats(14, 5, 96), raw_matrix("F32", n_experts, 96).view(np.float32) * 4
    x[1] = 0  # equal scores: the lowest ids
    x[2, 0], x[3, 0] = np.nan, np.inf  # no numbers, and some of them
    weights = [
        floats(15, n_experts) if name in weighted else None
        for name in ("correction", "bias", "factors")
    ]
    w = matrix(device, "F32", raw.view(np.uint8), (n_experts, 96))
    outputs = [((attrs["n_used"],), np.int32), ((attrs["n_used"],), np.float32)]
    ids, shares = carry_out(device, LAUNCHERS["route"], [x], [w, *weights], *outputs, **attrs)
    with np.errstate(all="ignore"):
        defined_raw = raw.view(np.uint8).reshape(n_experts, -1)
        wanted = experts.route(x, defined("F32", defined_raw), *weights, **attrs)
    assert (ids == wanted[0]).all()
    assert np.array_equal(shares, wanted[1], equal_nan=True)
    formula = formulas.route(
        x[0].astype(np.float64), raw.reshape(n_experts, 96).astype(np.float64), *weights, **attrs
    )
    assert (ids[0] == formula[0]).all()
    assert np.allclose(shares[0], formula[1], rtol=1e-5)
    alone = carry_out(device, LAUNCHERS["route"], [x[4:]], [w, *weights], *outputs, **attrs)
    assert (alone[0] == ids[4:]).all()
    assert (alone[1] == shares[4:]).all()
    assert_few_are_routed(device, x, [w, *weights], attrs, ids, shares)


def assert_few_are_routed(device, x, weights, attrs, ids, shares):
    """In one launch, which sorts slots by the experts that they use."""
    n_used, n_slots = ids.shape[1], ids.size
    n_tiles = min(n_slots, n_slots // SLOTS + weights[0].n_rows)

    def route_and_sort(step, n_rows):
        *chosen, members, matrices = step.outputs
        slots = Slots(n_slots, n_used, n_tiles, False, 1, matrices, members)
        return [route_few(msgspec.structs.replace(step, outputs=tuple(chosen)), slots, n_rows)]

    outputs = [(n_used,), (n_used,), (n_used, SLOTS), (n_used,)]
    types = [np.int32, np.float32, np.int32, np.int32]
    outputs = [*zip(outputs, types, strict=True)]
    made = carry_out(device, route_and_sort, [x], weights, *outputs, **attrs)
    assert made[0].tobytes() == ids.tobytes()
    assert made[1].tobytes() == shares.tobytes()
    members, matrices = made[2].reshape(-1, SLOTS), made[3].ravel()[:n_tiles].tolist()
    tiles = [(one, np.flatnonzero(ids.ravel() == one).tolist()) for one in np.unique(ids)]
    assert matrices == [one for one, _ in tiles] + [-1] * (n_tiles - len(tiles))
    for found, (_, slots) in zip(members.tolist(), tiles, strict=False):
        assert found == slots + [-1] * (SLOTS - len(slots))


def test_every_row_chooses_shared_experts_last(device):
    """Those behind all others, with a share of one, where there are more ranks than are chosen."""
    x, raw, attrs = floats(14, 5, 96), raw_matrix("F32", 7, 96), routing(n_used=3, scale=2.5)
    w = matrix(device, "F32", raw, (7, 96))

    def routed(n_ranks):
        outputs = [((n_ranks,), np.int32), ((n_ranks,), np.float32)]
        given = [x], [w, None, None, None], *outputs
        ids, shares = carry_out(device, LAUNCHERS["route"], *given, **attrs)
        assert_few_are_routed(device, x, [w, None, None, None], attrs, ids, shares)
        return ids, shares

    (ids, shares), (chosen, their_shares) = routed(5), routed(3)
    assert (ids[:, :3] == chosen).all()
    assert (shares[:, :3] == their_shares).all()
    assert ids[:, 3:].tolist() == [[7, 8]] * 5
    assert shares[:, 3:].tolist() == [[1, 1]] * 5


def test_too_many_experts_are_refused(emulated):
    w = matrix(emulated, "F32", np.zeros((1025, 32), np.float32).view(np.uint8), (1025, 32))
    outputs = [((3,), np.int32), ((3,), np.float32)]
    with pytest.raises(BackendError, match="too many experts") as caught:
        carry_out(
            emulated,
            LAUNCHERS["route"],
            [floats(16, 1, 32)],
            [w, None, None, None],
            *outputs,
            **routing(),
        )
    assert caught.value.got == 1025


def test_every_type_of_the_cpu_has_a_kernel():
    names = {kernel.name for kernel in KERNELS}
    assert {"matmul", "matmul_float"} <= names
    assert set(FLOATS) | set(QUANTISED) == set(NATIVE)
