"""Recurrent operations and their states on the device: the bits of the definition."""

import re
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from harness.cuda_steps import carry_out
from programs import Tensor

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda.launch.recurrent import LAUNCHERS
from mtpcore.backends.cuda.states import CudaStateStore
from mtpcore.backends.cuda.weights import CudaWeights
from mtpcore.backends.reference import recurrent
from mtpcore.backends.reference.arithmetic.recurrent import advance, convolve, read_state
from mtpcore.backends.reference.run import Run
from mtpcore.backends.reference.states import ReferenceStateStore
from mtpcore.errors import BackendError
from mtpcore.graph import ConvLayer, DeltaLayer
from mtpcore.graph.program import Node, Weight
from mtpcore.memory import LOG
from mtpcore.memory.grouped import GroupedKV
from mtpcore.memory.recurrent import RecurrentMemory
from mtpcore.testing import Weights

DEFINITION = {
    "causal_conv": recurrent.causal_conv(convolve),
    "delta_rule": recurrent.delta_rule(read_state),
}
CONV = ConvLayer(0, channels=20, kernel=4)
DELTA = DeltaLayer(0, 2, 1, 7, 5, "tiled")
CONVS = [
    ConvLayer(3, channels, kernel) for channels, kernel in ((300, 4), (5, 1), (256, 2), (9, 7))
]


def rates_of(*shape):
    """Name rates by their shape."""
    name = f"rates {shape}"
    return Weight(name, name, shape)


class Rates(Mapping):
    """The tensors that ``rates_of`` names."""

    def __getitem__(self, name):
        shape = tuple(map(int, re.findall(r"\d+", name)))
        return Tensor(-np.random.default_rng(shape).uniform(0.1, 2, shape))

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


def store_of(device, layers, n_slots):
    """Return a store on the device."""
    return CudaStateStore(device, layers, n_slots, CudaWeights(device, Weights(Rates()), 1))


def defined_store(layers, n_slots):
    """Return that of the definition."""
    return ReferenceStateStore(layers, n_slots, np.float32, advance, Rates())


DELTAS = {
    "small": DELTA,
    "tiled": DeltaLayer(3, 4, 2, 6, 5, "tiled"),
    "grouped": DeltaLayer(3, 6, 2, 5, 3, "grouped"),
    "two tiles of columns": DeltaLayer(3, 2, 1, 8, 37, "grouped"),
    "one entry": DeltaLayer(3, 3, 3, 1, 1, "tiled"),
    "by channel": DeltaLayer(3, 4, 2, 9, 33, "grouped", by_channel=True),
    "uncorrected": DeltaLayer(3, 4, 2, 9, 33, "grouped", corrects=False),
    "uncorrected, by channel": DeltaLayer(3, 4, 2, 9, 5, "tiled", by_channel=True, corrects=False),
    "by column": DeltaLayer(3, 4, 2, 9, 33, "grouped", rates=rates_of(4 * 33, 9)),
    "one head, by column": DeltaLayer(
        3, 1, 1, 16, 70, "grouped", corrects=False, rates=rates_of(70, 16)
    ),
    "most entries of a thread": DeltaLayer(3, 1, 1, 64, 4, "tiled"),
    "more entries": DeltaLayer(3, 2, 1, 67, 3, "tiled"),
    "more entries, by channel": DeltaLayer(3, 2, 2, 128, 3, "tiled", by_channel=True),
    "widest keys": DeltaLayer(3, 1, 1, 255, 2, "tiled"),
    "widest keys, by channel": DeltaLayer(3, 1, 1, 256, 2, "tiled", by_channel=True),
    "more entries, by column": DeltaLayer(3, 1, 1, 66, 3, "tiled", rates=rates_of(3, 66)),
    "widest keys, by column": DeltaLayer(3, 1, 1, 255, 2, "tiled", rates=rates_of(2, 255)),
}
CHAIN = ({0: 5}, {0: 1}, {0: 1}, {0: 2}, {0: 23}, {0: 4})


