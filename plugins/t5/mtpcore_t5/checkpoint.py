"""T5's names of tensors and settings in published checkpoints."""

from collections.abc import Callable, Iterable

import msgspec

from mtpcore.plugin import (
    Checkpoint,
    Config,
    Count,
    Depth,
    Key,
    Rename,
    number,
    on_layers,
    optional,
)

_ATTENTION = {name: f"attn_{name}" for name in "qkvo"}
_FEED_FORWARD = {"wi": "ffn_up", "wi_0": "ffn_gate", "wi_1": "ffn_up", "wo": "ffn_down"}
_BIAS = "relative_attention_bias.weight"


def first_layer(config: Config) -> Iterable[int]:
    """Return the number of a stack's first layer."""
    return range(1)


def encoder_layers(config: Config) -> Iterable[int]:
    """Return the numbers of the encoder's layers."""
    return range(config.n_layers)


def n_decoder_layers(config: Config) -> int:
    """Return the layers of the decoder, which are as many as the encoder's by default."""
    layers: int = config.get("num_decoder_layers", "num_layers", type=Depth)
    return layers


def decoder_layers(config: Config) -> Iterable[int]:
    """Return the numbers of the decoder's layers."""
    return range(n_decoder_layers(config))


def is_gated(config: Config) -> bool:
    """Say whether the feed-forward part is gated; refuse what the graphs do not compute."""
    kind = config.get("feed_forward_proj", default="relu", type=str)
    if kind not in ("relu", "gated-gelu"):
        raise ValueError(f"feed_forward_proj is {kind!r}, not 'relu' or 'gated-gelu'")
    return bool(kind != "relu")


def is_plain(config: Config) -> bool:
    """Say whether the feed-forward part is not gated."""
    return not is_gated(config)


def logit_scale(config: Config) -> float:
    """Return what the decoder's last state is multiplied by before the output matrix.

    Until transformers 5 a configuration said so by ``tie_word_embeddings``, true where it is left
    out; since then by ``scale_decoder_outputs``.
    """
    tied = config.get("tie_word_embeddings", default=True, type=bool)
    scales = config.get("scale_decoder_outputs", default=tied, type=bool)
    width: int = config.require("d_model", Count)
    return width**-0.5 if scales else 1.0


def _attention(stack: str, part: int, name: str, prefix: str = "") -> tuple[Rename, ...]:
    return tuple(
        Rename(
            f"{stack}.block.{{n}}.layer.{part}.{name}.{source}.weight",
            f"{stack[:3]}.blk.{{n}}.{prefix}{tensor}.weight",
        )
        for source, tensor in _ATTENTION.items()
    )


def _norm(stack: str, part: int, name: str) -> Rename:
    return Rename(
        f"{stack}.block.{{n}}.layer.{part}.layer_norm.weight",
        f"{stack[:3]}.blk.{{n}}.{name}.weight",
    )


def _feed_forward(stack: str, part: int) -> tuple[Rename, ...]:
    renames = {
        source: Rename(
            f"{stack}.block.{{n}}.layer.{part}.DenseReluDense.{source}.weight",
            f"{stack[:3]}.blk.{{n}}.{tensor}.weight",
        )
        for source, tensor in _FEED_FORWARD.items()
    }
    return (
        *optional(is_gated, (renames["wi"],)),
        *optional(is_plain, (renames["wi_0"], renames["wi_1"])),
        renames["wo"],
        _norm(stack, part, "ffn_norm"),
    )


def _position_bias(stack: str, layers: Callable[[Config], Iterable[int]]) -> tuple[Rename, ...]:
    """Return the rename of the bias that these layers of a stack have; others use the first's."""
    bias = Rename(
        f"{stack}.block.{{n}}.layer.0.SelfAttention.{_BIAS}",
        f"{stack[:3]}.blk.{{n}}.attn_rel_b.weight",
    )
    return on_layers(layers, (bias,))


