"""MiniMax: MiniMax-01 as published and as transformers writes it, and MiniMax-M3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, number
from mtpcore.models.checkpoints.dense import FFN_NORM
from mtpcore.models.checkpoints.experts import COUNTS, MIXTRAL_EXPERTS
from mtpcore.models.checkpoints.layers import (
    first_layers,
    later_layers,
    leading_dense,
    rotated_width,
)
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    plus,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["MINIMAX_01", "MINIMAX_01_OF_TRANSFORMERS", "MINIMAX_M3"]

_PERIOD = 8
"""Of MiniMax-01's files: the last layer of so many attends, unless they say otherwise."""
_MixerKinds = list[Literal["linear_attention", "full_attention"]]


def _is_linear(config: Config) -> list[bool]:
    """Return which layers have lightning attention, as numbers or names of kinds say.

    Raises
    ------
    ValueError
        There are not as many kinds as layers.
    """
    kinds = config.get("layer_types", type=_MixerKinds)
    found = (
        [kind == "linear_attention" for kind in kinds]
        if kinds is not None
        else [kind == 0 for kind in config.require("attn_type_list", list[Literal[0, 1]])]
    )
    if len(found) != config.n_layers:
        raise ValueError(f"kinds of {len(found)} layers, not {config.n_layers}")
    return found


def _linear(config: Config) -> list[int]:
    return [n for n, linear in enumerate(_is_linear(config)) if linear]


def _attending(config: Config) -> list[int]:
    return [n for n, linear in enumerate(_is_linear(config)) if not linear]


def _unusual_layers(config: Config) -> list[bool] | None:
    """Return which layers are recurrent, where files mean others without it."""
    found = _is_linear(config)
    return None if found == [(n + 1) % _PERIOD != 0 for n in range(len(found))] else found


def _one_factor(alphas: tuple[str, ...], betas: tuple[str, ...]) -> Callable[[Config], float]:
    """Return a source: what a branch's input is multiplied by before both are added.

    Raises
    ------
    ValueError
        By the source: branches differ in it, or are multiplied themselves.
    """

    def read(config: Config) -> float:
        found = {config.get(name, default=1.0, type=float) for name in alphas}
        others = {config.get(name, default=1.0, type=float) for name in betas}
        if len(found) > 1 or others != {1.0}:
            raise ValueError(f"inputs of branches are multiplied by {found}, branches by {others}")
        return float(found.pop())

    return read


_KINDS = ("full_attention", "linear_attention", "mlp")
_FACTORS = tuple(tuple(f"layernorm_{kind}_{of}" for kind in _KINDS) for of in ("alpha", "beta"))
_FACTORS_OF_TRANSFORMERS = tuple(
    tuple(f"{kind}_{of}_factor" for kind in ("full_attn", "linear_attn", "mlp"))
    for of in ("alpha", "beta")
)