def op_of(layer):
    return "causal_conv" if isinstance(layer, ConvLayer) else "delta_rule"


def shapes_of(layer):
    """Return the shapes of a row of each input."""
    if isinstance(layer, ConvLayer):
        return [(layer.channels,)]
    decays = (layer.n_heads,)
    if layer.by_channel or layer.rates:
        decays = (layer.n_heads, layer.n_decays)
    key, value = (layer.n_key_heads, layer.k_width), (layer.n_heads, layer.v_width)
    return [key, key, value, decays, (layer.n_heads,)]


def draw(rng, layer, n):
    """Return n rows of inputs such as layers make: short keys, decays below 0, beta in 0..1."""
    made = [rng.standard_normal((n, *shape)).astype(np.float32) for shape in shapes_of(layer)]
    if isinstance(layer, DeltaLayer):
        q, k, v, decays, beta = made
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        decays = np.abs(decays) if layer.rates else -np.abs(decays)
        return [q, k, v, decays, 1 / (1 + np.exp(-beta))]
    return made


def same(made, wanted):
    """All that is not a number counts alike."""
    made, wanted = (np.where(np.isnan(x), np.float32(np.nan), x) for x in (made, wanted))
    return made.tobytes() == wanted.tobytes()


def in_turn(lengths):
    """Return sequence and number of each row of a batch in which sequences take turns."""
    longest = max(lengths.values())
    return [(seq, i) for i in range(longest) for seq in reversed(lengths) if i < lengths[seq]]


class Recurrence:
    """One memory of some layers with both stores; what it is fed, both compute."""

    def __init__(self, device, *layers, n_seq=2, n_batch=40, seed=0, kind="silu", defined=True):
        self.device, self.layers, self.kind = device, layers, kind
        self.rng, self.n_batch = np.random.default_rng(seed), n_batch
        self.memory = RecurrentMemory(None, n_seq)
        self.store = store_of(device, layers, self.memory.n_slots)
        self.memory.store, self.walks = self.store, self.store.walks(n_batch)
        self.defined = None
        if defined:
            self.defined = defined_store(layers, self.memory.n_slots)
        weights = np.random.default_rng(7)
        self.weights = [
            [weights.standard_normal((one.channels, one.kernel)).astype(np.float32)]
            if isinstance(one, ConvLayer)
            else [Rates()[one.rates.tensor].array()]
            if one.rates
            else []
            for one in layers
        ]

    def feed(self, lengths, *, parent=None, inputs=None, reserved=None):
        """Run rows of sequences, cut into each other; return the outputs of the layers."""
        ends = {seq: self.memory.length(seq) for seq in lengths}
        self.memory.reserve(
            {seq: (end, end + (reserved or lengths[seq])) for seq, end in ends.items()}
        )
        return self.run(lengths, ends, parent, inputs)

    def run(self, lengths, ends, parent=None, inputs=None):
        """Run rows of which memory has decided already."""
        order = [(seq, ends[seq] + i) for seq, i in in_turn(lengths)]
        seq, place = (np.array(column, np.int32) for column in zip(*order, strict=True))
        parent = None if parent is None else np.array(parent, np.int32)
        inputs = inputs or [draw(self.rng, layer, len(seq)) for layer in self.layers]
        batch = CheckedBatch(
            tokens=seq, positions=seq[:, None], seq=seq, place=place, outputs=seq[:0], parent=parent
        )
        self.device.upload(*self.walks.part(self.memory.passes(seq, place, parent)))
        return [
            self.compute(batch, *given)
            for given in zip(self.layers, inputs, self.weights, strict=True)
        ]

    def compute(self, batch, layer, inputs, weights):
        """Return the layer's rows from the device, which are those of the definition."""
        op, attrs = op_of(layer), {"layer": layer.layer}
        attrs |= (
            {"kind": self.kind}
            if op == "causal_conv"
            else {
                "key_heads": layer.key_heads,
                "corrects": layer.corrects,
            }
        )
        (made,) = carry_out(
            self.device,
            LAUNCHERS[op],
            inputs,
            weights,
            (inputs[2 * (op == "delta_rule")].shape[1:], np.float32),
            n_batch=self.n_batch,
            memory=self.store.states_of(Node(op, "node", (), (), attrs=attrs), self.walks),
            **attrs,
        )
        if self.defined:
            self.memory.store = self.defined
            run = Run(batch, GroupedKV((), self.memory), (), np.float32)
            (wanted,) = DEFINITION[op](run, inputs, weights, attrs)
            self.memory.store = self.store
            assert same(made, wanted)
        return made

    def digest(self, seq=0):
        """Return the sequence's digest, which is that of the definition's states."""
        made = self.memory.digest(seq)
        if self.defined:
            self.memory.store = self.defined
            assert made == self.memory.digest(seq)
            self.memory.store = self.store
        return made


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("layer", CONVS, ids=lambda layer: f"{layer.channels} x {layer.kernel}")
@pytest.mark.parametrize("kind", ["silu", "none"])
def test_causal_conv_is_that_of_the_definition(device, layer, kind):
    one = Recurrence(device, layer, kind=kind)
    for lengths in CHAIN:
        one.feed(lengths)
        one.digest()


