"""What random programs read, and how two ways of running them are compared."""

import numpy as np

from harness.random_programs import N_VOCAB
from mtpcore.backends.base import CheckedBatch

N_CTX = 512


class Text:
    """What each place of each sequence holds, whatever batch it comes in."""

    def __init__(self, drawn, seed):
        rng = np.random.default_rng(seed)
        shape = (3, N_CTX)
        self.tokens = rng.integers(0, N_VOCAB, shape).astype(np.int32)
        self.positions = rng.integers(0, 5000, (*shape, drawn.n_axes)).astype(np.int32)
        first = self.positions[..., 0]
        first[rng.random(shape) < 0.5] %= 6  # parts of tables, and matrices, are those of few
        n_codes = drawn.program.n_codes
        self.codes = rng.integers(-1, 9, (*shape, n_codes)).astype(np.int32) if n_codes else None
        self.adapters = self.adapter_scales = None
        if "adapters" in drawn.program.inputs:
            n_used = drawn.program.values[drawn.program.inputs["adapters"]].shape[1]
            self.adapters = rng.integers(-2, 5, (*shape, n_used)).astype(np.int32)
            self.adapter_scales = rng.normal(0, 1, (*shape, n_used)).astype(np.float32)
        self.slots = {
            name: rng.normal(0, 2, (*shape, width)).astype(np.float32)
            for name, width in drawn.slots.items()
        }
        self.embeddings = None
        if drawn.has_embeddings:
            width = drawn.program.values[drawn.program.inputs["embeddings"]].shape[1]
            self.embeddings = rng.normal(0, 1, (*shape, width)).astype(np.float32)
            self.tokens[rng.random(shape) < 0.3] = -1

    def rows(self, batch):
        at = batch.seq, batch.place
        return CheckedBatch(
            tokens=self.tokens[at],
            positions=self.positions[at],
            seq=batch.seq,
            place=batch.place,
            outputs=batch.outputs,
            parent=batch.parent,
            until=_until(batch) if batch.parent is None else None,
            embeddings=None if self.embeddings is None else self.embeddings[at],
            codes=None if self.codes is None else self.codes[at],
            adapters=None if self.adapters is None else self.adapters[at],
            adapter_scales=None if self.adapters is None else self.adapter_scales[at],
            slots={name: rows[at] for name, rows in self.slots.items()},
        )


def _until(batch):
    """Return ends of spans of four places, which end with the batch at the latest."""
    ends = np.zeros(3, np.int32)
    np.maximum.at(ends, batch.seq, batch.place + 1)
    return np.minimum(batch.place // 4 * 4 + 4, ends[batch.seq]).astype(np.int32)


def feed(runner, text, batch):
    rows = {}
    for seq in np.unique(batch.seq):
        mine = batch.place[batch.seq == seq]
        rows[int(seq)] = (int(mine[0]), int(mine[-1]) + 1)
    runner.memory.reserve(rows)
    made = runner.plan.run(text.rows(batch), runner.memory)
    return {name: np.asarray(rows) for name, rows in made.items()}


def assert_same_bits(made, wanted, what):
    """Values that are not numbers count as equal, whatever their bits."""
    assert made.keys() == wanted.keys()
    for name in wanted:
        a, b = made[name], wanted[name]
        assert a.shape == b.shape
        differs = (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))
        at = tuple(int(i) for i in np.argwhere(differs)[0]) if differs.any() else None
        assert at is None, f"{what}: {name}{list(at)}: {a[at]} instead of {b[at]}"
