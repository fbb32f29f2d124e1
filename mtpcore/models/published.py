"""Tables of published names that families share; plugins get them from ``mtpcore.plugin``.

A family's ``Checkpoint`` is put together from these and from lines of its own. File names and
metadata are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import msgspec
import numpy as np

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import (
    Change,
    Config,
    Key,
    Rename,
    Shards,
    TensorValues,
    number,
)
from mtpcore.errors import ModelFileError

__all__ = [
    "ATTENTION",
    "BIASES",
    "CONSTANTS",
    "DECODER",
    "EXPERTS",
    "EXPERT_KEYS",
    "HEAD_NORMS",
    "INTERLEAVED_ATTENTION",
    "INTERLEAVED_BIASES",
    "NEXTN",
    "SHARED_EXPERT",
    "SPEAKER_TOKENS",
    "STATED",
    "SWIGLU",
    "TABLES",
    "block_renames",
    "head_width",
    "in_heads",
    "interleave",
    "on_layers",
    "optional",
    "plus",
    "separate",
    "switched_window",
]

_Kinds = list[Literal["full_attention", "sliding_attention"]]

Constants = tuple[tuple[str, tuple[object, ...]], ...]
Defaults = tuple[tuple[str, object], ...]
MetadataKeys = tuple[tuple[str, str | Key | Callable[[Config], object]], ...]


def block_renames(
    names: Mapping[str, str],
    *,
    change: Change | None = None,
    optional: bool | Callable[[Config], bool] = False,
    copy_of: str = "",
    shards: Shards | None = None,
    is_stack: bool = False,
    also: str = "",
    blocks: str = "",
) -> tuple[Rename, ...]:
    """Return renames of ``model.layers.{n}.<source>`` to ``blk.{n}.<tensor>``.

    Parameters
    ----------
    names : mapping of str to str
        Both names with ``.weight`` or ``.bias``.
    change, optional, copy_of, shards, is_stack, also, blocks
        As in each ``Rename``; ``also`` without ``model.layers.{n}.``, too.
    """
    return tuple(
        Rename(
            f"model.layers.{{n}}.{source}",
            f"blk.{{n}}.{tensor}",
            change,
            optional=optional,
            copy_of=copy_of,
            shards=shards,
            is_stack=is_stack,
            also=also and f"model.layers.{{n}}.{also}",
            blocks=blocks,
        )
        for source, tensor in names.items()
    )


def on_layers(
    layers: Callable[[Config], Iterable[int]], *tables: tuple[Rename, ...]
) -> tuple[Rename, ...]:
    """Return the renames of some tables, for certain layers only."""
    return tuple(msgspec.structs.replace(r, layers=layers) for table in tables for r in table)


def optional(
    when: Callable[[Config], bool] | bool, *tables: tuple[Rename, ...]
) -> tuple[Rename, ...]:
    """Return the renames of some tables with ``optional`` set to ``when``."""
    return tuple(msgspec.structs.replace(r, optional=when) for table in tables for r in table)


def in_heads(prefix: str, *tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables for heads whose tensors' names begin with ``prefix``."""
    return tuple(
        msgspec.structs.replace(r, source=r.source.replace("model.layers.{n}.", prefix))
        for table in tables
        for r in table
    )


def plus(offset: float) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: weights of norms, which are stored minus a number.

    Parameters
    ----------
    offset : float
        What is added to them.
    """
    return lambda values, config: np.add(values, offset)


def _tied(config: Config) -> bool:
    return bool(config.get("tie_word_embeddings", default=False))


TABLES: tuple[Rename, ...] = (
    Rename("model.embed_tokens.weight", "token_embd.weight"),
    Rename("model.norm.weight", "output_norm.weight"),
    Rename(
        "lm_head.weight",
        "output.weight",
        optional=_tied,
        copy_of="model.embed_tokens.weight",
    ),
)
"""Embedding table, final norm and output matrix; a copy of the embedding table is left out."""


def interleave(heads: str) -> Callable[..., TensorValues]:
    """Return a change: halves of rotary pairs become neighbours in each of ``config[heads]`` heads.

    RoPE rotates the pair (i, i + width / 2) of a head in checkpoints, and the pair (2 i, 2 i + 1)
    in some families' files.
    """
    return _swap_axes_of_heads(heads, (2, -1))


def separate(heads: str) -> Callable[..., TensorValues]:
    """Return a change: neighbours become halves in each of ``config[heads]`` heads.

    It undoes ``interleave``.
    """
    return _swap_axes_of_heads(heads, (-1, 2))


def _swap_axes_of_heads(heads: str, axes: tuple[int, int]) -> Callable[..., TensorValues]:
    """Return a change: the rows of each head, seen as two axes, are written the other way round."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        n_heads = config.get(heads, "num_attention_heads", type=Count)
        rows = values.reshape(n_heads, *axes, *values.shape[1:])
        return rows.swapaxes(1, 2).reshape(values.shape)

    return change


