"""Families that norm by mean and variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import OUTPUT_BIAS, lacks_attention_bias
from mtpcore.models.checkpoints.layers import named_scaling, rotated_width, window_pattern
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    INTERLEAVED_ATTENTION,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    optional,
    plus,
    without_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = [
    "BLOOM",
    "DBRX",
    "COHERE2",
    "COMMAND_R",
    "FALCON",
    "GPT2",
    "GPT_NEOX",
    "JAIS2",
    "NEMOTRON",
    "OLMO",
    "PHI2",
    "STABLELM",
    "STARCODER",
    "STARCODER2",
]

_SIZES = tuple(pair for pair in DECODER if not pair[0].endswith("rms_epsilon"))


def _eps(*paths: str) -> tuple[str, Callable[[Config], object]]:
    return "{arch}.attention.layer_norm_epsilon", number(*paths)


def _both(names: Mapping[str, str]) -> tuple[Rename, ...]:
    """Return the renames of weights and biases, names without either."""
    kinds = ("weight", "bias")
    return block_renames({f"{a}.{k}": f"{b}.{k}" for a, b in names.items() for k in kinds})


_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_FINAL_BIAS = Rename("model.norm.bias", "output_norm.bias")
_MATRICES = tuple(one for one in ATTENTION if "norm" not in one.tensor)


NEMOTRON = Checkpoint(
    architectures=frozenset({"NemotronForCausalLM"}),
    defaults=(*STATED, ("norm_eps", 1e-5)),
    tensors=(
        *(replace(one, change=plus(1)) if "norm" in one.tensor else one for one in TABLES),
        _FINAL_BIAS,
        *(
            replace(one, change=plus(1)) if one.tensor.endswith("weight") else one
            for one in _both(_NORMS)
        ),
        *_MATRICES,
        *optional(lacks_attention_bias, BIASES, OUTPUT_BIAS),
        *(one for one in SWIGLU if "gate" not in one.tensor),
    ),
    constants=(("hidden_act", ("relu2",)), ("mlp_bias", (False,))),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        ("{arch}.rope.scaling.type", named_scaling),
        _eps("norm_eps"),
        ("{arch}.attention.layer_norm_rms_epsilon", number("norm_eps")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.rope.dimension_count", rotated_width(0.5, "rope_percent")),
    ),
)
STARCODER2 = Checkpoint(
    architectures=frozenset({"Starcoder2ForCausalLM"}),
    defaults=(*STATED, ("norm_epsilon", 1e-5), ("use_bias", True), ("tie_word_embeddings", True)),
    tensors=(
        *TABLES,
        _FINAL_BIAS,
        *_both(_NORMS),
        *_MATRICES,
        *BIASES,
        *OUTPUT_BIAS,
        *_both({"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}),
    ),
    constants=(
        ("hidden_act", ("gelu_pytorch_tanh",)),
        ("use_bias", (True,)),
        ("mlp_type", ("default",)),
        ("norm_type", ("layer_norm",)),
    ),
    harmless=(
        ("embedding_dropout residual_dropout", "of training"),
        ("activation_function layer_norm_epsilon", "other names, which the class does not read"),
        (
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights",
            "in what precision and order transformers computes",
        ),
    ),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        _eps("norm_epsilon"),
        ("{arch}.attention.sliding_window", without_window),
    ),
)
PHI2 = Checkpoint(
    architectures=frozenset({"PhiForCausalLM"}),
    defaults=(("intermediate_size", None), ("layer_norm_eps", 1e-5)),
    tensors=(
        TABLES[0],
        TABLES[2],
        Rename("lm_head.bias", "output.bias"),
        Rename("model.final_layernorm.weight", "output_norm.weight"),
        Rename("model.final_layernorm.bias", "output_norm.bias"),
        *_both(
            {
                "input_layernorm": "attn_norm",
                "self_attn.q_proj": "attn_q",
                "self_attn.k_proj": "attn_k",
                "self_attn.v_proj": "attn_v",
                "self_attn.dense": "attn_output",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            }
        ),
    ),
    constants=(("hidden_act", ("gelu_new",)), ("qk_layernorm", (False,))),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        _eps("layer_norm_eps"),
        ("{arch}.rope.dimension_count", rotated_width(0.5)),
        ("tokenizer.ggml.add_bos_token", lambda config: False),
    ),
)


def _separated(values: TensorValues, config: Config) -> TensorValues:
    """Return rows of queries, keys and values, which lie head by head."""
    n_heads = config.require("num_attention_heads", Count)
    parts = values.reshape(n_heads, 3, -1, *values.shape[1:])
    return np.moveaxis(parts, 1, 0).reshape(values.shape)


def _named_base(config: Config) -> dict[str, object]:
    """Return the rotation's base, which configurations before transformers 5 call otherwise."""
    base = config.get("rotary_emb_base")
    return {} if base is None else {"rope_theta": base}


