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
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    optional,
    without_window,
)
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["COHERE2", "COMMAND_R", "GPT_NEOX", "NEMOTRON", "PHI2", "STARCODER2"]

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


def _plus_one(values: TensorValues, config: Config) -> TensorValues:
    return values + 1


NEMOTRON = Checkpoint(
    architectures=frozenset({"NemotronForCausalLM"}),
    defaults=(*STATED, ("norm_eps", 1e-5)),
    tensors=(
        *(replace(one, change=_plus_one) if "norm" in one.tensor else one for one in TABLES),
        _FINAL_BIAS,
        *(
            replace(one, change=_plus_one) if one.tensor.endswith("weight") else one
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
    constants=(("hidden_act", ("gelu_pytorch_tanh",)), ("use_bias", (True,))),
    harmless=(("embedding_dropout residual_dropout", "of training"),),
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
