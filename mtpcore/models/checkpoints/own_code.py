"""Families whose code is in their repositories, and no class of transformers'."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import FFN_NORM
from mtpcore.models.checkpoints.experts import COUNTS
from mtpcore.models.checkpoints.layers import (
    first_layers,
    later_layers,
    leading_dense,
    rotated_width,
)
from mtpcore.models.published import (
    CONSTANTS,
    DECODER,
    EXPERTS,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    interleave,
    on_layers,
    optional,
    switched_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["BAILING_MOE2", "INTERNLM2"]


def _tables(embeddings: str, output: str) -> tuple[Rename, ...]:
    """Return the renames of embedding table, final norm and output matrix."""
    return (
        Rename(embeddings, "token_embd.weight"),
        TABLES[1],
        replace(TABLES[2], source=output, copy_of=embeddings),
    )


_GATES = {"softmax": 1, "sigmoid": 2}


def _gate(config: Config) -> int:
    return _GATES[config.get("score_function", default="sigmoid", type=str)]


def _shared_width(config: Config) -> int:
    """Return how wide all shared experts are together."""
    said: int | None = config.get("moe_shared_expert_intermediate_size", type=Count)
    n_shared = config.require("num_shared_experts", Count)
    return said or n_shared * config.require("moe_intermediate_size", Count)


_ling_dense = leading_dense("first_k_dense_replace")
BAILING_MOE2 = Checkpoint(
    architectures=frozenset({"BailingMoeV2ForCausalLM"}),
    defaults=(
        *STATED,
        *((name, None) for name in ("rms_norm_eps", "head_dim", "norm_topk_prob", "n_group")),
        *((name, None) for name in ("topk_group", "routed_scaling_factor")),
    ),
    tensors=(
        *_tables("model.word_embeddings.weight", "lm_head.weight"),
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "attention.query_key_value.weight": "attn_qkv.weight",
                "attention.dense.weight": "attn_output.weight",
                "attention.query_layernorm.weight": "attn_q_norm.weight",
                "attention.key_layernorm.weight": "attn_k_norm.weight",
            }
        ),
        *on_layers(first_layers(_ling_dense), SWIGLU),
        *on_layers(
            later_layers(_ling_dense),
            EXPERTS,
            block_renames({"mlp.gate.expert_bias": "exp_probs_b.bias"}),
            optional(lambda config: not config.get("num_shared_experts"), SHARED_EXPERT),
        ),
    ),
    constants=(
        *CONSTANTS,
        ("moe_router_enable_expert_bias", (True,)),
        ("use_bias", (False,)),
        ("use_qk_norm", (True,)),
        ("use_qkv_bias", (False,)),
        ("use_rmsnorm", (True,)),
        ("using_split_qkv_in_self_attention", (False,)),
    ),
    harmless=(
        ("embedding_dropout output_dropout", "of training"),
        ("router_dtype", "in what precision the model is run"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.attention.sliding_window", switched_window),
        ("{arch}.rope.dimension_count", rotated_width(0.5)),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.expert_group_count", "n_group"),
        ("{arch}.expert_group_used_count", "topk_group"),
        ("{arch}.expert_gating_func", _gate),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", _shared_width),
        ("{arch}.expert_shared_count", "num_shared_experts"),
        ("{arch}.expert_weights_scale", number("routed_scaling_factor")),
        ("{arch}.expert_weights_norm", "norm_topk_prob"),
        ("{arch}.leading_dense_block_count", _ling_dense),
        ("{arch}.nextn_predict_layers", lambda config: config.n_drafter_blocks),
    ),
)


def _part(which: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: queries (0), keys (1) or values (2) of rows that lie key head by key head.

    Queries and keys with the halves of a rotary pair side by side.
    """

    def change(values: TensorValues, config: Config) -> TensorValues:
        n_heads = config.require("num_attention_heads", Count)
        n_kv_heads = config.require("num_key_value_heads", Count)
        groups = values.reshape(n_kv_heads, n_heads // n_kv_heads + 2, -1, *values.shape[1:])
        part = (groups[:, :-2], groups[:, -2], groups[:, -1])[which]
        rows = part.reshape(-1, *values.shape[1:])
        order = ("num_attention_heads", "num_key_value_heads")
        return rows if which == 2 else interleave(order[which])(rows, config)

    return change


INTERNLM2 = Checkpoint(
    architectures=frozenset({"InternLM2ForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", None), ("rope_theta", None)),
    tensors=(
        *_tables("model.tok_embeddings.weight", "output.weight"),
        *(
            one
            for which, part in enumerate("qkv")
            for one in block_renames(
                {"attention.wqkv.weight": f"attn_{part}.weight"}, change=_part(which)
            )
        ),
        *block_renames(
            {
                "attention.wo.weight": "attn_output.weight",
                "attention_norm.weight": "attn_norm.weight",
                "ffn_norm.weight": "ffn_norm.weight",
                "feed_forward.w1.weight": "ffn_gate.weight",
                "feed_forward.w3.weight": "ffn_up.weight",
                "feed_forward.w2.weight": "ffn_down.weight",
            }
        ),
    ),
    constants=(*CONSTANTS, ("bias", (False,))),
    harmless=(("attn_implementation", "how the model is run"),),
    metadata=(*DECODER, *ROPE_KEYS),
)