_ENCODER = (
    *_attention("encoder", 0, "SelfAttention"),
    _norm("encoder", 0, "attn_norm"),
    *_feed_forward("encoder", 1),
)
_DECODER = on_layers(
    decoder_layers,
    _attention("decoder", 0, "SelfAttention"),
    (_norm("decoder", 0, "attn_norm"),),
    _attention("decoder", 1, "EncDecAttention", "cross_"),
    (_norm("decoder", 1, "cross_attn_norm"),),
    _feed_forward("decoder", 2),
)
_TENSORS = (
    Rename("shared.weight", "token_embd.weight", optional=True),
    Rename(
        "encoder.embed_tokens.weight", "token_embd.weight", optional=True, copy_of="shared.weight"
    ),
    Rename(
        "decoder.embed_tokens.weight", "token_embd.weight", optional=True, copy_of="shared.weight"
    ),
    Rename("lm_head.weight", "output.weight", optional=True, copy_of="shared.weight"),
    Rename("encoder.final_layer_norm.weight", "enc.output_norm.weight"),
    Rename("decoder.final_layer_norm.weight", "dec.output_norm.weight"),
    *_ENCODER,
    *_DECODER,
)
"""All but the position biases."""

GATED = (("feed_forward_proj", "gated-gelu"),)
"""What later configurations mean that do not name the kind of feed-forward part."""

T5_CHECKPOINT = Checkpoint(
    architectures=frozenset({"T5ForConditionalGeneration", "T5WithLMHeadModel"}),
    layers="num_layers",
    tensors=(
        *_TENSORS,
        *_position_bias("encoder", first_layer),
        *_position_bias("decoder", first_layer),
    ),
    # Some checkpoints hold a bias that cross attention never had.
    dropped=(f"decoder.block.{{n}}.layer.1.EncDecAttention.{_BIAS}",),
    metadata=(
        ("{arch}.decoder_block_count", n_decoder_layers),
        ("{arch}.context_length", Key("n_positions", 512)),
        ("{arch}.embedding_length", "d_model"),
        ("{arch}.feed_forward_length", "d_ff"),
        ("{arch}.attention.head_count", "num_heads"),
        ("{arch}.attention.key_length", "d_kv"),
        ("{arch}.attention.value_length", "d_kv"),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon", default=1e-6)),
        ("{arch}.attention.relative_buckets_count", Key("relative_attention_num_buckets", 32)),
        ("{arch}.attention.relative_max_distance", Key("relative_attention_max_distance", 128)),
        ("{arch}.decoder_start_token_id", Key("decoder_start_token_id", 0)),
        ("{arch}.logit_scale", logit_scale),
        ("{arch}.vocab_size", "vocab_size"),
    ),
    harmless=(
        ("dense_act_fn is_gated_act", "feed_forward_proj says it"),
        ("output_past", "how an early transformers ran the model"),
    ),
    special_tokens=(("pad", "<pad>"), ("eos", "</s>"), ("unknown", "<unk>")),
)
MT5_CHECKPOINT = msgspec.structs.replace(
    T5_CHECKPOINT,
    architectures=frozenset({"MT5ForConditionalGeneration"}),
    defaults=GATED,
    metadata=(
        *(pair for pair in T5_CHECKPOINT.metadata if pair[1] is not logit_scale),
        ("{arch}.logit_scale", lambda config: 1.0),
    ),
)
"""MT5: its last state is never multiplied; transformers 5 writes ``tie_word_embeddings: true``."""

UMT5_CHECKPOINT = msgspec.structs.replace(
    T5_CHECKPOINT,
    architectures=frozenset({"UMT5ForConditionalGeneration"}),
    defaults=GATED,
    tensors=(
        *_TENSORS,
        *_position_bias("encoder", encoder_layers),
        *_position_bias("decoder", decoder_layers),
    ),
)
"""UMT5: every layer has a position bias of its own."""
