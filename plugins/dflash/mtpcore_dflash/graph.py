"""The graphs of DFlash: entries made of the target's rows, a block; and the others' post-heads.

Chen, Liang and others: DFlash, 2026 (arXiv 2602.06036). Wang and others: xPress, 2026 (arXiv
2608.02438). DFlash2: its authors' code in speculators, and vLLM's (pull request 52816). Names are
llama.cpp's, but for those of XPress (``refiner.*``), which it has not.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import msgspec

from mtpcore.plugin import (
    Count,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    LayerKind,
    Outputs,
    Value,
    attention,
    feed_forward,
    remember,
)

_NEUTRAL = {
    "attention.scale": 0.0,
    "attention.value_scale": 1.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "final_logit_softcapping": 0.0,
    "hidden_activation": "silu",
    "logit_scale": 1.0,
}
"""Keys of drafters for other targets, at values that ask for nothing more."""


class DFlashHparams(Hparams, frozen=True, kw_only=True):
    """What DFlash adds: sizes of block and target, and what rows of a block see of each other.

    They see each other both ways, or with ``causal`` what precedes them. ``windowed`` says which
    layers see ``window`` tokens only; with ``window_causal`` these layers are causal at least. Of
    DFlash2 and LiLiCorr ``n_candidates`` tokens of each row may be drafted; LiLiCorr's scores are
    cosines times ``score_scale``, and ``vector_eps`` is the least length of a vector.
    """

    target_width: int = msgspec.field(name="target_hidden_size", default=0)
    block_size: int = 16
    causal: bool = msgspec.field(name="attention.causal", default=False)
    window: int = msgspec.field(name="attention.sliding_window", default=0)
    window_causal: bool = msgspec.field(name="attention.sliding_window_causal", default=False)
    windowed: tuple[bool, ...] = ()
    n_candidates: Count = msgspec.field(name="selector_top_k", default=16)
    vector_eps: float = msgspec.field(name="lilicorr.vector_eps", default=1e-6)
    score_scale: float = msgspec.field(name="lilicorr.logit_scale", default=1.0)

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read the metadata; refuse what the graphs would leave out."""
        for name, neutral in _NEUTRAL.items():
            key = f"{{arch}}.{name}"
            if (value := fields.get(key, type(neutral), neutral)) != neutral:
                raise fields.error(
                    key, "a relative of DFlash that the graph is not of", wanted=neutral, got=value
                )
        made = super().read(fields, tensors)
        _check_sizes(fields, tensors)
        mixers = (tensors.get(name) for name in ("refiner.mix.weight", "lilicorr.slot_mix.weight"))
        mixer = next(filter(None, mixers), None)
        if mixer is not None and mixer.shape[0] != made.block_size:
            raise fields.error(
                "{arch}.block_size",
                "not the size of the blocks that the file's tensors are for",
                wanted=mixer.shape[0],
                got=made.block_size,
            )
        width = fields.get("{arch}.target_hidden_size", Count, made.width)
        return msgspec.structs.replace(made, target_width=width)

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read which layers have a window."""
        n_blocks = fields.require("{arch}.block_count", Count)
        flags = fields.per_layer("{arch}.attention.sliding_window_pattern", n_blocks, bool, False)
        window = fields.require("{arch}.attention.sliding_window", Count) if any(flags) else 0
        return {"windowed": tuple(flags), "window": window}

    def kind(self, layer: int) -> LayerKind:
        """Return how a layer attends."""
        return LayerKind(self.n_kv_heads, self.rope, self.window if self.windowed[layer] else 0)

    def mask(self, layer: int) -> str:
        """Return what a layer's rows see of each other."""
        is_causal = self.causal or (self.window_causal and self.windowed[layer])
        return "causal" if is_causal else "block"


