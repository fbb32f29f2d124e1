"""Families without experts whose names are Llama's, or nearly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, number
from mtpcore.models.checkpoints.layers import layer_kinds, rotated_width
from mtpcore.models.llama import CHECKPOINT as LLAMA
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    optional,
    switched_window,
    without_window,
)
from mtpcore.models.rope_conversion import (
    FACTORED_ROPE_KEYS,
    ROPE_KEYS,
    layered_rope_keys,
    long_context_factors,
    rope_keys,
)

__all__ = [
    "APERTUS",
    "ARCEE",
    "ERNIE4_5",
    "EXAONE4",
    "GLM4",
    "GRANITE",
    "GRANITE_SWA",
    "MINISTRAL3",
    "MISTRAL3",
    "OLMO2",
    "OLMO3",
    "PHI3",
    "SEED_OSS",
    "SMOLLM3",
]

_Flags = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1)]], msgspec.Meta(max_length=1 << 10)]


def lacks_attention_bias(config: Config) -> bool:
    """Say whether q, k and v have no biases."""
    return not config.get("attention_bias")


FFN_NORM = block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"})
OUTPUT_BIAS = block_renames({"self_attn.o_proj.bias": "attn_output.bias"})
MULTIPLIERS = (
    ("{arch}.attention.scale", number("attention_multiplier")),
    ("{arch}.embedding_scale", number("embedding_multiplier")),
    ("{arch}.residual_scale", number("residual_multiplier")),
    ("{arch}.logit_scale", number("logits_scaling")),
)
"""What Granite multiplies by, and divides logits by."""
ONES = (
    ("attention_multiplier", 1.0),
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("logits_scaling", 1.0),
)
_PLAIN_LLAMA = (*DECODER, *ROPE_KEYS, ("{arch}.rope.dimension_count", head_width))


def without_rotation(config: Config) -> None:
    """Refuse other layers without rotation than the files mean: every fourth."""
    step = config.get("no_rope_layer_interval", default=4, type=Count)
    meant = [int((n + 1) % 4 != 0) for n in range(config.n_layers)]
    said = config.get("no_rope_layers", type=_Flags)
    if said is None:
        said = [int((n + 1) % step != 0) for n in range(config.n_layers)]
    if said != meant:
        raise ValueError(f"layers that rotate are {said}, where files mean {meant}")


def _with_llama3_rotation(config: Config) -> dict[str, object]:
    """Return the rotation of Apertus, where the configuration describes none."""
    if config.get("rope_parameters") is not None or config.get("rope_scaling") is not None:
        return {}
    return {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": config.get("rope_theta", default=12e6, type=float),
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    }


def _stated_long_context_factors(config: Config) -> np.ndarray | None:
    """Return them where the configuration says for which context the rotation was made."""
    factors = long_context_factors(config)
    if factors is not None:
        name = "original_max_position_embeddings"
        config.require(f"rope_parameters.{name}|rope_scaling.{name}")
    return factors


GRANITE = replace(
    LLAMA,
    architectures=frozenset({"GraniteForCausalLM"}),
    defaults=(*LLAMA.defaults, *ONES),
    made=(),
    metadata=(*_PLAIN_LLAMA, ("{arch}.vocab_size", "vocab_size"), *MULTIPLIERS),
)


def _swa_kinds(config: Config) -> list[bool]:
    """Return which layers have a window: as listed, or all but the first of every four."""
    if config.get("layer_types") is None:
        return [n % 4 != 0 for n in range(config.n_layers)]
    return layer_kinds(config, 4)


def _rotated_layers(config: Config) -> list[bool] | None:
    """Return which layers rotate, where not all do.

    Raises
    ------
    ValueError
        Layers rotate by other bases than that of the model.
    """
    base = config.get("rope_parameters.rope_theta", "rope_theta", default=1e4, type=float)
    bases = config.get("layer_rope_theta", type=list[float | None])
    said = config.get("no_rope_layers", type=_Flags)
    if bases is None and said is None:
        return None
    found = [bool(one) for one in (said if bases is None else bases)]
    if len(found) != config.n_layers or {*(bases or ())} - {None, 0.0, base}:
        raise ValueError(f"layers do not rotate by one base, or not all are listed: {bases}")
    return None if all(found) else found


GRANITE_SWA = replace(
    GRANITE,
    architectures=frozenset({"GraniteSWAForCausalLM"}),
    defaults=(
        *STATED,
        *ONES,
        ("rms_norm_eps", 1e-5),
        ("sliding_window", 128),
        ("tie_word_embeddings", True),
    ),
    tensors=(*GRANITE.tensors, *block_renames({"self_attn.sinks": "attn_sinks.weight"})),
    metadata=(
        *GRANITE.metadata,
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", _swa_kinds),
        ("{arch}.attention.rope_pattern", _rotated_layers),
    ),
)
SMOLLM3 = replace(
    LLAMA,
    architectures=frozenset({"SmolLM3ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("rope_theta", 2e6), ("tie_word_embeddings", True)),
    made=(),
    metadata=(
        *_PLAIN_LLAMA,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", switched_window),
        ("{arch}.rope.scaling.type", without_rotation),
    ),
)
ARCEE = replace(
    LLAMA,
    architectures=frozenset({"ArceeForCausalLM"}),
    defaults=(*LLAMA.defaults[:1], ("rms_norm_eps", 1e-5)),
    tensors=tuple(one for one in LLAMA.tensors if "ffn_gate" not in one.tensor),
    made=(),
    constants=(("hidden_act", ("relu2",)), *CONSTANTS[1:]),
    metadata=(*_PLAIN_LLAMA, ("{arch}.vocab_size", "vocab_size")),
)
APERTUS = Checkpoint(
    architectures=frozenset({"ApertusForCausalLM"}),
    completed=_with_llama3_rotation,
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 12e6),
    ),
    tensors=(
        *TABLES,
        *block_renames(
            {
                "attention_layernorm.weight": "attn_norm.weight",
                "feedforward_layernorm.weight": "ffn_norm.weight",
            }
        ),
        *(one for one in ATTENTION if "norm" not in one.tensor),
        *optional(lacks_attention_bias, BIASES, OUTPUT_BIAS),
        *HEAD_NORMS,
        *(one for one in SWIGLU if "gate" not in one.tensor),
    ),
    made=(("rope_freqs.weight", _stated_long_context_factors),),
    numbers=tuple(
        (f"xielu.{name}", f"model.layers.{{n}}.mlp.act_fn.{name}")
        for name in ("alpha_p", "alpha_n", "beta", "eps")
    ),
    constants=(("hidden_act", ("xielu",)), *CONSTANTS[1:], ("qk_norm", (True,))),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)
SEED_OSS = Checkpoint(
    architectures=frozenset({"SeedOssForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-6),
        ("attention_bias", True),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lacks_attention_bias, BIASES),
        *optional(lambda config: not config.get("attention_out_bias"), OUTPUT_BIAS),
        *block_renames({"post_attention_layernorm.weight": "post_attention_norm.weight"}),
        *SWIGLU,
    ),
    constants=CONSTANTS,
    harmless=(("residual_dropout", "of training"),),
    metadata=(*DECODER, *ROPE_KEYS),
)
ERNIE4_5 = Checkpoint(
    architectures=frozenset({"Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 5e5),
        ("tie_word_embeddings", True),
    ),
    tensors=(*TABLES, *ATTENTION, *FFN_NORM, *SWIGLU),
    constants=(*CONSTANTS, ("use_bias", (False,))),
    metadata=(*DECODER, *ROPE_KEYS),
)
"""Pairs lie side by side in checkpoints, too."""

OLMO2 = Checkpoint(
    architectures=frozenset({"Olmo2ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5)),
    tensors=(
        *TABLES,
        *(one for one in ATTENTION if "norm" not in one.tensor),
        *HEAD_NORMS,
        *SWIGLU,
        *block_renames(
            {
                "post_attention_layernorm.weight": "post_attention_norm.weight",
                "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
            }
        ),
    ),
    constants=CONSTANTS,
    metadata=(*DECODER, *ROPE_KEYS),
)
OLMO3 = replace(
    OLMO2,
    architectures=frozenset({"Olmo3ForCausalLM"}),
    defaults=(*OLMO2.defaults, ("sliding_window", 4096), ("rope_theta", 5e5)),
    metadata=(
        *DECODER,
        *layered_rope_keys(),
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", lambda config: layer_kinds(config, 4)),
    ),
)
GLM4 = Checkpoint(
    architectures=frozenset({"Glm4ForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1.5625e-07),
        ("attention_bias", True),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lacks_attention_bias, BIASES),
        *FFN_NORM,
        *block_renames(
            {
                "post_self_attn_layernorm.weight": "post_attention_norm.weight",
                "post_mlp_layernorm.weight": "post_ffw_norm.weight",
                "mlp.gate_up_proj.weight": "ffn_up.weight",
                "mlp.down_proj.weight": "ffn_down.weight",
            }
        ),
    ),
    constants=CONSTANTS,
    metadata=(*DECODER, *ROPE_KEYS, ("{arch}.rope.dimension_count", rotated_width(0.5))),
    special_tokens=(
        ("eos", "<|endoftext|>"),
        ("eot", "<|user|>"),
        ("unknown", "<|endoftext|>"),
        ("bos", "<|endoftext|>"),
    ),
)


def window_layers(config: Config) -> list[bool]:
    """Return which layers have a window: as listed, as letters repeat, or all but every nth."""
    pattern = config.get("sliding_window_pattern", default=4, type=int | str)
    if config.get("sliding_window") is None:
        return [False] * len(layer_kinds(config, 4))
    if isinstance(pattern, str) and config.get("layer_types") is None:
        return [pattern[n % len(pattern)] == "L" for n in range(config.n_layers)]
    return layer_kinds(config, 4 if isinstance(pattern, str) else pattern)


def _window(config: Config) -> int | None:
    """Return the window; the files' graph has one in models of 64 layers alone."""
    window: int | None = config.get("sliding_window", type=Count)
    if any(window_layers(config)) and config.n_layers != 64:
        raise ValueError(f"windows in a model of {config.n_layers} layers, not 64")
    return window