@pytest.mark.parametrize("shape", DELTAS)
def test_delta_rule_is_that_of_the_definition(device, shape):
    one = Recurrence(device, DELTAS[shape])
    for lengths in CHAIN:
        one.feed(lengths)
        one.digest()


@pytest.mark.parametrize("shape", ["by channel", "by column"])
def test_row_has_the_same_bits_however_rows_come(device, shape):
    """One sequence, in parts of any size; the definition is asked once."""
    layers = CONV, DELTAS[shape]
    inputs = [draw(np.random.default_rng(1), layer, 40) for layer in layers]
    whole = Recurrence(device, *layers)
    wanted = whole.feed({0: 40}, inputs=inputs)
    for n in (1, 2, 3, 7, 16, 17, 18, 23, 39):
        one = Recurrence(device, *layers, defined=False)
        made = []
        for at in range(0, 40, n):
            part = [[array[at : at + n] for array in given] for given in inputs]
            made.append(one.feed({0: len(part[0][0])}, inputs=part))
        for layer, expected in enumerate(wanted):
            assert same(np.concatenate([part[layer] for part in made]), expected), n
        assert one.digest() == whole.digest(), n


@pytest.mark.parametrize("parts", [(23, 5, 12), (24, 1, 15), (40,), (2, 2), (1, 1, 1, 1)], ids=str)
def test_rows_that_were_reserved_together_come_in_parts(device, parts):
    """Of 40 the base is before row 23: at a batch's end, or in it; of 4 rows none is written."""
    one = Recurrence(device, CONV, DELTA)
    one.feed({0: 1})
    one.feed({0: parts[0]}, reserved=sum(parts))
    for at, n in zip(np.cumsum(parts), parts[1:], strict=False):
        one.run({0: n}, {0: 1 + int(at)})
    one.digest()
    one.memory.rewind(0, one.memory.length(0) - 3)
    one.feed({0: 2})
    one.digest()


def test_sequences_beside_each_other(device):
    """Each has the bits that it has alone, whatever others do."""
    layers, rng = (CONV, DELTAS["grouped"]), np.random.default_rng(3)
    many = Recurrence(device, *layers, n_seq=3)
    alone = [Recurrence(device, *layers, defined=False) for _ in range(3)]
    for lengths in ({0: 2, 1: 19}, {2: 1}, {0: 1, 1: 1, 2: 21}, {1: 3}):
        order = np.array([seq for seq, _ in in_turn(lengths)])
        inputs = [draw(rng, layer, len(order)) for layer in layers]
        together = many.feed(lengths, inputs=inputs)
        for seq, n in lengths.items():
            own = [[array[order == seq] for array in given] for given in inputs]
            for made, wanted in zip(alone[seq].feed({0: n}, inputs=own), together, strict=True):
                assert same(made, wanted[order == seq])
    assert [many.digest(seq) for seq in range(3)] == [one.digest() for one in alone]