_NEOX = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
GPT_NEOX = Checkpoint(
    architectures=frozenset({"GPTNeoXForCausalLM"}),
    defaults=(("intermediate_size", None), ("layer_norm_eps", 1e-5)),
    completed=_named_base,
    prefixes=(("gpt_neox.", "model."),),
    tensors=(
        Rename("model.embed_in.weight", "token_embd.weight"),
        Rename("model.final_layer_norm.weight", "output_norm.weight"),
        Rename("model.final_layer_norm.bias", "output_norm.bias"),
        Rename("embed_out.weight", "output.weight"),
        *(replace(one, change=_separated) if "qkv" in one.tensor else one for one in _both(_NEOX)),
    ),
    dropped=(
        "model.layers.{n}.attention.bias",
        "model.layers.{n}.attention.masked_bias",
        "model.layers.{n}.attention.rotary_emb.inv_freq",
    ),
    constants=(("hidden_act", ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")),),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        _eps("layer_norm_eps"),
        ("{arch}.rope.dimension_count", rotated_width(0.25, "rotary_pct")),
        ("{arch}.use_parallel_residual", Key("use_parallel_residual", True)),
    ),
)


def _bloom_width(config: Config) -> int:
    return int(config.require("hidden_size|n_embed", Count))


def _separated_of_bloom(values: TensorValues, config: Config) -> TensorValues:
    """Return rows of queries, keys and values, which lie head by head."""
    parts = values.reshape(config.require(_BLOOM_HEADS, Count), 3, -1, *values.shape[1:])
    return np.moveaxis(parts, 1, 0).reshape(values.shape)


_PREFIXES = (
    ("transformer.h.", "model.layers."),
    ("transformer.", "model."),
    ("h.", "model.layers."),
)
"""How names begin in GPT-2's checkpoints and in those that follow them."""
_BLOOM_HEADS = "n_head|num_attention_heads"
_BLOOM = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
BLOOM = Checkpoint(
    architectures=frozenset({"BloomForCausalLM"}),
    defaults=(("layer_norm_epsilon", 1e-5), ("tie_word_embeddings", True)),
    layers="n_layer",
    prefixes=(
        *_PREFIXES,
        ("word_embeddings", "model.word_embeddings"),
        ("ln_f.", "model.ln_f."),
    ),
    tensors=(
        Rename("model.word_embeddings.weight", "token_embd.weight"),
        Rename("model.word_embeddings_layernorm.weight", "token_embd_norm.weight"),
        Rename("model.word_embeddings_layernorm.bias", "token_embd_norm.bias"),
        Rename("model.ln_f.weight", "output_norm.weight"),
        Rename("model.ln_f.bias", "output_norm.bias"),
        replace(TABLES[2], copy_of="model.word_embeddings.weight"),
        *(
            replace(one, change=_separated_of_bloom) if "qkv" in one.tensor else one
            for one in _both(_BLOOM)
        ),
    ),
    constants=(("apply_residual_connection_post_layernorm", (False,)),),
    harmless=(
        (
            "bias_dropout_fusion masked_softmax_fusion skip_bias_add skip_bias_add_qkv "
            "slow_but_exact",
            "in what order the model is computed",
        ),
        ("n_inner offset_alibi", "of no class"),
    ),
    metadata=(
        ("{arch}.context_length", lambda config: config.get("seq_length") or _bloom_width(config)),
        ("{arch}.embedding_length", _bloom_width),
        ("{arch}.feed_forward_length", lambda config: 4 * _bloom_width(config)),
        ("{arch}.attention.head_count", _BLOOM_HEADS),
        ("{arch}.attention.head_count_kv", _BLOOM_HEADS),
        _eps("layer_norm_epsilon"),
    ),
)


def _by_expert(values: TensorValues, config: Config) -> TensorValues:
    """Return the matrices of all experts, whose rows lie expert by expert."""
    n_experts = config.require("ffn_config.moe_num_experts", Count)
    return values.reshape(n_experts, -1, values.shape[-1])


_DBRX_BASES = ("attn_config.rope_theta", "rope_parameters.rope_theta", "rope_theta")
DBRX = Checkpoint(
    architectures=frozenset({"DbrxForCausalLM"}),
    defaults=(
        *((f"ffn_config.{name}", None) for name in ("ffn_hidden_size", "moe_num_experts")),
        *((name, None) for name in ("ffn_config.moe_top_k", "attn_config.kv_n_heads")),
        ("ffn_config.moe_normalize_expert_weights", 1.0),
    ),
    layers="n_layers",
    prefixes=(("transformer.blocks.", "model.layers."), ("transformer.", "model.")),
    tensors=(
        Rename("model.wte.weight", "token_embd.weight"),
        Rename("model.norm_f.weight", "output_norm.weight"),
        replace(TABLES[2], copy_of="model.wte.weight"),
        *block_renames(
            {
                "norm_attn_norm.norm_1.weight": "attn_norm.weight",
                "norm_attn_norm.attn.Wqkv.weight": "attn_qkv.weight",
                "norm_attn_norm.attn.out_proj.weight": "attn_output.weight",
                "norm_attn_norm.norm_2.weight": "attn_output_norm.weight",
                "ffn.router.layer.weight": "ffn_gate_inp.weight",
            }
        ),
        *block_renames(
            {
                "ffn.experts.mlp.w1": "ffn_gate_exps.weight",
                "ffn.experts.mlp.v1": "ffn_up_exps.weight",
            },
            change=_by_expert,
        ),
        *block_renames(
            {"ffn.experts.mlp.w2": "ffn_down_exps.weight"},
            change=lambda values, config: _by_expert(values, config).swapaxes(1, 2),
        ),
    ),
    constants=(
        ("ffn_config.ffn_act_fn.name", ("silu",)),
        ("ffn_config.moe_normalize_expert_weights", (1.0,)),
    ),
    harmless=(
        ("emb_pdrop moe_jitter_eps moe_loss_weight uniform_expert_assignment", "of training"),
        ("num_key_value_heads ffn_config.hidden_size", "other names of sizes"),
    ),
    metadata=(
        ("{arch}.context_length", "max_seq_len"),
        ("{arch}.embedding_length", "d_model"),
        ("{arch}.feed_forward_length", "ffn_config.ffn_hidden_size"),
        ("{arch}.attention.head_count", "n_heads"),
        ("{arch}.attention.head_count_kv", "attn_config.kv_n_heads"),
        ("{arch}.attention.clamp_kqv", number("attn_config.clip_qkv")),
        (
            "{arch}.rope.freq_base",
            number(*_DBRX_BASES, default=1e4),
        ),
        ("{arch}.rope.scaling.type", ROPE_KEYS[1][1]),
        ("{arch}.expert_count", "ffn_config.moe_num_experts"),
        ("{arch}.expert_used_count", "ffn_config.moe_top_k"),
        ("{arch}.attention.layer_norm_epsilon", lambda config: 1e-5),
    ),
)

COMMAND_R = Checkpoint(
    architectures=frozenset({"CohereForCausalLM"}),
    defaults=(
        ("intermediate_size", None),
        ("layer_norm_eps", 1e-5),
        ("logit_scale", 0.0625),
        ("tie_word_embeddings", True),
        ("rope_theta", 5e5),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lacks_attention_bias, BIASES, OUTPUT_BIAS),
        *optional(lambda config: not config.get("use_qk_norm"), HEAD_NORMS),
        *SWIGLU,
    ),
    constants=CONSTANTS,
    metadata=(
        ("{arch}.context_length", "model_max_length|max_position_embeddings"),
        *_SIZES[1:],
        *ROPE_KEYS,
        ("{arch}.rope.scaling.type", named_scaling),
        _eps("layer_norm_eps"),
        ("{arch}.logit_scale", number("logit_scale")),
    ),
)
COHERE2 = replace(
    COMMAND_R,
    architectures=frozenset({"Cohere2ForCausalLM"}),
    defaults=(*COMMAND_R.defaults[:-1], ("sliding_window", 4096)),
    tensors=(*TABLES, *ATTENTION, *SWIGLU),
    constants=(
        *COMMAND_R.constants,
        ("order_of_interleaved_layers", ("local_attn_first",)),
        ("position_embedding_type", ("rope_gptj",)),
        ("use_gated_activation", (True,)),
        ("use_parallel_block", (True,)),
    ),
    harmless=(
        ("use_embedding_sharing use_parallel_embedding", "the tensors say it"),
        ("cache_implementation", "how transformers keeps keys and values"),
    ),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        ("{arch}.rope.scaling.type", named_scaling),
        _eps("layer_norm_eps"),
        ("{arch}.logit_scale", number("logit_scale")),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", window_pattern(4, "sliding_window_pattern")),
        ("{arch}.rope.dimension_count", rotated_width(1.0, "rotary_pct")),
    ),
)

