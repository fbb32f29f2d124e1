"""Recurrent layers on the CPU: the bits of the definition, however rows come and are shared."""

from itertools import pairwise, product

import numpy as np
import pytest
from harness.hybrids import N_VOCAB, hybrid
from harness.nodewise import assert_same_values

from mtpcore._ext._cpu import available_isas, use_isa
from mtpcore._ext._plan import ORDERS, use_order
from mtpcore._ext._states import delta_sizes, settle_delta
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cpu.backend import CpuPlan
from mtpcore.backends.cpu.lower import Lowering
from mtpcore.backends.cpu.states import CpuStateStore
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError, CapacityError, MtpcoreError
from mtpcore.graph.program import DeltaLayer, Weight
from mtpcore.memory import LOG
from mtpcore.testing import Runner

pytestmark = pytest.mark.usefixtures("share_small_plans")

DEFINITION = ReferenceBackend(quantise_activations=True)
SHAPES = {
    "small": {},
    "grouped": {"n_key_heads": 2, "n_heads": 6, "key_heads": "grouped"},
    "tiled, three to one": {"n_key_heads": 1, "n_heads": 3, "k_width": 16, "v_width": 16},
    "by channel": {"decays": "channel", "k_width": 19, "v_width": 35},
    "by column": {"decays": "column", "k_width": 19, "v_width": 35, "key_heads": "grouped"},
    "uncorrected": {"n_heads": 6, "key_heads": "grouped", "v_width": 20, "corrects": False},
    "uncorrected, by channel": {"decays": "channel", "k_width": 19, "corrects": False},
    "one head, by column": {
        "n_key_heads": 1, "n_heads": 1, "decays": "column", "k_width": 16, "v_width": 67,
        "corrects": False,
    },
    "whole blocks": {"k_width": 32, "v_width": 32, "conv": "none"},
    "two blocks and a bit": {"n_heads": 2, "k_width": 7, "v_width": 37, "kernel": 2},
    "one tap": {"kernel": 1, "k_width": 1, "v_width": 1},
}  # fmt: skip


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, N_VOCAB, n)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", available_isas())
def test_bits_of_the_definition(shape, isa):
    program, source = hybrid(layers=2, **SHAPES[shape])
    use_isa(isa)
    for n in (1, 5, 23):
        assert_same_values(program, source, (CpuBackend(), DEFINITION), text(n))


FORMS = {
    "corrected": {},
    "uncorrected": {"corrects": False},
    "by column": {"corrects": False, "decays": "column"},
}


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def wide(request):
    sizes = {"n_key_heads": 3, "n_heads": 6, "k_width": 24, "v_width": 40}
    return hybrid(layers=2, **sizes, **request.param)


@pytest.mark.parametrize(
    ("order", "threads"), [(ORDERS[0], 1), *product(ORDERS, (2, 3))]
)  # one thread has no order
def test_batches_of_any_size(wide, order, threads):
    use_order(order)
    tokens = text(120)
    whole = Runner(CpuBackend(), *wide, n_batch=128)
    wanted, digest = whole.feed(tokens)["hidden"], whole.memory.digest(0)
    for n_batch in [*range(1, LOG + 4), 33, 40]:
        one = Runner(CpuBackend(), *wide, n_batch=n_batch, threads=threads)
        parts = [tokens[at : at + n_batch] for at in range(0, len(tokens), n_batch)]
        made = np.concatenate([one.feed(part)["hidden"] for part in parts])
        assert np.array_equal(made.view(np.uint32), wanted.view(np.uint32)), n_batch
        assert one.memory.digest(0) == digest, n_batch


@pytest.mark.parametrize("step", [1, 2, 5])
def test_places_that_are_reserved_together_may_take_many_passes(wide, step):
    """Rows after a new base are logged by some passes, and replayed by the next ones."""
    tokens = text(90)
    whole, one = (Runner(CpuBackend(), *wide, n_batch=128) for _ in range(2))
    reserve = one.memory.reserve
    for end in (3, 40, 90):
        begin = one.memory.length(0)
        wanted = whole.feed(tokens[begin:end])["hidden"]
        reserve({0: (begin, end)})
        one.memory.reserve = lambda ranges: None
        base = max(int(one.memory.recurrent.table[0, 3]), begin)
        stops = [begin, *range(base + 1, end, step), end]
        made = [one.feed(tokens[a:b], place=a)["hidden"] for a, b in pairwise(stops)]
        assert np.array_equal(np.concatenate(made).view(np.uint32), wanted.view(np.uint32))
        assert one.memory.digest(0) == whole.memory.digest(0)


