"""Grok: the first as its own code names it, and the second."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, number
from mtpcore.models.checkpoints.experts import COUNTS, MIXTRAL_EXPERTS
from mtpcore.models.published import (
    ATTENTION,
    DECODER,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    optional,
)

__all__ = ["GROK1", "GROK2"]

_YARN = ("yarn", "original")  # both mean the same


def _is_yarn(config: Config) -> bool:
    """Say whether the rotation is scaled.

    Raises
    ------
    ValueError
        In a way that files do not hold.
    """
    kind = config.get("rope_type")
    if kind not in (None, "default", *_YARN):
        raise ValueError(f"another scaling of the rotation than YaRN's: {kind}")
    return kind in _YARN


def _of_yarn(path: str) -> Callable[[Config], float | None]:
    """Return a source: a number of the rotation's scaling, where it is scaled."""
    return lambda config: float(config.require(path, float)) if _is_yarn(config) else None


def _stated(path: str) -> Callable[[Config], float]:
    """Return a source: a number that a checkpoint must say."""
    return lambda config: float(config.require(path, float))


def _original_context(config: Config) -> int | None:
    name = "original_max_position_embeddings"
    return config.require(name, Count) if _is_yarn(config) else None


def _scaling(config: Config) -> str | None:
    return "yarn" if _is_yarn(config) else None


def _score_scale(config: Config) -> float:
    said = number("attn_output_multiplier")(config)
    return float(head_width(config) ** -0.5 if said is None else said)


GROK2 = Checkpoint(
    architectures=frozenset({"Grok1ForCausalLM", "GrokForCausalLM"}),
    defaults=(
        ("intermediate_size", None),
        ("num_key_value_heads", None),
        ("rms_norm_eps", None),
    ),
    tensors=(
        *TABLES[:2],
        replace(TABLES[2], optional=True),
        *(one for one in ATTENTION if not one.tensor.endswith("norm.weight")),
        *block_renames(
            {
                "pre_attn_norm.weight": "attn_norm.weight",
                "post_attn_norm.weight": "attn_output_norm.weight",
                "pre_moe_norm.weight": "ffn_norm.weight",
                "post_moe_norm.weight": "post_ffw_norm.weight",
            }
        ),
        *MIXTRAL_EXPERTS,
        *optional(lambda config: not config.get("residual_moe"), SWIGLU),
    ),
    constants=(
        ("hidden_act", ("gelu", "gelu_pytorch_tanh")),
        ("max_attn_value", (30.0,)),
        ("sliding_window_size", (-1,)),
        ("global_attn_every_n", (1,)),
    ),
    metadata=(
        *DECODER,
        ("{arch}.rope.freq_base", number("rope_theta")),
        ("{arch}.rope.scaling.type", _scaling),
        ("{arch}.rope.scaling.factor", _of_yarn("scaling_factor")),
        ("{arch}.rope.scaling.original_context_length", _original_context),
        ("{arch}.rope.scaling.yarn_ext_factor", _of_yarn("extrapolation_factor")),
        ("{arch}.rope.scaling.yarn_attn_factor", _of_yarn("attn_factor")),
        ("{arch}.rope.scaling.yarn_beta_fast", _of_yarn("beta_fast")),
        ("{arch}.rope.scaling.yarn_beta_slow", _of_yarn("beta_slow")),
        *COUNTS,
        ("{arch}.expert_feed_forward_length", Key("moe_intermediate_size")),
        ("{arch}.attn_logit_softcapping", number("attn_logit_softcapping", default=30.0)),
        ("{arch}.router_logit_softcapping", number("router_logit_softcapping", default=30.0)),
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping")),
        ("{arch}.attention.temperature_length", Key("attn_temperature_len")),
        ("{arch}.attention.output_scale", _score_scale),
        ("{arch}.embedding_scale", _stated("embedding_multiplier_scale")),
        ("{arch}.logit_scale", _stated("output_multiplier_scale")),
    ),
)

_BLOCK = "transformer.decoder_layer.{n}."
_OF_GROK1 = {
    "rms_norm": "attn_norm",
    "rms_norm_1": "attn_output_norm",
    "rms_norm_2": "ffn_norm",
    "rms_norm_3": "layer_output_norm",
    "multi_head_attention.query": "attn_q",
    "multi_head_attention.key": "attn_k",
    "multi_head_attention.value": "attn_v",
    "multi_head_attention.linear": "attn_output",
    "router": "ffn_gate_inp",
    "moe.{e}.linear": "ffn_gate_exps",
    "moe.{e}.linear_v": "ffn_up_exps",
    "moe.{e}.linear_1": "ffn_down_exps",
}
GROK1 = replace(
    GROK2,
    has="transformer.in_out_embed.weight",
    tensors=(
        Rename("transformer.in_out_embed.weight", "token_embd.weight"),
        Rename("transformer.rms_norm.weight", "output_norm.weight"),
        Rename(
            "lm_head.weight",
            "output.weight",
            optional=True,
            copy_of="transformer.in_out_embed.weight",
        ),
        *(
            Rename(f"{_BLOCK}{source}.weight", f"blk.{{n}}.{tensor}.weight")
            for source, tensor in _OF_GROK1.items()
        ),
    ),
)
