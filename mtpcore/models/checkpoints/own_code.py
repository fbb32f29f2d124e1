"""Families whose code is in their repositories, and no class of transformers'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import (
    Checkpoint,
    Config,
    Rename,
    TensorValues,
    number,
)
from mtpcore.models.checkpoints.dense import FFN_NORM, GLM4, OUTPUT_BIAS
from mtpcore.models.checkpoints.experts import COUNTS
from mtpcore.models.checkpoints.layers import (
    first_layers,
    later_layers,
    layer_kinds,
    leading_dense,
    named_scaling,
    rotated_width,
)
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    INTERLEAVED_ATTENTION,
    NEXTN,
    SHARED_EXPERT,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    interleave,
    on_layers,
    optional,
    switched_window,
)
from mtpcore.models.rope_conversion import FACTORED_ROPE_KEYS, ROPE_KEYS, long_context_factors

__all__ = [
    "ARCTIC",
    "BAICHUAN",
    "BAILING_MOE",
    "BAILING_MOE2",
    "BAILING_MOE2_NEXTN",
    "CHATGLM",
    "DECI",
    "DEEPSEEK",
    "EXAONE",
    "GLM",
    "GROVE_MOE",
    "INTERNLM2",
    "MAINCODER",
    "MAPLE",
    "NANBEIGE",
    "OPENELM",
    "ORION",
    "PANGU_EMBEDDED",
    "SMALLTHINKER",
    "TALKIE",
    "XVERSE",
]


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
_LING_ATTENTION = (
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
)
_LING_EXPERTS = (
    *EXPERTS,
    *block_renames({"mlp.gate.expert_bias": "exp_probs_b.bias"}),
    *optional(lambda config: not config.get("num_shared_experts"), SHARED_EXPERT),
)
BAILING_MOE2 = Checkpoint(
    architectures=frozenset({"BailingMoeV2ForCausalLM"}),
    defaults=(
        *STATED,
        *((name, None) for name in ("rms_norm_eps", "head_dim", "norm_topk_prob", "n_group")),
        *((name, None) for name in ("topk_group", "routed_scaling_factor")),
    ),
    tensors=(
        *_tables("model.word_embeddings.weight", "lm_head.weight"),
        *_LING_ATTENTION,
        *on_layers(first_layers(_ling_dense), SWIGLU),
        *on_layers(later_layers(_ling_dense), _LING_EXPERTS),
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


BAILING_MOE2_NEXTN = Checkpoint(
    architectures=BAILING_MOE2.architectures,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *NEXTN,
        *block_renames({"final_layernorm.weight": "layer_output_norm.weight"}),
        *_LING_ATTENTION,
        *_LING_EXPERTS,
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


# Named as Llama's, or nearly

_DENSE_TENSORS = (*TABLES, *INTERLEAVED_ATTENTION, *FFN_NORM, *SWIGLU)
_INV_FREQ = ("model.layers.{n}.self_attn.rotary_emb.inv_freq",)
_PTH = ("{arch}.tensor_data_layout", lambda config: "Meta AI original pth")
_WIDTH = ("{arch}.rope.dimension_count", head_width)
_VOCAB = ("{arch}.vocab_size", "vocab_size")
_STATED_EPS = (*STATED, ("rms_norm_eps", None))

XVERSE = Checkpoint(
    architectures=frozenset({"XverseForCausalLM"}),
    defaults=_STATED_EPS[:1] + _STATED_EPS[2:],
    tensors=_DENSE_TENSORS,
    dropped=_INV_FREQ,
    constants=CONSTANTS,
    harmless=(("max_tokenizer_truncation", "how many tokens there may be"),),
    metadata=(*DECODER, *ROPE_KEYS, _WIDTH, _PTH),
)
NANBEIGE = Checkpoint(
    architectures=frozenset({"NanbeigeForCausalLM"}),
    defaults=_STATED_EPS,
    tensors=_DENSE_TENSORS,
    made=(("rope_freqs.weight", long_context_factors),),
    constants=(*CONSTANTS, ("num_loops", (1,)), ("skip_loop_final_norm", (False,))),
    metadata=(
        *DECODER,
        *FACTORED_ROPE_KEYS,
        _WIDTH,
        _VOCAB,
        ("{arch}.num_loops", lambda config: 1),
        ("{arch}.skip_loop_final_norm", lambda config: False),
    ),
)
ORION = Checkpoint(
    architectures=frozenset({"OrionForCausalLM"}),
    defaults=_STATED_EPS,
    tensors=(
        *TABLES,
        Rename("model.norm.bias", "output_norm.bias"),
        *ATTENTION,
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.bias": "attn_norm.bias",
                "post_attention_layernorm.bias": "ffn_norm.bias",
            }
        ),
        *SWIGLU,
    ),
    dropped=_INV_FREQ,
    constants=CONSTANTS,
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith(("rms_epsilon", "context_length"))),
        *ROPE_KEYS,
        ("{arch}.context_length", "max_sequence_length|max_position_embeddings"),
        ("{arch}.attention.layer_norm_epsilon", number("rms_norm_eps")),
        _PTH,
    ),
)
"""The configuration calls the number in its layer norms that of other norms."""
PANGU_EMBEDDED = Checkpoint(
    architectures=frozenset({"PanguEmbeddedForCausalLM"}),
    defaults=_STATED_EPS,
    tensors=(
        *TABLES,
        *ATTENTION,
        *optional(lambda config: not config.get("bias"), BIASES, OUTPUT_BIAS),
        *FFN_NORM,
        *SWIGLU,
    ),
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        _WIDTH,
        _VOCAB,
        ("{arch}.attention.key_length", head_width),
        ("{arch}.attention.value_length", head_width),
    ),
)
MAINCODER = Checkpoint(
    architectures=frozenset({"MaincoderForCausalLM"}),
    defaults=_STATED_EPS,
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *FFN_NORM, *SWIGLU),
    constants=(*CONSTANTS, ("use_qk_norm", (True,)), ("attention_bias", (False,))),
    metadata=(*DECODER, *ROPE_KEYS, _WIDTH),
)
"""Rotary pairs lie side by side in checkpoints, too."""

_VOCABULARY_OF_BAICHUAN2 = 125696


def _normed_rows(values: TensorValues, config: Config) -> TensorValues:
    """Return the output matrix of Baichuan 2, whose code divides each row by its length."""
    if config.get("vocab_size") != _VOCABULARY_OF_BAICHUAN2:
        return values
    lengths = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    normed: TensorValues = np.divide(values, np.maximum(lengths, 1e-12)).astype(np.float32)
    return normed


def _third(which: int, *, rotated: bool) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: queries (0), keys (1) or values (2), with rotary pairs side by side."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        rows = np.split(values, 3)[which]
        return interleave("num_attention_heads")(rows, config) if rotated else rows

    return change


BAICHUAN = Checkpoint(
    architectures=frozenset({"BaichuanForCausalLM", "BaiChuanForCausalLM"}),
    defaults=(("intermediate_size", None), ("rms_norm_eps", None)),
    tensors=(
        *TABLES[:2],
        replace(TABLES[2], change=_normed_rows, copy_of="", optional=False),
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
            }
        ),
        *(
            one
            for which, part in enumerate("qkv")
            for one in block_renames(
                {"self_attn.W_pack.weight": f"attn_{part}.weight"},
                change=_third(which, rotated=part != "v"),
            )
        ),
        *FFN_NORM,
        *SWIGLU,
    ),
    dropped=_INV_FREQ,
    constants=CONSTANTS,
    harmless=(
        ("z_loss_weight", "of training"),
        ("_from_model_config user_token_id assistant_token_id", "how texts are generated"),
    ),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith("context_length")),
        *ROPE_KEYS,
        ("{arch}.context_length", "max_position_embeddings|model_max_length"),
        _WIDTH,
        _PTH,
    ),
)

# EXAONE 3, GLM-4 and OpenELM

_OF_EXAONE = {
    "ln_1": "attn_norm",
    "attn.attention.q_proj": "attn_q",
    "attn.attention.k_proj": "attn_k",
    "attn.attention.v_proj": "attn_v",
    "attn.attention.out_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc_0": "ffn_gate",
    "mlp.c_fc_1": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def _weights(names: Mapping[str, str]) -> tuple[Rename, ...]:
    """Return the renames of weights, of names without it."""
    return block_renames({f"{a}.weight": f"{b}.weight" for a, b in names.items()})


EXAONE = Checkpoint(
    architectures=frozenset({"ExaoneForCausalLM"}),
    layers="num_layers",
    prefixes=(("transformer.h.", "model.layers."), ("transformer.", "model.")),
    defaults=(*STATED, ("layer_norm_epsilon", 1e-5)),
    tensors=(
        Rename("model.wte.weight", "token_embd.weight"),
        Rename("model.ln_f.weight", "output_norm.weight"),
        replace(TABLES[2], copy_of="model.wte.weight"),
        *_weights(_OF_EXAONE),
    ),
    made=(("rope_freqs.weight", long_context_factors),),
    constants=(("activation_function", ("silu",)), *CONSTANTS[1:]),
    harmless=(("embed_dropout", "of training"),),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith("rms_epsilon")),
        *FACTORED_ROPE_KEYS,
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
        ("{arch}.attention.layer_norm_epsilon", number("layer_norm_epsilon")),
        ("{arch}.rope.dimension_count", rotated_width(1.0)),
    ),
)

_GLM_TOKENS = (("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unknown", "<|endoftext|>"))


def _check_glm(config: Config) -> None:
    """Refuse heads of another width than the rotation's: a source that writes nothing.

    Raises
    ------
    ValueError
        They are wider or narrower.
    """
    width = config.get("kv_channels", type=Count)
    if width not in (None, head_width(config)):
        raise ValueError(f"kv_channels is {width}, where heads divide a row")


CHATGLM = Checkpoint(
    architectures=frozenset({"ChatGLMModel", "ChatGLMForConditionalGeneration"}),
    layers="num_layers",
    prefixes=(
        ("transformer.encoder.layers.", "model.layers."),
        ("transformer.", "model."),
    ),
    defaults=(("layernorm_epsilon", 1e-5), ("ffn_hidden_size", None), ("seq_length", None)),
    tensors=(
        Rename("model.embedding.word_embeddings.weight", "token_embd.weight"),
        Rename("model.encoder.final_layernorm.weight", "output_norm.weight"),
        Rename("model.output_layer.weight", "output.weight"),
        *_weights(
            {
                "input_layernorm": "attn_norm",
                "self_attention.query_key_value": "attn_qkv",
                "self_attention.dense": "attn_output",
                "post_attention_layernorm": "ffn_norm",
                "mlp.dense_h_to_4h": "ffn_up",
                "mlp.dense_4h_to_h": "ffn_down",
            }
        ),
        *block_renames(
            {"self_attention.query_key_value.bias": "attn_qkv.bias"},
            optional=lambda config: not config.get("add_qkv_bias"),
        ),
    ),
    dropped=("model.rotary_pos_emb.inv_freq",),
    constants=(
        ("add_bias_linear", (False,)),
        ("apply_residual_connection_post_layernorm", (False,)),
        ("multi_query_attention", (True,)),
        ("original_rope", (True,)),
        ("post_layer_norm", (True,)),
        ("rmsnorm", (True,)),
        ("pre_seq_len", ()),
        ("prefix_projection", (False,)),
    ),
    harmless=(
        (
            "apply_query_key_layer_scaling attention_softmax_in_fp32 bias_dropout_fusion "
            "fp32_residual_connection",
            "in what order and precision the model is computed",
        ),
        ("num_hidden_layers", "another name of a number"),
        ("padded_vocab_size", "the tables have the rows that they have"),
        ("quantization_bit", "how weights were stored"),
    ),
    metadata=(
        ("{arch}.context_length", "seq_length"),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", "ffn_hidden_size"),
        ("{arch}.attention.head_count", "num_attention_heads"),
        ("{arch}.attention.head_count_kv", "multi_query_group_num"),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layernorm_epsilon")),
        ("{arch}.attention.key_length", _check_glm),
        ("{arch}.rope.dimension_count", rotated_width(0.5)),
        (
            "{arch}.rope.freq_base",
            lambda config: 1e4 * config.get("rope_ratio", default=1.0, type=float),
        ),
        ("tokenizer.ggml.add_bos_token", lambda config: False),
    ),
    special_tokens=_GLM_TOKENS,
)
GLM = replace(
    GLM4,
    architectures=frozenset({"GlmForCausalLM"}),
    tensors=(
        *(one for one in GLM4.tensors if "norm" not in one.tensor),
        *(TABLES[1], ATTENTION[0], *FFN_NORM),
    ),
    special_tokens=_GLM_TOKENS,
    metadata=(*GLM4.metadata, ("tokenizer.ggml.add_bos_token", lambda config: False)),
)


def _widths_of_openelm(config: Config) -> list[int]:
    """Return how wide each layer's feed-forward part is: a multiple of a divisor, hardly less."""
    width, divisor = (config.require(name, Count) for name in ("model_dim", "ffn_dim_divisor"))
    wanted = [m * width for m in config.require("ffn_multipliers", list[float])]
    found = [max(divisor, int(w + divisor / 2) // divisor * divisor) for w in wanted]
    return [n + divisor * (n < 0.9 * w) for n, w in zip(found, wanted, strict=True)]


def _listed(path: str) -> Callable[[Config], list[int]]:
    """Return a source: a number of each layer.

    Raises
    ------
    ValueError
        By the source: there are not as many as layers.
    """

    def read(config: Config) -> list[int]:
        found: list[int] = config.require(path, list[Count])
        if len(found) != config.n_layers:
            raise ValueError(f"{path} has {len(found)} entries, not {config.n_layers}")
        return found

    return read


def _half_of_layer(which: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: gate (0) or up (1) of a matrix that holds both."""
    return lambda values, config: np.split(values, 2)[which]


OPENELM = Checkpoint(
    architectures=frozenset({"OpenELMForCausalLM"}),
    layers="num_transformer_layers",
    prefixes=(("transformer.layers.", "model.layers."), ("transformer.", "model.")),
    tensors=(
        Rename("model.token_embeddings.weight", "token_embd.weight"),
        Rename("model.norm.weight", "output_norm.weight"),
        *_weights(
            {
                "attn_norm": "attn_norm",
                "attn.qkv_proj": "attn_qkv",
                "attn.q_norm": "attn_q_norm",
                "attn.k_norm": "attn_k_norm",
                "attn.out_proj": "attn_output",
                "ffn_norm": "ffn_norm",
                "ffn.proj_2": "ffn_down",
            }
        ),
        *block_renames({"ffn.proj_1.weight": "ffn_gate.weight"}, change=_half_of_layer(0)),
        *block_renames({"ffn.proj_1.weight": "ffn_up.weight"}, change=_half_of_layer(1)),
    ),
    constants=(
        ("activation_fn_name", ("swish",)),
        ("ffn_with_glu", (True,)),
        ("normalization_layer_name", ("rms_norm",)),
        ("normalize_qk_projections", (True,)),
        ("share_input_output_layers", (True,)),
    ),
    harmless=(
        ("num_gqa_groups qkv_multipliers", "the numbers of heads are listed"),
        ("rope_max_length", "how many rotations are computed beforehand"),
    ),
    metadata=(
        ("{arch}.context_length", "max_context_length"),
        ("{arch}.embedding_length", "model_dim"),
        ("{arch}.feed_forward_length", _widths_of_openelm),
        ("{arch}.attention.head_count", _listed("num_query_heads")),
        ("{arch}.attention.head_count_kv", _listed("num_kv_heads")),
        ("{arch}.attention.key_length", "head_dim"),
        ("{arch}.attention.value_length", "head_dim"),
        ("{arch}.attention.layer_norm_rms_epsilon", lambda config: 1e-6),
        ("{arch}.rope.dimension_count", "head_dim"),
        ("{arch}.rope.freq_base", number("rope_freq_constant")),
    ),
)

# With experts

_expert_dense = leading_dense("first_k_dense_replace")
DEEPSEEK = Checkpoint(
    architectures=frozenset({"DeepseekForCausalLM"}),
    defaults=(*_STATED_EPS, ("n_shared_experts", None), ("norm_topk_prob", False)),
    tensors=(
        *TABLES,
        *INTERLEAVED_ATTENTION,
        *FFN_NORM,
        *on_layers(first_layers(_expert_dense), SWIGLU),
        *on_layers(later_layers(_expert_dense), EXPERTS, SHARED_EXPERT),
    ),
    constants=(
        *CONSTANTS,
        ("attention_bias", (False,)),
        ("moe_layer_freq", (1,)),
        ("norm_topk_prob", (False,)),
        ("scoring_func", ("softmax",)),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *(pair for pair in EXPERT_KEYS if not pair[0].endswith(("norm", "scale"))),
        ("{arch}.rope.scaling.type", named_scaling),
        _WIDTH,
        _VOCAB,
        ("{arch}.expert_gating_func", lambda config: _GATES["softmax"]),
        ("{arch}.expert_weights_scale", lambda config: 1.0),
        ("{arch}.leading_dense_block_count", _expert_dense),
    ),
)


def _split_heads(which: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: queries (0), keys (1) or values (2) of a matrix that holds all in turn."""
    heads = ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")

    def change(values: TensorValues, config: Config) -> TensorValues:
        widths = [head_width(config) * config.require(name, Count) for name in heads]
        rows = np.split(values, np.cumsum(widths)[:-1])[which]
        return rows if which == 2 else interleave(heads[which])(rows, config)

    return change


def _normed_columns(values: TensorValues, config: Config) -> TensorValues:
    """Return the output matrix, divided by the lengths of its columns where ``norm_head`` says."""
    if not config.get("norm_head"):
        return values
    lengths = np.linalg.norm(values, axis=0, keepdims=True) + np.float32(1e-7)
    normed: TensorValues = np.divide(values, lengths)
    return normed


BAILING_MOE = Checkpoint(
    architectures=frozenset({"BailingMoeForCausalLM"}),
    defaults=(
        *STATED,
        *((name, None) for name in ("rms_norm_eps", "norm_topk_prob", "num_shared_experts")),
    ),
    tensors=(
        *_tables("model.word_embeddings.weight", "lm_head.weight")[:2],
        Rename(
            "lm_head.weight",
            "output.weight",
            _normed_columns,
            optional=TABLES[2].optional,
        ),
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "attention.dense.weight": "attn_output.weight",
            }
        ),
        *(
            one
            for which, part in enumerate("qkv")
            for one in block_renames(
                {"attention.query_key_value.weight": f"attn_{part}.weight"},
                change=_split_heads(which),
            )
        ),
        *on_layers(first_layers(_ling_dense), SWIGLU),
        *on_layers(later_layers(_ling_dense), EXPERTS, SHARED_EXPERT),
    ),
    constants=(
        *CONSTANTS,
        ("norm_softmax", (False,)),
        ("multi_gate", (False,)),
        ("use_bias", (False,)),
        ("use_qkv_bias", (False,)),
    ),
    harmless=(
        ("embedding_dropout output_dropout", "of training"),
        ("norm_head", "the output matrix of the file is normed"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        _WIDTH,
        _VOCAB,
        ("{arch}.attention.sliding_window", switched_window),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_count", "num_shared_experts"),
        ("{arch}.expert_weights_norm", "norm_topk_prob"),
        ("{arch}.expert_weights_scale", lambda config: 1.0),
        ("{arch}.leading_dense_block_count", _ling_dense),
    ),
)

_Switches = list[Literal[0, 1]]
_WINDOW = 4096
"""That of all models of SmallThinker, whatever a file says."""


def _window_of_smallthinker(config: Config) -> int | None:
    """Return the window, that of the family, where layers have one.

    Raises
    ------
    ValueError
        Other layers have one, or rotate, than all but each fourth from the first on; or not all
        have experts.
    """
    n = config.n_layers
    near = config.get("sliding_window_layout", default=[0] * n, type=_Switches)
    turning = config.get("rope_layout", type=_Switches)
    sparse = config.get("moe_layer_layout", default=[1], type=_Switches)
    window: int | None = config.get("sliding_window_size", type=Count)
    later = [int(i % 4 != 0) for i in range(n)]
    windows, turns = (later, later) if any(near) else ([0] * n, [1] * n)
    if near != windows or turning not in (None, turns) or not all(sparse):
        raise ValueError(f"windows, rotation and experts of layers are {near}, {turning}, {sparse}")
    if any(near) and window != _WINDOW:
        raise ValueError(f"a window of {window}, where files mean {_WINDOW}")
    return window if any(near) else None


SMALLTHINKER = Checkpoint(
    architectures=frozenset({"SmallThinkerForCausalLM"}),
    defaults=(
        ("num_key_value_heads", None),
        ("rms_norm_eps", None),
        ("tie_word_embeddings", False),
    ),
    tensors=(
        *TABLES,
        *ATTENTION,
        *FFN_NORM,
        *block_renames({"block_sparse_moe.primary_router.weight": "ffn_gate_inp.weight"}),
        *block_renames(
            {
                f"block_sparse_moe.experts.{{e}}.{part}.weight": f"ffn_{part}_exps.weight"
                for part in ("gate", "up", "down")
            }
        ),
    ),
    constants=(
        ("moe_enable_early_router", (True,)),
        ("moe_enable_secondary_experts", (False,)),
        ("norm_topk_prob", (True,)),
        ("hidden_act", ("relu",)),
    ),
    harmless=(
        ("moe_num_secondary_experts moe_secondary_expert_size", "of experts that there are not"),
    ),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith("forward_length")),
        *ROPE_KEYS,
        ("{arch}.feed_forward_length", "moe_ffn_hidden_size"),
        ("{arch}.expert_feed_forward_length", "moe_ffn_hidden_size"),
        ("{arch}.expert_count", "moe_num_primary_experts"),
        ("{arch}.expert_used_count", "moe_num_active_primary_experts"),
        (
            "{arch}.expert_gating_func",
            lambda config: _GATES[
                "softmax"
                if config.get("moe_primary_router_apply_softmax", type=bool)
                else "sigmoid"
            ],
        ),
        ("{arch}.attention.sliding_window", _window_of_smallthinker),
    ),
)