STABLELM = Checkpoint(
    architectures=frozenset({"StableLmForCausalLM"}),
    defaults=(*STATED, ("layer_norm_eps", 1e-5)),
    tensors=(
        *TABLES,
        _FINAL_BIAS,
        *_both({"input_layernorm": "attn_norm"}),
        *optional(
            lambda config: bool(config.get("use_parallel_residual")),
            _both({"post_attention_layernorm": "ffn_norm"}),
        ),
        *_MATRICES,
        *optional(lambda config: not config.get("use_qkv_bias"), BIASES),
        *SWIGLU,
    ),
    constants=(*CONSTANTS, ("qk_layernorm", (False,))),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        _eps("layer_norm_eps"),
        ("{arch}.rope.dimension_count", rotated_width(0.25, "rope_pct")),
        ("{arch}.use_parallel_residual", Key("use_parallel_residual", False)),
    ),
)


def _transposed(values: TensorValues, config: Config) -> TensorValues:
    return values.T


def _inner_width(config: Config) -> int:
    return int(config.get("n_inner", type=Count) or 4 * config.require("n_embd", Count))


GPT2 = Checkpoint(
    architectures=frozenset({"GPT2LMHeadModel"}),
    defaults=(("layer_norm_epsilon", 1e-5), ("tie_word_embeddings", True)),
    layers="n_layer",
    prefixes=(
        *_PREFIXES,
        ("w", "model.w"),
        ("ln_f.", "model.ln_f."),
    ),
    tensors=(
        Rename("model.wte.weight", "token_embd.weight"),
        Rename("model.wpe.weight", "position_embd.weight"),
        Rename("model.ln_f.weight", "output_norm.weight"),
        Rename("model.ln_f.bias", "output_norm.bias"),
        Rename("lm_head.weight", "output.weight", optional=True, copy_of="model.wte.weight"),
        *(
            replace(one, change=_transposed)
            if one.tensor.endswith("weight") and "norm" not in one.tensor
            else one
            for one in _both(
                {
                    "ln_1": "attn_norm",
                    "attn.c_attn": "attn_qkv",
                    "attn.c_proj": "attn_output",
                    "ln_2": "ffn_norm",
                    "mlp.c_fc": "ffn_up",
                    "mlp.c_proj": "ffn_down",
                }
            )
        ),
    ),
    dropped=("model.layers.{n}.attn.bias", "model.layers.{n}.attn.masked_bias"),
    constants=(
        ("activation_function", ("gelu_new",)),
        ("scale_attn_weights", (True,)),
        ("scale_attn_by_inverse_layer_idx", (False,)),
    ),
    harmless=(
        ("reorder_and_upcast_attn", "in what precision transformers computes"),
        (
            "summary_activation summary_first_dropout summary_proj_to_labels summary_type "
            "summary_use_proj",
            "of classifiers",
        ),
        ("n_ctx", "another name of n_positions"),
    ),
    metadata=(
        ("{arch}.context_length", "n_positions"),
        ("{arch}.embedding_length", "n_embd"),
        ("{arch}.feed_forward_length", _inner_width),
        ("{arch}.attention.head_count", "n_head"),
        _eps("layer_norm_epsilon"),
    ),
)


