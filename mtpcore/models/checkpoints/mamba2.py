"""Families with layers of Mamba-2: Granite 4, Bamba, Falcon-H1, Nemotron-H and Mamba-2 itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import FFN_NORM, MULTIPLIERS, ONES
from mtpcore.models.checkpoints.experts import (
    COUNTS,
    SPLIT_EXPERTS,
    SPLIT_SHARED_EXPERT,
    SPLIT_SWIGLU,
)
from mtpcore.models.checkpoints.layers import LayerNumbers
from mtpcore.models.checkpoints.mamba import rates, without_axis
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    INTERLEAVED_ATTENTION,
    NEXTN,
    STATED,
    TABLES,
    block_renames,
    head_width,
    in_heads,
    on_layers,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = [
    "BAMBA",
    "FALCON_H1",
    "GRANITE_HYBRID",
    "GRANITE_OF_ATTENTION",
    "MAMBA2",
    "NEMOTRON_H",
    "NEMOTRON_H_MOE",
    "NEMOTRON_H_NEXTN",
]

_UNROTATED = 1 << 20
"""The context that files of models without positions state; there is nothing that limits it."""
_UNBOUNDED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("time_step_limit", ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])),
)
"""Steps are cut nowhere; transformers 5 has a spelling of its own for infinity."""
_CHUNKS = "in what pieces transformers computes a text"
_INITIAL_STEPS = "of training"


def _rate(values: TensorValues, config: Config) -> TensorValues:
    """Return by what a step is multiplied to get a log decay, [heads, 1]."""
    return rates(values, config)[:, None]


def _column(values: TensorValues, config: Config) -> TensorValues:
    return values[:, None]


_GROUPS = ("mamba_n_groups", "n_groups")


def _by_group(values: TensorValues, config: Config) -> TensorValues:
    """Return a norm's weights: [width] -> [groups, width / groups]."""
    return values.reshape(config.require("|".join(_GROUPS), Count), -1)


def _layer_of_mamba(
    prefix: str, conv_bias: str, in_proj: Callable[..., TensorValues] | None = None
) -> tuple[Rename, ...]:
    """Return the renames of a layer; ``conv_bias`` is the setting that says if there is one."""
    return (
        *block_renames({f"{prefix}.in_proj.weight": "ssm_in.weight"}, change=in_proj),
        *block_renames({f"{prefix}.conv1d.weight": "ssm_conv1d.weight"}, change=without_axis),
        *block_renames(
            {f"{prefix}.conv1d.bias": "ssm_conv1d.bias"},
            optional=lambda config: not config.get(conv_bias, default=True, type=bool),
        ),
        *block_renames({f"{prefix}.dt_bias": "ssm_dt.bias"}),
        *block_renames({f"{prefix}.A_log": "ssm_a"}, change=_rate),
        *block_renames({f"{prefix}.D": "ssm_d"}, change=_column),
        *block_renames({f"{prefix}.norm.weight": "ssm_norm.weight"}, change=_by_group),
        *block_renames({f"{prefix}.out_proj.weight": "ssm_out.weight"}),
    )


def _inner_width(heads: str, width: str) -> Callable[[Config], int]:
    """Return a source: how wide x is, of settings that say how many heads there are, how wide."""
    return lambda config: int(config.require(heads, Count) * config.require(width, Count))


def _expanded_width(config: Config) -> int:
    return int(config.require("mamba_expand", Count) * config.require("hidden_size", Count))


_SSM_KEYS = (
    ("{arch}.ssm.conv_kernel", "mamba_d_conv|conv_kernel"),
    ("{arch}.ssm.state_size", "mamba_d_state|ssm_state_size|state_size"),
    ("{arch}.ssm.group_count", "|".join(_GROUPS)),
    ("{arch}.ssm.time_step_rank", "mamba_n_heads|mamba_num_heads|num_heads"),
)


_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
"""Kinds of layers as transformers 5 spells them, and as it did before."""


def _kinds(config: Config) -> list[str]:
    """Return what each layer is, as Granite's configurations list it.

    Raises
    ------
    ValueError
        There are not as many as layers.
    """
    kinds = config.require("layer_types|layers_block_type", list[str])
    if len(kinds) != config.n_layers:
        raise ValueError(f"layer_types has {len(kinds)} entries, not {config.n_layers}")
    return [_KINDS.get(kind, kind) for kind in kinds]


