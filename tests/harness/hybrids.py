"""Small programs with recurrent layers, beside attention or alone."""

import numpy as np
from programs import Tensor, random_tensors

from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Weights

N_VOCAB, WIDTH, KERNEL = 24, 32, 4


def hybrid(
    *, layers=1, n_key_heads=2, n_heads=4, k_width=6, v_width=5, key_heads="tiled",
    decays="head", corrects=True, kernel=KERNEL, conv="silu", attends=True, seed=0,
):  # fmt: skip
    """Return a program and its weights: layers of convolution and delta rule, then attention.

    ``decays`` are of each "head", "channel" of its key or "column" of its state; ``conv`` is the
    convolution's activation.
    """
    channels = 2 * n_key_heads * k_width + n_heads * v_width
    n_decays = n_heads * {"head": 1, "channel": k_width, "column": v_width}[decays]
    shapes = {"embd": (N_VOCAB, WIDTH), "head": (N_VOCAB, WIDTH)}
    for i in range(layers):
        shapes |= {
            f"{i}.qkv": (channels, WIDTH),
            f"{i}.alpha": (n_decays, WIDTH),
            f"{i}.beta": (n_heads, WIDTH),
            f"{i}.o": (WIDTH, n_heads * v_width),
        }
    if attends:
        shapes |= {name: (WIDTH, WIDTH) for name in ("q", "k", "v", "wo")}
    tensors = random_tensors(seed, **shapes)
    rng = np.random.default_rng(seed)
    for i in range(layers):
        tensors[f"{i}.conv.weight"] = Tensor(rng.normal(0, 0.7, (channels, kernel)))
        tensors[f"{i}.a"] = Tensor(-rng.uniform(0.1, 1.0, n_decays))
        if decays == "column":
            tensors[f"{i}.a"] = Tensor(-rng.uniform(0.1, 1.0, (n_decays, k_width)))
    g = GraphBuilder("hybrid", tensors)
    x = g.embed(g.inputs.tokens, "embd.weight")
    for i in range(layers):
        made = g.causal_conv(g.matmul(x, f"{i}.qkv.weight"), f"{i}.conv.weight", layer=i, kind=conv)
        cuts = np.cumsum([0, n_key_heads * k_width, n_key_heads * k_width, n_heads * v_width])
        q, k, v = (
            g.split_heads(g.slice(made, *cuts[at : at + 2].tolist()), n)
            for at, n in enumerate((n_key_heads, n_key_heads, n_heads))
        )
        q, k = g.scale(g.l2_norm(q, 1e-6), k_width**-0.5), g.l2_norm(k, 1e-6)
        decay = g.activation(g.matmul(x, f"{i}.alpha.weight"), "softplus")
        if decays != "column":
            decay = g.scale_by(decay, f"{i}.a")
        if decays != "head":
            decay = g.split_heads(decay, n_heads)
        beta = g.activation(g.matmul(x, f"{i}.beta.weight"), "sigmoid")
        rates = f"{i}.a" if decays == "column" else None
        y = g.delta_rule(
            q, k, v, decay, beta, layer=i, key_heads=key_heads, corrects=corrects, rates=rates
        )
        x = g.add(x, g.matmul(g.merge_heads(y), f"{i}.o.weight"))
    if attends:
        q, k, v = (g.split_heads(g.matmul(x, f"{name}.weight"), 2) for name in "qkv")
        y = g.attention(q, k, v, layer=0, scale=0.25)
        x = g.add(x, g.matmul(g.merge_heads(y), "wo.weight"))
    logits = g.matmul(g.output_rows(x), "head.weight")
    return g.finish(Outputs(logits, hidden=x)), Weights(tensors)
