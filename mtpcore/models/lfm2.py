"""LFM2 and LFM2.5: hybrids of gated short convolutions and attention, dense or with experts.

Liquid AI, "LFM2 Technical Report" (2025, arXiv 2511.23404), section 2: a layer that does not attend
projects its rows to b, c and x, and adds ``out (c * conv(b * x))``, with a convolution over three
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, number
from mtpcore.declarations.spec import Fit, ModelSpec, first_of
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, attention, feed_forward_block
from mtpcore.models.decoder import decoder
from mtpcore.models.hparams import Experts
from mtpcore.models.hybrid import HybridHparams, check_kernels
from mtpcore.models.layer_kinds import LayerKind
from mtpcore.models.published import DECODER, STATED, block_renames, on_layers
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["LFM2", "LFM2_MOE", "Lfm2Hparams", "build"]

_LayerCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]


class Lfm2Hparams(HybridHparams, frozen=True, kw_only=True):
    """What LFM2 adds: a window in the layers that attend (0: none), and experts in some files."""

    window: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="attention.sliding_window", default=0
    )
    experts: Experts | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata, and check that convolutions are as long as it says."""
        check_kernels(fields, tensors, "shortconv.conv.weight", "{arch}.shortconv.l_cache")
        return super().read(fields, tensors)

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed: by sigmoid, the chosen ones summing to one.

        A window is that of all layers that attend, whatever pattern stands beside it.
        """
        fields.dismiss("{arch}.attention.sliding_window_pattern")
        experts = Experts.read(fields, gate="sigmoid")
        if experts is not None:  # whatever the file says, as in llama.cpp
            experts = msgspec.structs.replace(experts, normalise=True)
        return {"experts": experts}


def short_convolution(g: GraphBuilder, a: Value, n: int, h: Lfm2Hparams) -> Value:
    """Return what a layer's convolution adds to the residual stream.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    """
    block = f"blk.{n}.shortconv"
    rows = g.matmul(a, f"{block}.in_proj.weight")
    b, c, x = (g.slice(rows, i * h.width, (i + 1) * h.width) for i in range(3))
    y = g.causal_conv(g.mul(b, x), f"{block}.conv.weight", layer=n, kind="none")
    return g.matmul(g.mul(c, y), f"{block}.out_proj.weight")


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Lfm2Hparams) -> Value:
    """Add convolution or attention, and feed-forward, of layer n to the residual stream."""
    a = g.rms_norm(x, f"blk.{n}.attn_norm.weight", h.norm_eps)
    if g.has(f"blk.{n}.shortconv.in_proj.weight"):
        y = short_convolution(g, a, n, h)
    else:
        kind = LayerKind(h.n_kv_heads, h.rope, h.window)
        y = attention(g, a, positions, n, h, kind=kind)
    x = g.add(x, y)
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def build(g: GraphBuilder, inputs: Inputs, h: Lfm2Hparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def _attending(config: Config) -> list[int]:
    """Return the layers of attention, by their kinds or by their numbers.

    Raises
    ------
    ValueError
        Neither is said, both disagree, or there are not as many kinds as layers.
    """
    kinds = config.get("layer_types", type=list[Literal["conv", "full_attention"]])
    numbers = config.get("full_attn_idxs", type=list[int])
    told = [n for n in range(config.n_layers) if numbers is None or n in numbers]
    if kinds is None:
        config.require("layer_types|full_attn_idxs")
        return told
    if len(kinds) != config.n_layers:
        raise ValueError(f"layer_types has {len(kinds)} entries, not {config.n_layers}")
    found = [n for n, kind in enumerate(kinds) if kind == "full_attention"]
    if numbers is not None and found != told:
        raise ValueError(f"layer_types says other layers of attention than {told}")
    return found


def _convolving(config: Config) -> list[int]:
    return sorted({*range(config.n_layers)} - {*_attending(config)})


def _key_heads(config: Config) -> list[int]:
    """Return how many key heads each layer has: none, where it convolves."""
    attending = {*_attending(config)}
    n_heads = config.require("num_key_value_heads", Count)
    return [n_heads if n in attending else 0 for n in range(config.n_layers)]


def _rounded_width(config: Config) -> int:
    """Return the width of a feed-forward part: two thirds of what is said, rounded up."""
    width = int(config.require("block_ff_dim|intermediate_size", Count))
    factor = float(config.get("block_ffn_dim_multiplier", default=1.0, type=float))
    multiple = int(config.get("block_multiple_of", default=256, type=Count))
    if not config.get("block_auto_adjust_ff_dim", default=True, type=bool):
        return width
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple


def _without_axis(values: Any, config: Config) -> Any:
    """Return the convolution's weights: [channels, 1, kernel] -> [channels, kernel]."""
    return values.squeeze(1)


def _dense(config: Config) -> range:
    return range(config.get("num_dense_layers", default=config.n_layers, type=_LayerCount))


def _sparse(config: Config) -> range:
    return range(len(_dense(config)), config.n_layers)


def _original_names(config: Config) -> dict[str, object]:
    """Return the rotation's base, which the first configurations also call ``theta``."""
    theta = config.get("theta")
    return {} if theta is None else {"rope_theta": theta}


def _lacks_corrections(config: Config) -> bool:
    return not config.get("use_expert_bias", default=True, type=bool)


_REPLACED = ("feed_forward_length", "attention.head_count_kv", "attention.layer_norm_rms_epsilon")
CHECKPOINT = Checkpoint(
    architectures=frozenset({"Lfm2ForCausalLM", "LFM2ForCausalLM"}),
    completed=_original_names,
    defaults=(*STATED, ("norm_eps", 1e-5), ("conv_L_cache", 3), ("rope_theta", 1e6)),
    tensors=(
        Rename("model.embed_tokens.weight", "token_embd.weight"),
        Rename("model.embedding_norm.weight", "token_embd_norm.weight"),
        Rename(
            "lm_head.weight", "output.weight", optional=True, copy_of="model.embed_tokens.weight"
        ),
        *block_renames({"operator_norm.weight": "attn_norm.weight"}),
        *block_renames({"ffn_norm.weight": "ffn_norm.weight"}),
        *on_layers(
            _attending,
            block_renames(
                {
                    "self_attn.q_proj.weight": "attn_q.weight",
                    "self_attn.k_proj.weight": "attn_k.weight",
                    "self_attn.v_proj.weight": "attn_v.weight",
                    "self_attn.out_proj.weight": "attn_output.weight",
                    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
                    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
                }
            ),
        ),
        *on_layers(
            _convolving,
            block_renames(
                {
                    "conv.in_proj.weight": "shortconv.in_proj.weight",
                    "conv.out_proj.weight": "shortconv.out_proj.weight",
                }
            ),
            block_renames({"conv.conv.weight": "shortconv.conv.weight"}, change=_without_axis),
        ),
        *on_layers(
            _dense,
            block_renames(
                {
                    "feed_forward.w1.weight": "ffn_gate.weight",
                    "feed_forward.w3.weight": "ffn_up.weight",
                    "feed_forward.w2.weight": "ffn_down.weight",
                }
            ),
        ),
    ),
    constants=(
        ("conv_bias", (False,)),
        ("block_use_swiglu", (True,)),
        ("use_pos_enc", (True,)),
    ),
    harmless=(
        ("block_dim conv_dim conv_dim_out num_heads block_norm_eps", "other names for sizes"),
        (
            "block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init",
            "of training",
        ),
        ("tie_embedding", "the tensors say it"),
    ),
    metadata=(
        *((key, source) for key, source in DECODER if not key.endswith(_REPLACED)),
        *ROPE_KEYS,
        ("{arch}.feed_forward_length", _rounded_width),
        ("{arch}.attention.head_count_kv", _key_heads),
        ("{arch}.attention.layer_norm_rms_epsilon", number("norm_eps")),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.shortconv.l_cache", "conv_L_cache"),
        ("{arch}.vocab_size", "vocab_size"),
    ),
)
MOE_CHECKPOINT = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"Lfm2MoeForCausalLM"}),
    defaults=(*CHECKPOINT.defaults, ("num_dense_layers", 2), ("routed_scaling_factor", 1.0)),
    tensors=(
        *CHECKPOINT.tensors,
        *on_layers(
            _sparse,
            block_renames(
                {"feed_forward.expert_bias": "exp_probs_b.bias"}, optional=_lacks_corrections
            ),
            block_renames(
                {
                    "feed_forward.gate.weight": "ffn_gate_inp.weight",
                    "feed_forward.experts.{e}.w1.weight": "ffn_gate_exps.weight",
                    "feed_forward.experts.{e}.w3.weight": "ffn_up_exps.weight",
                    "feed_forward.experts.{e}.w2.weight": "ffn_down_exps.weight",
                }
            ),
        ),
    ),
    constants=(*CHECKPOINT.constants, ("norm_topk_prob", (True,))),
    metadata=(
        *(
            (key, source if source is not _rounded_width else "intermediate_size")
            for key, source in CHECKPOINT.metadata
        ),
        ("{arch}.leading_dense_block_count", "num_dense_layers"),
        ("{arch}.expert_count", "num_experts"),
        ("{arch}.expert_used_count", "num_experts_per_tok"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
    ),
)

