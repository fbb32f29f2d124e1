"""Families that name their tensors as GPT-2 does, or nearly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.published import block_renames, head_width

__all__ = ["CODESHELL", "JAIS", "MPT", "QWEN", "REFACT"]


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


_PREFIXES = (("transformer.h.", "model.layers."), ("transformer.", "model."))
_FINAL_NORM = Rename("model.ln_f.weight", "output_norm.weight")
_EMBEDDINGS = Rename("model.wte.weight", "token_embd.weight")
_OUTPUT = Rename(
    "lm_head.weight",
    "output.weight",
    optional=lambda config: bool(config.get("tie_word_embeddings")),
    copy_of="model.wte.weight",
)
_ATTENTION = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
}


def _check_width(path: str) -> Callable[[Config], None]:
    """Return a source that writes nothing, and refuses heads that do not divide a row.

    Raises
    ------
    ValueError
        By the source: ``config[path]`` says another width.
    """

    def read(config: Config) -> None:
        width = config.get(path, type=Count)
        if width not in (None, head_width(config)):
            raise ValueError(f"{path} is {width}, not {head_width(config)}")

    return read


def _longest_text(config: Config) -> int:
    """Return for how many tokens a file of Qwen computes what the model does.

    Of more than in training it scales the rotation and the scores, where it is told to.
    """
    names = ["max_position_embeddings", "seq_length"]
    if any(config.get(name, type=bool) for name in ("use_dynamic_ntk", "use_logn_attn")):
        names.reverse()
    lengths = [n for name in names if (n := config.get(name, type=Count))]
    return int(lengths[0] if lengths else config.require("|".join(names), Count))


QWEN = Checkpoint(
    architectures=frozenset({"QWenLMHeadModel"}),
    prefixes=_PREFIXES,
    defaults=(("intermediate_size", None), ("layer_norm_epsilon", None), ("no_bias", True)),
    tensors=(
        _EMBEDDINGS,
        _FINAL_NORM,
        _OUTPUT,
        *block_renames({f"{a}.weight": f"{b}.weight" for a, b in _ATTENTION.items()}),
        *block_renames({"attn.c_attn.bias": "attn_qkv.bias"}),
        *block_renames(
            {
                "mlp.w2.weight": "ffn_gate.weight",
                "mlp.w1.weight": "ffn_up.weight",
                "mlp.c_proj.weight": "ffn_down.weight",
            }
        ),
    ),
    dropped=("model.rotary_emb.inv_freq", "model.layers.{n}.attn.masked_bias"),
    constants=(
        ("no_bias", (True,)),
        ("rotary_pct", (1.0,)),
        ("scale_attn_weights", (True,)),
        ("use_cache_quantization", (False,)),
    ),
    harmless=(
        (
            "bf16 fp16 fp32 onnx_safe use_cache_kernel softmax_in_fp32",
            "in what precision it is run",
        ),
        ("emb_dropout_prob attn_dropout_prob", "of training"),
    ),
    metadata=(
        ("{arch}.context_length", _longest_text),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", "intermediate_size"),
        ("{arch}.attention.head_count", "num_attention_heads"),
        ("{arch}.attention.key_length", _check_width("kv_channels")),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_epsilon")),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
        ("{arch}.rope.freq_base", number("rotary_emb_base", default=1e4)),
    ),
)
_BOTH = _ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def _inner_width(config: Config) -> int:
    """Return how wide the feed-forward part is: four rows.

    Raises
    ------
    ValueError
        The configuration says otherwise.
    """
    width = 4 * config.require("n_embd", Count)
    said = config.get("n_inner", type=Count)
    if said not in (None, width):
        raise ValueError(f"n_inner is {said}, not {width}")
    return int(width)


CODESHELL = Checkpoint(
    architectures=frozenset({"CodeShellForCausalLM"}),
    layers="n_layer",
    prefixes=_PREFIXES,
    defaults=(("layer_norm_epsilon", 1e-5), ("num_query_groups", None)),
    tensors=(
        _EMBEDDINGS,
        _FINAL_NORM,
        Rename("model.ln_f.bias", "output_norm.bias"),
        _OUTPUT,
        *block_renames(
            {f"{a}.{k}": f"{b}.{k}" for a, b in _BOTH.items() for k in ("weight", "bias")}
        ),
    ),
    dropped=("model.layers.{n}.attn.rotary_emb.inv_freq", "model.layers.{n}.attn.bias"),
    constants=(
        ("activation_function", ("gelu_pytorch_tanh", "gelu_new")),
        ("group_query_attention", (True,)),
        ("position_embedding_type", ("rope",)),
        ("scale_attn_weights", (True,)),
        ("rope_scaling", ()),
    ),
    harmless=(
        (
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
            "in what precision the model is run",
        ),
        ("n_ctx", "another name of a size"),
    ),
    metadata=(
        ("{arch}.context_length", "n_positions"),
        ("{arch}.embedding_length", "n_embd"),
        ("{arch}.feed_forward_length", _inner_width),
        ("{arch}.attention.head_count", "n_head"),
        ("{arch}.attention.head_count_kv", "num_query_groups"),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_epsilon")),
        ("{arch}.rope.freq_base", lambda config: 1e4),
        ("{arch}.rope.scaling.type", lambda config: "linear"),
        ("{arch}.rope.scaling.factor", lambda config: 1.0),
    ),
)


def _first_of(*paths: str) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: a matrix, multiplied by the first of some numbers that there is, or by 1."""
    return lambda values, config: np.multiply(values, config.get(*paths, default=1.0, type=float))


