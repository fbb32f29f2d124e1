"""What restatements of families in float64 are made of: random weights, and a layer's parts."""

import numpy as np

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend

EPS = 2.0**-17  # files hold it exactly
PARTS = ("gate", "up", "down")
BACKENDS = {"cpu": (CpuBackend(), "f32", 2e-4), "reference": (ReferenceBackend("f64"), "f64", 1e-9)}
"""Backend, type of keys and values, and how far values may be off, in the largest one's size."""


class RandomWeights:
    """Draws weights that hidden rows keep their size with; ``around=1`` for those of norms."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape, around=0.0):
        return (around + self.rng.normal(0, 0.35, shape)).astype(np.float32)

    def tables(self, n_vocab, width, tied):
        """Return what a trunk begins and ends with."""
        made = {
            "token_embd.weight": self(n_vocab, width),
            "output_norm.weight": self(width, around=1),
        }
        return made if tied else made | {"output.weight": self(n_vocab, width)}

    def swiglu(self, suffix, n_ff, width, *stack):
        return {
            f"ffn_gate{suffix}.weight": self(*stack, n_ff, width),
            f"ffn_up{suffix}.weight": self(*stack, n_ff, width),
            f"ffn_down{suffix}.weight": self(*stack, width, n_ff),
        }

    def join(self, width):
        """Return what a NextN head reads token and hidden row with."""
        return {
            "nextn.eh_proj.weight": self(width, 2 * width),
            "nextn.enorm.weight": self(width, around=1),
            "nextn.hnorm.weight": self(width, around=1),
        }

    def own_tables(self, n_vocab, width):
        """Return the tables of a head that does not share the trunk's."""
        return {
            "nextn.embed_tokens.weight": self(n_vocab, width),
            "nextn.shared_head_head.weight": self(n_vocab, width),
        }


def block_of(w, n):
    """Return the tensors of a block by the rest of their names."""
    return {key.removeprefix(f"blk.{n}."): v for key, v in w.items() if key.startswith(f"blk.{n}.")}


def norm(x, w):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def silu(x):
    return x / (1 + np.exp(-x))


def swiglu(b, f, suffix=""):
    """Return what a feed-forward part makes of rows [n, width], or of one."""
    gate, up = f @ b[f"ffn_gate{suffix}.weight"].T, f @ b[f"ffn_up{suffix}.weight"].T
    return (silu(gate) * up) @ b[f"ffn_down{suffix}.weight"].T


def expert(b, e, f):
    """Return what expert e makes of a row."""
    return swiglu({f"ffn_{part}.weight": b[f"ffn_{part}_exps.weight"][e] for part in PARTS}, f)


def joined(w, n, table, tokens, rows):
    """Return what head n makes of tokens and rows before its block."""
    nextn = f"blk.{n}.nextn."
    e = norm(table[tokens], w[nextn + "enorm.weight"])
    h = norm(rows, w[nextn + "hnorm.weight"])
    return np.concatenate([e, h], axis=1) @ w[nextn + "eh_proj.weight"].T


def check(made, wanted, backend):
    """Hold outputs to those restated."""
    for output, rows in wanted.items():
        size = np.abs(rows).max()
        assert size > 0.5
        assert np.abs(made[output] - rows).max() < BACKENDS[backend][2] * size, output
