"""Operations over the rows of a block, bit for bit as the definition has them."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.cuda_steps import carry_out

from mtpcore.backends.cuda.launch.blocks import LAUNCHERS
from mtpcore.backends.cuda.sequences import SequenceRows
from mtpcore.backends.reference.arithmetic.table import OPERATIONS

SEQ = np.array([2, 0, 0, 2, 0, 7, 2, 0, 2, 2, 0], np.int32)


def both(device, op, inputs, seq, weights=(), shape=None, **attrs):
    x = inputs[0]
    rows = SequenceRows(device, len(x) + 3)
    for part in rows.parts(seq):
        device.upload(*part)
    (made,) = carry_out(
        device,
        LAUNCHERS[op],
        inputs,
        weights,
        (shape or x.shape[1:], np.float32),
        memory=rows,
        **attrs,
    )
    run = SimpleNamespace(batch=SimpleNamespace(seq=seq))
    (wanted,) = OPERATIONS[op](run, inputs, list(weights), attrs)
    return made, wanted


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("width", [5, 300])
def test_mean_and_mix(device, size, width):
    rng = np.random.default_rng(size)
    x = rng.normal(size=(len(SEQ), width)).astype(np.float32)
    w = rng.normal(size=(size, size, width)).astype(np.float32)
    made, wanted = both(device, "block_mean", [x], SEQ, size=size)
    assert made.tobytes() == wanted.tobytes()
    made, wanted = both(device, "block_mix", [x], SEQ, [w])
    assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(("n_taps", "n_groups", "each"), [(1, 3, 1), (2, 5, 60), (4, 2, 7)])
def test_convolution(device, size, n_taps, n_groups, each):
    rng, width = np.random.default_rng(size), n_groups * each
    x = rng.normal(size=(len(SEQ), width)).astype(np.float32)
    changes = rng.normal(size=(len(SEQ), n_taps * n_groups)).astype(np.float32)
    w = rng.normal(size=(2, n_taps, width)).astype(np.float32)
    for part in range(2):
        attrs = {"size": size, "part": part}
        made, wanted = both(device, "block_conv", [x, changes], SEQ, [w], **attrs)
        assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(("n", "n_heads", "each"), [(1, 1, 1), (2, 3, 17), (7, 2, 300)])
def test_candidates(device, size, n, n_heads, each):
    rng, width = np.random.default_rng(size), n_heads * each
    q, k, v = (rng.normal(size=(len(SEQ), n, width)).astype(np.float32) for _ in range(3))
    bias = rng.normal(size=(n_heads, 2 * size - 1)).astype(np.float32)
    ids = np.stack([rng.permutation(40)[:n] for _ in SEQ]).astype(np.int32)
    start = rng.normal(size=(len(SEQ), width)).astype(np.float32)
    for first in {0, size - 1}:
        attrs = {"size": size, "first": first}
        made, wanted = both(device, "block_attention", [q, k, v], SEQ, [bias], scale=0.1, **attrs)
        assert made.tobytes() == wanted.tobytes()
        made, wanted = both(
            device, "block_walk", [ids, start, k, v], SEQ, shape=(40,), width=40, **attrs
        )
        assert made.tobytes() == wanted.tobytes()
