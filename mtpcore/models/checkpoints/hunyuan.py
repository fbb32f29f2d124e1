"""Hunyuan, dense, with experts and with images; its rotation is slower for longer contexts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, number
from mtpcore.models.checkpoints.dense import FFN_NORM, lacks_attention_bias
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    EXPERTS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    optional,
)
from mtpcore.models.rope_conversion import rope_keys

__all__ = ["HUNYUAN_DENSE", "HUNYUAN_MOE", "HUNYUAN_VL"]

_LONG = 1 << 18
"""Tokens for which such a rotation is meant, as llama.cpp's converter has it; files say fewer."""
_RAISING = ("dynamic", "xdrope")
_OF_NO_USE = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _either(*names: str) -> list[str]:
    return [f"{at}.{name}" for at in ("rope_parameters", "rope_scaling") for name in names]


def _alpha(config: Config) -> float | None:
    """Return what raises the base of the rotation; None where nothing does.

    Raises
    ------
    ValueError
        A dynamic scaling without it, which depends on the length of the text.
    """
    if config.get(*_either("rope_type", "type")) not in _RAISING:
        return None
    for path in _either(*_OF_NO_USE):
        config.get(path)
    alpha: float | None = config.get(*_either("alpha"), type=float)
    if not alpha:
        raise ValueError("dynamic scaling of the rotation without alpha")
    return alpha


def _raised(key: str, plain: Callable[[Config], object]) -> tuple[str, Callable[[Config], object]]:
    """Return a key of the rotation, with another value where its base is raised."""

    def read(config: Config) -> object:
        value, alpha = plain(config), _alpha(config)
        if alpha is None:
            return value
        if key.endswith("freq_base"):
            width = head_width(config)
            return float(str(value)) * alpha ** (width / (width - 2))
        return _OF_RAISED.get(key)

    return key, read


_OF_RAISED: dict[str, object] = {
    "{arch}.rope.scaling.type": "none",
    "{arch}.rope.scaling.factor": 1.0,
    "{arch}.rope.scaling.original_context_length": _LONG,
}
_ROPE_KEYS = tuple(_raised(key, plain) for key, plain in rope_keys("dynamic"))


def _context_length(config: Config) -> int:
    said = config.require("max_position_embeddings", Count)
    return int(said) if _alpha(config) is None else _LONG


HUNYUAN_NORMS = block_renames(
    {
        "self_attn.query_layernorm.weight": "attn_q_norm.weight",
        "self_attn.key_layernorm.weight": "attn_k_norm.weight",
    }
)
_CONSTANTS = (
    *CONSTANTS,
    ("norm_type", ("rms", "hf_rms")),
    ("use_cla", (False,)),
    ("use_qk_norm", (True,)),
    ("use_rotary_pos_emb", (True,)),
)
HUNYUAN_DENSE = Checkpoint(
    architectures=frozenset({"HunYuanDenseV1ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lacks_attention_bias, BIASES),
        *HUNYUAN_NORMS,
        *FFN_NORM,
        *SWIGLU,
    ),
    constants=(*_CONSTANTS, ("num_experts", (1,))),
    harmless=(
        (
            "eod_token_id im_start_id im_end_id im_newline_id text_start_id text_end_id "
            "mask_init_id",
            "which tokens are special: the tokenizer says it",
        ),
        ("attention_head_dim org_vocab_size", "other names of sizes"),
        ("add_classification_head class_num dense_list pool_type", "of classifiers"),
        ("cla_share_factor", "of shared keys, which use_cla would switch on"),
        ("enable_lm_head_fp32", "in what precision the model is run"),
    ),
    metadata=(*DECODER, *_ROPE_KEYS, ("{arch}.context_length", _context_length)),
)


def _equal(*paths: str, default: int | None = None) -> Callable[[Config], int]:
    """Return a source: a number, or that of a list which has the same for all layers."""

    def read(config: Config) -> int:
        said = config.get(*paths, default=default, type=int | list[int])
        counts = {*said} if isinstance(said, list) else {said}
        if len(counts) != 1 or None in counts:
            raise ValueError(f"layers differ in {paths[0]}, or lack it: {said}")
        return int(counts.pop())

    return read


HUNYUAN_MOE = replace(
    HUNYUAN_DENSE,
    architectures=frozenset({"HunYuanMoEV1ForCausalLM"}),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HUNYUAN_NORMS,
        *FFN_NORM,
        *(one for one in EXPERTS if "inp" not in one.tensor),
        *block_renames(
            {
                "mlp.gate.wg.weight": "ffn_gate_inp.weight",
                "mlp.shared_mlp.gate_proj.weight": "ffn_gate_shexp.weight",
                "mlp.shared_mlp.up_proj.weight": "ffn_up_shexp.weight",
                "mlp.shared_mlp.down_proj.weight": "ffn_down_shexp.weight",
            }
        ),
    ),
    constants=(*_CONSTANTS, ("use_mixed_mlp_moe", (True,))),
    harmless=(
        *HUNYUAN_DENSE.harmless,
        ("moe_drop_tokens moe_random_routing_dropped_token capacity_factor", "of training"),
    ),
    metadata=(
        *HUNYUAN_DENSE.metadata,
        ("{arch}.expert_count", "num_experts"),
        ("{arch}.expert_used_count", _equal("moe_topk")),
        ("{arch}.expert_feed_forward_length", _equal("moe_intermediate_size", "intermediate_size")),
        ("{arch}.expert_shared_feed_forward_length", "intermediate_size"),
        ("{arch}.expert_shared_count", _equal("num_shared_expert", default=1)),
    ),
)


def _sections(config: Config) -> list[int] | None:
    """Return how many pairs turn with each of four axes of a position."""
    found: list[int] | None = config.get(
        *_either("xdrope_section", "mrope_section"), type=list[int]
    )
    return found


def _unscaled(key: str, plain: Callable[[Config], object]) -> tuple[str, object]:
    """Return a key of the rotation whose base is raised where the file is read."""

    def read(config: Config) -> object:
        value = plain(config)
        if _alpha(config) is None or key.endswith("freq_base"):
            return value
        return _OF_READER[key](config) if key in _OF_READER else None

    return key, read


_OF_READER: dict[str, Callable[[Config], object]] = {
    "{arch}.rope.scaling.type": lambda config: "none",
    "{arch}.rope.scaling.factor": number(*_either("factor"), default=1.0),
    "{arch}.rope.scaling.original_context_length": lambda config: config.require(
        "max_position_embeddings", Count
    ),
}
HUNYUAN_VL = replace(
    HUNYUAN_DENSE,
    architectures=frozenset({"HunYuanVLForConditionalGeneration"}),
    nested=("text_config",),
    prefixes=(("model.language_model.", "model."),),
    dropped=("vit.*", "model.vit.*", "model.visual.*", "visual.*"),
    metadata=(
        *DECODER,
        *(_unscaled(key, plain) for key, plain in rope_keys(*_RAISING)),
        ("{arch}.rope.scaling.alpha", _alpha),
        ("{arch}.rope.dimension_sections", _sections),
    ),
)
