"""Decoders that differ from Llama's in points that a table can name.

A family is a ``Variant``: which norms, in which order, which activation, what is rotated, which
numbers multiply what. Its layer, its hyper-parameters and its declaration follow. What a file has
or lacks (biases, norms after a branch or of heads, a fused matrix, experts) is read from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Literal

import msgspec

from mtpcore.declarations.checkpoint import Checkpoint
from mtpcore.declarations.patterns import pattern
from mtpcore.declarations.spec import ATTENTION_SCALES, Fit, ModelSpec
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, apply_rope, moe, projections, swiglu
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.layer_kinds import LayerKind, windowed_blocks
from mtpcore.models.rope import Rope, Style

__all__ = ["Variant", "VariantHparams", "build", "variant_spec"]

_Window = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """In what a family differs from Llama.

    Attributes
    ----------
    rope_style : str
        ``halves`` or ``pairs``; see ``GraphBuilder.rope``.
    axes_style : str, optional
        The same where a position has several axes, if it is another.
    interleaves_axes : bool
        How sections of a position's axes lie; see ``Rope.read``.
    rotates : callable, optional
        ``rotates(h, n)`` says whether layer n rotates queries and keys; default: all do.
    norm : str
        ``rms``, ``layer``, or ``plain``: a layer norm without weights.
    attention_norms, ffn_norm : tuple of str, str
        Norms before attention (the first that the file has) and before the feed-forward part. One
        that the file lacks is left out.
    post_norms : tuple of str
        Norms after attention and after the feed-forward part, where the file has them.
    ignored : tuple of str
        Patterns of tensors that files may have and llama.cpp does not compute with.
    norms_rotated : bool
        Whether heads of queries and keys are normed after the rotation.
    head_norm : str
        ``rms`` or ``layer``; a weight as wide as all heads together norms them as one row where the
        norm is ``rms``.
    is_parallel : bool or str
        Whether attention and feed-forward part read the same stream; or the key that says so. A
        part without a norm of its own reads attention's.
    activation : str
        Of the feed-forward part, gated or not; ``relu_squared`` is not gated.
    fuses_gate : bool
        Whether ``ffn_up`` holds the gate's rows before those of up.
    experts_gate : str
        By what experts are chosen where the file does not say.
    normalises : bool, optional
        Whether the weights of a token's experts sum to one; None: as the file says.
    has_windows : callable, optional
        ``f(h)`` says whether windows count; default: where the file has one.
    window_period, window : int, optional
        Of how many layers the last one sees all, where layers have windows (``windowed_blocks``);
        and the window, where the file does not say.
    near_base : float, optional
        The base of the rotation in layers with a window, where the file does not say; default:
        that of the others.
    near_is_scaled : bool
        Whether these layers' rotation is scaled, too.
    embedding_scale, residual_scale, logit_scale : callable, optional
        ``f(h)`` returns what embeddings, each branch or logits are multiplied by where the file has
        no key for it.
    divides_logits : bool
        Whether logits are divided by the key's number.
    score_scale : callable, optional
        ``f(h)`` returns the factor of scores; default: 1 / sqrt(head width).
    softcaps_logits : bool
        Whether ``{arch}.final_logit_softcapping`` counts.
    scaled : tuple of str
        As in a ``ModelSpec``.
    """

    rope_style: Style = "halves"
    axes_style: Style | None = None
    interleaves_axes: bool = False
    rotates: Callable[[VariantHparams, int], bool] | None = None
    norm: Literal["rms", "layer", "plain"] = "rms"
    attention_norms: tuple[str, ...] = ("attn_norm",)
    ffn_norm: str = "ffn_norm"
    post_norms: tuple[str, str] = ("post_attention_norm", "post_ffw_norm")
    ignored: tuple[str, ...] = ()
    norms_rotated: bool = False
    head_norm: Literal["rms", "layer"] = "rms"
    is_parallel: bool | str = False
    activation: str = "silu"
    fuses_gate: bool = False
    experts_gate: Literal["softmax", "sigmoid"] = "softmax"
    normalises: bool | None = True
    has_windows: Callable[[VariantHparams], bool] | None = None
    window_period: int | None = None
    window: int = 0
    near_base: float = 0.0
    near_is_scaled: bool = True
    embedding_scale: Callable[[VariantHparams], float] | None = None
    residual_scale: Callable[[VariantHparams], float] | None = None
    logit_scale: Callable[[VariantHparams], float] | None = None
    divides_logits: bool = False
    score_scale: Callable[[VariantHparams], float] | None = None
    softcaps_logits: bool = False
    scaled: tuple[str, ...] = ATTENTION_SCALES


class VariantHparams(Hparams, frozen=True, kw_only=True):
    """Hyper-parameters of such families; ``kinds`` says how each block attends."""

    norm_eps: float = msgspec.field(name="norm_eps", default=0.0)
    variant: Variant = msgspec.field(name="variant", default=Variant())
    kinds: tuple[LayerKind, ...] = ()
    experts: Experts | None = None
    is_parallel: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    score_scale: float = 1.0
    softcap: float = 0.0

    @classmethod
    def read_variant(
        cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]
    ) -> VariantHparams:
        """Read a family's metadata; see ``Hparams.read``."""
        h = cls._read(
            fields, tensors, variant.rope_style, interleaves_axes=variant.interleaves_axes
        )
        norms = "layer_norm_rms_epsilon" if variant.norm == "rms" else "layer_norm_epsilon"
        parallel = variant.is_parallel
        if isinstance(parallel, str):
            parallel = fields.get(parallel, bool, False)
        fields.dismiss("{arch}.attention.layer_norm_rms_epsilon")
        h = msgspec.structs.replace(h, rope=_rope(h.rope, variant))
        h = msgspec.structs.replace(
            h,
            variant=variant,
            norm_eps=fields.require(f"{{arch}}.attention.{norms}", float),
            kinds=_layer_kinds(fields, h, variant),
            experts=_experts(fields, variant),
            is_parallel=parallel,
        )
        return msgspec.structs.replace(h, **_factors(fields, h, variant))