_NORM_AND_V = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
}

ATTENTION: tuple[Rename, ...] = block_renames(
    {
        **_NORM_AND_V,
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
    }
)
"""Norm and the four matrices of attention."""

INTERLEAVED_ATTENTION: tuple[Rename, ...] = (
    *block_renames(_NORM_AND_V),
    *block_renames(
        {"self_attn.q_proj.weight": "attn_q.weight"}, change=interleave("num_attention_heads")
    ),
    *block_renames(
        {"self_attn.k_proj.weight": "attn_k.weight"}, change=interleave("num_key_value_heads")
    ),
)
"""The same for families whose files rotate neighbours (``rope_style = "pairs"``)."""

BIASES: tuple[Rename, ...] = block_renames(
    {
        "self_attn.q_proj.bias": "attn_q.bias",
        "self_attn.k_proj.bias": "attn_k.bias",
        "self_attn.v_proj.bias": "attn_v.bias",
    }
)
"""Biases of q, k and v."""

INTERLEAVED_BIASES: tuple[Rename, ...] = (
    *block_renames(
        {"self_attn.q_proj.bias": "attn_q.bias"}, change=interleave("num_attention_heads")
    ),
    *block_renames(
        {"self_attn.k_proj.bias": "attn_k.bias"}, change=interleave("num_key_value_heads")
    ),
    *block_renames({"self_attn.v_proj.bias": "attn_v.bias"}),
)
"""The same for families whose files rotate neighbours."""

HEAD_NORMS: tuple[Rename, ...] = block_renames(
    {
        "self_attn.q_norm.weight": "attn_q_norm.weight",
        "self_attn.k_norm.weight": "attn_k_norm.weight",
    }
)
"""Norms on the heads of q and k."""

SWIGLU: tuple[Rename, ...] = block_renames(
    {
        "mlp.gate_proj.weight": "ffn_gate.weight",
        "mlp.up_proj.weight": "ffn_up.weight",
        "mlp.down_proj.weight": "ffn_down.weight",
    }
)
"""A dense feed-forward part, without its norm."""

EXPERTS: tuple[Rename, ...] = block_renames(
    {
        "mlp.gate.weight": "ffn_gate_inp.weight",
        "mlp.experts.{e}.gate_proj.weight": "ffn_gate_exps.weight",
        "mlp.experts.{e}.up_proj.weight": "ffn_up_exps.weight",
        "mlp.experts.{e}.down_proj.weight": "ffn_down_exps.weight",
    }
)
"""Router and experts."""

