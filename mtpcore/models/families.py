"""Families whose layer is a variant of Llama's, by the names that files give them.

What each is was read in llama.cpp's graphs of October 2026, and is held by the logits that it
computes (``tests/models/test_architectures.py``).
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.spec import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    SHARED_EXPERT_SCALES,
)
from mtpcore.gguf.metadata import Fields
from mtpcore.models.checkpoints import (
    dense,
    experts,
    experts_and_windows,
    gated_attention,
    gemma,
    gpt,
    hunyuan,
    layer_norm,
    mamba2,
    minicpm,
    own_code,
    plamo,
    vision,
)
from mtpcore.models.variants import Variant, VariantHparams, variant_spec

__all__ = ["FAMILIES"]


def _one(h: VariantHparams) -> float:
    return 1.0


def _root_of_width(h: VariantHparams) -> float:
    return math.sqrt(h.width)


def _gemma_scores(h: VariantHparams) -> float:
    """Scale by the width of a head; in the models of 27B by that of a row over the heads."""
    is_27b = h.n_layers in (46, 62)
    return 1 / math.sqrt(h.width // h.n_heads if is_27b else h.head_width)


def _none(h: VariantHparams, n: int) -> bool:
    return False


def _with_softcap(fields: Fields) -> Fields:
    """Put the softcap of logits where the first files of Gemma 2 say nothing."""
    key = "{arch}.final_logit_softcapping"
    return fields.replace({key: fields.get(key, float, 30.0)})


def _with_raised_base(fields: Fields) -> Fields:
    """Raise the base of the rotation by alpha, for contexts longer than trained (NTK-aware)."""
    alpha = fields.get("{arch}.rope.scaling.alpha", float, 0.0)
    if alpha <= 0:
        return fields
    base = fields.get("{arch}.rope.freq_base", float, 10000.0)
    width = fields.require("{arch}.attention.key_length", Count)
    if width <= 2:
        raise fields.error("{arch}.attention.key_length", "no base is raised for it", got=width)
    return fields.replace({"{arch}.rope.freq_base": base * alpha ** (width / (width - 2))})


def _three_of_four(h: VariantHparams, n: int) -> bool:
    return (n + 1) % 4 != 0


def _near_layers(h: VariantHparams, n: int) -> bool:
    return h.kinds[n].window > 0


def _near_layers_if_any(h: VariantHparams, n: int) -> bool:
    return h.kinds[n].window > 0 or not any(kind.window for kind in h.kinds)


def _is_baichuan_7b(h: VariantHparams, n: int) -> bool:
    return h.n_layers == 32


def _eight(h: VariantHparams) -> float:
    return 8.0


def _zero(h: VariantHparams) -> float:
    return 0.0


def _baichuan_bias(h: VariantHparams) -> float:
    """Return that of the model of 13B."""
    return 8.0 if h.n_layers == 40 else 0.0


def _one_of_width(h: VariantHparams) -> float:
    return 1 / h.head_width


def _is_exaone4_32b(h: VariantHparams) -> bool:
    return h.n_layers == 64


_PAIRS = Variant(rope_style="pairs")
_FILE_NORMALISES = Variant(normalises=None)
_SIGMOID = Variant(experts_gate="sigmoid", normalises=None)
_NORMS_ROTATED = Variant(norms_rotated=True)
_FUSED_PAIRS = Variant(rope_style="pairs", fuses_gate=True)
_LAYER_NORM = Variant(norm="layer")
_GELU = Variant(norm="layer", activation="gelu_tanh")
_GEMMA = Variant(activation="gelu_tanh", embedding_scale=_root_of_width, score_scale=_gemma_scores)
_GRANITE = Variant(
    rope_style="pairs",
    embedding_scale=_one,
    residual_scale=_one,
    logit_scale=_one,
    divides_logits=True,
)
_COHERE = Variant(
    rope_style="pairs", norm="layer", head_norm="layer", is_parallel=True, logit_scale=_one
)
_ERNIE = Variant(rope_style="pairs", ignored=("blk.{n}.attn_output.bias",))
_OUTPUTS_SCALED = ("blk.{n}.attn_output", "output")
_BLOCKS_SCALED = tuple(name for name in ATTENTION_SCALES if name != "output")
_DENSE_SCALED = (*ATTENTION_SCALES, *FEED_FORWARD_SCALES)
_EXPERTS_SCALED = (*ATTENTION_SCALES, *EXPERT_SCALES)
_ALL_SCALED = (*_DENSE_SCALED, *EXPERT_SCALES, *SHARED_EXPERT_SCALES)
_BESIDE_EXPERTS = tuple(
    (f"blk.{{n}}.{name}.*", "a block with a router has experts")
    for name in ("ffn_gate", "ffn_up", "ffn_down")
)
_PHI_WINDOW = (("{arch}.attention.sliding_window", "all layers see all tokens, as in llama.cpp"),)
_RERANKER = (("cls.output.weight", "a reranker's scores; no text comes from them"),)
_DEEPSTACK = (("{arch}.n_deepstack_layers", "of images, whose encoder is in another file"),)

FAMILIES = [
    # As Llama, or nearly
    variant_spec(
        "baichuan",
        replace(_PAIRS, rotates=_is_baichuan_7b, alibi=_baichuan_bias),
        checkpoint=own_code.BAICHUAN,
    ),
    variant_spec("internlm2", _PAIRS, checkpoint=own_code.INTERNLM2),
    variant_spec("maincoder", replace(_PAIRS, norms_rotated=True), checkpoint=own_code.MAINCODER),
    variant_spec(
        "mistral3",
        replace(_PAIRS, raises_queries=True, scaled=(*_DENSE_SCALED, *EXPERT_SCALES)),
        checkpoint=dense.MISTRAL3,
        layouts=(dense.MINISTRAL3,),
    ),
    variant_spec("nanbeige", replace(_PAIRS, scaled=_DENSE_SCALED), checkpoint=own_code.NANBEIGE),
    variant_spec("openelm", Variant(scaled=_OUTPUTS_SCALED), checkpoint=own_code.OPENELM),
    variant_spec(
        "pangu-embedded",
        Variant(ignored=("rope_freqs.weight",)),
        checkpoint=own_code.PANGU_EMBEDDED,
    ),
    variant_spec("qwen", Variant(), checkpoint=gpt.QWEN),
    variant_spec("xverse", _PAIRS, checkpoint=own_code.XVERSE),
    variant_spec("arcee", replace(_PAIRS, activation="relu_squared"), checkpoint=dense.ARCEE),
    variant_spec("ernie4_5", _ERNIE, checkpoint=dense.ERNIE4_5),
    variant_spec("ernie4_5-moe", _ERNIE, checkpoint=experts.ERNIE4_5_MOE),
    variant_spec(
        "seed_oss",
        Variant(ffn_norm="post_attention_norm", post_norms=("", "")),
        checkpoint=dense.SEED_OSS,
    ),
    variant_spec("smollm3", replace(_PAIRS, rotates=_three_of_four), checkpoint=dense.SMOLLM3),
    variant_spec("hunyuan-dense", _NORMS_ROTATED, checkpoint=hunyuan.HUNYUAN_DENSE),
    variant_spec("hunyuan-moe", _NORMS_ROTATED, checkpoint=hunyuan.HUNYUAN_MOE),
    variant_spec(
        "hunyuan_vl",
        replace(_NORMS_ROTATED, turns_fourth_axis=True),
        adapt=_with_raised_base,
        checkpoint=hunyuan.HUNYUAN_VL,
    ),
    # Rotations for long contexts (LongRoPE)
    variant_spec("phi3", Variant(fuses_gate=True), unread=_PHI_WINDOW, checkpoint=dense.PHI3),
    variant_spec("phimoe", Variant(), checkpoint=experts.PHIMOE),
    # Gate and up in one matrix
    variant_spec("chatglm", _FUSED_PAIRS, checkpoint=own_code.CHATGLM, layouts=(own_code.GLM,)),
    variant_spec("glm4", replace(_FUSED_PAIRS, axes_style="halves"), checkpoint=dense.GLM4),
    # Positions of several axes
    variant_spec("paddleocr", Variant(), checkpoint=vision.PADDLEOCR),
    variant_spec("qwen2vl", Variant(ignored=("output.bias",)), checkpoint=vision.QWEN2_VL),
    variant_spec(
        "qwen3vl",
        Variant(interleaves_axes=True),
        unread=(*_RERANKER, *_DEEPSTACK),
        checkpoint=vision.QWEN3_VL,
    ),
    variant_spec(
        "qwen3vlmoe",
        Variant(interleaves_axes=True),
        unread=_DEEPSTACK,
        checkpoint=vision.QWEN3_VL_MOE,
    ),
    # Queries, keys and values cut at a limit
    variant_spec(
        "dbrx",
        replace(_LAYER_NORM, ffn_norm="attn_output_norm", clamps=True),
        checkpoint=layer_norm.DBRX,
    ),
    variant_spec(
        "olmo", Variant(rope_style="pairs", norm="plain", clamps=True), checkpoint=layer_norm.OLMO
    ),
    # Experts
    variant_spec(
        "bailingmoe", replace(_FILE_NORMALISES, rope_style="pairs"), checkpoint=own_code.BAILING_MOE
    ),
    variant_spec("bailingmoe2", _SIGMOID, checkpoint=own_code.BAILING_MOE2),
    variant_spec(
        "deepseek", Variant(rope_style="pairs", normalises=False), checkpoint=own_code.DEEPSEEK
    ),
    variant_spec("dots1", _SIGMOID, checkpoint=experts.DOTS1),
    variant_spec(
        "mellum",
        Variant(window_period=4, near_is_scaled=False, scaled=_EXPERTS_SCALED),
        checkpoint=experts.MELLUM,
    ),
    variant_spec("minimax-m2", Variant(experts_gate="sigmoid"), checkpoint=experts.MINIMAX_M2),
    variant_spec("olmoe", Variant(normalises=False), checkpoint=experts.OLMOE),
    variant_spec("qwen2moe", Variant(normalises=False), checkpoint=experts.QWEN2_MOE),
    variant_spec(
        "hy_v3",
        replace(_SIGMOID, scaled=_ALL_SCALED),
        unread=_BESIDE_EXPERTS,
        checkpoint=experts.HY_V3,
    ),
    # Windows, and a rotation of their own
    variant_spec("exaone", Variant(), checkpoint=own_code.EXAONE),
    variant_spec(
        "exaone4",
        Variant(
            rotates=_near_layers_if_any, has_windows=_is_exaone4_32b, window_period=4, window=4096
        ),
        checkpoint=dense.EXAONE4,
    ),
    variant_spec(
        "exaone-moe",
        replace(_SIGMOID, rotates=_near_layers, window_period=4, window=128, near_heads=False),
        checkpoint=experts_and_windows.EXAONE_MOE,
    ),
    variant_spec(
        "olmo2",
        Variant(window_period=4, near_is_scaled=False),
        checkpoint=dense.OLMO2,
        layouts=(dense.OLMO3,),
    ),
    variant_spec(
        "afmoe",
        replace(_SIGMOID, embedding_scale=_root_of_width, rotates=_three_of_four, window_period=4),
        checkpoint=experts_and_windows.AFMOE,
    ),
    variant_spec(
        "laguna",
        replace(
            _SIGMOID,
            attention_gate="softplus",
            window_period=4,
            is_full_first=True,
            near_is_scaled=False,
            scaled=_BLOCKS_SCALED,
        ),
        checkpoint=experts_and_windows.LAGUNA,
    ),
    variant_spec(
        "plamo3",
        Variant(
            fuses_gate=True,
            window_period=8,
            near_base=1e4,
            near_is_scaled=False,
            scaled=_OUTPUTS_SCALED,
        ),
        checkpoint=plamo.PLAMO3,
    ),
    variant_spec(
        "spark2_5",
        Variant(activation="gelu_tanh", window_period=0, scaled=_BLOCKS_SCALED),
        checkpoint=gated_attention.SPARK2_5,
    ),
    # Numbers that multiply embeddings, branches, scores or logits
    variant_spec("gemma", _GEMMA, checkpoint=gemma.GEMMA),
    variant_spec(
        "gemma2",
        replace(_GEMMA, window_period=2, window=4096, softcaps_scores=50.0, softcaps_logits=True),
        adapt=_with_softcap,
        checkpoint=gemma.GEMMA2,
    ),
    variant_spec(
        "gemma3",
        replace(_GEMMA, window_period=6, near_base=1e4, near_is_scaled=False, softcaps_logits=True),
        checkpoint=gemma.GEMMA3,
        layouts=(gemma.GEMMA3_WITH_IMAGES,),
    ),
    variant_spec(
        "granite",
        replace(_GRANITE, rotates_by="{arch}.rope.scaling.finetuned"),
        unread=(("{arch}.ssm.*", "llama.cpp's converter says it of models without such layers"),),
        checkpoint=dense.GRANITE,
        layouts=(mamba2.GRANITE_OF_ATTENTION,),
    ),
    variant_spec(
        "granitemoe",
        _GRANITE,
        checkpoint=experts.GRANITE_MOE,
        layouts=(experts.GRANITE_MOE_SHARED,),
    ),
    variant_spec(
        "granite_swa",
        replace(_GRANITE, window_period=0, rotates_by="{arch}.attention.rope_pattern"),
        checkpoint=dense.GRANITE_SWA,
    ),
    variant_spec("minicpm", _GRANITE, checkpoint=minicpm.MINICPM),
    # Biases of scores by distance (ALiBi)
    variant_spec("bloom", replace(_GELU, rotates=_none, alibi=_eight), checkpoint=layer_norm.BLOOM),
    variant_spec(
        "jais",
        replace(_LAYER_NORM, rotates=_none, alibi=_zero, score_scale=_one_of_width),
        checkpoint=gpt.JAIS,
    ),
    # Layer norm
    variant_spec("codeshell", _GELU, checkpoint=gpt.CODESHELL),
    variant_spec(
        "gptneox",
        replace(_GELU, is_parallel="{arch}.use_parallel_residual"),
        checkpoint=layer_norm.GPT_NEOX,
    ),
    variant_spec(
        "jais2", replace(_LAYER_NORM, activation="relu_squared"), checkpoint=layer_norm.JAIS2
    ),
    variant_spec(
        "nemotron", replace(_LAYER_NORM, activation="relu_squared"), checkpoint=layer_norm.NEMOTRON
    ),
    variant_spec("gpt2", replace(_GELU, rotates=_none), checkpoint=layer_norm.GPT2),
    variant_spec("orion", _LAYER_NORM, checkpoint=own_code.ORION),
    variant_spec("starcoder", replace(_GELU, rotates=_none), checkpoint=layer_norm.STARCODER),
    variant_spec("starcoder2", _GELU, checkpoint=layer_norm.STARCODER2),
    # Attention and feed-forward part side by side
    variant_spec("command-r", _COHERE, checkpoint=layer_norm.COMMAND_R),
    variant_spec(
        "cohere2",
        replace(_COHERE, rotates=_near_layers, window_period=4, scaled=_DENSE_SCALED),
        checkpoint=layer_norm.COHERE2,
    ),
    variant_spec(
        "falcon",
        replace(
            _GELU,
            is_parallel=True,
            attention_norms=("attn_norm_2", "attn_norm"),
            ffn_norm="attn_norm",
        ),
        checkpoint=layer_norm.FALCON,
    ),
    variant_spec("phi2", replace(_GELU, is_parallel=True), checkpoint=layer_norm.PHI2),
    variant_spec("plamo", Variant(is_parallel=True), checkpoint=plamo.PLAMO),
]
"""Declarations, in no order."""
