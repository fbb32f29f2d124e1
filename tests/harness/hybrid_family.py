"""A toy family with recurrent layers in its trunk and in its head, as a subject of the kit."""

import msgspec
import numpy as np
import toy

from mtpcore.discovery.registry import Registry
from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, ModelSpec, Outputs, first_of, hookimpl
from mtpcore.testing import Subject

WIDTH, N_VOCAB, N_LAYERS, EPS = toy.WIDTH, toy.N_VOCAB, 3, 1e-5
N_KEYS, N_HEADS, K_WIDTH, V_WIDTH, KERNEL = 2, 4, 8, 8, 4
CHANNELS = 2 * N_KEYS * K_WIDTH + N_HEADS * V_WIDTH


def recurrent_block(g, x, name, layer):
    """Return the block's output: convolution, norms, delta rule; all of it from rows of ``x``."""
    made = g.causal_conv(g.matmul(x, f"{name}.qkv.weight"), f"{name}.conv.weight", layer=layer)
    n = N_KEYS * K_WIDTH
    q = g.l2_norm(g.split_heads(g.slice(made, 0, n), N_KEYS), 1e-6)
    k = g.l2_norm(g.split_heads(g.slice(made, n, 2 * n), N_KEYS), 1e-6)
    v = g.split_heads(g.slice(made, 2 * n, CHANNELS), N_HEADS)
    decay = g.scale(g.activation(g.matmul(x, f"{name}.alpha.weight"), "softplus"), -0.3)
    beta = g.activation(g.matmul(x, f"{name}.beta.weight"), "sigmoid")
    y = g.delta_rule(g.scale(q, K_WIDTH**-0.5), k, v, decay, beta, layer=layer)
    return g.matmul(g.merge_heads(y), f"{name}.out.weight")


def attention_block(g, x, name, layer):
    q, k, v = (g.split_heads(g.matmul(x, f"{name}.{part}.weight"), 2) for part in "qkv")
    y = g.attention(q, k, v, layer=layer, scale=0.25)
    return g.matmul(g.merge_heads(y), f"{name}.out.weight")


def trunk(g, inputs, h):
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    for n in range(N_LAYERS):
        block = attention_block if n == 1 else recurrent_block
        normed = g.rms_norm(g.tap(f"layer_input:{n}", x), None, EPS)
        x = g.add(x, block(g, normed, f"blk.{n}", n))
    hidden = g.tap("hidden", g.rms_norm(g.tap("residual", x), "output_norm.weight", EPS))
    return Outputs(logits=g.matmul(g.output_rows(hidden), "output.weight"))


def head(g, inputs, h, name="head"):
    """Return a head with a state of its own, which its drafts advance."""
    token = g.embed(inputs.tokens, "token_embd.weight")
    x = g.matmul(g.concat(token, inputs["hidden"]), f"{name}.join.weight")
    x = g.add(x, recurrent_block(g, g.rms_norm(x, None, EPS), name, 0))
    x = g.rms_norm(x, None, EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "output.weight"), hidden=x)


def step(g, inputs, h):
    """Return one of several heads, each with a state of its own."""
    return head(g, inputs, h, "blk.{n}")


TRUNK = ModelSpec(
    name="hybrid",
    fit=Fit(architectures=frozenset({"hybrid"}), tensors=("token_embd.weight",)),
    hparams=toy.Hparams,
    build=trunk,
    ties=(first_of("output.weight", "token_embd.weight"),),
)
HEAD = DrafterSpec(
    name="hybrid_head",
    fit=Fit(architectures=frozenset({"hybrid"}), tensors=("head.join.weight",)),
    build=head,
    feeds=(Feed(slot="hidden", recycle="hidden"),),
    acceptance=(0.5, 0.9),
)
STEPS = msgspec.structs.replace(
    HEAD,
    name="hybrid_steps",
    fit=Fit(architectures=frozenset({"hybrid"}), tensors=("blk.{n}.join.weight",)),
    build=step,
    heads=Heads(order="each-step"),
)


class Plugin:
    __name__ = "hybrid_family"

    @staticmethod
    @hookimpl
    def mtpcore_models():
        return [TRUNK]

    @staticmethod
    @hookimpl
    def mtpcore_drafters():
        return [HEAD, STEPS]


def block_tensors(made, name):
    shapes = {
        "qkv": (CHANNELS, WIDTH),
        "conv": (CHANNELS, KERNEL),
        "alpha": (N_HEADS, WIDTH),
        "beta": (N_HEADS, WIDTH),
        "out": (WIDTH, N_HEADS * V_WIDTH),
    }
    return {
        f"{name}.{part}.weight": made.normal(size=shape) / shape[1] ** 0.5
        for part, shape in shapes.items()
    }


def tensors(seed=0, heads=()):
    made = np.random.default_rng(seed)
    found = {"token_embd.weight": made.normal(size=(N_VOCAB, WIDTH)) * 0.5}
    for n in range(N_LAYERS):
        if n != 1:
            found |= block_tensors(made, f"blk.{n}")
    for part in ("q", "k", "v", "out"):
        found[f"blk.1.{part}.weight"] = made.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
    found["output_norm.weight"] = np.ones(WIDTH)
    join = np.concatenate([np.eye(WIDTH) * 0.2, np.eye(WIDTH)], axis=1)
    for name in heads or ("head",):
        found |= {f"{name}.join.weight": join} | block_tensors(made, name)
    return {name: values.astype(np.float32) for name, values in found.items()}


def subject(folder, n_heads=1):
    """Write the family's file, and return it as a subject."""
    heads = [f"blk.{N_LAYERS + i}" for i in range(n_heads)] if n_heads > 1 else []
    path = toy.write(
        folder / f"hybrid-{n_heads}.gguf",
        tensors(heads=heads),
        heads=len(heads),
        n_blocks=N_LAYERS,
        architecture="hybrid",
    )
    return Subject("hybrid", str(path), plugins=Registry.of(Plugin()))