SHARED_EXPERT: tuple[Rename, ...] = block_renames(
    {
        "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    }
)
"""The expert that every token meets."""

NEXTN: tuple[Rename, ...] = (
    *block_renames(
        {
            "eh_proj.weight": "nextn.eh_proj.weight",
            "enorm.weight": "nextn.enorm.weight",
            "hnorm.weight": "nextn.hnorm.weight",
        }
    ),
    *block_renames({"shared_head.norm.weight": "nextn.shared_head_norm.weight"}, optional=True),
    *block_renames(
        {"embed_tokens.weight": "nextn.embed_tokens.weight"},
        optional=True,
        copy_of="model.embed_tokens.weight",
    ),
    *block_renames(
        {"shared_head.head.weight": "nextn.shared_head_head.weight"},
        optional=True,
        copy_of="lm_head.weight",
    ),
)
"""What a NextN head has beside a layer; tables that are copies of the trunk's are left out."""

SPEAKER_TOKENS: tuple[tuple[str, str], ...] = (
    ("eos", "<|endoftext|>"),
    ("eot", "<|user|>"),
    ("unknown", "<|endoftext|>"),
    ("bos", "[gMASK]"),
    ("eom", "<|observation|>"),
)
"""Special tokens of a vocabulary (GLM's) in which the next speaker's token ends a turn."""


STATED: Defaults = (("intermediate_size", None), ("num_key_value_heads", None))
"""Sizes for which most classes have those of one model: a checkpoint must say them."""

CONSTANTS: Constants = (
    ("hidden_act", ("silu", "swish")),
    ("rope_parameters.truncate", (True,)),
    ("rope_scaling.truncate", (True,)),
)
"""What no model file says: the activation of SwiGLU, and that YaRN's ramp is rounded to pairs."""


def head_width(config: Config) -> int:
    """Return the width of an attention head."""
    width = config.get("head_dim", type=Count)
    return int(
        width
        or config.require("hidden_size", Count) // config.require("num_attention_heads", Count)
    )


def _stated_head_width(config: Config) -> int | None:
    """Return the width of a head as configurations state it; None where heads divide the width."""
    sizes = (config.require(name, Count) for name in ("hidden_size", "num_attention_heads"))
    width, n_heads = sizes
    given: int | None = config.get("head_dim", type=Count)
    return head_width(config) if given is None and width % n_heads else given


def without_window(config: Config, default: int | None = None) -> None:
    """Refuse sliding windows: a source of metadata that writes nothing.

    For trunks that attend to all positions, as in llama.cpp. A window that is longer than the
    context is none.

    Parameters
    ----------
    default : int or None
        The window where neither the configuration nor the table's defaults speak of one.

    Raises
    ------
    ModelFileError
        A layer has a window.
    """
    said = not config.lacks("sliding_window")
    window = config.get("sliding_window", default=None if said else default, type=Count)
    layers = _windowed_layers(config)
    if layers and window is not None and window < config.require("max_position_embeddings", int):
        raise ModelFileError(
            f"{len(layers)} layers have a sliding window, and the file would not hold it: the "
            "model would see all positions",
            where=f"{config.file}: sliding_window",
            got=window if said else f"none, which means {window}",
            fix=f"for texts of up to {window} tokens it changes nothing: convert with --ignore "
            "sliding_window"
            if said
            else "write null if the model has none",
        )


def switched_window(config: Config) -> None:
    """Refuse windows that ``use_sliding_window`` switches on, as Qwen's; else there are none.

    A source of metadata that writes nothing.

    Raises
    ------
    ModelFileError
        A layer has a window that is shorter than the context.
    """
    config.get("sliding_window")  # 0, too, where there is none
    if config.get("use_sliding_window", type=bool):
        without_window(config, 4096)
    else:
        _windowed_layers(config)


def _windowed_layers(config: Config) -> Collection[int]:
    """Return which layers have a window, of a configuration that has the length of one."""
    kinds = config.get("layer_types", type=_Kinds)
    first = config.get("max_window_layers", type=int)
    if config.get("use_sliding_window", type=bool) is False:
        return ()
    if kinds is not None:
        return [n for n, kind in enumerate(kinds) if kind == "sliding_attention"]
    return range(first or 0, config.n_layers)


DECODER: MetadataKeys = (
    ("{arch}.context_length", "max_position_embeddings"),
    ("{arch}.embedding_length", "hidden_size"),
    ("{arch}.feed_forward_length", Key("intermediate_size")),
    ("{arch}.attention.head_count", "num_attention_heads"),
    ("{arch}.attention.head_count_kv", Key("num_key_value_heads")),
    ("{arch}.attention.key_length", _stated_head_width),
    ("{arch}.attention.value_length", _stated_head_width),
    ("{arch}.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
)
"""Sizes of a decoder."""

EXPERT_KEYS: MetadataKeys = (
    ("{arch}.expert_count", "n_routed_experts"),
    ("{arch}.expert_used_count", "num_experts_per_tok"),
    ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
    ("{arch}.expert_shared_count", Key("n_shared_experts")),
    ("{arch}.expert_group_count", Key("n_group")),
    ("{arch}.expert_group_used_count", Key("topk_group")),
    ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
    ("{arch}.expert_weights_norm", Key("norm_topk_prob")),
    ("{arch}.leading_dense_block_count", Key("first_k_dense_replace")),
)
"""Experts, as DeepSeek's configurations and those that follow them spell them."""
