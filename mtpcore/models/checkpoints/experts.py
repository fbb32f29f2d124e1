"""Families with experts."""

from __future__ import annotations

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, TensorValues
from mtpcore.models.checkpoints.dense import (
    FFN_NORM,
    GRANITE,
    lacks_attention_bias,
)
from mtpcore.models.checkpoints.layers import dense_before, layer_kinds, rotated_width, sparse_after
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    INTERLEAVED_ATTENTION,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    on_layers,
    optional,
    switched_window,
    without_window,
)
from mtpcore.models.qwen3moe import dense_layers, sparse_layers
from mtpcore.models.rope_conversion import ROPE_KEYS, layered_rope_keys

__all__ = [
    "DOTS1",
    "ERNIE4_5_MOE",
    "GRANITE_MOE",
    "GRANITE_MOE_SHARED",
    "MELLUM",
    "MINIMAX_M2",
    "OLMOE",
    "QWEN2_MOE",
]

_COUNTS = (
    ("{arch}.expert_count", "num_local_experts|num_experts"),
    ("{arch}.expert_used_count", "num_experts_per_tok"),
)

QWEN2_MOE = Checkpoint(
    architectures=frozenset({"Qwen2MoeForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("qkv_bias", True), ("max_window_layers", 28)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lambda config: not config.get("qkv_bias", default=True), BIASES),
        *FFN_NORM,
        *on_layers(
            sparse_layers,
            EXPERTS,
            block_renames(
                {
                    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
                    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
                    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
                    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
                }
            ),
        ),
        *on_layers(dense_layers, SWIGLU),
    ),
    constants=(*CONSTANTS, ("norm_topk_prob", (False,))),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *_COUNTS,
        ("{arch}.attention.sliding_window", switched_window),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ),
)
OLMOE = Checkpoint(
    architectures=frozenset({"OlmoeForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5)),
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *FFN_NORM, *EXPERTS),
    constants=(*CONSTANTS, ("norm_topk_prob", (False,))),
    metadata=(*DECODER, *ROPE_KEYS, *_COUNTS),
)


def _gate(values: TensorValues, config: Config) -> TensorValues:
    return values[: values.shape[0] // 2]


def _up(values: TensorValues, config: Config) -> TensorValues:
    return values[values.shape[0] // 2 :]


GRANITE_MOE = replace(
    GRANITE,
    architectures=frozenset({"GraniteMoeForCausalLM"}),
    tensors=(
        *TABLES,
        *INTERLEAVED_ATTENTION,
        *FFN_NORM,
        *block_renames({"block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight"}),
        *(
            one
            for tensor, change in (("gate", _gate), ("up", _up))
            for one in block_renames(
                {"block_sparse_moe.input_linear.weight": f"ffn_{tensor}_exps.weight"},
                change=change,
                is_stack=True,
            )
        ),
        *block_renames(
            {"block_sparse_moe.output_linear.weight": "ffn_down_exps.weight"}, is_stack=True
        ),
    ),
    metadata=(*GRANITE.metadata, *_COUNTS),
)
DOTS1 = Checkpoint(
    architectures=frozenset({"Dots1ForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-6),
        ("n_group", 1),
        ("topk_group", 1),
        ("routed_scaling_factor", 1.0),
        ("norm_topk_prob", False),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lacks_attention_bias, BIASES),
        *HEAD_NORMS,
        *FFN_NORM,
        *on_layers(dense_before("first_k_dense_replace"), SWIGLU),
        *on_layers(
            sparse_after("first_k_dense_replace"),
            EXPERTS,
            block_renames({"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
            optional(lambda config: not config.get("n_shared_experts"), SHARED_EXPERT),
        ),
    ),
    constants=(
        *CONSTANTS,
        ("moe_layer_freq", (1,)),
        ("scoring_func", ("noaux_tc", "sigmoid")),
        ("topk_method", ("noaux_tc",)),
    ),
    metadata=(
        *DECODER,
        *EXPERT_KEYS,
        *ROPE_KEYS,
        ("{arch}.attention.sliding_window", without_window),
    ),
)


def _rotated(config: Config) -> int:
    """Return how much of a head is rotated, which files say in one of two ways."""
    share = rotated_width(1.0)(config)
    return int(config.get("rotary_dim", default=share, type=Count))


MINIMAX_M2 = Checkpoint(
    architectures=frozenset({"MiniMaxM2ForCausalLM"}),
    defaults=(*STATED, ("head_dim", 128), ("rms_norm_eps", 1e-6), ("rope_theta", 5e6)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *block_renames(
            {
                "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
                "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
                "block_sparse_moe.experts.{e}.w1.weight": "ffn_gate_exps.weight",
                "block_sparse_moe.experts.{e}.w3.weight": "ffn_up_exps.weight",
                "block_sparse_moe.experts.{e}.w2.weight": "ffn_down_exps.weight",
            }
        ),
    ),
    constants=(
        *CONSTANTS,
        ("qk_norm_type", ("per_layer",)),
        ("scoring_func", ("sigmoid",)),
        ("use_qk_norm", (True,)),
        ("use_routing_bias", (True,)),
        *((f"layernorm_{of}_beta", (1.0,)) for of in ("full_attention", "linear_attention", "mlp")),
    ),
    harmless=(
        ("num_mtp_modules mtp_transformer_layers use_mtp", "of heads, which checkpoints lack"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *_COUNTS,
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
        ("{arch}.rope.dimension_count", _rotated),
    ),
)


def _n_shared_experts(config: Config) -> int:
    return int(config.get("moe_num_shared_experts", default=0, type=int))


def _shared_width(config: Config) -> int | None:
    n_shared = _n_shared_experts(config)
    return n_shared * config.require("moe_intermediate_size", Count) if n_shared else None


def _first_expert(config: Config) -> int:
    return int(config.require("moe_layer_start_index", int))


def _has_experts(config: Config) -> list[int]:
    """Return the layers with experts, from the first such one to the last."""
    last = config.get("moe_layer_end_index", default=-1, type=int)
    step = config.get("moe_layer_interval", default=1, type=Count)
    end = config.n_layers - 1 if last == -1 else last
    return [
        n
        for n in range(_first_expert(config), min(end + 1, config.n_layers))
        if (n + 1) % step == 0
    ]


def _has_none(config: Config) -> list[int]:
    return sorted({*range(config.n_layers)} - {*_has_experts(config)})


def _without_axis(values: TensorValues, config: Config) -> TensorValues:
    return values.squeeze(0)


ERNIE4_5_MOE = Checkpoint(
    architectures=frozenset({"Ernie4_5_MoeForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 5e5),
        ("moe_num_shared_experts", 2),
        ("tie_word_embeddings", True),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *FFN_NORM,
        *on_layers(_has_none, SWIGLU),
        *on_layers(
            _has_experts,
            EXPERTS,
            block_renames(
                {"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
                change=_without_axis,
            ),
            optional(lambda config: not _n_shared_experts(config), SHARED_EXPERT),
        ),
    ),
    dropped=tuple(
        f"model.mtp_{of}.*" for of in ("block", "emb_norm", "hidden_norm", "linear_proj")
    ),
    constants=(*CONSTANTS, ("use_bias", (False,)), ("moe_norm_min", (1e-12,))),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.expert_count", "moe_num_experts"),
        ("{arch}.expert_used_count", "moe_k"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_count", Key("moe_num_shared_experts")),
        ("{arch}.interleave_moe_layer_step", Key("moe_layer_interval", 1)),
        ("{arch}.leading_dense_block_count", "moe_layer_start_index"),
        ("{arch}.expert_shared_feed_forward_length", _shared_width),
    ),
)


GRANITE_MOE_SHARED = replace(
    GRANITE_MOE,
    architectures=frozenset({"GraniteMoeSharedForCausalLM"}),
    tensors=(
        *GRANITE_MOE.tensors,
        *(
            one
            for tensor, change in (("gate", _gate), ("up", _up))
            for one in block_renames(
                {"shared_mlp.input_linear.weight": f"ffn_{tensor}_shexp.weight"}, change=change
            )
        ),
        *block_renames({"shared_mlp.output_linear.weight": "ffn_down_shexp.weight"}),
    ),
    metadata=(
        *GRANITE_MOE.metadata,
        ("{arch}.expert_shared_feed_forward_length", "shared_intermediate_size"),
    ),
)


def _window_flags(config: Config) -> list[bool]:
    """Return which layers have a window; all must have experts.

    Raises
    ------
    ValueError
        A layer is dense.
    """
    kinds = config.get("mlp_layer_types", type=list[str])
    if kinds is not None and {*kinds} != {"sparse"}:
        raise ValueError("not all layers have experts (mlp_layer_types)")
    return layer_kinds(config, 4)


def _described(config: Config) -> dict[str, object]:
    """Return nothing; the rotation of layers that see all must be described."""
    config.require("rope_parameters.full_attention", dict)
    return {}


MELLUM = Checkpoint(
    architectures=frozenset({"MellumForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("layer_types", None),
        ("sliding_window", 1024),
        ("rms_norm_eps", 1e-6),
        ("norm_topk_prob", True),
    ),
    completed=_described,
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *FFN_NORM, *EXPERTS),
    constants=(*CONSTANTS, ("norm_topk_prob", (True,)), ("attention_bias", (False,))),
    metadata=(
        *DECODER,
        *layered_rope_keys(),
        *_COUNTS,
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.attention.sliding_window_pattern", _window_flags),
    ),
)