def _rope(rope: Rope, v: Variant) -> Rope:
    style = v.axes_style if v.axes_style and rope.n_axes > 1 else rope.style
    return msgspec.structs.replace(rope, style=style)


def _experts(fields: Fields, v: Variant) -> Experts | None:
    experts = Experts.read(fields, gate=v.experts_gate)
    if experts is None or v.normalises is None:
        return experts
    return msgspec.structs.replace(experts, normalise=v.normalises)


def _factors(fields: Fields, h: VariantHparams, v: Variant) -> dict[str, float]:
    """Return what is multiplied by what, by the names of fields."""

    def read(key: str, default: Callable[[VariantHparams], float] | None) -> float:
        if default is None:
            return 1.0
        return fields.get(f"{{arch}}.{key}", float, default(h))

    logits = read("logit_scale", v.logit_scale)
    return {
        "embedding_scale": read("embedding_scale", v.embedding_scale),
        "residual_scale": read("residual_scale", v.residual_scale),
        "logit_scale": 1.0 / logits if v.divides_logits else logits,
        "score_scale": read("attention.scale", v.score_scale or _plain_scale),
        "softcap": fields.get("{arch}.final_logit_softcapping", float, 0.0)
        if v.softcaps_logits
        else 0.0,
    }


def _plain_scale(h: VariantHparams) -> float:
    return 1 / math.sqrt(h.head_width)