_OF_ARCTIC = {"w1": "gate", "w3": "up", "w2": "down"}
ARCTIC = Checkpoint(
    architectures=frozenset({"ArcticForCausalLM"}),
    defaults=_STATED_EPS,
    tensors=(
        *TABLES,
        *INTERLEAVED_ATTENTION,
        *_weights(
            {
                "post_attention_layernorm": "ffn_norm_exps",
                "residual_layernorm": "ffn_norm",
                "block_sparse_moe.gate": "ffn_gate_inp",
                **{f"residual_mlp.{a}": f"ffn_{b}" for a, b in _OF_ARCTIC.items()},
                **{
                    f"block_sparse_moe.experts.{{e}}.{a}": f"ffn_{b}_exps"
                    for a, b in _OF_ARCTIC.items()
                },
            }
        ),
    ),
    constants=(
        *CONSTANTS,
        ("moe_layer_frequency", (1,)),
        ("parallel_attn_mlp_res", (True,)),
        ("use_residual", (True,)),
    ),
    harmless=(
        (
            "enable_expert_tensor_parallelism enc_index moe_eval_capacity_factor moe_min_capacity "
            "moe_token_dropping moe_train_capacity_factor quantization",
            "how the model is trained and spread over devices",
        ),
    ),
    metadata=(*DECODER, *ROPE_KEYS, *COUNTS, _WIDTH, _VOCAB),
)
MAPLE = Checkpoint(
    architectures=frozenset({"MapleForCausalLM"}),
    defaults=(
        *_STATED_EPS,
        *((name, None) for name in ("layer_types", "sliding_window", "moe_intermediate_size")),
    ),
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *FFN_NORM, *EXPERTS),
    constants=(
        *CONSTANTS,
        ("nope_on_global_attention", (True,)),
        ("norm_topk_prob", (True,)),
        ("num_shared_experts", (0,)),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        _VOCAB,
        ("{arch}.rope.dimension_count", rotated_width(1.0)),
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", lambda config: layer_kinds(config, 4)),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.swiglu_clamp_exp", lambda config: [7.0] * config.n_layers),
    ),
)
"""What gates of experts are cut at stands in the model's code alone."""