def test_launches_may_be_of_more_rows_than_there_are(device):
    """As launches are that are kept for batches of some size."""
    one, padded = (Recurrence(device, CONV, DELTA, defined=False) for _ in range(2))
    for _ in range(2):
        inputs = [draw(one.rng, layer, 8) for layer in one.layers]
        wanted = one.feed({0: 3}, inputs=[[array[:3] for array in given] for given in inputs])
        for made, rows in zip(padded.feed({0: 3}, inputs=inputs), wanted, strict=True):
            assert same(made[:3], rows)
            if device.name == "emulated":
                assert np.isnan(made[3:]).all()
    assert one.digest() == padded.digest()


TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3, 7, -1, 10, 11, 12, 0, 14, 15]
STAR = [-1] * LOG


@pytest.mark.parametrize("parent", [TREE, STAR], ids=["tree", "star"])
@pytest.mark.parametrize("n_before", [0, 1, 30])
def test_tree_is_its_paths(device, parent, n_before):
    """Behind nothing, behind a row in whose log there is room, and behind a log that is full."""
    layers = CONV, DELTAS["by channel"], msgspec.structs.replace(DELTAS["by column"], layer=4)
    tree = Recurrence(device, *layers, n_batch=30)
    if n_before:
        tree.feed({0: n_before})
    n = LOG - n_before if n_before == 1 else LOG
    tree.feed({0: n}, parent=parent[:n])
    path, row = [], 8 if parent is TREE else 0
    while row >= 0:
        path.insert(0, row)
        row = parent[row]
    tree.memory.keep(0, n_before, path)
    tree.digest()
    tree.feed({0: 3})
    tree.digest()


def test_trees_of_several_sequences(device):
    one = Recurrence(device, CONV, DELTA)
    one.feed({0: 20, 1: 4})
    # Rows come in turn, of sequence 1 first: 0 2 4 and 1 3 5.
    one.feed({0: 3, 1: 3}, parent=[-1, -1, 0, -1, 0, 3])
    one.memory.keep(1, 4, [0, 2])
    one.memory.keep(0, 20, [1, 2])
    one.feed({0: 1, 1: 2})
    assert one.digest(0) != one.digest(1)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_taken_back_leaves_no_trace(device, seed):
    """Drafts, rewinds, forks, checkpoints and acts that are undone, as they come."""
    one, rng = Recurrence(device, CONV, DELTA, n_seq=3, seed=seed), np.random.default_rng(seed)
    for _ in range(30):
        seq, memory = int(rng.integers(3)), one.memory
        match rng.choice(["prompt", "draft", "draft", "draft", "back", "fork", "undo"]):
            case "prompt":
                one.feed({seq: int(rng.integers(1, 40))})
            case "draft":
                n, begin = int(rng.integers(1, LOG + 1)), memory.length(seq)
                one.feed({seq: n})
                memory.rewind(seq, begin + int(rng.integers(1, n + 1)))
            case "back":
                memory.rewind(seq, memory.nearest(seq, int(rng.integers(memory.length(seq) + 1))))
            case "fork":
                memory.rewind(0, memory.first(0))
                memory.fork(seq, 0)
            case "undo":
                saved, digest = memory.save(), one.digest(seq)
                one.feed({seq: int(rng.integers(1, 20)), (seq + 1) % 3: 2})
                memory.restore(saved)
                assert one.digest(seq) == digest
        for other in range(3):
            one.digest(other)


