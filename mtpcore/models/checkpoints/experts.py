"""Families with experts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import (
    FFN_NORM,
    GRANITE,
    OUTPUT_BIAS,
    PHI3,
    lacks_attention_bias,
    long_magnitude,
    no_window,
    original_context,
    without_rotation,
)
from mtpcore.models.checkpoints.layers import (
    dense_before,
    first_layers,
    later_layers,
    layer_kinds,
    leading_dense,
    rotated_width,
    sparse_after,
)
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    INTERLEAVED_ATTENTION,
    NEXTN,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    optional,
    switched_window,
    without_window,
)
from mtpcore.models.qwen3moe import dense_layers, sparse_layers
from mtpcore.models.rope_conversion import (
    FACTORED_ROPE_KEYS,
    ROPE_KEYS,
    layered_rope_keys,
    long_context_factors,
    rope_keys,
)

__all__ = [
    "DOTS1",
    "ERNIE4_5_MOE",
    "GRANITE_MOE",
    "GRANITE_MOE_SHARED",
    "HY_V3",
    "HY_V3_NEXTN",
    "LLAMA4",
    "MELLUM",
    "MINIMAX_M2",
    "OLMOE",
    "PHIMOE",
    "QWEN2_MOE",
]

COUNTS = (
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
        *COUNTS,
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
    metadata=(*DECODER, *ROPE_KEYS, *COUNTS),
)


def first_half(values: TensorValues, config: Config) -> TensorValues:
    """Return the first half of a matrix's rows, as the gate's beside those of up."""
    return values[: values.shape[0] // 2]


def second_half(values: TensorValues, config: Config) -> TensorValues:
    """Return the second half of a matrix's rows."""
    return values[values.shape[0] // 2 :]


def split_gate(source: str, of: str, *, is_stack: bool = False) -> tuple[Rename, ...]:
    """Return the renames of a matrix that holds a gate's rows before those of up.

    Parameters
    ----------
    source : str
        Without ``model.layers.{n}.``.
    of : str
        With what the names of both end in the file: ``_exps``, ``_shexp``, or nothing.
    is_stack : bool
        Whether it holds those of several experts.
    """
    halves = (("gate", first_half), ("up", second_half))
    return tuple(
        one
        for tensor, change in halves
        for one in block_renames(
            {source: f"ffn_{tensor}{of}.weight"}, change=change, is_stack=is_stack
        )
    )


SPLIT_EXPERTS = (
    *block_renames({"block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight"}),
    *split_gate("block_sparse_moe.input_linear.weight", "_exps", is_stack=True),
    *block_renames(
        {"block_sparse_moe.output_linear.weight": "ffn_down_exps.weight"}, is_stack=True
    ),
)
"""Granite's router and experts."""
SPLIT_SHARED_EXPERT = (
    *split_gate("shared_mlp.input_linear.weight", "_shexp"),
    *block_renames({"shared_mlp.output_linear.weight": "ffn_down_shexp.weight"}),
)
"""The expert that every token of Granite meets."""
SPLIT_SWIGLU = (
    *split_gate("shared_mlp.input_linear.weight", ""),
    *block_renames({"shared_mlp.output_linear.weight": "ffn_down.weight"}),
)
"""The same of a model without others: its feed-forward part."""

GRANITE_MOE = replace(
    GRANITE,
    architectures=frozenset({"GraniteMoeForCausalLM"}),
    tensors=(*TABLES, *INTERLEAVED_ATTENTION, *FFN_NORM, *SPLIT_EXPERTS),
    metadata=(*GRANITE.metadata, *COUNTS),
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


MIXTRAL_EXPERTS = block_renames(
    {
        "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
        "block_sparse_moe.experts.{e}.w1.weight": "ffn_gate_exps.weight",
        "block_sparse_moe.experts.{e}.w3.weight": "ffn_up_exps.weight",
        "block_sparse_moe.experts.{e}.w2.weight": "ffn_down_exps.weight",
    }
)
"""Router and experts, as Mixtral's checkpoints and those that follow them name them."""
MINIMAX_M2 = Checkpoint(
    architectures=frozenset({"MiniMaxM2ForCausalLM"}),
    defaults=(*STATED, ("head_dim", 128), ("rms_norm_eps", 1e-6), ("rope_theta", 5e6)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *MIXTRAL_EXPERTS,
        *block_renames({"block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"}),
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
        *COUNTS,
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
        ("{arch}.rope.dimension_count", _rotated),
    ),
)


def _equal_magnitudes(config: Config) -> float | None:
    """Return by what LongRoPE multiplies queries and keys, of contexts of any length.

    Raises
    ------
    ValueError
        It depends on the length.
    """
    said = {
        config.get(f"rope_parameters.{of}_mscale", f"rope_scaling.{of}_mscale", type=float)
        for of in ("long", "short")
    }
    if len(said) > 1:
        raise ValueError(f"LongRoPE's magnitude depends on the length of a text: {said}")
    stated = said.pop()
    return long_magnitude(config) if stated is None else float(stated)


def _original_context(config: Config) -> int:
    return original_context(config) if long_magnitude(config) else config["max_position_embeddings"]


PHIMOE = Checkpoint(
    architectures=frozenset({"PhiMoEForCausalLM", "PhimoeForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("rope_theta", 1e6), ("sliding_window", None)),
    tensors=(
        *TABLES,
        Rename("model.norm.bias", "output_norm.bias"),
        Rename("lm_head.bias", "output.bias", optional=lambda c: not c.get("lm_head_bias")),
        *ATTENTION,
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.bias": "attn_norm.bias",
                "post_attention_layernorm.bias": "ffn_norm.bias",
            }
        ),
        *optional(lacks_attention_bias, BIASES, OUTPUT_BIAS),
        *MIXTRAL_EXPERTS,
    ),
    made=PHI3.made,
    constants=CONSTANTS,
    harmless=(("input_jitter_noise", "of training"),),
    metadata=(
        *DECODER,
        *rope_keys("longrope", "su"),
        *COUNTS,
        ("{arch}.rope.scaling.original_context_length", _original_context),
        ("{arch}.rope.scaling.attn_factor", _equal_magnitudes),
        ("{arch}.rope.dimension_count", rotated_width(1.0)),
        ("{arch}.attention.sliding_window", no_window),
    ),
)
"""Files weight a token's two experts by a softmax, as llama.cpp does; the class by thresholds."""

_hy_dense = leading_dense("first_k_dense_replace")
_HY_EXPERTS = (
    *(one for one in EXPERTS if "inp" not in one.tensor),
    *block_renames(
        {
            "mlp.router.gate.weight": "ffn_gate_inp.weight",
            "mlp.expert_bias": "exp_probs_b",
        }
    ),
    *(
        replace(one, source=one.source.replace("shared_experts", "shared_mlp"))
        for one in SHARED_EXPERT
    ),
)
HY_V3 = Checkpoint(
    architectures=frozenset({"HYV3ForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
        ("num_shared_experts", 1),
        ("router_scaling_factor", None),
        ("rope_theta", 11158840.0),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *on_layers(first_layers(_hy_dense), SWIGLU),
        *on_layers(later_layers(_hy_dense), _HY_EXPERTS),
    ),
    constants=(
        *CONSTANTS,
        ("route_norm", (True,)),
        ("moe_router_use_sigmoid", (True,)),
        ("moe_router_enable_expert_bias", (True,)),
        ("qk_norm", (True,)),
    ),
    harmless=(
        (
            "enable_attention_fp32_softmax enable_lm_head_fp32 enable_moe_fp32_combine",
            "in what precision the model is run",
        ),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        (
            "{arch}.expert_shared_feed_forward_length",
            lambda config: (
                config.require("num_shared_experts", Count)
                * config.require("moe_intermediate_size", Count)
            ),
        ),
        ("{arch}.expert_weights_norm", lambda config: True),
        ("{arch}.expert_weights_scale", number("router_scaling_factor")),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
        ("{arch}.leading_dense_block_count", _hy_dense),
    ),
)
HY_V3_NEXTN = Checkpoint(
    architectures=HY_V3.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *(one for one in NEXTN if "shared_head_norm" not in one.tensor),
        *block_renames({"final_layernorm.weight": "nextn.shared_head_norm.weight"}),
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *_HY_EXPERTS,
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
    tensors=(*GRANITE_MOE.tensors, *SPLIT_SHARED_EXPERT),
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


def described_rotation(config: Config) -> dict[str, object]:
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
    completed=described_rotation,
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *FFN_NORM, *EXPERTS),
    constants=(*CONSTANTS, ("norm_topk_prob", (True,)), ("attention_bias", (False,))),
    metadata=(
        *DECODER,
        *layered_rope_keys(),
        *COUNTS,
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.attention.sliding_window_pattern", _window_flags),
    ),
)


def _by_outputs(half: Callable[..., TensorValues] | None = None) -> Callable[..., TensorValues]:
    """Return a change: an expert's matrix of one row for each input, by outputs, or half of it."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        return values.T if half is None else half(values.T, config)

    return change


def _every_step(config: Config) -> list[int]:
    """Return Llama 4's layers with experts: the last of every few.

    Raises
    ------
    ValueError
        A list of them says others.
    """
    step = config.require("interleave_moe_layer_step", Count)
    found = [n for n in range(config.n_layers) if (n + 1) % step == 0]
    told = config.get("moe_layers", type=list[int])
    if told is not None and told != found:
        raise ValueError(f"moe_layers says other layers than {found}")
    return found


def _between_steps(config: Config) -> list[int]:
    return sorted({*range(config.n_layers)} - {*_every_step(config)})


def _check_llama4(config: Config) -> None:
    """Refuse what files of Llama 4 do not mean: a source of metadata that writes nothing.

    Raises
    ------
    ValueError
        Other layers without rotation than every fourth, or norms of heads where files mean none.
    """
    without_rotation(config)
    normed = config.get("use_qk_norm", default=True, type=bool)
    if normed == (config.require("num_local_experts", Count) == 128):
        raise ValueError(f"use_qk_norm is {normed}; files mean it of all but 128 experts")


LLAMA4 = Checkpoint(
    architectures=frozenset({"Llama4ForCausalLM", "Llama4ForConditionalGeneration"}),
    nested=("text_config",),
    prefixes=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
    dropped=("vision_model.*", "multi_modal_projector.*"),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 5e5),
        ("intermediate_size_mlp", None),
        ("num_local_experts", 16),
        ("num_experts_per_tok", 1),
        ("interleave_moe_layer_step", 1),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *FFN_NORM,
        *on_layers(
            _between_steps,
            tuple(replace(one, source=one.source.replace("mlp", "feed_forward")) for one in SWIGLU),
        ),
        *on_layers(
            _every_step,
            block_renames(
                {
                    "feed_forward.router.weight": "ffn_gate_inp.weight",
                    "feed_forward.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
                    "feed_forward.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
                    "feed_forward.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
                }
            ),
            *(
                block_renames(
                    {f"feed_forward.experts.{source}": f"ffn_{tensor}_exps.weight"},
                    change=change,
                    is_stack=True,
                )
                for source, tensor, change in (
                    ("gate_up_proj", "gate", _by_outputs(first_half)),
                    ("gate_up_proj", "up", _by_outputs(second_half)),
                    ("down_proj", "down", _by_outputs()),
                )
            ),
        ),
    ),
    made=(("rope_freqs.weight", long_context_factors),),
    constants=(
        *CONSTANTS,
        ("attention_chunk_size", (8192,)),
        ("attn_scale", (0.1,)),
        ("attn_temperature_tuning", (True, 4)),
        ("floor_scale", (8192, 8192.0)),
        ("for_llm_compressor", (False,)),
    ),
    harmless=(
        ("layer_types", "another way to say which layers rotate"),
        ("cache_implementation", "how transformers keeps keys and values"),
        ("boi_token_index eoi_token_index", "of images"),
    ),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        *COUNTS,
        ("{arch}.feed_forward_length", "intermediate_size_mlp"),
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
        ("{arch}.interleave_moe_layer_step", "interleave_moe_layer_step"),
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.rope.scaling.finetuned", _check_llama4),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)
