"""Tables of published names that families share; plugins get them from ``mtpcore.plugin``.

A family's ``Checkpoint`` is put together from these and from lines of its own. File names and
metadata are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore.checkpoint import Config, Key, Rename, number
from mtpcore.errors import ModelFileError

__all__ = [
    "ATTENTION",
    "BIASES",
    "DECODER",
    "EXPERTS",
    "EXPERT_KEYS",
    "FACTORED_ROPE_KEYS",
    "HEAD_NORMS",
    "INTERLEAVED_ATTENTION",
    "INTERLEAVED_BIASES",
    "NEXTN",
    "ROPE_KEYS",
    "SHARED_EXPERT",
    "SPEAKER_TOKENS",
    "SWIGLU",
    "TABLES",
    "block_renames",
    "head_width",
    "in_heads",
    "interleave",
    "long_context_factors",
    "on_layers",
    "optional",
    "scaling_type",
]

Metadata = tuple[tuple[str, str | Key | Callable[[Config], Any]], ...]


def block_renames(names: Mapping[str, str], **fields: Any) -> tuple[Rename, ...]:
    """Return renames of ``model.layers.{n}.<source>`` to ``blk.{n}.<tensor>``.

    Parameters
    ----------
    names : mapping of str to str
        Both names with ``.weight`` or ``.bias``.
    **fields
        Further fields of each Rename.
    """
    return tuple(
        Rename(f"model.layers.{{n}}.{source}", f"blk.{{n}}.{tensor}", **fields)
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
    """Return the renames of some tables, as ones whose source may be missing."""
    return tuple(msgspec.structs.replace(r, optional=when) for table in tables for r in table)


def in_heads(prefix: str, *tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables for heads whose tensors' names begin with ``prefix``."""
    return tuple(
        msgspec.structs.replace(r, source=r.source.replace("model.layers.{n}.", prefix))
        for table in tables
        for r in table
    )


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


def interleave(heads: str) -> Callable[[Any, Config], Any]:
    """Return a change: halves of rotary pairs become neighbours in each of ``config[heads]`` heads.

    Checkpoints turn the pair (i, i + width / 2) of a head, some families' files the pair
    (2 i, 2 i + 1).
    """

    def change(values: Any, config: Config) -> Any:
        n_heads = config.get(heads, "num_attention_heads")
        pairs = values.reshape(n_heads, 2, -1, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)

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
"""The same for families whose files turn neighbours (``rope_style = "pairs"``)."""

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
"""The same for families whose files turn neighbours."""

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


