"""Families with experts, and with windows in most layers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, number
from mtpcore.models.checkpoints.dense import FFN_NORM, window_layers
from mtpcore.models.checkpoints.experts import COUNTS, described_rotation
from mtpcore.models.checkpoints.layers import (
    first_layers,
    later_layers,
    layer_kinds,
    leading_dense,
    named_scaling,
)
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    EXPERTS,
    HEAD_NORMS,
    NEXTN,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    in_heads,
    on_layers,
    optional,
)
from mtpcore.models.rope_conversion import ROPE_KEYS, layered_rope_keys

__all__ = [
    "AFMOE",
    "COHERE2_MOE",
    "COHERE2_MOE_NEXTN",
    "EXAONE_MOE",
    "EXAONE_MOE_NEXTN",
    "LAGUNA",
]

_GATES = {"softmax": 1, "sigmoid": 2}
_EXPERT_MATRICES = tuple(one for one in EXPERTS if "inp" not in one.tensor)
_SHARED = optional(lambda config: not config.get("num_shared_experts"), SHARED_EXPERT)


def _shared_width(of_one: str) -> tuple[str, Callable[[Config], object]]:
    """Return the key of all shared experts' width together, of a setting of one's."""

    def read(config: Config) -> int | None:
        n_shared = config.get("num_shared_experts", type=int)
        return n_shared * config.require(of_one, Count) if n_shared else None

    return "{arch}.expert_shared_feed_forward_length", read


def _n_shared(config: Config) -> int | None:
    return config.get("num_shared_experts", type=int) or None


_exaone_dense = leading_dense("first_k_dense_replace", "first_last_k_dense_replace")
EXAONE_MOE = Checkpoint(
    architectures=frozenset({"ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("sliding_window", 4096),
        ("n_group", 1),
        ("topk_group", 1),
        ("norm_topk_prob", True),
        ("routed_scaling_factor", 2.5),
        ("num_shared_experts", 1),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *on_layers(first_layers(_exaone_dense), SWIGLU),
        *on_layers(
            later_layers(_exaone_dense),
            EXPERTS,
            block_renames({"mlp.e_score_correction_bias": "exp_probs_b.bias"}),
            _SHARED,
        ),
    ),
    constants=(*CONSTANTS, ("scoring_func", ("sigmoid",)), ("topk_method", ("noaux_tc",))),
    harmless=(
        ("is_moe_layer", "another way to say which layers have experts"),
        ("mtp_layer_types mtp_share_layers mtp_loss_scaling_factor", "of heads"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.rope.scaling.type", named_scaling),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.attention.sliding_window_pattern", window_layers),
        ("{arch}.expert_group_count", "n_group"),
        ("{arch}.expert_group_used_count", "topk_group"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_count", _n_shared),
        _shared_width("moe_intermediate_size"),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.expert_weights_norm", "norm_topk_prob"),
        ("{arch}.expert_gating_func", lambda config: _GATES["sigmoid"]),
        ("{arch}.leading_dense_block_count", _exaone_dense),
        ("{arch}.nextn_predict_layers", lambda config: config.n_drafter_blocks),
    ),
)
_OF_HEAD = {
    "fc.weight": "eh_proj.weight",
    "pre_fc_norm_embedding.weight": "enorm.weight",
    "pre_fc_norm_hidden.weight": "hnorm.weight",
    "norm.weight": "shared_head_norm.weight",
}
EXAONE_MOE_NEXTN = Checkpoint(
    architectures=EXAONE_MOE.architectures,
    heads="mtp.layers.{i}.input_layernorm.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *(
            Rename(f"mtp.{source}", f"blk.{{n}}.nextn.{tensor}")
            for source, tensor in _OF_HEAD.items()
        ),
        *in_heads("mtp.layers.{i}.", ATTENTION, HEAD_NORMS, FFN_NORM, SWIGLU),
    ),
)


def _check_kinds(config: Config) -> None:
    """Refuse other layers with a window than the graph rotates: all but every fourth.

    Raises
    ------
    ValueError
        Others have one.
    """
    kinds = layer_kinds(config, 4, "global_attn_every_n_layers")
    if kinds != [(n + 1) % 4 != 0 for n in range(config.n_layers)]:
        raise ValueError(f"windows in other layers than in all but every fourth: {kinds}")


_afmoe_dense = leading_dense("num_dense_layers")
AFMOE = Checkpoint(
    architectures=frozenset({"AfmoeForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", None),
        ("rms_norm_eps", 1e-5),
        ("sliding_window", 1024),
        ("num_shared_experts", None),
        ("route_scale", 1.0),
        ("mup_enabled", False),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *block_renames(
            {
                "self_attn.gate_proj.weight": "attn_gate.weight",
                "post_attention_layernorm.weight": "post_attention_norm.weight",
                "pre_mlp_layernorm.weight": "ffn_norm.weight",
                "post_mlp_layernorm.weight": "post_ffw_norm.weight",
            }
        ),
        *on_layers(first_layers(_afmoe_dense), SWIGLU),
        *on_layers(
            later_layers(_afmoe_dense),
            _EXPERT_MATRICES,
            block_renames(
                {
                    "mlp.router.gate.weight": "ffn_gate_inp.weight",
                    "mlp.expert_bias": "exp_probs_b.bias",
                }
            ),
            _SHARED,
        ),
    ),
    constants=(
        *CONSTANTS,
        ("mup_enabled", (True,)),
        ("score_func", ("sigmoid",)),
        ("n_group", (1,)),
        ("topk_group", (1,)),
        ("num_expert_groups", (1,)),
        ("num_limited_groups", (1,)),
    ),
    harmless=(
        ("load_balance_coeff", "of training"),
        ("use_grouped_mm", "how transformers computes experts"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", _check_kinds),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_count", "num_shared_experts"),
        ("{arch}.expert_weights_scale", number("route_scale")),
        ("{arch}.expert_weights_norm", lambda config: config.get("route_norm", default=True)),
        ("{arch}.leading_dense_block_count", _afmoe_dense),
    ),
)


def _gate(config: Config) -> int:
    return _GATES[config.get("expert_selection_fn", default="softmax", type=str)]


def _normalises(config: Config) -> bool:
    """Say whether the weights of a token's experts sum to one; those of a softmax never do."""
    said = config.get("norm_topk_prob", default=True, type=bool)
    return bool(said and _gate(config) == _GATES["sigmoid"])


