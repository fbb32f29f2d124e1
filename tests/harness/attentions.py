"""Programs of one layer of attention, of every kind there is."""

import numpy as np
from programs import random_tensors

from mtpcore.backends.base import CheckedBatch
from mtpcore.graph import GraphBuilder, Outputs

N_QUERIES = 38
"""Query heads: those of one key head are shared out, in parts of different sizes."""


def attention_program(options, tensors, n_queries=N_QUERIES):
    def make(g):
        x = g.embed(g.inputs.tokens, "embd.weight")
        seen = g.inputs["rows"] if options.get("cross") else x
        q = g.split_heads(g.matmul(x, "q.weight"), n_queries)
        k = g.split_heads(g.matmul(seen, "k.weight"), 2)
        v = g.split_heads(g.matmul(seen, "v.weight"), 2)
        if options.get("cross"):
            y = g.cross_attention(q, k, v, layer=0, scale=0.1)
        elif options.get("latent"):
            y = g.attention(q, k, min(v.shape[2], k.shape[2]), layer=0, scale=0.1)
        else:
            y = g.attention(q, k, v, layer=0, scale=0.1, **options)
        return g.finish(Outputs(y=g.merge_heads(y)))

    g = GraphBuilder("attention", tensors, slots={"rows": 32}, whole=["rows"])
    return make(g)


ATTENTIONS = {
    "causal": {},
    "window": {"window": 37},
    "sinks": {"sinks": "sinks.weight"},
    "block": {"mask": "block"},
    "block, window": {"mask": "block", "window": 70},
    "cross": {"cross": True},
    "latent": {"latent": True},
    "bias": {"bias": "bias.weight", "max_distance": 90},
    "softcap": {"softcap": 0.3, "sinks": "sinks.weight"},
    "softcap, bias": {"softcap": 2.0, "bias": "bias.weight", "max_distance": 90},
    "alibi": {"max_alibi_bias": 8.0},
    "block, alibi": {"mask": "block", "window": 70, "max_alibi_bias": 3.0, "softcap": 1.0},
    "block, bias": {"mask": "block", "bias": "bias.weight", "max_distance": 20},
}


def attention_tensors(widths, n_queries=N_QUERIES):
    """Return the weights, for keys and values of these widths."""
    return random_tensors(
        7, embd=(20, 32), q=(n_queries * widths[0], 32), k=(2 * widths[0], 32),
        v=(2 * widths[1], 32), sinks=(n_queries,), bias=(10, n_queries),
    )  # fmt: skip


def fill(runner, n):
    """Let sequence 0 have n places of keys and values drawn at random."""
    rng = np.random.default_rng(4)
    memory = runner.memory.groups[0]
    runner.memory.reserve({0: (0, n)})
    for place in range(n):
        values = rng.normal(size=memory.store.place_bytes // 4).astype(np.float32)
        memory.store.write(*memory.pages.where(0, place), values.data.cast("B"))


def together(runner, tokens, seqs, name="y"):
    """Feed the next tokens of several sequences in one batch."""
    length = runner.memory.length
    places = np.array([length(seq) + (seqs[:i] == seq).sum() for i, seq in enumerate(seqs)])
    runner.memory.reserve(
        {seq: (length(seq), length(seq) + int((seqs == seq).sum())) for seq in set(seqs.tolist())}
    )
    batch = CheckedBatch(
        tokens=tokens.astype(np.int32),
        positions=places[:, None].astype(np.int32),
        seq=seqs.astype(np.int32),
        place=places.astype(np.int32),
        outputs=np.zeros(0, np.int32),
    )
    return np.asarray(runner.plan.run(batch, runner.memory)[name])
