"""Two tiny families in files: an encoder of rows, and a language model that reads such rows."""

import numpy as np

from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file
from mtpcore.plugin import Feed, Fit, ModelSpec, Outputs, hookimpl

WIDTH, N_VOCAB, EPS = 32, 64, 1e-5
FREQUENCIES = (1.0, 0.3, 0.1, 0.03)


class Hparams:
    n_layers, n_drafter_blocks, rotary_axes = 1, 0, 1

    def __init__(self, fields, tensors):
        self.n_vocab, self.width = tensors["token_embd.weight"].shape


class TwoAxes(Hparams):
    rotary_axes = 2


class FourAxes(Hparams):
    rotary_axes = 4


def block(g, x, positions, axes, mask="causal", window=0):
    """Add one layer of attention with RoPE to the residual stream."""
    made = [g.split_heads(g.matmul(x, f"{name}.weight"), 2, name=name) for name in ("q", "k", "v")]
    q, k = (
        g.rope(part, positions, FREQUENCIES, axes=[i % axes for i in range(len(FREQUENCIES))])
        for part in made[:2]
    )
    return g.add(
        x, g.merge_heads(g.attention(q, k, made[2], layer=0, scale=0.3, mask=mask, window=window))
    )


def encode(g, inputs, h):
    """Patches of a picture: each sees all of them."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    x = g.rms_norm(block(g, x, inputs.positions, 1, "block"), "output_norm.weight", EPS)
    return Outputs(hidden=g.tap("hidden", x))


def read(g, inputs, h):
    """A language model that adds the row it is fed to each token."""
    x = g.add(g.embed(inputs.tokens, "token_embd.weight", embeddings=True), inputs["picture"])
    return trunk(g, x, inputs.positions, h)


def plain(g, inputs, h):
    return trunk(
        g, g.embed(inputs.tokens, "token_embd.weight", embeddings=True), inputs.positions, h
    )


def narrow(g, inputs, h):
    """A language model whose rows see six places."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    return trunk(g, x, inputs.positions, h, window=6)


def trunk(g, x, positions, h, window=0):
    x = g.tap("residual", block(g, x, positions, h.rotary_axes, window=window))
    hidden = g.tap("hidden", g.rms_norm(x, "output_norm.weight", EPS))
    return Outputs(logits=g.matmul(g.output_rows(hidden), "token_embd.weight"))


def spec(name, build, hparams=Hparams, **more):
    tensors = ("token_embd.weight", "output_norm.weight")
    return ModelSpec(
        name=name,
        fit=Fit(architectures=frozenset({name}), tensors=tensors),
        hparams=hparams,
        build=build,
        **more,
    )


SPECS = [
    spec("eye", plain, graphs=(("encoder", encode),)),
    spec("seer", read, feeds=(Feed(slot="picture", taps=("hidden",), pairing="same-token"),)),
    spec("plane", plain, TwoAxes),
    spec("space", plain, FourAxes),
    spec("line", plain),
    spec("slit", narrow),
]


@hookimpl
def mtpcore_models():
    return SPECS


def tensors(seed=0):
    """Return the weights of any of the families."""
    made = np.random.default_rng(seed)
    values = {
        "token_embd.weight": made.normal(size=(N_VOCAB, WIDTH)),
        "output_norm.weight": np.ones(WIDTH),
        **{f"{part}.weight": made.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5 for part in "qkv"},
    }
    return {name: array.astype(np.float32) for name, array in values.items()}


def load(folder, name, seed=0):
    """Write a model of one of the families and load it."""
    import harness.seer

    path = folder / f"{name}.gguf"
    counts = {f"{name}.block_count": 1, f"{name}.embedding_length": WIDTH}
    write_model_file(path, name, counts, tensors(seed))
    return load_model(path, plugins=Registry.of(harness.seer))
