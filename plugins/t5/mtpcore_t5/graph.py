"""The graphs of T5: norms before each part, no biases in matmuls, scores that are not scaled."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from mtpcore.plugin import (
    Count,
    Depth,
    Fields,
    GraphBuilder,
    Inputs,
    Outputs,
    Value,
    convert,
    fit_axes,
)

MAX_DISTANCE = 128
"""From this distance on all keys share a bucket of the position bias, where a file does not say."""


class T5Hparams(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters; ``n_layers`` are the decoder's.

    ``logit_scale`` is what the last state is multiplied by: width ** -0.5 where the embedding table
    is the output matrix (T5 1.0), else 1.
    """

    width: Count = msgspec.field(name="embedding_length")
    n_encoder_layers: Depth = msgspec.field(name="block_count")
    n_layers: Depth = msgspec.field(name="decoder_block_count", default=0)
    n_ctx_train: Count = msgspec.field(name="context_length", default=512)
    n_heads: Count = msgspec.field(name="attention.head_count")
    norm_eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    max_distance: Count = msgspec.field(
        name="attention.relative_max_distance", default=MAX_DISTANCE
    )
    start_token: int = msgspec.field(name="decoder_start_token_id", default=-1)
    logit_scale: float = 0.0
    n_vocab: int = 0
    n_drafter_blocks: ClassVar[int] = 0
    rotary_axes: ClassVar[int] = 1

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read a model's metadata, and what its tensors say.

        Raises
        ------
        ModelFileError
            A key is missing or out of range, or does not agree with the tensors.
        """
        h = convert(fields, cls)
        table = fit_axes(tensors["token_embd.weight"].shape, 2)
        if len(table) != 2 or table[1] != h.width:
            raise fields.error(
                "{arch}.embedding_length",
                "the embedding table has another width",
                wanted=h.width,
                got=list(table),
            )
        start = h.start_token
        if start < 0:
            start = fields.get("tokenizer.ggml.bos_token_id", int, 0)
        if not 0 <= start < table[0]:
            raise fields.error(
                "{arch}.decoder_start_token_id",
                "no such token",
                wanted=f"0..{table[0] - 1}",
                got=start,
            )
        return msgspec.structs.replace(
            h,
            n_layers=h.n_layers or h.n_encoder_layers,
            n_vocab=table[0],
            start_token=start,
            logit_scale=h.logit_scale or (h.width**-0.5 if is_tied(tensors) else 1.0),
        )


def is_tied(tensors: Mapping[str, Any]) -> bool:
    """Say whether the output matrix is the embedding table, or a copy of it.

    Files of llama.cpp's converter do not say that a model's last state is to be scaled, and some
    hold the table twice.
    """
    output, table = tensors.get("output.weight"), tensors["token_embd.weight"]
    if output is None:
        return True
    first = 1 << 16  # bytes; no two trained matrices begin with as many equal ones
    return (output.type, output.shape) == (table.type, table.shape) and bool(
        (output.raw().reshape(-1)[:first] == table.raw().reshape(-1)[:first]).all()
    )


def encode(g: GraphBuilder, inputs: Inputs, h: T5Hparams) -> Outputs:
    """Build the encoder: every token sees all of its sequence."""
    x = g.embed(inputs.tokens, "token_embd.weight")
    for n in range(h.n_encoder_layers):
        x = g.add(x, self_attention(g, x, "enc", n, h, mask="block"))
        x = g.add(x, feed_forward(g, x, "enc", n, h))
    return Outputs(hidden=g.tap("hidden", g.rms_norm(x, "enc.output_norm.weight", h.norm_eps)))


def decode(g: GraphBuilder, inputs: Inputs, h: T5Hparams) -> Outputs:
    """Build the decoder: a token sees those before it, and all that the encoder made."""
    x = g.embed(inputs.tokens, "token_embd.weight")
    for n in range(h.n_layers):
        x = g.tap(f"layer_input:{n}", x)
        x = g.add(x, self_attention(g, x, "dec", n, h, mask="causal"))
        x = g.add(x, cross_attention(g, x, inputs["encoded"], n, h))
        x = g.add(x, feed_forward(g, x, "dec", n, h))
    g.tap(f"layer_input:{h.n_layers}", x)  # what would enter one more layer
    g.tap("residual", x)
    hidden = g.tap("hidden", g.rms_norm(x, "dec.output_norm.weight", h.norm_eps))
    last = g.output_rows(hidden)
    if h.logit_scale != 1:
        last = g.scale(last, h.logit_scale)
    return Outputs(logits=g.matmul(last, "output.weight"))


def self_attention(
    g: GraphBuilder, x: Value, stack: str, n: int, h: T5Hparams, *, mask: str
) -> Value:
    """Return what layer n's attention adds; layers without a bias of their own have the first's."""
    block = f"{stack}.blk.{n}"
    a = g.rms_norm(x, f"{block}.attn_norm.weight", h.norm_eps)
    q, k, v = (
        g.split_heads(g.matmul(a, f"{block}.attn_{part}.weight"), h.n_heads) for part in "qkv"
    )
    own = f"{block}.attn_rel_b.weight"
    y = g.attention(
        q,
        k,
        v,
        layer=n,
        scale=1.0,
        mask=mask,
        bias=own if g.has(own) else f"{stack}.blk.0.attn_rel_b.weight",
        max_distance=h.max_distance,
    )
    return g.matmul(g.merge_heads(y), f"{block}.attn_o.weight")


def cross_attention(g: GraphBuilder, x: Value, encoded: Value, n: int, h: T5Hparams) -> Value:
    """Return what the decoder's layer n adds of the encoder's rows; it knows no positions."""
    block = f"dec.blk.{n}.cross_attn"
    a = g.rms_norm(x, f"{block}_norm.weight", h.norm_eps)
    q, k, v = (
        g.split_heads(g.matmul(rows, f"{block}_{part}.weight"), h.n_heads)
        for rows, part in ((a, "q"), (encoded, "k"), (encoded, "v"))
    )
    y = g.cross_attention(q, k, v, layer=h.n_layers + n, scale=1.0)
    return g.matmul(g.merge_heads(y), f"{block}_o.weight")


def feed_forward(g: GraphBuilder, x: Value, stack: str, n: int, h: T5Hparams) -> Value:
    """Return what layer n's feed-forward part adds: ReLU (T5 1.0), or gated by GELU (1.1)."""
    block = f"{stack}.blk.{n}.ffn"
    f = g.rms_norm(x, f"{block}_norm.weight", h.norm_eps)
    up = g.matmul(f, f"{block}_up.weight")
    if g.has(f"{block}_gate.weight"):
        y = g.gated(g.matmul(f, f"{block}_gate.weight"), up, "gelu_tanh")
    else:
        y = g.activation(up, "relu")
    return g.matmul(y, f"{block}_down.weight")