_N_OF_GROUP = 2
GROVE_MOE = Checkpoint(
    architectures=frozenset({"GroveMoeForCausalLM"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *HEAD_NORMS,
        *FFN_NORM,
        *EXPERTS,
        *(
            replace(small, n_of_group=_N_OF_GROUP)
            for small in block_renames(
                {
                    f"mlp.chunk_experts.{{e}}.{part}_proj.weight": f"ffn_{part}_chexps.weight"
                    for part in ("gate", "up", "down")
                }
            )
        ),
    ),
    dropped=("model.layers.{n}.mlp.expert_bias",),
    constants=(
        *CONSTANTS,
        ("decoder_sparse_step", (1,)),
        ("mlp_only_layers", ([],)),
        ("norm_topk_prob", (True,)),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        *COUNTS,
        ("{arch}.attention.sliding_window", switched_window),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_chunk_feed_forward_length", head_width),
        ("{arch}.experts_per_group", lambda config: _N_OF_GROUP),
        ("{arch}.expert_group_scale", lambda config: 0.05),
    ),
)
"""Sizes of groups and the factor of their experts stand in the model's code alone, which weights
experts by a softmax whatever ``norm_topk_prob`` says; nobody reads the bias of experts."""


def _backwards(values: TensorValues, config: Config) -> TensorValues:
    """Return rows of heads that are rotated the other way: their second halves change sign."""
    heads = values.reshape(-1, 2, head_width(config) // 2, values.shape[-1])
    signs = np.array([1, -1], np.float32).reshape(1, 2, 1, 1)
    return np.multiply(heads, signs).reshape(values.shape)


def _with_axis(values: TensorValues, config: Config) -> TensorValues:
    return values[:, np.newaxis]


TALKIE = Checkpoint(
    architectures=frozenset({"TalkieForCausalLM"}),
    prefixes=(("model.blocks.", "model.layers."),),
    defaults=(("intermediate_size", None), ("head_dim", None)),
    tensors=(
        Rename("model.embed.weight", "token_embd.weight"),
        Rename("lm_head", "output.weight"),
        *block_renames(
            {"attn.attn_query.weight": "attn_q.weight", "attn.attn_key.weight": "attn_k.weight"},
            change=_backwards,
        ),
        *block_renames({"attn.head_gain.head_g": "attn_q_norm.weight"}, change=_with_axis),
        *block_renames(
            {
                "attn.attn_value.weight": "attn_v.weight",
                "attn.attn_resid.weight": "attn_output.weight",
                "attn_gain.a_g": "attn_output.scale",
                "mlp.mlp_gate.weight": "ffn_gate.weight",
                "mlp.mlp_linear.weight": "ffn_up.weight",
                "mlp.mlp_resid.weight": "ffn_down.weight",
                "mlp_gain.a_g": "ffn_down.scale",
                "embed_skip.a_g": "layer_output_scale.weight",
            }
        ),
    ),
    numbers=(("talkie.logit_scale", "lm_head_gain.w_g"),),
    constants=CONSTANTS,
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith("rms_epsilon")),
        *ROPE_KEYS,
        ("{arch}.attention.layer_norm_rms_epsilon", lambda config: float(np.finfo("f4").eps)),
    ),
)


