"""Recurrent operations on the reference backend against loops that read like the papers."""

import numpy as np
import pytest
from harness.hybrids import hybrid
from programs import Tensor

from mtpcore.backends.reference import ReferenceBackend
from mtpcore.graph import ConvLayer, DeltaLayer, GraphBuilder, Outputs
from mtpcore.testing import Runner, Weights

DEFINITION = ReferenceBackend(quantise_activations=True)
BACKENDS = {
    "f32": (ReferenceBackend(), 1e-5),
    "f64": (ReferenceBackend("f64"), 1e-12),
    "bits": (DEFINITION, 1e-5),
}
N_KEYS, N_HEADS, K_WIDTH, V_WIDTH, CHANNELS, KERNEL, N = 2, 6, 7, 5, 11, 4, 23


RATES = {"rates": Tensor(-np.random.default_rng(9).uniform(0.1, 2, (N_HEADS * V_WIDTH, K_WIDTH)))}
DECAYS = {"head": 1, "channel": K_WIDTH, "column": V_WIDTH}


def delta_program(key_heads, decays, corrects):
    """Return a program of nothing but the operation; its inputs are slots."""
    widths = {
        "q": N_KEYS * K_WIDTH,
        "k": N_KEYS * K_WIDTH,
        "v": N_HEADS * V_WIDTH,
        "decay": N_HEADS * DECAYS[decays],
        "beta": N_HEADS,
    }
    g = GraphBuilder("delta", RATES, slots=widths)
    q, k = (g.split_heads(g.inputs[name], N_KEYS) for name in "qk")
    v, decay = g.split_heads(g.inputs["v"], N_HEADS), g.inputs["decay"]
    if decays != "head":
        decay = g.split_heads(decay, N_HEADS)
    beta, rates = g.inputs["beta"], "rates" if decays == "column" else None
    y = g.delta_rule(
        q, k, v, decay, beta, layer=3, key_heads=key_heads, corrects=corrects, rates=rates
    )
    return g.finish(Outputs(y=g.merge_heads(y))), widths


def delta_loops(q, k, v, decay, beta, key_heads, corrects):
    """Return the results in float64, step by step; decays [T, H, 1 or Dk, 1 or Dv]."""
    out = np.zeros((len(q), N_HEADS, V_WIDTH))
    for h in range(N_HEADS):
        key = h % N_KEYS if key_heads == "tiled" else h * N_KEYS // N_HEADS
        state = np.zeros((K_WIDTH, V_WIDTH))
        for t in range(len(q)):
            state *= np.exp(decay[t, h])
            d = beta[t, h] * (v[t, h] - corrects * (k[t, key] @ state))
            state += np.outer(k[t, key], d)
            out[t, h] = q[t, key] @ state
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("key_heads", ["tiled", "grouped"])
@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("corrects", [False, True])
def test_delta_rule(backend, key_heads, decays, corrects):
    rng = np.random.default_rng(1)
    program, widths = delta_program(key_heads, decays, corrects)
    slots = {name: rng.normal(0, 0.6, (N, n)).astype(np.float32) for name, n in widths.items()}
    slots["decay"] = np.abs(slots["decay"]) * (1 if decays == "column" else -1)
    made, bound = BACKENDS[backend]
    one = Runner(made, program, Weights(RATES), n_batch=N)
    got = one.feed([0] * N, **slots)["y"]
    q, k = (slots[name].reshape(N, N_KEYS, K_WIDTH).astype(np.float64) for name in "qk")
    v = slots["v"].reshape(N, N_HEADS, V_WIDTH).astype(np.float64)
    decay = slots["decay"].astype(np.float64).reshape(N, N_HEADS, DECAYS[decays], 1)
    if decays == "column":
        rates = RATES["rates"].array().astype(np.float64).reshape(N_HEADS, V_WIDTH, K_WIDTH)
        decay = decay.swapaxes(2, 3) * rates.swapaxes(1, 2)
    wanted = delta_loops(q, k, v, decay, slots["beta"].astype(np.float64), key_heads, corrects)
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", [1, 2, KERNEL])
@pytest.mark.parametrize("kind", ["silu", "none"])
def test_causal_conv(backend, kernel, kind):
    rng = np.random.default_rng(2)
    taps = rng.normal(0, 0.5, (CHANNELS, kernel)).astype(np.float32)
    tensors = {"conv.weight": Tensor(taps)}
    g = GraphBuilder("conv", tensors, slots={"x": CHANNELS})
    program = g.finish(Outputs(y=g.causal_conv(g.inputs["x"], "conv.weight", layer=0, kind=kind)))
    x = rng.normal(size=(N, CHANNELS)).astype(np.float32)
    made, bound = BACKENDS[backend]
    got = Runner(made, program, Weights(tensors), n_batch=N).feed([0] * N, x=x)["y"]
    wanted = np.zeros((N, CHANNELS))
    for t in range(N):
        for tap in range(kernel):
            at = t - kernel + 1 + tap
            if at >= 0:
                wanted[t] += taps[:, tap].astype(np.float64) * x[at]
    if kind == "silu":
        wanted = wanted / (1 + np.exp(-wanted))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)


def test_states_of_a_program():
    program, _ = hybrid(layers=2, decays="channel")
    conv, delta, *later = program.states
    assert conv == ConvLayer(0, channels=2 * 2 * 6 + 4 * 5, kernel=4)
    assert delta == DeltaLayer(0, 4, 2, 6, 5, "tiled", by_channel=True)
    assert [(type(one).__name__, one.layer) for one in later] == [
        ("ConvLayer", 1),
        ("DeltaLayer", 1),
    ]
    assert (conv.n_values, conv.n_logged) == (3 * conv.channels, conv.channels)
    assert (delta.n_values, delta.n_logged) == (4 * 6 * 5, 2 * 6 + 4 * (5 + 6 + 1))
    by_column = hybrid(decays="column")[0].states[1]
    assert by_column.rates is not None
    assert (by_column.rates.tensor, by_column.rates.shape) == ("0.a", (4 * 5, 6))
    assert by_column.n_logged == 2 * 6 + 4 * (5 + 5 + 1)
    plain = hybrid(layers=1)[0].states[1]
    assert plain.n_logged == 2 * 6 + 4 * (5 + 1 + 1)
    assert [plain.key_head(h) for h in range(4)] == [0, 1, 0, 1]
    grouped = hybrid(key_heads="grouped")[0].states[1]
    assert [grouped.key_head(h) for h in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("backend", ["f32", "bits"])
@pytest.mark.parametrize("decays", ["head", "column"])
def test_rows_have_the_same_bits_however_they_come(backend, decays):
    program, weights = hybrid(layers=2, decays=decays)
    tokens = np.random.default_rng(0).integers(0, 24, 90)
    whole = Runner(BACKENDS[backend][0], program, weights, n_ctx=128)
    wanted = whole.feed(tokens)["hidden"]
    for n_batch in (1, 2, 3, 8, 16, 17, 18, 19, 40):
        one = Runner(BACKENDS[backend][0], program, weights, n_ctx=128)
        parts = [tokens[at : at + n_batch] for at in range(0, len(tokens), n_batch)]
        got = np.concatenate([one.feed(part)["hidden"] for part in parts])
        assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))
        assert one.memory.digest(0) == whole.memory.digest(0)
