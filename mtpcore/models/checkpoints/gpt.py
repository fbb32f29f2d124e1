"""Families that name their tensors as GPT-2 does, or nearly."""

from __future__ import annotations

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, number
from mtpcore.models.published import block_renames

__all__ = ["MPT"]


def _largest_bias(config: Config) -> float:
    """Return how steep the biases by distance (ALiBi) are at most; 0 where there are none."""
    if not config.require("attn_config.alibi", bool):
        return 0.0
    return float(config.require("attn_config.alibi_bias_max", float))


MPT = Checkpoint(
    architectures=frozenset({"MPTForCausalLM", "MptForCausalLM"}),
    layers="n_layers",
    prefixes=(("transformer.blocks.", "model.layers."), ("transformer.", "model.")),
    defaults=(
        ("attn_config.alibi", True),
        ("attn_config.alibi_bias_max", 8),
        ("tie_word_embeddings", True),
    ),
    tensors=(
        Rename("model.wte.weight", "token_embd.weight"),
        Rename(
            "model.wpe.weight",
            "position_embd.weight",
            optional=lambda config: bool(_largest_bias(config)),
        ),
        Rename("model.norm_f.weight", "output_norm.weight"),
        Rename("model.norm_f.bias", "output_norm.bias", optional=True),
        Rename("lm_head.weight", "output.weight", optional=True, copy_of="model.wte.weight"),
        *block_renames(
            {
                "norm_1.weight": "attn_norm.weight",
                "attn.Wqkv.weight": "attn_qkv.weight",
                "attn.out_proj.weight": "attn_output.weight",
                "norm_2.weight": "ffn_norm.weight",
                "ffn.up_proj.weight": "ffn_up.weight",
                "ffn.down_proj.weight": "ffn_down.weight",
            }
        ),
        *block_renames(
            {
                "norm_1.bias": "attn_norm.bias",
                "attn.Wqkv.bias": "attn_qkv.bias",
                "attn.out_proj.bias": "attn_output.bias",
                "norm_2.bias": "ffn_norm.bias",
                "ffn.up_proj.bias": "ffn_up.bias",
                "ffn.down_proj.bias": "ffn_down.bias",
            },
            optional=True,
        ),
    ),
    constants=(
        ("expansion_ratio", (4,)),
        ("layer_norm_epsilon", (1e-5,)),
        ("norm_type", ("low_precision_layernorm", "layernorm")),
        ("attn_config.qk_ln", (False,)),
        ("attn_config.prefix_lm", (False,)),
        ("attn_config.attn_type", ("multihead_attention", "grouped_query_attention")),
        ("attn_config.softmax_scale", ()),
        ("logit_scale", ()),
        ("no_bias", (True, False)),
    ),
    harmless=(
        ("emb_pdrop embedding_fraction init_config init_device verbose", "of training"),
        ("learned_pos_emb", "the tensors say it"),
        ("attn_config.attn_impl attn_config.attn_uses_sequence_id fc_type", "how it is computed"),
        ("attn_config.attn_pdrop attn_config._name_or_path", "of training"),
        ("attn_config.id2label attn_config.label2id", "labels of classifiers"),
        ("ffn_config.ffn_type ffn_config.fc_type", "the kind of the one that there is"),
    ),
    metadata=(
        ("{arch}.context_length", "max_seq_len"),
        ("{arch}.embedding_length", "d_model"),
        ("{arch}.feed_forward_length", lambda config: 4 * config.require("d_model", Count)),
        ("{arch}.attention.head_count", "n_heads"),
        ("{arch}.attention.head_count_kv", Key("attn_config.kv_n_heads")),
        ("{arch}.attention.layer_norm_epsilon", lambda config: 1e-5),
        ("{arch}.attention.clamp_kqv", number("attn_config.clip_qkv")),
        ("{arch}.attention.max_alibi_bias", _largest_bias),
    ),
)