def _scaled_output(values: TensorValues, config: Config) -> TensorValues:
    """Return the output matrix of Jais, multiplied by one number or by two."""
    alpha = config.get("mup_output_alpha", type=float)
    of_width = config.get("mup_width_scale" if alpha else "width_scale", default=1.0, type=float)
    scaled: TensorValues = np.multiply(values, (alpha or 1.0) * of_width)
    return scaled


def _by_outputs(values: TensorValues, config: Config) -> TensorValues:
    """Return a matrix by outputs."""
    return values.T


_OF_JAIS = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_fc2": "ffn_gate",
    "mlp.c_proj": "ffn_down",
}
_NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
JAIS = Checkpoint(
    architectures=frozenset({"JAISLMHeadModel"}),
    layers="n_layer",
    prefixes=_PREFIXES,
    defaults=(("layer_norm_epsilon", 1e-5), ("n_inner", None)),
    tensors=(
        replace(_EMBEDDINGS, change=_first_of("mup_embeddings_scale", "embeddings_scale")),
        _FINAL_NORM,
        Rename("model.ln_f.bias", "output_norm.bias"),
        Rename("lm_head.weight", "output.weight", _scaled_output),
        *block_renames(
            {f"{a}.{k}": f"{b}.{k}" for a, b in _NORMS.items() for k in ("weight", "bias")}
        ),
        *block_renames({f"{a}.bias": f"{b}.bias" for a, b in _OF_JAIS.items()}),
        *block_renames(
            {f"{a}.weight": f"{b}.weight" for a, b in _OF_JAIS.items()}, change=_by_outputs
        ),
    ),
    dropped=("model.relative_pe.slopes", "model.layers.{n}.attn.bias"),
    constants=(
        ("activation_function", ("swiglu",)),
        ("alibi_scaling", ()),
        ("position_embedding_type", ("alibi",)),
        ("scale_attn_by_inverse_layer_idx", (False,)),
        ("scale_attn_weights", (True,)),
        ("mup_scale_qk_dot_by_d", (True,)),
        ("scale_qk_dot_by_d", (True,)),
    ),
    harmless=(
        (
            "mup_embeddings_scale embeddings_scale mup_output_alpha mup_width_scale width_scale",
            "the tables of the file are multiplied by them",
        ),
        ("reorder_and_upcast_attn", "in what precision the model is run"),
        ("summary_activation summary_first_dropout summary_proj_to_labels summary_type "
         "summary_use_proj", "of classifiers"),
    ),
    metadata=(
        ("{arch}.context_length", "n_positions"),
        ("{arch}.embedding_length", "n_embd"),
        ("{arch}.feed_forward_length", "n_inner"),
        ("{arch}.attention.head_count", "n_head"),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_epsilon")),
        ("{arch}.attention.max_alibi_bias", lambda config: 8.0),
    ),
)  # fmt: skip


def _width_of_refact(config: Config) -> int:
    """Return how wide the feed-forward part is: two thirds of four rows, in 256s."""
    return -(int(8 * config.require("n_embd", Count) / 3) // -256) * 256


def _half(which: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: the first (0) or the second (1) half of a matrix's rows."""
    return lambda values, config: np.split(values, 2)[which]


REFACT = Checkpoint(
    architectures=frozenset({"GPTRefactForCausalLM"}),
    layers="n_layer",
    prefixes=_PREFIXES,
    defaults=(("layer_norm_epsilon", 1e-5),),
    tensors=(
        _EMBEDDINGS,
        _FINAL_NORM,
        _OUTPUT,
        *block_renames({f"{a}.weight": f"{b}.weight" for a, b in _NORMS.items()}),
        *block_renames(
            {
                "attn.q.weight": "attn_q.weight",
                "attn.c_proj.weight": "attn_output.weight",
                "mlp.c_proj.weight": "ffn_down.weight",
            }
        ),
        *block_renames({"attn.kv.weight": "attn_k.weight"}, change=_half(0)),
        *block_renames({"attn.kv.weight": "attn_v.weight"}, change=_half(1)),
        *block_renames({"mlp.gate_up_proj.weight": "ffn_gate.weight"}, change=_half(0)),
        *block_renames({"mlp.gate_up_proj.weight": "ffn_up.weight"}, change=_half(1)),
    ),
    constants=(
        ("activation_function", ("silu",)),
        ("multi_query", (True,)),
        ("n_inner", ()),
        ("scale_attn_weights", (True,)),
    ),
    harmless=(
        (
            "attention_bias_in_fp32 attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
            "in what precision the model is run",
        ),
    ),
    metadata=(
        ("{arch}.context_length", "n_positions"),
        ("{arch}.embedding_length", "n_embd"),
        ("{arch}.feed_forward_length", _width_of_refact),
        ("{arch}.attention.head_count", "n_head"),
        ("{arch}.attention.head_count_kv", lambda config: 1),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
    ),
)