def _attending(config: Config) -> list[int]:
    return [n for n, kind in enumerate(_kinds(config)) if kind == "attention"]


def _recurrent(config: Config) -> list[int]:
    return [n for n, kind in enumerate(_kinds(config)) if kind == "mamba"]


def _rotates(config: Config) -> bool:
    """Say whether layers of attention rotate.

    Raises
    ------
    ValueError
        Positions of another kind.
    """
    said = config.get("position_embedding_type")
    if said not in (None, "nope", "rope"):
        raise ValueError(f"positions of the kind {said!r}")
    return bool(said == "rope")


def _context_length(config: Config) -> int:
    said = config.require("max_position_embeddings", Count)
    return int(said) if _rotates(config) else _UNROTATED


def _key_heads(attending: Callable[[Config], list[int]]) -> Callable[[Config], list[int]]:
    """Return a source: how many key heads each block has, 0 where it does not attend."""

    def read(config: Config) -> list[int]:
        layers, n_heads = attending(config), config.require("num_key_value_heads", Count)
        return [n_heads if n in layers else 0 for n in range(config.n_blocks)]

    return read


def _ffn_width(config: Config) -> int:
    """Return the width of experts, or of the feed-forward part where there are none."""
    widths = (config.require(f"{kind}intermediate_size", Count) for kind in ("", "shared_"))
    of_experts, of_all = widths
    return int(of_experts if _has_experts(config) else of_all)


def _has_experts(config: Config) -> bool:
    return bool(config.get("num_local_experts", type=int))


def _sparse(config: Config) -> range:
    return range(config.n_layers if _has_experts(config) else 0)


def _dense(config: Config) -> range:
    return range(0 if _has_experts(config) else config.n_layers)