MINIMAX_01 = Checkpoint(
    architectures=frozenset({"MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", None), ("rotary_dim", None)),
    tensors=(
        *TABLES,
        *FFN_NORM,
        *(one for one in ATTENTION if "norm" in one.tensor),
        *on_layers(_attending, tuple(one for one in ATTENTION if "norm" not in one.tensor)),
        *on_layers(
            _linear,
            block_renames(
                {
                    "self_attn.qkv_proj.weight": "attn_qkv.weight",
                    "self_attn.norm.weight": "attn_norm_2.weight",
                    "self_attn.output_gate.weight": "attn_gate.weight",
                    "self_attn.out_proj.weight": "attn_output.weight",
                }
            ),
        ),
        *MIXTRAL_EXPERTS,
    ),
    constants=(
        *CONSTANTS,
        ("postnorm", (True,)),
        ("sliding_window", ()),
        ("shared_intermediate_size", (0,)),
    ),
    harmless=(("shared_moe_mode", "of shared experts, which there are not"),),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.attention.recurrent_layers", _unusual_layers),
        ("{arch}.residual_scale", _one_factor(*_FACTORS)),
        ("{arch}.rope.dimension_count", "rotary_dim"),
    ),
)
MINIMAX_01_OF_TRANSFORMERS = replace(
    MINIMAX_01,
    architectures=frozenset({"MiniMaxForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 1e6),
        ("layer_types", None),
        ("num_local_experts", 8),
        ("num_experts_per_tok", 2),
    ),
    dropped=tuple(
        f"model.layers.{{n}}.self_attn.{name}"
        for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
    ),
    constants=(*CONSTANTS, ("sliding_window", ())),
    harmless=(("block_size", "how many tokens transformers computes at once"),),
    metadata=(
        *MINIMAX_01.metadata[:-2],
        ("{arch}.residual_scale", _one_factor(*_FACTORS_OF_TRANSFORMERS)),
        ("{arch}.rope.dimension_count", head_width),
    ),
)


def _dense_first(config: Config) -> int:
    """Return how many layers have no experts, the first ones, as flags or names of kinds say.

    Raises
    ------
    ValueError
        By one of both other layers have none, or not all layers are listed.
    """
    flags = config.get("moe_layer_freq", type=list[Literal[0, 1]])
    if flags is None:
        return leading_dense()(config)
    n: int = flags.count(0)
    if any(flags[:n]) or len(flags) != config.n_layers:
        raise ValueError(f"moe_layer_freq says other layers than the first {n}")
    if config.get("mlp_layer_types") is not None and leading_dense()(config) != n:
        raise ValueError("mlp_layer_types and moe_layer_freq disagree")
    return n


_SparseKinds = list[Literal["minimax_m3_sparse", "full_attention"]]


def _indexed(config: Config) -> list[int]:
    """Return the layers that have an indexer."""
    kinds = config.get("layer_types", type=_SparseKinds)
    flags = config.get("sparse_attention_config.sparse_attention_freq", type=list[Literal[0, 1]])
    if kinds is not None:
        return [n for n, kind in enumerate(kinds) if kind == "minimax_m3_sparse"]
    return [n for n, flag in enumerate(flags or ()) if flag]


def _rotated(config: Config) -> int:
    """Return how much of a head is rotated, which configurations say twice.

    Raises
    ------
    ValueError
        They say different things.
    """
    width = config.require("rotary_dim", Count)
    share = rotated_width(width / head_width(config))(config)
    if share != width:
        raise ValueError(f"rotary_dim is {width}, and by partial_rotary_factor {share}")
    return int(width)


def _of_indexer(name: str, older: str) -> str:
    return f"sparse_attention_config.{older}|{name}"


_shared = tuple(
    replace(one, tensor=one.tensor.replace(".weight", "_shexp.weight"))
    for one in block_renames(
        {
            f"block_sparse_moe.shared_experts.{part}_proj.weight": f"ffn_{part}.weight"
            for part in ("gate", "up", "down")
        }
    )
)
_NORMS = tuple(
    replace(one, change=plus(1)) for one in (TABLES[1], *ATTENTION[:1], *HEAD_NORMS, *FFN_NORM)
)
MINIMAX_M3 = Checkpoint(
    architectures=frozenset(
        {"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"}
    ),
    nested=("text_config",),
    prefixes=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
    dropped=("vision_tower.*", "multi_modal_projector.*", "patch_merge_mlp.*"),
    defaults=(
        *STATED,
        *((name, None) for name in ("head_dim", "rms_norm_eps", "rotary_dim")),
        *((name, None) for name in ("dense_intermediate_size", "routed_scaling_factor")),
        ("num_local_experts", None),
        ("rope_theta", 5e6),
    ),
    tensors=(
        TABLES[0],
        TABLES[2],
        *_NORMS,
        *ATTENTION[1:],
        *on_layers(
            _indexed,
            block_renames(
                {
                    f"self_attn.index_{part}_proj.weight": f"indexer.{part}_proj.weight"
                    for part in "qk"
                }
            ),
            block_renames(
                {
                    f"self_attn.index_{part}_norm.weight": f"indexer.{part}_norm.weight"
                    for part in "qk"
                },
                change=plus(1),
            ),
        ),
        *on_layers(first_layers(_dense_first), SWIGLU),
        *on_layers(
            later_layers(_dense_first),
            MIXTRAL_EXPERTS,
            block_renames({"block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"}),
            _shared,
        ),
    ),
    constants=(
        ("hidden_act", ("silu", "swigluoai")),
        ("n_shared_experts", (1,)),
        ("qk_norm_type", ("per_head",)),
        ("scoring_func", ("sigmoid",)),
        ("swiglu_alpha", (1.702,)),
        ("swiglu_limit", (7.0,)),
        ("use_gemma_norm", (True,)),
        ("use_qk_norm", (True,)),
        ("use_routing_bias", (True,)),
    ),
    harmless=(
        ("shared_intermediate_size", "the tensors say it"),
        (
            "sparse_attention_config.sparse_disable_index_value "
            "sparse_attention_config.sparse_init_block sparse_attention_config.sparse_score_type "
            "sparse_attention_config.use_sparse_attention",
            "of an indexer, which chooses all tokens of the contexts that run",
        ),
        (
            "img_token_compression_config image_grid_pinpoints image_seq_length merged_hidden_size "
            "multimodal_projector_bias process_image_mode projector_hidden_act "
            "projector_hidden_size video_token_index vision_feature_layer "
            "vision_feature_select_strategy",
            "of images",
        ),
        ("num_mtp_modules mtp_transformer_layers use_mtp", "of heads, which checkpoints lack"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.feed_forward_length", "dense_intermediate_size"),
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
        ("{arch}.expert_shared_count", lambda config: 1),
        ("{arch}.expert_weights_norm", lambda config: True),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.leading_dense_block_count", _dense_first),
        ("{arch}.rope.dimension_count", _rotated),
        *(
            (f"{{arch}}.attention.indexer.{key}", _of_indexer(name, older))
            for key, name, older in (
                ("head_count", "index_n_heads", "sparse_num_index_heads"),
                ("key_length", "index_head_dim", "sparse_index_dim"),
                ("top_k", "index_topk_blocks", "sparse_topk_blocks"),
                ("block_size", "index_block_size", "sparse_block_size"),
                ("local_blocks", "index_local_blocks", "sparse_local_block"),
            )
        ),
    ),
)
