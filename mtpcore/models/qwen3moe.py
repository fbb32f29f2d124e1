"""Qwen3 with experts: as Qwen3, softmax routing, some layers dense where the checkpoint has it."""

from __future__ import annotations

from mtpcore.declarations.checkpoint import Checkpoint, Config, Key
from mtpcore.declarations.spec import ATTENTION_SCALES, EXPERT_SCALES, ModelSpec
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
    ATTENTION,
    CONSTANTS,
    DECODER,
    EXPERTS,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    on_layers,
    switched_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["QWEN3_MOE", "Qwen3MoeHparams", "build", "dense_layers", "sparse_layers"]


class Qwen3MoeHparams(Hparams, frozen=True, kw_only=True):
    """What experts add."""

    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed: by softmax, the chosen ones summing to one."""
        return {"experts": Experts.read(fields, gate="softmax", normalise=True)}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Qwen3MoeHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.add(x, attention_block(g, x, positions, n, h))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def build(g: GraphBuilder, inputs: Inputs, h: Qwen3MoeHparams) -> Outputs:
    """Build the trunk."""
    return decoder(g, inputs, h, layer)


def _n_experts(config: Config) -> int:
    """Return how many experts there are; transformers 5 writes another name than before."""
    return int(config["num_local_experts|num_experts"])


def _has_experts(config: Config, n: int) -> bool:
    step = config.get("decoder_sparse_step", default=1)
    return n not in config.get("mlp_only_layers", default=()) and (n + 1) % step == 0


def sparse_layers(config: Config) -> list[int]:
    """Return the layers with experts."""
    return [n for n in range(config.n_layers) if _has_experts(config, n)]


def dense_layers(config: Config) -> list[int]:
    """Return the others."""
    return [n for n in range(config.n_layers) if not _has_experts(config, n)]


QWEN3_MOE = ModelSpec(
    name="qwen3moe",
    fit=trunk_fit(
        "qwen3moe",
        also=(
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_k_norm.weight",
        ),
    ),
    hparams=Qwen3MoeHparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    scaled=(*ATTENTION_SCALES, *EXPERT_SCALES),
    checkpoint=Checkpoint(
        architectures=frozenset({"Qwen3MoeForCausalLM"}),
        defaults=(*STATED, ("rms_norm_eps", 1e-6)),
        tensors=(
            *TABLES,
            *ATTENTION,
            *HEAD_NORMS,
            *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
            *on_layers(sparse_layers, EXPERTS),
            *on_layers(dense_layers, SWIGLU),
        ),
        constants=CONSTANTS,
        metadata=(
            *DECODER,
            *ROPE_KEYS,
            ("{arch}.attention.sliding_window", switched_window),
            ("{arch}.expert_count", _n_experts),
            ("{arch}.expert_used_count", "num_experts_per_tok"),
            ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
            # transformers takes a missing key for false.
            ("{arch}.expert_weights_norm", Key("norm_topk_prob", False)),
        ),
    ),
)