RESPONSE_TEMPLATE = json.dumps(
    {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close_pattern": r"</think>\s*"},
            "tool_calls": {
                "open": "<|tool_call_start|>",
                "close": "<|tool_call_end|>",
                "repeats": True,
                "content": "python-call-list",
                "transform_each": True,
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{arguments}"},
                },
            },
            "content": {"close": "<|im_end|>"},
        },
    }
)
"""How answers are parsed: calls are a list of Python's (LiquidAI's model cards, "Tool Use")."""

LFM2 = ModelSpec(
    name="lfm2",
    fit=Fit(architectures=frozenset({"lfm2"}), tensors=("token_embd.weight",)),
    hparams=Lfm2Hparams.read,
    build=build,
    # The final norm has the name that other families' files give to a norm of embeddings.
    ties=(OUTPUT_TIE, first_of("output_norm.weight", "token_embd_norm.weight")),
    min_types=(ROUTER_TYPE, ("blk.{n}.shortconv.conv.weight", "F32")),
    checkpoint=CHECKPOINT,
    response_template=RESPONSE_TEMPLATE,
)
LFM2_MOE = msgspec.structs.replace(
    LFM2,
    name="lfm2moe",
    fit=msgspec.structs.replace(LFM2.fit, architectures=frozenset({"lfm2moe"})),
    checkpoint=MOE_CHECKPOINT,
)
