"""Programs and weights for tests of backends: single operations, and a small trunk with experts."""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Weights


class Tensor:
    """A tensor that is no file's."""

    def __init__(self, values, kind=Type.F32):
        self._raw = quants.quantize(np.asarray(values, np.float32), kind).view(np.uint8)
        self.type, self.shape = int(kind), np.shape(values)

    offset = None

    def array(self):
        return quants.dequantize(self._raw, Type(self.type)).reshape(self.shape)

    def raw(self):
        return self._raw

    def native(self, native_types):
        if self.type in native_types:
            return self.type, self._raw
        return int(Type.F32), self.array().view(np.uint8)

    def rows(self, begin, end):
        return self.array().reshape(-1, self.shape[-1])[begin:end]

    def release(self, begin, end):
        pass

    def stream(self, native_types, ranges, start):
        kind = self.type if self.type in native_types else int(Type.F32)
        take, blocks = start(kind), self._raw.reshape(-1, self._raw.shape[-1])
        for begin, end in ranges:
            is_stored = kind == self.type
            take(begin, blocks[begin:end] if is_stored else self.rows(begin, end).view(np.uint8))


class Raw(Tensor):
    """A tensor of blocks that the ``gguf`` package cannot write."""

    def __init__(self, raw, kind, shape):
        self._raw, self.type, self.shape = raw.view(np.uint8), int(Type[kind]), shape


def random_tensors(seed, kind=Type.F32, **shapes):
    """Return tensors by name; those of two axes and more are stored as ``kind``."""
    rng = np.random.default_rng(seed)
    return {
        name + ".weight": Tensor(
            rng.normal(0, 1 / np.sqrt(shape[-1] if len(shape) > 1 else 1), shape),
            kind if len(shape) > 1 else Type.F32,
        )
        for name, shape in shapes.items()
    }


N_VOCAB, WIDTH, N_HEADS, N_KEY_HEADS, HEAD, N_FF = 40, 64, 4, 2, 24, 96
N_EXPERTS, N_USED = 5, 2
LATENT = 32


def attention_shapes(i, width, n_heads, n_key_heads, head):
    """Return the shapes of layer i up to its attention: the norm; queries, keys and values."""
    return {
        f"{i}.norm": (width,),
        f"{i}.q": (n_heads * head, width),
        f"{i}.k": (n_key_heads * head, width),
        f"{i}.v": (n_key_heads * head, width),
    }