def _ffn_width(config: Config) -> int:
    width: int | None = config.get("ffn_hidden_size", type=Count)
    return int(width or 4 * config.require("hidden_size", Count))


def _n_kv_heads(config: Config) -> int:
    """Return how many key heads Falcon has: one, where a switch says so."""
    n_heads = config.require("num_attention_heads|n_head", Count)
    n_kv_heads = config.get("num_kv_heads", "n_head_kv", default=n_heads, type=Count)
    is_multi_query = config.get("multi_query", default=True, type=bool)
    if config.get("new_decoder_architecture", type=bool):
        return int(n_kv_heads)
    return 1 if is_multi_query else int(n_heads)


def _regrouped(values: TensorValues, config: Config) -> TensorValues:
    """Return rows of queries, keys and values, which lie key head by key head."""
    n_heads = config.require("num_attention_heads|n_head", Count)
    n_kv_heads = _n_kv_heads(config)
    groups = values.reshape(n_kv_heads, n_heads // n_kv_heads + 2, -1, *values.shape[1:])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def _has_two_norms(config: Config) -> range:
    return range(config.n_layers if config.get("new_decoder_architecture") else 0)


def _has_one_norm(config: Config) -> range:
    return range(0 if config.get("new_decoder_architecture") else config.n_layers)


FALCON = Checkpoint(
    architectures=frozenset({"FalconForCausalLM"}),
    defaults=(("layer_norm_epsilon", 1e-5), ("tie_word_embeddings", True), ("parallel_attn", True)),
    prefixes=(("transformer.h.", "model.layers."), ("transformer.", "model.")),
    tensors=(
        Rename("model.word_embeddings.weight", "token_embd.weight"),
        Rename("model.ln_f.weight", "output_norm.weight"),
        Rename("model.ln_f.bias", "output_norm.bias"),
        Rename(
            "lm_head.weight",
            "output.weight",
            optional=True,
            copy_of="model.word_embeddings.weight",
        ),
        *on_layers(_has_two_norms, _both({"ln_mlp": "attn_norm", "ln_attn": "attn_norm_2"})),
        *on_layers(_has_one_norm, _both({"input_layernorm": "attn_norm"})),
        *block_renames(
            {"self_attention.query_key_value.weight": "attn_qkv.weight"}, change=_regrouped
        ),
        *block_renames(
            {
                "self_attention.dense.weight": "attn_output.weight",
                "mlp.dense_h_to_4h.weight": "ffn_up.weight",
                "mlp.dense_4h_to_h.weight": "ffn_down.weight",
            }
        ),
    ),
    constants=(
        ("activation", ("gelu",)),
        ("alibi", (False,)),
        ("bias", (False,)),
        ("parallel_attn", (True,)),
        ("num_ln_in_parallel_attn", (2,)),
    ),
    metadata=(
        ("{arch}.context_length", Key("max_position_embeddings", 2048)),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", _ffn_width),
        ("{arch}.attention.head_count", "num_attention_heads"),
        ("{arch}.attention.head_count_kv", _n_kv_heads),
        *ROPE_KEYS,
        _eps("layer_norm_epsilon"),
        ("{arch}.tensor_data_layout", lambda config: "jploski"),
    ),
)

STARCODER = replace(
    GPT2,
    architectures=frozenset({"GPTBigCodeForCausalLM"}),
    tensors=tuple(
        replace(one, change=None) if one.change is _transposed else one for one in GPT2.tensors
    ),
    constants=(
        ("activation_function", ("gelu_pytorch_tanh",)),
        ("scale_attn_weights", (True,)),
        ("multi_query", (True,)),
    ),
    harmless=(
        (
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
            "in what precision transformers computes",
        ),
        ("num_key_value_heads", "one, of which the switch speaks"),
        *GPT2.harmless[1:],
    ),
    metadata=(*GPT2.metadata, ("{arch}.attention.head_count_kv", lambda config: 1)),
)
OLMO = Checkpoint(
    architectures=frozenset({"OlmoForCausalLM"}),
    defaults=STATED,
    tensors=(
        *(one for one in TABLES if "norm" not in one.tensor),
        *(one for one in INTERLEAVED_ATTENTION if "norm" not in one.tensor),
        *SWIGLU,
    ),
    constants=(*CONSTANTS, ("attention_bias", (False,))),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        ("{arch}.attention.layer_norm_epsilon", lambda config: 1e-5),
        ("{arch}.attention.clamp_kqv", number("clip_qkv")),
    ),
)
JAIS2 = Checkpoint(
    architectures=frozenset({"Jais2ForCausalLM"}),
    defaults=(
        *STATED,
        ("layer_norm_eps", 1e-5),
        ("attention_bias", True),
        ("mlp_bias", True),
    ),
    tensors=(
        *TABLES,
        _FINAL_BIAS,
        *_both(_NORMS),
        *_MATRICES,
        *optional(lacks_attention_bias, BIASES, OUTPUT_BIAS),
        *_both({"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}),
    ),
    constants=(("hidden_act", ("relu2",)), ("mlp_bias", (True,))),
    metadata=(
        *_SIZES,
        *ROPE_KEYS,
        _eps("layer_norm_eps"),
        ("{arch}.rope.dimension_count", head_width),
    ),
)