_NORM = tuple(one for one in ATTENTION if "norm" in one.tensor)
_MATRICES = tuple(one for one in INTERLEAVED_ATTENTION if "norm" not in one.tensor)
_SIZES = (
    ("mamba_d_conv", 4),
    ("mamba_conv_bias", True),
    *((f"mamba_{name}", None) for name in ("n_heads", "n_groups", "d_state")),
)
GRANITE_HYBRID = Checkpoint(
    architectures=frozenset({"GraniteMoeHybridForCausalLM"}),
    has="model.layers.{n}.mamba.A_log",
    defaults=(*STATED, *ONES, ("rms_norm_eps", 1e-6), ("mamba_expand", 2), *_SIZES),
    tensors=(
        *TABLES,
        *FFN_NORM,
        *_NORM,
        *on_layers(_sparse, SPLIT_EXPERTS, SPLIT_SHARED_EXPERT),
        *on_layers(_dense, SPLIT_SWIGLU),
        *on_layers(_attending, _MATRICES),
        *on_layers(_recurrent, _layer_of_mamba("mamba", "mamba_conv_bias")),
    ),
    constants=(*CONSTANTS, *_UNBOUNDED, ("mamba_proj_bias", (False,))),
    harmless=(
        ("mamba_chunk_size", _CHUNKS),
        ("mamba_d_head", "it follows from other sizes"),
        ("normalization_function init_method", "names of what the class always has"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *MULTIPLIERS,
        *COUNTS,
        *_SSM_KEYS,
        ("{arch}.ssm.inner_size", _expanded_width),
        ("{arch}.context_length", _context_length),
        ("{arch}.feed_forward_length", _ffn_width),
        ("{arch}.attention.head_count_kv", _key_heads(_attending)),
        ("{arch}.rope.scaling.finetuned", _rotates),
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.expert_shared_feed_forward_length", "shared_intermediate_size"),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)


GRANITE_OF_ATTENTION = replace(
    GRANITE_HYBRID,
    has="",
    tensors=(*TABLES, *FFN_NORM, *_NORM, *SPLIT_SWIGLU, *on_layers(_attending, _MATRICES)),
    harmless=(
        *GRANITE_HYBRID.harmless,
        ("mamba_conv_bias", "of layers of Mamba-2, which are not there"),
    ),
)
"""Small members of the family, in which all layers attend."""


def _rotated(config: Config) -> int:
    """Return how much of a head Bamba rotates: half of it where nothing else is said."""
    said: int | None = config.get("attn_rotary_emb", type=Count)
    return said or head_width(config) // 2


def _interleaved_part(heads: str) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: in what is rotated of each head halves of pairs become neighbours."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        n_heads, n_rotated = config.require(heads, Count), _rotated(config)
        rows = values.reshape(n_heads, -1, values.shape[-1])
        pairs = rows[:, :n_rotated].reshape(n_heads, 2, -1, values.shape[-1]).swapaxes(1, 2)
        rotated = pairs.reshape(n_heads, n_rotated, -1)
        return np.concatenate([rotated, rows[:, n_rotated:]], axis=1).reshape(values.shape)

    return change


def _attending_in_bamba(config: Config) -> list[int]:
    return list(config.get("attn_layer_indices", default=[], type=LayerNumbers))


def _recurrent_in_bamba(config: Config) -> list[int]:
    return sorted({*range(config.n_layers)} - {*_attending_in_bamba(config)})


BAMBA = Checkpoint(
    architectures=frozenset({"BambaForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("mamba_expand", 2), *_SIZES),
    tensors=(
        TABLES[0],
        Rename("model.final_layernorm.weight", "output_norm.weight"),
        TABLES[2],
        *_NORM,
        *block_renames(
            {
                "pre_ff_layernorm.weight": "ffn_norm.weight",
                **{
                    f"feed_forward.{part}_proj.weight": f"ffn_{part}.weight"
                    for part in ("gate", "up", "down")
                },
            }
        ),
        *on_layers(
            _attending_in_bamba,
            block_renames(
                {
                    "self_attn.v_proj.weight": "attn_v.weight",
                    "self_attn.o_proj.weight": "attn_output.weight",
                }
            ),
            block_renames(
                {"self_attn.q_proj.weight": "attn_q.weight"},
                change=_interleaved_part("num_attention_heads"),
            ),
            block_renames(
                {"self_attn.k_proj.weight": "attn_k.weight"},
                change=_interleaved_part("num_key_value_heads"),
            ),
        ),
        *on_layers(_recurrent_in_bamba, _layer_of_mamba("mamba", "mamba_conv_bias")),
    ),
    constants=(*CONSTANTS, *_UNBOUNDED, ("mamba_proj_bias", (False,))),
    harmless=(
        ("mamba_chunk_size", _CHUNKS),
        ("mamba_d_head", "it follows from other sizes"),
        ("layers_block_type layer_types", "attn_layer_indices says it"),
        ("num_logits_to_keep", "how transformers runs a model"),
        ("z_loss_coefficient", "of training"),
        ("rope_parameters.partial_rotary_factor partial_rotary_factor", "half of a head, always"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *_SSM_KEYS,
        ("{arch}.ssm.inner_size", _expanded_width),
        ("{arch}.attention.head_count_kv", _key_heads(_attending_in_bamba)),
        ("{arch}.rope.scaling.finetuned", lambda config: True),
        ("{arch}.rope.dimension_count", _rotated),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)


def _scaled(*paths: str) -> Callable[[Any, Config], Any]:
    """Return a change: values are multiplied by settings, one after the other.

    ``path.i`` is entry i of a list.
    """

    def change(values: Any, config: Config) -> Any:
        for path in paths:
            name, _, at = path.partition(".")
            said = config.get(name, default=1.0, type=float | list[float])
            factor = said[int(at)] if isinstance(said, list) else said
            values = values * np.float32(factor)
        return values

    return change


def _scaled_parts(values: Any, config: Config) -> Any:
    """Return the rows of gate, x, B, C and dt, each times a factor of its own."""
    width = _ssm_width(config)
    n_keys = config.require("mamba_n_groups", Count) * config.require("mamba_d_state", Count)
    n_heads = len(values) - 2 * width - 2 * n_keys
    factors = config.get("ssm_multipliers", default=[1.0] * 5, type=list[float])
    sizes = (width, width, n_keys, n_keys, n_heads)
    column = np.repeat(np.array(factors, np.float32), sizes)
    return _scaled("ssm_in_multiplier")(values, config) * column[:, None]


def _ssm_width(config: Config) -> int:
    said: int | None = config.get("mamba_d_ssm", type=Count)
    return said or _expanded_width(config)


def _check_falcon(config: Config) -> None:
    """Refuse what no file of Falcon-H1 holds: a source of metadata that writes nothing.

    Raises
    ------
    ValueError
        A norm before the gate; or one table for embeddings and logits, with different factors.
    """
    for name in (*_FACTORS, "mlp_multipliers", "ssm_multipliers"):
        config.get(name)  # what changes of tensors read
    normed_first = config.get("mamba_norm_before_gate", default=True, type=bool)
    if normed_first and config.get("mamba_rms_norm"):
        raise ValueError("Mamba-2 is normed before its gate (mamba_norm_before_gate)")
    factors = [
        config.get(f"{name}_multiplier", default=1.0, type=float)
        for name in ("lm_head", "embedding")
    ]
    if config.get("tie_word_embeddings") and factors[0] != factors[1]:
        raise ValueError(f"one table with two factors, {factors} (tie_word_embeddings)")


_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "key_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
_FALCON_CHANGES = {
    "attn_q.weight": _scaled("attention_in_multiplier"),
    "attn_k.weight": _scaled("key_multiplier", "attention_in_multiplier"),
    "attn_v.weight": _scaled("attention_in_multiplier"),
    "attn_output.weight": _scaled("attention_out_multiplier"),
    "ssm_out.weight": _scaled("ssm_out_multiplier"),
}
_FALCON_LAYER = (
    *ATTENTION,
    *_layer_of_mamba("mamba", "mamba_conv_bias", _scaled_parts),
)
FALCON_H1 = Checkpoint(
    architectures=frozenset({"FalconH1ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("mamba_expand", 2), ("mamba_d_ssm", None), *_SIZES),
    tensors=(
        Rename("model.embed_tokens.weight", "token_embd.weight", _scaled("embedding_multiplier")),
        Rename("model.final_layernorm.weight", "output_norm.weight"),
        Rename(
            "lm_head.weight",
            "output.weight",
            _scaled("lm_head_multiplier"),
            optional=lambda config: bool(config.get("tie_word_embeddings")),
        ),
        *(
            replace(
                one,
                change=_FALCON_CHANGES.get(one.tensor.removeprefix("blk.{n}."), one.change),
                optional=(lambda config: not config.get("mamba_rms_norm"))
                if "ssm_norm" in one.tensor
                else one.optional,
            )
            for one in _FALCON_LAYER
        ),
        *block_renames({"pre_ff_layernorm.weight": "ffn_norm"}),
        *block_renames(
            {"feed_forward.gate_proj.weight": "ffn_gate.weight"},
            change=_scaled("mlp_multipliers.0"),
        ),
        *block_renames({"feed_forward.up_proj.weight": "ffn_up.weight"}),
        *block_renames(
            {"feed_forward.down_proj.weight": "ffn_down.weight"},
            change=_scaled("mlp_multipliers.1"),
        ),
    ),
    constants=(
        *CONSTANTS,
        *_UNBOUNDED,
        ("mamba_proj_bias", (False,)),
        ("projectors_bias", (False,)),
        ("attn_layer_indices", ()),
        ("mamba_use_mlp", (True,)),
    ),
    harmless=(
        ("mamba_chunk_size", _CHUNKS),
        ("num_logits_to_keep", "of which tokens transformers gives logits"),
        ("mamba_expand mamba_d_head", "they follow from other sizes"),
        ("mlp_expansion_factor", "another name of a size"),
        ("time_step_floor time_step_min time_step_max time_step_rank", "of training"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *_SSM_KEYS,
        ("{arch}.ssm.inner_size", _ssm_width),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.rope.scaling.finetuned", _check_falcon),
    ),
)

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _of_pattern(config: Config) -> dict[str, object]:
    """Return how many layers Nemotron-H has, where only the list of them says so."""
    return {"num_hidden_layers": len(_nemotron_kinds(config))}


def _nemotron_kinds(config: Config) -> list[str]:
    """Return what each layer is, of a list of words or of a text with a letter for each."""
    pattern = config.get("hybrid_override_pattern", "layers_block_type", type=str | list[str])
    if pattern is None:
        raise ValueError("no hybrid_override_pattern or layers_block_type")
    named = {**_LETTERS, **_KINDS} if isinstance(pattern, str) else _KINDS
    return [named.get(kind, kind) for kind in pattern]


def _nemotron_layers(*kinds: str) -> Callable[[Config], list[int]]:
    """Return which layers are of these kinds."""

    def read(config: Config) -> list[int]:
        return [n for n, kind in enumerate(_nemotron_kinds(config)) if kind in kinds]

    return read


def _ffn_widths(of: str, *kinds: str) -> Callable[[Config], list[int]]:
    """Return a source: the width of each block's feed-forward part, 0 where it has none."""

    def read(config: Config) -> list[int]:
        layers, width = _nemotron_layers(*kinds)(config), config.require(of, Count)
        heads = range(config.n_layers, config.n_blocks)
        return [width if n in (*layers, *heads) else 0 for n in range(config.n_blocks)]

    return read


def _nemotron_key_heads(config: Config) -> list[int]:
    heads = range(config.n_layers, config.n_blocks)
    return _key_heads(lambda config: [*_nemotron_layers("attention")(config), *heads])(config)


_BIASED = ("use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias")
_ATTENTION_OF_NEMOTRON = tuple(
    replace(one, source=one.source.replace("self_attn", "mixer")) for one in _MATRICES
)
"""Queries and keys in the order of the parent's files, though nothing is rotated."""

NEMOTRON_H = Checkpoint(
    architectures=frozenset({"NemotronHForCausalLM"}),
    completed=_of_pattern,
    defaults=(
        *STATED,
        ("layer_norm_epsilon", 1e-5),
        ("conv_kernel", 4),
        *((name, None) for name in ("head_dim", "mamba_num_heads", "mamba_head_dim", "n_groups")),
        ("ssm_state_size", None),
    ),
    prefixes=(("backbone.", "model."),),
    tensors=(
        Rename("model.embeddings.weight", "token_embd.weight"),
        Rename("model.norm_f.weight", "output_norm.weight"),
        replace(TABLES[2], copy_of="model.embeddings.weight"),
        *block_renames({"norm.weight": "attn_norm.weight"}),
        *on_layers(_nemotron_layers("attention"), _ATTENTION_OF_NEMOTRON),
        *on_layers(_nemotron_layers("mamba"), _layer_of_mamba("mixer", "use_conv_bias")),
        *on_layers(
            _nemotron_layers("mlp"),
            block_renames(
                {
                    "mixer.up_proj.weight": "ffn_up.weight",
                    "mixer.down_proj.weight": "ffn_down.weight",
                }
            ),
        ),
    ),
    constants=(
        *_UNBOUNDED,
        *((name, (False,)) for name in _BIASED),
        ("mlp_hidden_act", ("relu2",)),
        ("mamba_hidden_act", ("silu",)),
        ("hidden_act", ("silu",)),
    ),
    harmless=(
        ("chunk_size mamba_chunk_size", _CHUNKS),
        ("expand mamba_expand", "it follows from other sizes"),
        ("num_logits_to_keep", "of which tokens transformers gives logits"),
        (
            "time_step_floor time_step_min time_step_max time_step_rank rescale_prenorm_residual "
            "mamba_dt_min mamba_dt_max mamba_dt_init_floor",
            "of training",
        ),
        (
            "mamba_ssm_cache_dtype residual_in_fp32 use_mamba_kernels moe_shared_expert_overlap",
            "in what precision and order transformers computes",
        ),
        ("mtp_layers_block_type mtp_hybrid_override_pattern", "of heads, whose tensors say it"),
        (
            "moe_intermediate_size moe_shared_expert_intermediate_size n_group n_routed_experts "
            "n_shared_experts norm_topk_prob num_experts_per_tok routed_scaling_factor topk_group",
            "of experts, which no layer has",
        ),
    ),
    metadata=(
        *DECODER,
        *_SSM_KEYS,
        ("{arch}.ssm.inner_size", _inner_width("mamba_num_heads", "mamba_head_dim")),
        ("{arch}.context_length", lambda config: _UNROTATED),
        ("{arch}.feed_forward_length", _ffn_widths("intermediate_size", "mlp")),
        ("{arch}.attention.head_count_kv", _nemotron_key_heads),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_epsilon")),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.rope.scaling.finetuned", lambda config: False),
        (
            "{arch}.rope.dimension_count",
            lambda config: (
                config.require("hidden_size", Count) // config.require("num_attention_heads", Count)
            ),
        ),
    ),
)


def _experts_of_nemotron() -> tuple[Rename, ...]:
    """Return the renames of router and experts."""
    return (
        *block_renames(
            {
                "mixer.gate.weight": "ffn_gate_inp.weight",
                "mixer.experts.{e}.up_proj.weight": "ffn_up_exps.weight",
                "mixer.experts.{e}.down_proj.weight": "ffn_down_exps.weight",
                "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
                "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
                "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
            }
        ),
        *block_renames(
            {
                "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight",
                "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
            },
            optional=lambda config: config.get("moe_latent_size") is None,
        ),
    )


NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    has="*.layers.{n}.mixer.gate.weight",
    defaults=(
        *NEMOTRON_H.defaults,
        ("routed_scaling_factor", 1.0),
        ("norm_topk_prob", True),
        ("n_group", 1),
        ("topk_group", 1),
        ("n_shared_experts", 1),
    ),
    tensors=(
        *NEMOTRON_H.tensors,
        *on_layers(_nemotron_layers("moe"), _experts_of_nemotron()),
    ),
    harmless=(*NEMOTRON_H.harmless[:-1], ("intermediate_size", "of layers that are not there")),
    metadata=(
        *NEMOTRON_H.metadata,
        ("{arch}.feed_forward_length", _ffn_widths("moe_intermediate_size", "moe")),
        ("{arch}.expert_count", "n_routed_experts"),
        ("{arch}.expert_used_count", "num_experts_per_tok"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
        ("{arch}.expert_shared_count", "n_shared_experts"),
        ("{arch}.expert_group_count", "n_group"),
        ("{arch}.expert_group_used_count", "topk_group"),
        ("{arch}.expert_weights_norm", "norm_topk_prob"),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.moe_latent_size", Key("moe_latent_size")),
    ),
)
NEMOTRON_H_NEXTN = Checkpoint(
    architectures=NEMOTRON_H_MOE.architectures,
    heads="mtp.layers.{i}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *in_heads(
            "mtp.layers.{i}.",
            tuple(one for one in NEXTN if "shared_head" not in one.tensor),
            block_renames({"norm.weight": "attn_norm.weight"}),
            _ATTENTION_OF_NEMOTRON,
        ),
        *in_heads(
            "mtp.layers.1.",
            block_renames(
                {
                    "norm.weight": "post_attention_norm.weight",
                    "final_layernorm.weight": "nextn.shared_head_norm.weight",
                }
            ),
            _experts_of_nemotron(),
        ),
    ),
)
"""One head: its first layer attends, its second one has experts."""

MAMBA2 = Checkpoint(
    architectures=frozenset({"Mamba2ForCausalLM"}),
    defaults=(
        ("layer_norm_epsilon", 1e-5),
        ("conv_kernel", 4),
        ("expand", 2),
        ("state_size", None),
        ("n_groups", None),
        ("head_dim", None),
        ("num_heads", None),
    ),
    prefixes=(
        ("model.backbone.", "model."),
        ("backbone.", "model."),
        ("model.lm_head.", "lm_head."),
    ),
    tensors=(
        Rename("model.embeddings.weight", "token_embd.weight"),
        Rename("model.norm_f.weight", "output_norm.weight"),
        replace(TABLES[2], copy_of="model.embeddings.weight"),
        *block_renames({"norm.weight": "attn_norm.weight"}),
        *_layer_of_mamba("mixer", "use_conv_bias"),
    ),
    constants=(*_UNBOUNDED, ("use_bias", (False,)), ("hidden_act", ("silu",))),
    harmless=(
        ("chunk_size", _CHUNKS),
        ("expand", "it follows from other sizes"),
        (
            "time_step_floor time_step_min time_step_max time_step_rank rescale_prenorm_residual "
            "time_step_init_scheme time_step_scale",
            "of training",
        ),
        ("residual_in_fp32", "in what precision transformers computes"),
        ("norm_before_gate rms_norm", "what the class always does"),
    ),
    metadata=(
        ("{arch}.context_length", lambda config: _UNROTATED),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", lambda config: 0),
        ("{arch}.attention.head_count", lambda config: 0),
        *_SSM_KEYS,
        ("{arch}.ssm.inner_size", _inner_width("num_heads", "head_dim")),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
    ),
)