def test_what_is_not_a_number_stays_in_its_sequence(device):
    """And a weight that is infinite meets rows of zeros before the first."""
    one = Recurrence(device, CONV, DELTA)
    one.weights[0][0][3, 0] = np.inf
    one.feed({1: 4})
    digest = one.digest(1)
    inputs = [draw(one.rng, layer, 3) for layer in one.layers]
    inputs[0][0][0, 4] = inputs[1][2][1, 0, 2] = np.nan
    inputs[1][3][2] = 200  # the state grows beyond all numbers
    made = one.feed({0: 3}, inputs=inputs)
    assert all(np.isnan(values).any() for values in made)
    assert one.digest(1) == digest


def test_sums_that_vanish_have_the_sign_of_their_terms(device):
    """Where a key has fewer entries than threads have room for, nothing is added to -0."""
    one = Recurrence(device, DELTA)
    q, k, v, decays, beta = draw(one.rng, DELTA, 1)
    given = [np.full_like(q, -1e-30), np.abs(k), np.full_like(v, 1e-20), decays, beta]
    (made,) = one.feed({0: 1}, inputs=[given])
    assert (made == 0).all()
    assert np.signbit(made).all()


def test_store_gives_back_what_it_was_given(device):
    by_column = msgspec.structs.replace(DELTAS["by column"], layer=4)
    layers = CONV, DELTA, CONVS[0], DELTAS["by channel"], by_column
    store, defined = store_of(device, layers, 3), defined_store(layers, 3)
    assert (store.base_bytes, store.row_bytes) == (defined.base_bytes, defined.row_bytes)
    assert store.n_bytes == defined.n_bytes == 3 * store_of(device, layers, 1).n_bytes
    rng = np.random.default_rng(2)
    base = rng.standard_normal(store.base_bytes // 4).astype(np.float32).tobytes()
    parts = [array for layer in layers for array in draw(rng, layer, LOG)[-4:]]
    rows = [b"".join(array[row].tobytes() for array in parts) for row in range(LOG)]
    for each in (store, defined):
        each.write_base(1, memoryview(base))
        for row, values in enumerate(rows):
            each.write_row(1, row, memoryview(values))
            each.write_row(2, row, memoryview(rows[-1]))
        each.write_base(0, memoryview(bytes(len(base))))
        assert each.read_base(1) == base
        assert [each.read_row(1, row) for row in range(LOG)] == rows
    for chosen in ([], [0], [16, 3], [5, 4, 9, 1, 0], range(LOG)):
        assert store.settle(1, chosen) == defined.settle(1, chosen)
    assert store.read_base(1) == base


def test_sequence_that_was_saved_goes_on(device):
    one = Recurrence(device, CONV, DELTA)
    one.feed({0: 20})
    one.feed({0: 2})
    digest = one.digest()
    saved = memoryview(b"".join(one.memory.dump(0)))
    one.memory.load(1, saved)
    assert one.memory.digest(1) == digest
    inputs = [draw(one.rng, layer, 2) for layer in one.layers]
    twice = [[np.repeat(array, 2, axis=0) for array in given] for given in inputs]
    one.defined = None  # what was loaded is not there
    for made in one.feed({0: 2, 1: 2}, inputs=twice):
        assert same(made[::2], made[1::2])


def test_layer_without_memory_is_refused(device):
    store = store_of(device, [CONV], 1)
    for op, layer in (("causal_conv", 1), ("delta_rule", 0)):
        node = Node(op, "blk.0.mixer", (), (), attrs={"layer": layer})
        with pytest.raises(BackendError, match=r"blk\.0\.mixer: recurrent layer has no memory"):
            store.states_of(node, store.walks(1))


def test_keys_that_no_kernel_has_room_for_are_refused(device):
    layer = DeltaLayer(0, 1, 1, 257, 1, "tiled")
    with pytest.raises(BackendError, match="at most 256 entries"):
        Recurrence(device, layer, defined=False).feed({0: 1})