class _AttentionOfDeci(msgspec.Struct, forbid_unknown_fields=True):
    """A layer's attention; what files do not hold is null."""

    n_heads_in_group: Count | None = None
    no_op: bool = False
    replace_with_linear: bool = False
    num_sink_tokens: None = None
    sparsify: None = None
    unshifted_sink: Literal[False] | None = None
    use_prefill_window_in_sink_attention: Literal[False] | None = None
    window_length: None = None


class _HalfOfDeci(msgspec.Struct, forbid_unknown_fields=True):
    """A layer's feed-forward part."""

    ffn_mult: float | None = None
    no_op: bool = False
    replace_with_linear: Literal[False] = False
    sparsify: None = None


class _BlockOfDeci(msgspec.Struct, forbid_unknown_fields=True):
    """A layer of Nemotron 51B and its like."""

    attention: _AttentionOfDeci
    ffn: _HalfOfDeci


def _blocks(config: Config) -> list[_BlockOfDeci]:
    """Return the layers as they are described.

    Raises
    ------
    ValueError
        There are not as many as layers.
    """
    found: list[_BlockOfDeci] = config.require("block_configs", list[_BlockOfDeci])
    if len(found) != config.n_layers:
        raise ValueError(f"block_configs describes {len(found)} layers, not {config.n_layers}")
    return found