def _layer_kinds(fields: Fields, h: VariantHparams, v: Variant) -> tuple[LayerKind, ...]:
    """Return how each layer attends: some with a window, and a rotation of their own."""
    full = LayerKind(h.n_kv_heads, h.rope)
    if v.window_period is None:
        return (full,) * h.n_layers
    window = fields.get("{arch}.attention.sliding_window", _Window, v.window)
    pattern = windowed_blocks(fields, h.n_blocks, v.window_period)
    if not window or (v.has_windows and not v.has_windows(h)):
        fields.dismiss("{arch}.rope.freq_base_swa")
        return (full,) * h.n_layers
    base = fields.get("{arch}.rope.freq_base", float, 10000.0)
    rope = Rope.read(
        fields.replace(
            {
                "{arch}.rope.freq_base_swa": fields.get(
                    "{arch}.rope.freq_base_swa", float, v.near_base or base
                )
            }
        ),
        h.head_width,
        v.rope_style,
        "freq_base_swa",
        scaled=v.near_is_scaled,
    )
    near = LayerKind(h.n_kv_heads, rope, window)
    return tuple(near if is_near else full for is_near in pattern[: h.n_layers])


def _bias(of: str, h: VariantHparams) -> str | None:
    """Return the name of a matrix's bias, unless it is ignored."""
    name = f"{of}.bias"
    return None if any(pattern(one).fullmatch(name) for one in h.variant.ignored) else name


def _norm(g: GraphBuilder, x: Value, name: str, h: VariantHparams) -> Value:
    """Return normed rows; ``name`` without ``.weight``."""
    weight = f"{name}.weight"
    if h.variant.norm == "plain":
        return g.layer_norm(x, None, None, h.norm_eps)
    if not g.has(weight):
        return x
    bias = f"{name}.bias" if g.has(f"{name}.bias") else None
    if h.variant.norm == "layer":
        return g.layer_norm(x, weight, bias, h.norm_eps)
    x = g.rms_norm(x, weight, h.norm_eps)
    return g.shift_by(x, bias) if bias else x


def _head_norm(g: GraphBuilder, x: Value, name: str, n_heads: int, h: VariantHparams) -> Value:
    """Return heads [T, H, D] of rows [T, H * D], normed where the file has the weight."""
    heads = g.split_heads(x, n_heads)
    weight = f"{name}.weight"
    found = g.resolve(weight)
    if found is None:
        return heads
    if h.variant.head_norm == "layer":  # a weight for each head
        heads = g.layer_norm(heads, None, None, h.norm_eps)
        return g.split_heads(g.scale_by(g.merge_heads(heads), weight), n_heads)
    if found.shape[-1] == h.head_width:
        heads = g.rms_norm(heads, weight, h.norm_eps)
        bias = f"{name}.bias"
        return g.shift_by(heads, bias) if g.has(bias) else heads
    return g.split_heads(g.rms_norm(x, weight, h.norm_eps), n_heads)