def test_digests_are_those_of_the_definition(wide):
    made, wanted = (Runner(one, *wide) for one in (CpuBackend(), DEFINITION))
    for n in (3, 1, 14, 40, 2, 2):
        for runner in (made, wanted):
            runner.feed(text(n))
            runner.memory.rewind(0, runner.memory.length(0) - n // 3)
        assert made.memory.digest(0) == wanted.memory.digest(0)


@pytest.mark.parametrize("isa", available_isas())
def test_bases_that_are_written_past_the_caches(isa):
    large = hybrid(layers=2, n_key_heads=8, n_heads=16, k_width=128, v_width=128)
    use_isa(isa)
    made, wanted = (Runner(one, *large, threads=2) for one in (CpuBackend(), DEFINITION))
    assert made.memory.recurrent.store.slot_bytes > 2 << 20
    for n in (3, 1, 14, 2):
        rows = [runner.feed(text(n))["hidden"].view(np.uint32) for runner in (made, wanted)]
        assert np.array_equal(*rows)
        assert made.memory.digest(0) == wanted.memory.digest(0)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_tree_is_its_paths(wide, threads):
    parent = [-1, 0, 0, 1, 1, 2, 4, 6, 3, 7, -1, 10, 11, 12, 0, 14, 15]
    assert len(parent) == LOG
    tokens, prompt = text(LOG, 1), text(30)
    tree = Runner(CpuBackend(), *wide, threads=threads)
    tree.feed(prompt)
    made = tree.feed(tokens, parent=parent)["hidden"]
    state = tree.memory.save()
    for leaf in range(LOG):
        path, row = [], leaf
        while row >= 0:
            path.insert(0, row)
            row = parent[row]
        plain = Runner(CpuBackend(), *wide)
        plain.feed(prompt)
        wanted = plain.feed(tokens[path])["hidden"]
        assert np.array_equal(made[path].view(np.uint32), wanted.view(np.uint32))
    tree.memory.keep(0, 30, path)
    assert tree.memory.recurrent.digest(0) == plain.memory.recurrent.digest(0)
    tree.memory.restore(state)


def test_what_is_not_a_number_flows_on(wide):
    """NaN in a state ends no call, and stays in its sequence."""
    one = Runner(CpuBackend(), *wide, n_seq=2)
    one.feed(text(20), seq=1)
    before = one.memory.digest(1)
    one.feed(text(3), seq=0)
    store, read = one.memory.recurrent.store, one.memory.recurrent.table[0, 2]
    store.data[read * store.slot_bytes : (read + 1) * store.slot_bytes] = 0xFF
    assert np.isnan(one.feed(text(2), seq=0)["hidden"]).any()
    assert one.memory.digest(1) == before


def lower(wide):
    program, source = wide
    stores = [CpuStore(program.memory, 2, "f32")]
    weights = CpuWeights(source)
    states = CpuStateStore(program.states, 2, weights)
    return Lowering(program, weights, stores, n_batch=4, n_ctx=64, states=states)


def set_int(step, at, value):
    step.ints = [*step.ints[:at], value, *step.ints[at + 1 :]]


def swap_rates(step):
    """Leave rates out, or give some to a rule without."""
    q, v = step.inputs[0], step.inputs[2]
    n = v.n_heads * -(-v.width // 16) * 16 * q.width
    step.weights = [None] if step.weights else [np.zeros(n, np.float32)]


def narrow(step, at):
    view = step.inputs[at]
    step.inputs[at] = view._replace(width=view.width - 1)


MISFITS = {
    "conv, rows": ("causal_conv", lambda s: narrow(s, 0)),
    "conv, base": ("causal_conv", lambda s: set_int(s, 0, 1 << 40)),
    "conv, log": ("causal_conv", lambda s: set_int(s, 1, -4)),
    "conv, off a line": ("causal_conv", lambda s: set_int(s, 1, s.ints[1] + 4)),
    "conv, taps": ("causal_conv", lambda s: set_int(s, 3, 5)),
    "conv, no taps": ("causal_conv", lambda s: set_int(s, 3, 0)),
    "conv, weights": ("causal_conv", lambda s: setattr(s, "weights", [None])),
    "conv, outputs": ("causal_conv", lambda s: setattr(s, "axis", 1)),
    "delta, q": ("delta_rule", lambda s: narrow(s, 0)),
    "delta, v": ("delta_rule", lambda s: narrow(s, 2)),
    "delta, decays": ("delta_rule", lambda s: narrow(s, 3)),
    "delta, beta": ("delta_rule", lambda s: narrow(s, 4)),
    "delta, channels": ("delta_rule", lambda s: set_int(s, 3, 1)),
    "delta, unknown decays": ("delta_rule", lambda s: set_int(s, 3, 3)),
    "delta, no such decays": ("delta_rule", lambda s: set_int(s, 3, -1)),
    "delta, rates": ("delta_rule", swap_rates),
    "delta, few rates": ("delta_rule", lambda s: setattr(s, "weights", [np.zeros(99, "f4")])),
    "delta, base": ("delta_rule", lambda s: set_int(s, 0, 1 << 62)),
    "delta, off a line": ("delta_rule", lambda s: set_int(s, 0, s.ints[0] + 4)),
    "delta, log": ("delta_rule", lambda s: set_int(s, 1, s.ints[1] + (1 << 20))),
}


@pytest.mark.parametrize("name", MISFITS)
def test_steps_that_would_leave_their_slots_are_refused(wide, name):
    kind, spoil = MISFITS[name]
    lowered = lower(wide)
    spoil([step for step in lowered.steps if step.kind == kind][-1])
    with pytest.raises(BackendError):
        CpuPlan(lowered, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {0: 99}, {0: -2}, {2: 99}, {1: -20}, {4: 0}, {5: 40}, {5: 10_000}, {6: 17}, {6: -1},
        {0: -1}, {1: 21}, {4: 21}, {2: 1, 3: 99}, {2: 1, 3: 1}, {2: 1, 3: 19},
    ],
    ids=str,
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(wide, changed):
    one = Runner(CpuBackend(), *wide)
    one.feed(text(20))
    before, place = one.memory.recurrent.digest(0), np.arange(20, 23, dtype=np.int32)
    one.memory.reserve({0: (20, 23)})
    batch = CheckedBatch(
        tokens=place,
        positions=place[:, None].copy(),
        seq=np.zeros(3, np.int32),
        place=place,
        outputs=place[:0],
    )
    table = one.memory.recurrent.table
    kept = table.copy()
    table[0, list(changed)] = list(changed.values())
    with pytest.raises(MtpcoreError):
        one.plan.run(batch, one.memory)
    table[:] = kept
    one.plan.run(batch, one.memory)
    one.memory.rewind(0, 20)
    assert one.memory.recurrent.digest(0) == before


@pytest.mark.parametrize("off", [{"data": 4}, {"slot_bytes": 4}], ids=str)
def test_slots_off_a_line_are_refused(wide, off):
    lowered = lower(wide)
    states = lowered.states
    states.slot_bytes -= off.get("slot_bytes", 0)
    states.data = states.data[off.get("data", 0) :]
    states.n_slots = 1
    with pytest.raises(BackendError, match="begin on no cache line"):
        CpuPlan(lowered, 1)


def test_memory_of_another_backend_is_refused(wide):
    program, source = wide
    sizes = {"n_batch": 4, "n_ctx": 64, "threads": 1}
    for backend, other in ((ReferenceBackend(), CpuBackend()), (CpuBackend(), ReferenceBackend())):
        stores = [backend.store(program.memory, 2, "f32")]
        states = other.state_store(program.states, 2, source)
        with pytest.raises(BackendError, match="memory of another backend"):
            backend.plan(program, source, stores=stores, states=states, **sizes)
    with pytest.raises(BackendError, match="recurrent layers need memory"):
        CpuBackend().plan(
            program, source, stores=[CpuBackend().store(program.memory, 2, "f32")], **sizes
        )
    store = CpuBackend().state_store(program.states, 2, source)
    assert store.n_bytes == 2 * store.slot_bytes


def test_no_memory_for_states_says_which_sizes_to_lower(wide):
    with pytest.raises(CapacityError, match="states of recurrent layers") as caught:
        CpuBackend().state_store(wide[0].states, 1 << 44, wide[1])
    assert "n_seq_max or checkpoint_bytes" in caught.value.fix


@pytest.mark.parametrize("sizes", [(2, 0, 4, 4), (2, 3, 4, 4), (0, 1, 4, 4), (2, 1, 0, 4)])
def test_shapes_of_no_layer_are_refused(sizes):
    layer = DeltaLayer(0, *sizes, "grouped")
    with pytest.raises(BackendError, match="no shape"):
        delta_sizes(layer)
    with pytest.raises(BackendError, match="no shape"):
        settle_delta(layer, np.zeros(0, "f4"), np.zeros(0, "f4"), np.zeros(0, "i4"))


@pytest.mark.parametrize("n", [0, 16, 48])
def test_rates_of_another_layer_are_refused(n):
    """Two columns of one entry lie in a block of 16."""
    layer = DeltaLayer(0, 2, 1, 1, 2, "grouped", rates=Weight("a", "a", (4, 1)))
    zeros, no_rows = np.zeros(32, "f4"), np.zeros(0, "i4")
    assert settle_delta(layer, zeros, zeros, no_rows, zeros).shape == (2, 1, 2)
    with pytest.raises(BackendError, match="not a rate for each value"):
        settle_delta(layer, zeros, zeros, no_rows, np.zeros(n, "f4"))