def trunk(
    *, kind=Type.F32, layers=2, window=0, mask="causal", experts=True, seed=0, styles="halves",
    latent=False,
):  # fmt: skip
    """Return a program and its weights: embedding, layers with attention and experts, logits.

    ``window`` is every layer's, or one for each. ``latent``: queries of wider keys, whose first
    entries are the values, as absorbed products.
    """
    windows = window if isinstance(window, tuple) else (window,) * layers
    shapes = {"embd": (N_VOCAB, WIDTH), "norm": (WIDTH,), "head": (N_VOCAB, WIDTH)}
    for i in range(layers):
        shapes |= attention_shapes(i, WIDTH, N_HEADS, N_KEY_HEADS, HEAD) | {
            f"{i}.k_bias": (N_KEY_HEADS * HEAD,),
            f"{i}.sinks": (N_HEADS,),
            f"{i}.k_b": (N_HEADS, LATENT, HEAD + 8),
            f"{i}.v_b": (N_HEADS, HEAD, LATENT),
            f"{i}.c": (LATENT, WIDTH),
            f"{i}.o": (WIDTH, N_HEADS * HEAD),
            f"{i}.ff_norm": (WIDTH,),
            f"{i}.router": (N_EXPERTS, WIDTH),
            f"{i}.gate": (N_EXPERTS, N_FF, WIDTH),
            f"{i}.up": (N_EXPERTS, N_FF, WIDTH),
            f"{i}.down": (N_EXPERTS, WIDTH, N_FF),
        }
    tensors = random_tensors(seed, kind, **shapes)
    g = GraphBuilder("trunk", tensors)
    frequencies = [10000.0 ** (-i / 8) for i in range(8)]
    x = g.embed(g.inputs.tokens, "embd.weight", embeddings=True)
    for i in range(layers):
        a = g.rms_norm(x, f"{i}.norm.weight", 1e-5)
        q = g.split_heads(g.matmul(a, f"{i}.q.weight"), N_HEADS)
        k = g.split_heads(g.matmul(a, f"{i}.k.weight", f"{i}.k_bias.weight"), N_KEY_HEADS)
        v = g.split_heads(g.matmul(a, f"{i}.v.weight"), N_KEY_HEADS)
        q, k = (g.rope(y, g.inputs.positions, frequencies, style=styles) for y in (q, k))
        if latent:
            wide = g.concat(q, g.slice(q, 0, 8))
            q = g.concat(g.head_matmul(wide, f"{i}.k_b.weight"), q)
            k = g.slice(k, 0, HEAD // 2)
            k = g.split_heads(g.concat(g.matmul(a, f"{i}.c.weight"), g.merge_heads(k)), 1)
        y = g.attention(
            q, k, LATENT if latent else v, layer=i, scale=HEAD**-0.5, mask=mask, window=windows[i],
            sinks=f"{i}.sinks.weight",
        )  # fmt: skip
        if latent:
            y = g.head_matmul(y, f"{i}.v_b.weight")
        x = g.add(x, g.matmul(g.merge_heads(y), f"{i}.o.weight"))
        if experts:
            f = g.rms_norm(x, f"{i}.ff_norm.weight", 1e-5)
            ids, shares = g.route(f, f"{i}.router.weight", n_used=N_USED)
            gate = g.expert_matmul(f, ids, f"{i}.gate.weight")
            up = g.expert_matmul(f, ids, f"{i}.up.weight")
            down = g.expert_matmul(g.gated(gate, up), ids, f"{i}.down.weight")
            x = g.add(x, g.mix(down, shares))
    hidden = g.rms_norm(x, "norm.weight", 1e-5)
    logits = g.matmul(g.output_rows(hidden), "head.weight")
    return g.finish(Outputs(logits, hidden=hidden)), Weights(tensors)


N_LOGITS = 24


def head(
    n_logits=N_LOGITS, factor=3.0, edit=lambda matrix: None, repack=True, seed=9, mask="causal",
    window=0,
):  # fmt: skip
    """One layer that reads a token and a hidden row, and hands its own hidden row on.

    Without a factor the logits are what one product makes: tokens may run while it makes them.
    ``edit`` changes its float32 matrix.
    """
    tensors = random_tensors(
        seed, embd=(N_VOCAB, WIDTH), join=(WIDTH, 2 * WIDTH), q=(N_HEADS * HEAD, WIDTH),
        k=(N_HEADS * HEAD, WIDTH), v=(N_HEADS * HEAD, WIDTH), o=(WIDTH, N_HEADS * HEAD),
        norm=(WIDTH,), head=(n_logits, WIDTH),
    )  # fmt: skip
    edit(tensors["head.weight"].array())
    g = GraphBuilder("head", tensors, slots={"hidden": WIDTH})
    x = g.embed(g.inputs.tokens, "embd.weight")
    x = g.matmul(g.concat(x, g.inputs["hidden"]), "join.weight")
    q, k, v = (g.split_heads(g.matmul(x, f"{name}.weight"), N_HEADS) for name in "qkv")
    q, k = (g.rope(y, g.inputs.positions, [1.0, 0.1, 0.01]) for y in (q, k))
    y = g.attention(q, k, v, layer=0, scale=0.2, mask=mask, window=window)
    x = g.add(x, g.matmul(g.merge_heads(y), "o.weight"))
    hidden = g.rms_norm(x, "norm.weight", 1e-5)
    logits = g.matmul(g.output_rows(hidden), "head.weight")
    logits = logits if factor is None else g.scale(logits, factor)
    return g.finish(Outputs(logits, hidden=hidden)), Weights(tensors, repack=repack)


def post_head(attends=True, seed=31, n_logits=N_LOGITS, adds=True, edit=lambda table: None):
    """A graph after a block: of a token and the block's row, which are joined in one slot.

    ``attends``: to the rows before it, too. ``adds``: its logits to the block's; without that they
    are what one product makes. ``edit`` changes the table of tokens.
    """
    tensors = random_tensors(
        seed, embd=(N_VOCAB, WIDTH), join=(WIDTH, n_logits + WIDTH), q=(WIDTH, WIDTH),
        k=(WIDTH, WIDTH), v=(WIDTH, WIDTH), head=(n_logits, WIDTH),
    )  # fmt: skip
    edit(tensors["embd.weight"].array())
    slots = {"row": n_logits + WIDTH} | ({"base": n_logits} if adds else {})
    g = GraphBuilder("post_head", tensors, slots=slots)
    x = g.embed(g.inputs.tokens, "embd.weight")
    x = g.add(g.scale(x, 2.0), g.matmul(g.inputs["row"], "join.weight"))
    if attends:
        q, k, v = (g.split_heads(g.matmul(x, f"{name}.weight"), 2) for name in "qkv")
        x = g.add(x, g.merge_heads(g.attention(q, k, v, layer=0, scale=0.2)))
    logits = g.matmul(g.output_rows(x), "head.weight")
    logits = g.add(g.output_rows(g.inputs["base"]), logits) if adds else logits
    return g.finish(Outputs(logits)), Weights(tensors)