def head_width(config: Config) -> int:
    """Return the width of an attention head."""
    width = config.get("head_dim")
    return int(width or config["hidden_size"] // config["num_attention_heads"])


DECODER: Metadata = (
    ("{arch}.context_length", "max_position_embeddings"),
    ("{arch}.embedding_length", "hidden_size"),
    ("{arch}.feed_forward_length", Key("intermediate_size")),
    ("{arch}.attention.head_count", "num_attention_heads"),
    ("{arch}.attention.head_count_kv", Key("num_key_value_heads")),
    ("{arch}.attention.key_length", Key("head_dim")),
    ("{arch}.attention.value_length", Key("head_dim")),
    ("{arch}.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
)
"""Sizes of a decoder."""

EXPERT_KEYS: Metadata = (
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


_DESCRIBED = ("linear", "yarn")
_UNSCALED = (None, "default", "none", "mrope")  # the axes of an M-RoPE position agree in text


def _scaling(name: str) -> tuple[str, str]:
    """Return the paths of a value of the rotation's scaling, new configurations' first."""
    return f"rope_parameters.{name}", f"rope_scaling.{name}"


def _scaling_type(config: Config) -> str | None:
    """Return the kind of scaling that metadata describes."""
    kind = config.get(*_scaling("rope_type"), *_scaling("type"))
    return kind if kind in _DESCRIBED else None


def _rotations(config: Config) -> Iterator[tuple[str, bool]]:
    """Yield the paths of objects that describe rotations, and whether all layers have that one."""
    for group in ("rope_parameters", "rope_scaling"):
        found = config.get(group)
        yield group, True
        for name, one in found.items() if isinstance(found, Mapping) else ():
            if isinstance(one, Mapping):
                yield f"{group}.{name}", False


def _kinds(config: Config) -> Iterator[tuple[str, Any, bool]]:
    """Yield each kind of scaling: the path where it stands, its name, and if all layers have it."""
    for at, of_all in _rotations(config):
        for path in (f"{at}.rope_type", f"{at}.type"):
            yield path, config.get(path), of_all


def _rope_base(config: Config) -> float:
    """Return the base of the rotation; bases that differ from layer to layer are refused."""
    of_all = number("rope_parameters.rope_theta", "rope_theta")(config)
    bases = {} if of_all is None else {"rope_theta": of_all}
    for at, is_of_all in _rotations(config):
        base = None if is_of_all else number(f"{at}.rope_theta")(config)
        if base is not None:
            bases[f"{at}.rope_theta"] = base
    if len({*bases.values()}) > 1:
        raise ModelFileError(
            "the file would hold one base of the rotation for all layers",
            where=f"{config.file}: {', '.join(bases)}",
            wanted="equal values",
            got=", ".join(map(str, bases.values())),
            fix="take a checkpoint whose layers rotate alike",
        )
    return next(iter(bases.values()), 10000.0)


def scaling_type(
    described: Sequence[str] = _DESCRIBED, *elsewhere: str
) -> Callable[[Config], str | None]:
    """Return a source of ``{arch}.rope.scaling.type`` that refuses what a file would not hold.

    Parameters
    ----------
    described : sequence of str
        Kinds that the family's metadata describes.
    *elsewhere : str
        Kinds that its files hold otherwise, as ``llama3`` in ``long_context_factors``.
    """

    def read(config: Config) -> str | None:
        for path, kind, of_all in _kinds(config):
            held = (*described, *elsewhere) if of_all else ()
            if kind not in (*_UNSCALED, *held):
                raise ModelFileError(
                    "the file would not hold this scaling of the rotation, and the model would "
                    "compute something else than the checkpoint",
                    where=f"{config.file}: {path}",
                    wanted=", ".join(("default", *held)),
                    got=kind,
                    fix="for texts of up to max_position_embeddings tokens, where it changes "
                    "nothing, write null in its place"
                    if kind == "dynamic"
                    else "take a checkpoint without it",
                )
        return _scaling_type(config)

    return read


def _scaled(name: str) -> Callable[[Config], float | None]:
    """Return a source: a value of the scaling, as a float, where metadata describes the scaling."""
    read = number(*_scaling(name))
    return lambda config: read(config) if _scaling_type(config) else None


def _original_context(config: Config) -> int | None:
    if not _scaling_type(config):
        return None
    n_ctx = config.get(
        *_scaling("original_max_position_embeddings"), default=config["max_position_embeddings"]
    )
    return int(n_ctx)


def _magnitude(config: Config) -> float | None:
    """Return what a stated magnitude is beyond the one that YaRN's factor implies.

    It is stated as such, or as the quotient of what two ``mscale`` make of the factor.
    """
    if _scaling_type(config) != "yarn":
        return None
    factor = float(config.get(*_scaling("factor"), default=1.0))
    rise = 0.1 * math.log(factor) if factor > 1 else 0.0
    stated = config.get(*_scaling("attention_factor"))
    ours, all_dims = (config.get(*_scaling(name)) for name in ("mscale", "mscale_all_dim"))
    if stated is None and ours and all_dims:
        stated = (1 + ours * rise) / (1 + all_dims * rise)
    return None if stated is None else float(stated) / (1 + rise)


def _rope_keys(*elsewhere: str) -> Metadata:
    return (
        ("{arch}.rope.freq_base", _rope_base),
        ("{arch}.rope.scaling.type", scaling_type(_DESCRIBED, *elsewhere)),
        ("{arch}.rope.scaling.factor", _scaled("factor")),
        ("{arch}.rope.scaling.original_context_length", _original_context),
        ("{arch}.rope.scaling.attn_factor", _magnitude),
        ("{arch}.rope.scaling.yarn_beta_fast", _scaled("beta_fast")),
        ("{arch}.rope.scaling.yarn_beta_slow", _scaled("beta_slow")),
    )


ROPE_KEYS: Metadata = _rope_keys()
"""Base of the rotation, and linear or YaRN scaling; other kinds are refused."""

FACTORED_ROPE_KEYS: Metadata = _rope_keys("llama3")
"""The same for families whose files get ``long_context_factors``."""


def long_context_factors(config: Config) -> np.ndarray | None:
    """Return the divisors of rotary frequencies of Llama 3's scaling, None where it is not used.

    float32[head_width / 2]: 1 for pairs that turn at least ``high_freq_factor`` times within the
    original context, ``factor`` for those that turn less than ``low_freq_factor`` times, between
    them the inverse mix of both.
    """
    if config.get(*_scaling("rope_type"), *_scaling("type")) != "llama3":
        return None
    width, factor = head_width(config), float(config.get(*_scaling("factor"), default=8.0))
    base = _rope_base(config)
    low = float(config.get(*_scaling("low_freq_factor"), default=1.0))
    high = float(config.get(*_scaling("high_freq_factor"), default=4.0))
    n_ctx = int(config.get(*_scaling("original_max_position_embeddings"), default=8192))
    turns = n_ctx * base ** -(np.arange(0, width, 2) / width) / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - share) / factor + share)).astype(np.float32)