def _check_sizes(fields: Fields, tensors: Mapping[str, Any]) -> None:
    """Raise where DFlash2's tensors are not of the sizes that the file says, or are not there."""
    base = _shape_of("blk.0.attn_conv_base", 3, tensors)
    changes = _shape_of("blk.0.attn_conv_proj.weight", 2, tensors)
    n_groups = changes[0] // (2 * base[1]) if base[1] else 0
    for name, found in (
        ("conv_kernel_size", base[1]),
        ("conv_group_size", base[2] // n_groups if n_groups else 0),
        ("selector_rank", _shape_of("selector_hidden.weight", 2, tensors)[0]),
    ):
        key = f"{{arch}}.{name}"
        if (said := fields.get(key, int, found)) != found:
            raise fields.error(key, "not the size of the tensors", wanted=found, got=said)


def _shape_of(name: str, n_axes: int, tensors: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a tensor's shape, zeros where there is none of so many axes."""
    shape = tuple(tensors[name].shape) if name in tensors else ()
    return shape if len(shape) == n_axes else (0,) * n_axes


def projected_taps(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Value:
    """Return what the target's taps become, as wide as rows of the drafter."""
    return g.rms_norm(g.matmul(inputs["taps"], "fc.weight"), "enc.output_norm.weight", h.norm_eps)


def entries(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Store what a block sees of the tokens before it: one row of the target's taps for each."""
    x = projected_taps(g, inputs, h)
    for n in range(h.n_layers):
        remember(g, x, inputs.positions, n, h, kind=h.kind(n), factors="rope_freqs.weight")
    return Outputs()


def layers(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Value:
    """Build the layers that fill a block; attention sees the entries and the block's rows."""
    x = g.embed(inputs.tokens, "token_embd.weight")
    for n in range(h.n_layers):
        attend = partial(
            attention,
            g,
            positions=inputs.positions,
            layer=n,
            h=h,
            kind=h.kind(n),
            mask=h.mask(n),
            sinks=f"blk.{n}.attn_sinks.weight",
            factors="rope_freqs.weight",
        )
        x = g.add(x, _branch(g, x, f"blk.{n}.attn", h, attend))
        x = g.add(
            x, _branch(g, x, f"blk.{n}.ffn", h, partial(feed_forward, g, layer=n, experts=None))
        )
    return x


def _branch(
    g: GraphBuilder, x: Value, name: str, h: DFlashHparams, made_of: Callable[[Value], Value]
) -> Value:
    """Return what a branch makes of the normed rows; DFlash2's is between two convolutions.

    What rows change of the kernels is projected once for both.
    """
    y = g.rms_norm(x, f"{name}_norm.weight", h.norm_eps)
    kernels = f"{name}_conv_base"
    if not g.has(kernels):
        return made_of(y)
    changes = g.matmul(y, f"{name}_conv_proj.weight")
    half = int(changes.shape[1]) // 2
    before, after = g.slice(changes, 0, half), g.slice(changes, half, 2 * half)
    y = made_of(g.block_conv(y, before, kernels, size=h.block_size, part=0))
    return g.block_conv(y, after, kernels, size=h.block_size, part=1)


def block(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Draft each token of a block from its own row."""
    hidden = g.rms_norm(g.output_rows(layers(g, inputs, h)), "output_norm.weight", h.norm_eps)
    return Outputs(logits=g.matmul(hidden, "output.weight"))


def markov(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Add to a row's logits those that the token before it suggests."""
    before = g.embed(inputs.tokens, "markov_w1.weight")
    suggested = g.matmul(g.output_rows(before), "markov_w2.weight")
    return Outputs(logits=g.add(g.output_rows(inputs["base"]), suggested))


def paired_block(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Draft as ``block`` does, and say how each row weighs pairs of tokens for the selector."""
    hidden = g.rms_norm(layers(g, inputs, h), "output_norm.weight", h.norm_eps)
    logits = g.matmul(g.output_rows(hidden), "output.weight")
    return Outputs(logits=logits, pairs=g.matmul(hidden, "selector_hidden.weight"))


def selector(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Add to the logits of a row's best tokens how well each follows the token before it."""
    before = g.embed(inputs.tokens, "selector_predecessor.weight")
    pair = g.output_rows(g.mul(before, inputs["pairs"]))
    best = g.keep_best(g.output_rows(inputs["base"]), h.n_candidates)
    return Outputs(logits=g.add(best, g.matmul(pair, "selector_successor.weight")))


def described_block(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Draft as ``block`` does, and describe each row and the whole block for the refiner."""
    hidden = g.rms_norm(layers(g, inputs, h), "output_norm.weight", h.norm_eps)
    row = g.matmul(hidden, "refiner.row.weight")
    whole = g.matmul(g.block_mean(hidden, h.block_size), "refiner.block.weight")
    logits = g.matmul(g.output_rows(hidden), "output.weight")
    return Outputs(logits=logits, description=g.concat(row, whole))


def refiner(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Add to the rows' logits what they suggest with the tokens before them, mixed in order."""
    before = g.embed(inputs.tokens, "refiner.token_embd.weight")
    x = g.matmul(g.concat(inputs["description"], before), "refiner.join.weight")
    x = g.add(x, g.block_mix(x, "refiner.mix.weight"))
    gate, up = (g.matmul(x, f"refiner.ffn_{name}.weight") for name in ("gate", "up"))
    x = g.add(x, g.matmul(g.gated(gate, up), "refiner.ffn_down.weight"))
    suggested = g.matmul(g.output_rows(x), "refiner.output.weight")
    return Outputs(logits=g.add(g.output_rows(inputs["base"]), suggested))