_cohere_dense = leading_dense("first_k_dense_replace")
COHERE2_MOE = Checkpoint(
    architectures=frozenset({"Cohere2MoeForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("layer_norm_eps", 1e-5),
        ("logit_scale", 0.0625),
        ("sliding_window", 4096),
        ("tie_word_embeddings", True),
        ("first_k_dense_replace", 0),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *on_layers(first_layers(_cohere_dense), SWIGLU),
        *on_layers(later_layers(_cohere_dense), EXPERTS, _SHARED),
    ),
    constants=(
        *CONSTANTS,
        ("shared_expert_combination_strategy", ("average",)),
        ("prefix_dense_sliding_window_pattern", (1,)),
    ),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith(("rms_epsilon", "forward_length"))),
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.feed_forward_length", "prefix_dense_intermediate_size|intermediate_size"),
        ("{arch}.rope.scaling.type", named_scaling),
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_eps")),
        ("{arch}.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
        ("{arch}.logit_scale", number("logit_scale")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", "sliding_window"),
        (
            "{arch}.attention.sliding_window_pattern",
            lambda config: layer_kinds(config, 4, "sliding_window_pattern"),
        ),
        ("{arch}.expert_gating_func", _gate),
        ("{arch}.expert_weights_norm", _normalises),
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
        ("{arch}.expert_shared_count", _n_shared),
        _shared_width("intermediate_size"),
        ("{arch}.leading_dense_block_count", _cohere_dense),
    ),
)
COHERE2_MOE_NEXTN = Checkpoint(
    architectures=COHERE2_MOE.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(*NEXTN, *ATTENTION, *EXPERTS, *_SHARED),
)


def _heads_of_layers(config: Config) -> list[int]:
    """Return how many query heads each layer has.

    Raises
    ------
    ValueError
        A list of them is not as long as there are layers.
    """
    n_heads = config.require("num_attention_heads", Count)
    counts = config.get("num_attention_heads_per_layer", type=list[Count])
    if counts is not None and len(counts) != config.n_layers:
        raise ValueError(f"num_attention_heads_per_layer has {len(counts)} entries")
    return counts or [n_heads] * config.n_layers


def _rotated(kind: str) -> Callable[[Config], int]:
    """Return a source: how much of a head layers of a kind rotate."""
    path = f"rope_parameters.{kind}.partial_rotary_factor"
    return lambda config: int(head_width(config) * config.get(path, default=1.0, type=float))


def _first_of_four(config: Config) -> list[bool] | None:
    """Return which layers have a window, where it is not all but the first of every four."""
    kinds = layer_kinds(config, 4)
    return None if kinds == [n % 4 != 0 for n in range(config.n_layers)] else kinds


_laguna_dense = leading_dense()
LAGUNA = Checkpoint(
    architectures=frozenset({"LagunaForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-6),
        ("layer_types", None),
        ("mlp_layer_types", None),
        ("sliding_window", None),
        ("moe_routed_scaling_factor", 1.0),
    ),
    completed=described_rotation,
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *block_renames({"self_attn.g_proj.weight": "attn_gate.weight"}),
        *on_layers(first_layers(_laguna_dense), SWIGLU),
        *on_layers(
            later_layers(_laguna_dense),
            EXPERTS,
            block_renames({"mlp.experts.e_score_correction_bias": "exp_probs_b.bias"}),
            tuple(
                replace(one, source=one.source.replace("shared_experts", "shared_expert"))
                for one in SHARED_EXPERT
            ),
        ),
    ),
    constants=(
        *CONSTANTS,
        ("gating", (True, "per-head", "per-element")),
        ("moe_apply_router_weight_on_input", (False,)),
        ("moe_router_logit_softcapping", (0.0,)),
    ),
    harmless=(("gating_types", "the tensors say it"),),
    metadata=(
        *DECODER,
        *layered_rope_keys(),
        *COUNTS,
        ("{arch}.attention.head_count", _heads_of_layers),
        ("{arch}.rope.dimension_count", _rotated("full_attention")),
        ("{arch}.rope.dimension_count_swa", _rotated("sliding_attention")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.attention.sliding_window_pattern", _first_of_four),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ("{arch}.expert_weights_norm", lambda config: True),
        ("{arch}.expert_weights_scale", number("moe_routed_scaling_factor")),
        ("{arch}.expert_gating_func", lambda config: _GATES["sigmoid"]),
        ("{arch}.leading_dense_block_count", _laguna_dense),
    ),
)
