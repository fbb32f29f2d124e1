"""Llama 1 to 3 and what shares their layer: Mistral, Mixtral, SmolLM, many others."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mtpcore.declarations.checkpoint import Checkpoint, Config, Key
from mtpcore.declarations.spec import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    ModelSpec,
)
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import (
    OUTPUT_TIE,
    ROUTER_TYPE,
    attention_block,
    feed_forward_block,
)
from mtpcore.models.decoder import decoder, trunk_fit
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.published import (
    CONSTANTS,
    DECODER,
    INTERLEAVED_ATTENTION,
    INTERLEAVED_BIASES,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    optional,
    without_window,
)
from mtpcore.models.rope import Style
from mtpcore.models.rope_conversion import FACTORED_ROPE_KEYS, long_context_factors

__all__ = ["LLAMA", "LlamaHparams", "build"]


class LlamaHparams(Hparams, frozen=True, kw_only=True):
    """Some members have experts in every layer."""

    # Converters reorder q and k so that the halves of a pair are neighbours.
    rope_style: ClassVar[Style] = "pairs"

    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed: by softmax, the chosen ones summing to one."""
        return {"experts": Experts.read(fields, gate="softmax", normalise=True)}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: LlamaHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.add(x, attention_block(g, x, positions, n, h, factors="rope_freqs.weight"))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def build(g: GraphBuilder, inputs: Inputs, h: LlamaHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def _dense(config: Config) -> range:
    return range(0 if config.get("num_local_experts") else config.n_layers)


def _sparse(config: Config) -> range:
    return range(config.n_layers if config.get("num_local_experts") else 0)


def _lacks_attention_biases(config: Config) -> bool:
    return not config.get("attention_bias")


def _lacks_mlp_biases(config: Config) -> bool:
    return not config.get("mlp_bias")


_OUTPUT_BIAS = block_renames({"self_attn.o_proj.bias": "attn_output.bias"})
_MLP_BIASES = block_renames(
    {
        "mlp.gate_proj.bias": "ffn_gate.bias",
        "mlp.up_proj.bias": "ffn_up.bias",
        "mlp.down_proj.bias": "ffn_down.bias",
    }
)
_EXPERTS = block_renames(
    {
        "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
        "block_sparse_moe.experts.{e}.w1.weight": "ffn_gate_exps.weight",
        "block_sparse_moe.experts.{e}.w3.weight": "ffn_up_exps.weight",
        "block_sparse_moe.experts.{e}.w2.weight": "ffn_down_exps.weight",
    }
)

CHECKPOINT = Checkpoint(
    architectures=frozenset({"LlamaForCausalLM"}),
    defaults=(("intermediate_size", None), ("rms_norm_eps", 1e-6)),
    tensors=(
        *TABLES,
        *INTERLEAVED_ATTENTION,
        *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
        *optional(_lacks_attention_biases, INTERLEAVED_BIASES, _OUTPUT_BIAS),
        *on_layers(_dense, SWIGLU, optional(_lacks_mlp_biases, _MLP_BIASES)),
        *on_layers(_sparse, _EXPERTS),
    ),
    dropped=("model.layers.{n}.self_attn.rotary_emb.inv_freq",),
    made=(("rope_freqs.weight", long_context_factors),),
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.expert_count", Key("num_local_experts")),
        ("{arch}.expert_used_count", Key("num_experts_per_tok")),
    ),
)
MISTRAL = msgspec.structs.replace(
    CHECKPOINT,
    architectures=frozenset({"MistralForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("sliding_window", 4096)),
    metadata=(*CHECKPOINT.metadata, ("{arch}.attention.sliding_window", without_window)),
)
MIXTRAL = msgspec.structs.replace(
    MISTRAL,
    architectures=frozenset({"MixtralForCausalLM"}),
    defaults=(
        *STATED,
        ("num_local_experts", None),
        ("num_experts_per_tok", 2),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 1e6),
    ),
)

LLAMA = ModelSpec(
    name="llama",
    fit=trunk_fit("llama"),
    hparams=LlamaHparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    scaled=(*ATTENTION_SCALES, *FEED_FORWARD_SCALES, *EXPERT_SCALES),
    unread=(
        (
            "{arch}.rope.scaling.yarn_log_multiplier",
            "files made of Mistral's own format have it; the rise of scores that it is for is not "
            "in these models, and no engine reads it here",
        ),
    ),
    checkpoint=CHECKPOINT,
    layouts=(MISTRAL, MIXTRAL),
)