def _attention(g: GraphBuilder, a: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    v, kind, block = h.variant, h.kinds[n], f"blk.{n}"
    q, k, values = projections(g, a, n, h.n_heads * h.head_width, kind.n_kv_heads * h.head_width)
    rotates = v.rotates is None or v.rotates(h, n)
    factors = None if "rope_freqs.weight" in v.ignored else "rope_freqs.weight"

    def rotated(heads: Value) -> Value:
        return apply_rope(g, heads, positions, kind.rope, factors) if rotates else heads

    def finished(rows: Value, name: str, n_heads: int) -> Value:
        if not v.norms_rotated:
            return rotated(_head_norm(g, rows, f"{block}.{name}", n_heads, h))
        heads = rotated(g.split_heads(rows, n_heads))
        return _head_norm(g, g.merge_heads(heads), f"{block}.{name}", n_heads, h)

    sinks, output = f"{block}.attn_sinks.weight", f"{block}.attn_output"
    y = g.attention(
        finished(q, "attn_q_norm", h.n_heads),
        finished(k, "attn_k_norm", kind.n_kv_heads),
        g.split_heads(values, kind.n_kv_heads),
        layer=n,
        scale=h.score_scale,
        window=kind.window,
        sinks=sinks if g.has(sinks) else None,
    )
    return g.matmul(g.merge_heads(y), f"{output}.weight", _bias(output, h))


def _feed_forward(g: GraphBuilder, x: Value, n: int, h: VariantHparams) -> Value:
    block, kind = f"blk.{n}", h.variant.activation
    if h.experts is not None and g.has(f"{block}.ffn_gate_inp.weight"):
        return moe(g, x, n, h.experts, gated=partial(g.gated, kind=kind))
    if g.has(f"{block}.ffn_gate.weight"):
        return swiglu(g, x, n, kind=kind)
    up = g.matmul(x, f"{block}.ffn_up.weight", f"{block}.ffn_up.bias", scales_bias=True)
    if h.variant.fuses_gate:
        width = int(up.shape[-1]) // 2
        y = g.gated(g.slice(up, 0, width), g.slice(up, width, 2 * width), kind)
    elif kind == "relu_squared":
        y = g.activation(up, "relu")
        y = g.mul(y, y)
    else:
        y = g.activation(up, kind)
    return g.matmul(y, f"{block}.ffn_down.weight", f"{block}.ffn_down.bias", scales_bias=True)


def _layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    v, block = h.variant, f"blk.{n}"
    present = [name for name in v.attention_norms if g.has(f"{block}.{name}.weight")]
    attention_norm = (*present, v.attention_norms[-1])[0]
    a = _norm(g, x, f"{block}.{attention_norm}", h)

    def branch(y: Value, post_norm: str) -> Value:
        if g.has(f"{block}.{post_norm}.weight"):
            y = _norm(g, y, f"{block}.{post_norm}", h)
        return y if h.residual_scale == 1 else g.scale(y, h.residual_scale)

    attended = branch(_attention(g, a, positions, n, h), v.post_norms[0])
    if h.is_parallel:
        own = g.has(f"{block}.{v.ffn_norm}.weight") and v.ffn_norm != attention_norm
        b = _norm(g, x, f"{block}.{v.ffn_norm}", h) if own else a
        return g.add(g.add(branch(_feed_forward(g, b, n, h), v.post_norms[1]), x), attended)
    x = g.add(x, attended)
    b = _norm(g, x, f"{block}.{v.ffn_norm}", h)
    return g.add(x, branch(_feed_forward(g, b, n, h), v.post_norms[1]))


def build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    """Build the trunk."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True, scale=h.embedding_scale)
    if g.has("token_embd_norm.weight"):
        x = _norm(g, x, "token_embd_norm", h)
    for n in range(h.n_layers):
        x = _layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    g.tap(f"layer_input:{h.n_layers}", x)
    g.tap("residual", x)
    hidden = g.tap("hidden", _norm(g, x, "output_norm", h))
    logits = g.matmul(g.output_rows(hidden), "output.weight", _bias("output", h))
    if h.logit_scale != 1:
        logits = g.scale(logits, h.logit_scale)
    if h.softcap:
        logits = g.scale(logits, 1 / h.softcap)
        logits = g.scale(g.activation(logits, "tanh"), h.softcap)
    return Outputs(logits=logits)


def variant_spec(
    name: str,
    variant: Variant,
    *,
    architectures: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    unread: tuple[tuple[str, str], ...] = (),
    checkpoint: Checkpoint | None = None,
    layouts: tuple[Checkpoint, ...] = (),
) -> ModelSpec:
    """Return the declaration of such a family.

    Parameters
    ----------
    name : str
    variant : Variant
    architectures : tuple of str
        As files call it; default: the name.
    also : tuple of str
        Tensors that every file has.
    unread, checkpoint, layouts
        As in a ``ModelSpec``.
    """
    norms = () if variant.norm == "plain" else ("output_norm.weight",)
    return ModelSpec(
        name=name,
        fit=Fit(
            architectures=frozenset(architectures or (name,)),
            tensors=("token_embd.weight", *norms, *also),
        ),
        hparams=partial(VariantHparams.read_variant, variant),
        build=build,
        ties=(OUTPUT_TIE,),
        min_types=(ROUTER_TYPE,),
        scaled=variant.scaled,
        unread=(*unread, *((one, "llama.cpp does not compute with it") for one in variant.ignored)),
        checkpoint=checkpoint,
        layouts=layouts,
    )