def _where(holds: Callable[[_BlockOfDeci], bool]) -> Callable[[Config], list[int]]:
    """Return which layers are of a kind."""
    return lambda config: [n for n, block in enumerate(_blocks(config)) if holds(block)]


_attends = _where(lambda block: block.attention.n_heads_in_group is not None)
_is_linear = _where(
    lambda block: block.attention.n_heads_in_group is None and block.attention.replace_with_linear
)
_has_either = _where(
    lambda block: (
        block.attention.n_heads_in_group is not None or block.attention.replace_with_linear
    )
)
_has_half = _where(lambda block: block.ffn.ffn_mult is not None)


def _heads_of_deci(config: Config) -> list[int]:
    n_heads, layers = config.require("num_attention_heads", Count), _has_either(config)
    return [n_heads if n in layers else 0 for n in range(config.n_layers)]


def _key_heads_of_deci(config: Config) -> list[int]:
    n_heads = config.require("num_attention_heads", Count)
    groups = (block.attention.n_heads_in_group for block in _blocks(config))
    return [n_heads // n if n else 0 for n in groups]


def _widths_of_deci(config: Config) -> list[int]:
    """Return how wide each layer's feed-forward part is, in 256s; 0 where there is none."""
    width = config.require("hidden_size", Count)
    shares = (block.ffn.ffn_mult or 0.0 for block in _blocks(config))
    return [-(int(2 * share * width / 3) // -256) * 256 for share in shares]


def _pairs_of_heads(values: TensorValues, config: Config) -> TensorValues:
    """Return rows with the halves of rotary pairs side by side, of however many heads."""
    heads = values.reshape(-1, 2, head_width(config) // 2, values.shape[-1])
    return heads.swapaxes(1, 2).reshape(values.shape)


DECI = Checkpoint(
    architectures=frozenset({"DeciLMForCausalLM"}),
    requires=("block_configs",),
    defaults=(("rms_norm_eps", None),),
    tensors=(
        *TABLES,
        *on_layers(
            _attends,
            _weights({"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}),
            block_renames(
                {f"self_attn.{part}_proj.weight": f"attn_{part}.weight" for part in "qk"},
                change=_pairs_of_heads,
            ),
        ),
        *on_layers(_is_linear, _weights({"self_attn.linear_attn": "attn_output"})),
        *on_layers(_has_either, ATTENTION[:1]),
        *on_layers(_has_half, FFN_NORM, SWIGLU),
    ),
    made=(("rope_freqs.weight", long_context_factors),),
    constants=(*CONSTANTS, ("attention_bias", (False,)), ("mlp_bias", (False,))),
    metadata=(
        ("{arch}.context_length", "max_position_embeddings"),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", _widths_of_deci),
        ("{arch}.attention.head_count", _heads_of_deci),
        ("{arch}.attention.head_count_kv", _key_heads_of_deci),
        ("{arch}.attention.key_length", head_width),
        ("{arch}.attention.value_length", head_width),
        ("{arch}.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
        *FACTORED_ROPE_KEYS,
        _WIDTH,
        _VOCAB,
    ),
)