def _window_flags(config: Config) -> list[bool] | None:
    flags = window_layers(config)
    return flags if any(flags) else None


EXAONE4 = Checkpoint(
    architectures=frozenset({"Exaone4ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("sliding_window", 4096)),
    tensors=(*OLMO2.tensors,),
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", _window),
        ("{arch}.attention.sliding_window_pattern", _window_flags),
    ),
)


_ROTATIONS = ("rope_parameters", "rope_scaling")


def _scaling_number(name: str) -> Callable[[Config], float | None]:
    return number(f"rope_parameters.{name}", f"rope_scaling.{name}")


def _described(config: Config) -> dict[str, object]:
    """Return nothing; a rotation must be described, as the class has that of one model."""
    config.require("rope_parameters|rope_scaling", dict)
    return {}


MINISTRAL3 = replace(
    LLAMA,
    architectures=frozenset({"Ministral3ForCausalLM"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
    ),
    completed=_described,
    made=(),
    constants=(
        *LLAMA.constants,
        *((f"{at}.{name}", (1.0,)) for at in _ROTATIONS for name in ("mscale", "mscale_all_dim")),
    ),
    harmless=tuple(
        (f"{at}.max_position_embeddings", "another name of a size") for at in _ROTATIONS
    ),
    metadata=(
        *_PLAIN_LLAMA,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", without_window),
        ("{arch}.attention.temperature_scale", _scaling_number("llama_4_scaling_beta")),
        ("{arch}.rope.scaling.yarn_log_multiplier", _scaling_number("mscale_all_dim")),
        ("{arch}.rope.scaling.attn_factor", lambda config: None),  # the multiplier says it
    ),
)
MISTRAL3 = replace(
    MINISTRAL3,
    architectures=frozenset({"Mistral3ForConditionalGeneration"}),
    completed=None,
    defaults=(
        *STATED,
        ("head_dim", None),
        ("rms_norm_eps", None),
        ("sliding_window", None),
    ),
    tensors=tuple(
        replace(one, optional=True) if one.source == "lm_head.weight" else one
        for one in MINISTRAL3.tensors
    ),
    nested=("text_config",),
    prefixes=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
    dropped=("vision_tower.*", "multi_modal_projector.*"),
    harmless=(
        *MINISTRAL3.harmless,
        (
            "multimodal_projector_bias projector_hidden_act spatial_merge_size "
            "vision_feature_layer vision_feature_select_strategy",
            "of images",
        ),
    ),
)


def original_context(config: Config) -> int:
    paths = [f"{at}.original_max_position_embeddings" for at in _ROTATIONS]
    return int(config.require("|".join([*paths, "original_max_position_embeddings"]), Count))


def _factors(name: str) -> Callable[[Config], np.ndarray | None]:
    """Return a source: the divisors of rotary frequencies of long or of short contexts."""

    def read(config: Config) -> np.ndarray | None:
        paths = (f"rope_parameters.{name}", f"rope_scaling.{name}")
        found = config.get(*paths, type=Annotated[list[float], msgspec.Meta(max_length=1 << 16)])
        return None if found is None else np.array(found, np.float32)

    return read


def long_magnitude(config: Config) -> float | None:
    """Return by what LongRoPE multiplies queries and keys."""
    if _factors("long_factor")(config) is None:
        return None
    original = original_context(config)
    scale = config.require("max_position_embeddings", Count) / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


def no_window(config: Config) -> int:
    """Return 0, by which files of Phi-4 say that there is none; windows are refused."""
    without_window(config)
    return 0


PHI3 = Checkpoint(
    architectures=frozenset({"Phi3ForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-5),
        ("original_max_position_embeddings", 4096),
    ),
    tensors=(
        *TABLES,
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "self_attn.qkv_proj.weight": "attn_qkv.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
                "mlp.gate_up_proj.weight": "ffn_up.weight",
                "mlp.down_proj.weight": "ffn_down.weight",
            }
        ),
    ),
    made=(
        ("rope_factors_long.weight", _factors("long_factor")),
        ("rope_factors_short.weight", _factors("short_factor")),
    ),
    constants=(
        *CONSTANTS,
        ("full_attn_mod", (1,)),
        ("interpolate_factor", (1,)),
        ("lm_head_bias", (False,)),
    ),
    metadata=(
        *DECODER,
        *rope_keys("longrope", "su"),
        ("{arch}.rope.scaling.original_context_length", original_context),
        ("{arch}.rope.scaling.attn_factor", long_magnitude),
        ("{arch}.rope.dimension_count", rotated_width(1.0)),
        ("{arch}.attention.sliding_window", no_window),
    ),
)
