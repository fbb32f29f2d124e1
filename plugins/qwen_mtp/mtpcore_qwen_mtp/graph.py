"""The graphs of Qwen3.5, Qwen3.6 and Qwen3-Next: layers of Gated DeltaNet and of gated attention.

Gated DeltaNet: Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
(2024). The head is a layer of attention, with a KV cache of its own and no recurrent state.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from mtpcore.plugin import (
    Count,
    Depth,
    Experts,
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    Value,
    apply_rope,
    decoder,
    feed_forward_block,
    nextn_head,
    projections,
)

RECURRENT = "{arch}.attention.recurrent_layers"
KeyHeads: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
L2_EPS = 1e-6
"""Added to the squared length of queries and keys, whatever the norms of rows add."""


class QwenHparams(Hparams, frozen=True, kw_only=True):
    """What hybrids add: heads of Gated DeltaNet, which layers they are, and experts.

    Attributes
    ----------
    n_linear_keys, n_linear_values : int
        K heads, each shared by as many V heads.
    linear_width : int
        Of a K head.
    kernel : int
        Tokens that a convolution sees.
    recurrent : set of int
        Layers of Gated DeltaNet.
    key_heads : str
        Which K head a V head reads, in the order of the file; see ``GraphBuilder.delta_rule``.
    experts : Experts or None
    """

    interleaves_axes: ClassVar[bool] = True
    tiles_values: ClassVar[bool] = True

    n_linear_keys: Count = msgspec.field(name="ssm.group_count")
    n_linear_values: Count = msgspec.field(name="ssm.time_step_rank")
    linear_width: Count = msgspec.field(name="ssm.state_size")
    kernel: Count = msgspec.field(name="ssm.conv_kernel")
    recurrent: frozenset[int] = frozenset()
    key_heads: Literal["tiled", "grouped"] = "tiled"
    experts: Experts | None = None

    def __post_init__(self) -> None:
        """Check besides that V heads share K heads evenly."""
        super().__post_init__()
        if self.n_linear_values % self.n_linear_keys:
            raise ValueError(
                f"{self.n_linear_values} value heads of linear attention do not share "
                f"{self.n_linear_keys} key heads evenly"
            )

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read a model's metadata, and check that convolutions are as long as it says."""
        h = super().read(count_key_heads_once(fields), tensors)
        for n in h.recurrent:
            weight = tensors.get(f"blk.{n}.ssm_conv1d.weight")
            if weight is not None and weight.shape[-1] != h.kernel:
                raise fields.error(
                    "{arch}.ssm.conv_kernel",
                    f"the convolution of block {n} is of another length",
                    wanted=weight.shape[-1],
                    got=h.kernel,
                )
        return h

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read which layers are recurrent, the order of V heads, and how experts are routed."""
        n_blocks = fields.require("{arch}.block_count", int)
        interval = fields.get("{arch}.full_attention_interval", Count, 4)
        kinds = [bool((n + 1) % interval) for n in range(n_blocks)]
        if RECURRENT in fields:
            kinds = fields.per_layer(RECURRENT, n_blocks, bool)
        is_tiled = fields.get("{arch}.ssm.v_head_reordered", bool, cls.tiles_values)
        return {
            "recurrent": frozenset(n for n, is_recurrent in enumerate(kinds) if is_recurrent),
            "key_heads": "tiled" if is_tiled else "grouped",
            "experts": Experts.read(fields, gate="softmax", normalise=True),
        }


class QwenNextHparams(QwenHparams, frozen=True, kw_only=True):
    """Qwen3-Next, whose files keep the V heads of a K head side by side."""

    tiles_values: ClassVar[bool] = False


def count_key_heads_once(fields: Fields) -> Fields:
    """Return metadata with one number of key heads: Ollama's files have one for each block.

    There it is 0 for those of Gated DeltaNet, and nothing else need say which they are.

    Raises
    ------
    ModelFileError
        Layers of attention have different numbers of them.
    """
    key = "{arch}.attention.head_count_kv"
    n_blocks = fields.require("{arch}.block_count", Depth)
    counts = fields.per_layer(key, n_blocks, KeyHeads, 0)
    found = {*counts} - {0}
    if len(found) > 1:
        raise fields.error(key, "layers of attention differ", wanted="one number", got=counts)
    if not found:
        return fields
    known: dict[str, Any] = {key: found.pop()}
    if 0 in counts and RECURRENT not in fields:
        known[RECURRENT] = [not count for count in counts]
    return fields.replace(known)


def delta_net(g: GraphBuilder, a: Value, n: int, h: QwenHparams) -> Value:
    """Return what Gated DeltaNet adds to the residual stream.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    """
    u, z = rows_and_gate(g, a, n, h)
    c = g.causal_conv(u, f"blk.{n}.ssm_conv1d.weight", layer=n)
    keys = h.n_linear_keys * h.linear_width
    q = g.split_heads(g.slice(c, 0, keys), h.n_linear_keys)
    k = g.split_heads(g.slice(c, keys, 2 * keys), h.n_linear_keys)
    v = g.split_heads(g.slice(c, 2 * keys, int(c.shape[1])), h.n_linear_values)
    strength, step = strength_and_step(g, a, n, h)
    o = g.delta_rule(
        g.scale(g.l2_norm(q, L2_EPS), h.linear_width**-0.5),
        g.l2_norm(k, L2_EPS),
        v,
        g.scale_by(g.activation(step, "softplus"), f"blk.{n}.ssm_a"),
        g.activation(strength, "sigmoid"),
        layer=n,
        key_heads=h.key_heads,
    )
    o = g.rms_norm(o, f"blk.{n}.ssm_norm.weight", h.norm_eps)
    y = g.gated(g.split_heads(z, h.n_linear_values), o)
    return g.matmul(g.merge_heads(y), f"blk.{n}.ssm_out.weight")


def rows_and_gate(g: GraphBuilder, a: Value, n: int, h: QwenHparams) -> tuple[Value, Value]:
    """Return rows [q, k, v] before their convolution, and the output's gate.

    They come from a matrix each, or from one (``ssm_in``, in early files) that has rows
    [q, k, v, gate] for each K head.
    """
    if g.has(f"blk.{n}.attn_qkv.weight") or not g.has(f"blk.{n}.ssm_in.weight"):
        u = g.matmul(a, f"blk.{n}.attn_qkv.weight")
        return u, g.matmul(a, f"blk.{n}.attn_gate.weight")
    rows = g.split_heads(g.matmul(a, f"blk.{n}.ssm_in.weight"), h.n_linear_keys)
    width, k = int(rows.shape[2]), h.linear_width
    v = (width - 2 * k) // 2
    ends = (0, k, 2 * k, 2 * k + v, width)
    *qkv, z = (g.merge_heads(g.slice(rows, *span)) for span in pairwise(ends))
    return g.concat(*qkv), z


def strength_and_step(g: GraphBuilder, a: Value, n: int, h: QwenHparams) -> tuple[Value, Value]:
    """Return how strongly each V head writes, and how far it forgets, before their activations.

    Both f32[n_tokens, V heads]; they come from a matrix each, or from one (``ssm_ba``) that has
    both for the V heads of each K head.
    """
    if g.has(f"blk.{n}.ssm_ba.weight"):
        both = g.split_heads(g.matmul(a, f"blk.{n}.ssm_ba.weight"), h.n_linear_keys)
        r = h.n_linear_values // h.n_linear_keys
        strength = g.merge_heads(g.slice(both, 0, r))
        step = g.merge_heads(g.slice(both, r, 2 * r))
    else:
        strength = g.matmul(a, f"blk.{n}.ssm_beta.weight")
        step = g.matmul(a, f"blk.{n}.ssm_alpha.weight")
    shift = f"blk.{n}.ssm_dt"
    return strength, g.shift_by(step, f"{shift}.bias" if g.has(f"{shift}.bias") else shift)


def gated_attention(g: GraphBuilder, a: Value, positions: Value, n: int, h: QwenHparams) -> Value:
    """Return what attention adds to the residual stream, multiplied by its gate.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    """
    q_width, k_width = 2 * h.n_heads * h.head_width, h.n_kv_heads * h.head_width
    query_and_gate, k, v = projections(g, a, n, q_width, k_width)
    both = g.split_heads(query_and_gate, h.n_heads)  # each head's query, then its gate
    q = g.slice(both, 0, h.head_width)
    gate = g.slice(both, h.head_width, 2 * h.head_width)
    q = g.rms_norm(q, f"blk.{n}.attn_q_norm.weight", h.norm_eps)
    k = g.rms_norm(g.split_heads(k, h.n_kv_heads), f"blk.{n}.attn_k_norm.weight", h.norm_eps)
    y = g.attention(
        apply_rope(g, q, positions, h.rope),
        apply_rope(g, k, positions, h.rope),
        g.split_heads(v, h.n_kv_heads),
        layer=n,
        scale=h.head_width**-0.5,
    )
    return g.matmul(
        g.merge_heads(g.gated(gate, y, "sigmoid")),
        f"blk.{n}.attn_output.weight",
        f"blk.{n}.attn_output.bias",
    )


def attention_layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: QwenHparams) -> Value:
    """Add gated attention and feed-forward of block n to the residual stream."""
    a = g.rms_norm(x, f"blk.{n}.attn_norm.weight", h.norm_eps)
    x = g.add(x, gated_attention(g, a, positions, n, h))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts, norm="post_attention_norm"))


def delta_layer(g: GraphBuilder, x: Value, n: int, h: QwenHparams) -> Value:
    """Add Gated DeltaNet and feed-forward of block n to the residual stream."""
    a = g.rms_norm(x, f"blk.{n}.attn_norm.weight", h.norm_eps)
    x = g.add(x, delta_net(g, a, n, h))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts, norm="post_attention_norm"))


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: QwenHparams) -> Value:
    """Add layer n of the trunk to the residual stream."""
    if n in h.recurrent:
        return delta_layer(g, x, n, h)
    return attention_layer(g, x, positions, n, h)


def trunk(g: GraphBuilder, inputs: Inputs, h: QwenHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def head(g: GraphBuilder, inputs: Inputs, h: QwenHparams) -> Outputs:
    """Build the MTP head: token p meets the trunk's normed hidden row p - 1."""
    return nextn_head(g, inputs, h, attention_layer)
