"""Small models of families that are published with code of their own, in their spelling.

``tools/published_families.py`` makes the tests' data of them. Some are read by a class of
transformers that writes them otherwise; the logits of the others are those that llama.cpp computes
of the file that its converter makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.published_families import N_VOCAB

__all__ = ["SIZES", "WITHOUT_CLASS"]

Shapes = dict[str, list[int]]
Settings = dict[str, Any]

SIZES = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WIDTH = 32


def _config(architecture: str, model_type: str, **settings: Any) -> dict[str, Any]:
    """Return a configuration of small sizes; of None there are none."""
    sized = {name: value for name, value in SIZES.items() if settings.get(name, 0) is not None}
    named = {"architectures": [architecture], "model_type": model_type}
    return named | sized | {name: value for name, value in settings.items() if value is not None}


def _model(
    config: Settings,
    layers: Iterable[Shapes],
    prefix: str = "model.layers.",
    cls: str = "",
    **whole: list[int] | None,
) -> Settings:
    """Return configuration and shapes, and the class of transformers that reads them, if any.

    A class that transformers lacks is one of ``own_code_models``.

    Names of a layer's tensors are without ``{prefix}{n}.``; ``whole`` are those of the others, with
    ``__`` for a dot and without ``.weight``.
    """
    tables: dict[str, list[int] | None] = {
        "model__embed_tokens": [N_VOCAB, WIDTH],
        "model__norm": [WIDTH],
        "lm_head": [N_VOCAB, WIDTH],
    }
    named = {
        name.replace("__", ".") + ("" if name.endswith("bias") else ".weight"): shape
        for name, shape in (tables | whole).items()
        if shape
    }
    for n, layer in enumerate(layers):
        named |= {f"{prefix}{n}.{name}": shape for name, shape in layer.items()}
    return {"config": config, "shapes": named, "class": cls}


def _with_images(config: Settings, model_type: str, vision: Settings, **settings: Any) -> Settings:
    """Return a configuration around that of a model's text."""
    text = config | {"architectures": None}
    whole = {"architectures": config["architectures"], "model_type": model_type}
    return whole | {"text_config": text, "vision_config": vision} | settings


_NO_TABLES: dict[str, Any] = dict.fromkeys(("model__embed_tokens", "model__norm", "lm_head"))
_OUTPUT_ALONE: dict[str, Any] = _NO_TABLES | {"lm_head": [N_VOCAB, WIDTH]}
_GATED = ("gate_proj", "up_proj", "down_proj")


def _matrices(prefix: str, width: int, names: tuple[str, str, str] = _GATED) -> Shapes:
    """Return the shapes of gate, up and down of a feed-forward part."""
    gate, up, down = (f"{prefix}{name}.weight" for name in names)
    return {gate: [width, WIDTH], up: [width, WIDTH], down: [WIDTH, width]}


def _experts(
    prefix: str, names: tuple[str, str, str] = _GATED, width: int = 24, n: int = 4
) -> Shapes:
    """Return the shapes of some experts."""
    made: Shapes = {}
    for e in range(n):
        made |= _matrices(f"{prefix}{e}.", width, names)
    return made


def _attention(head: int = 8, n_heads: int = 4, n_kv: int = 2, at: str = "self_attn.") -> Shapes:
    """Return the shapes of the four matrices of attention."""
    return {
        f"{at}q_proj.weight": [n_heads * head, WIDTH],
        f"{at}k_proj.weight": [n_kv * head, WIDTH],
        f"{at}v_proj.weight": [n_kv * head, WIDTH],
        f"{at}o_proj.weight": [WIDTH, n_heads * head],
    }


_NORMS: Shapes = {"input_layernorm.weight": [WIDTH], "post_attention_layernorm.weight": [WIDTH]}
_LLAMA: Shapes = _NORMS | _attention() | _matrices("mlp.", 48)


def _head_norms(width: int) -> Shapes:
    return {f"self_attn.{part}_norm.weight": [width] for part in "qk"}


def _biases(**widths: int) -> Shapes:
    return {f"self_attn.{part}_proj.bias": [width] for part, width in widths.items()}


_LING = _config(
    "BailingMoeV2ForCausalLM",
    "bailing_moe",
    num_hidden_layers=3,
    head_dim=8,
    first_k_dense_replace=1,
    hidden_act="silu",
    moe_intermediate_size=24,
    moe_router_enable_expert_bias=True,
    moe_shared_expert_intermediate_size=24,
    n_group=2,
    topk_group=1,
    norm_topk_prob=True,
    num_experts=4,
    num_experts_per_tok=2,
    num_nextn_predict_layers=1,
    num_shared_experts=1,
    partial_rotary_factor=0.5,
    rms_norm_eps=1e-6,
    rope_theta=600000,
    routed_scaling_factor=2.5,
    router_dtype="fp32",
    score_function="sigmoid",
    tie_word_embeddings=False,
    use_bias=False,
    use_qk_norm=True,
    use_qkv_bias=False,
    use_rmsnorm=True,
)
_LING_ATTENTION: Shapes = {
    **_NORMS,
    "attention.query_key_value.weight": [64, WIDTH],
    "attention.dense.weight": [WIDTH, WIDTH],
}
_LING_NORMS: Shapes = {
    "attention.query_layernorm.weight": [8],
    "attention.key_layernorm.weight": [8],
}
_LING_SPARSE: Shapes = {
    "mlp.gate.weight": [4, WIDTH],
    **_matrices("mlp.shared_experts.", 24),
    **_experts("mlp.experts."),
}
_LING_2 = _LING_ATTENTION | _LING_NORMS
_LING_HEAD: Shapes = {
    **{f"{norm}.weight": [WIDTH] for norm in ("enorm", "hnorm", "final_layernorm")},
    "eh_proj.weight": [WIDTH, 2 * WIDTH],
}
_LING_TABLES: dict[str, Any] = {
    "model__embed_tokens": None,
    "model__word_embeddings": [N_VOCAB, WIDTH],
}

_STEP_HEADS = {"full_attention": 4, "sliding_attention": 6}


def _of_step() -> dict[str, Any]:
    """Return Step 3.7: a dense layer, two with experts, and two heads with a window."""
    near, full = "sliding_attention", "full_attention"
    kinds = [full, near, full, near, near]
    config = _config(
        "Step3p7ForConditionalGeneration",
        "step3p5",
        num_hidden_layers=3,
        num_key_value_heads=None,
        num_attention_groups=2,
        head_dim=16,
        max_seq_len=64,
        rms_norm_eps=1e-5,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        yarn_only_types=[full],
        use_qk_norm=True,
        moe_layers_enum="1,2",
        use_moe=True,
        moe_num_experts=4,
        moe_top_k=2,
        moe_intermediate_size=24,
        share_expert_dim=24,
        moe_layer_offset=0,
        moe_every_n_layer=1,
        norm_expert_weight=True,
        moe_router_activation="sigmoid",
        moe_router_scaling_factor=3.0,
        att_impl_type="GQA",
        num_nextn_predict_layers=2,
        rope_theta=[5000000.0, 10000.0, 5000000.0, 10000.0, 10000.0],
        use_head_wise_attn_gate=True,
        sliding_window=5,
        use_moe_router_bias=True,
        need_fp32_gate=True,
        sink=False,
        layer_types=kinds,
        use_rope_layers=[],
        partial_rotary_factors=[0.5 if kind == full else 1.0 for kind in kinds],
        attention_other_setting={
            "attention_type": near,
            "num_attention_heads": 6,
            "num_attention_groups": 2,
            "head_dim": 16,
            "true_head_dim": 16,
        },
        swiglu_limits=[0.0, 0.0, 1.0, 0.0, 0.0],
        swiglu_limits_shared=[0.0, 0.0, 0.5, 0.0, 0.0],
        tie_word_embeddings=False,
        zero_centered=True,
    )
    sparse: Shapes = {
        "moe.gate.weight": [4, WIDTH],
        "moe.router_bias": [4],
        "moe.gate_proj.weight": [4, 24, WIDTH],
        "moe.up_proj.weight": [4, 24, WIDTH],
        "moe.down_proj.weight": [4, WIDTH, 24],
        **_matrices("share_expert.", 24),
    }
    head: Shapes = {
        "enorm.weight": [WIDTH],
        "hnorm.weight": [WIDTH],
        "eh_proj.weight": [WIDTH, 2 * WIDTH],
        "transformer.shared_head.norm.weight": [WIDTH],
        "transformer.shared_head.output.weight": [N_VOCAB, WIDTH],
        **_matrices("mlp.", 48),
    }
    parts = (_matrices("mlp.", 48), sparse, sparse, head, head)
    layers = (
        {
            **_NORMS,
            **_attention(16, _STEP_HEADS[kind]),
            **_head_norms(16),
            "self_attn.g_proj.weight": [_STEP_HEADS[kind], WIDTH],
            **part,
        }
        for kind, part in zip(kinds, parts, strict=True)
    )
    vision = {"image_size": 28, "width": 16, "layers": 1, "heads": 2, "patch_size": 14}
    config = _with_images(config, "step3p7", vision, image_token_id=3, projector_bias=False)
    return _model(config, layers, cls="Step3p7ForConditionalGeneration")


def _of_minimax() -> dict[str, Any]:
    """Return MiniMax-Text-01, whose heads are wider together than a row; one layer of 8 attends."""
    alphas = {
        f"layernorm_{kind}_{of}": value
        for kind in ("full_attention", "linear_attention", "mlp")
        for of, value in (("alpha", 1.5), ("beta", 1.0))
    }
    config = _config(
        "MiniMaxText01ForCausalLM",
        "minimax_text_01",
        num_hidden_layers=9,
        head_dim=16,
        attn_type_list=[0, 0, 0, 0, 0, 0, 0, 1, 0],
        attention_dropout=0.0,
        hidden_act="silu",
        initializer_range=0.02,
        num_experts_per_tok=1,
        num_local_experts=2,
        output_router_logits=False,
        postnorm=True,
        rms_norm_eps=1e-5,
        rope_theta=10000000,
        rotary_dim=8,
        router_aux_loss_coef=0.001,
        router_jitter_noise=0.0,
        shared_intermediate_size=0,
        shared_moe_mode="sigmoid",
        tie_word_embeddings=False,
        **alphas,
    )
    sparse = {
        **_NORMS,
        "block_sparse_moe.gate.weight": [2, WIDTH],
        **_experts("block_sparse_moe.experts.", ("w1", "w3", "w2"), 48, 2),
    }
    linear = {
        "self_attn.qkv_proj.weight": [192, WIDTH],
        "self_attn.norm.weight": [64],
        "self_attn.output_gate.weight": [64, WIDTH],
        "self_attn.out_proj.weight": [WIDTH, 64],
    }
    return _model(config, (sparse | one for one in (*[linear] * 7, _attention(16), linear)))


def _of_muse() -> dict[str, Any]:
    """Return the text of Muse Glimmer, whose last layer of four sees all tokens."""
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    text = _config(
        "MuseGlimmerForConditionalGeneration",
        "muse_glimmer_text",
        num_hidden_layers=4,
        head_dim=16,
        hidden_activation="silu",
        rms_norm_eps=1e-5,
        post_norm_eps=1e-8,
        attention_bias=False,
        attention_dropout=0.0,
        sliding_window=5,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
        layer_types=kinds,
        layer_rope_theta=[500000.0] * 3 + [0.0],
        qk_scale_factor=3.87,
        output_multiplier=0.196,
        final_logit_softcapping=20.0,
        tie_word_embeddings=False,
    )
    vision = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    config = _with_images(
        text, "muse_glimmer", vision | {"intermediate_size": 16}, image_token_id=3
    )
    layer: Shapes = {
        **_NORMS,
        "pre_feedforward_layernorm.weight": [WIDTH],
        "post_feedforward_layernorm.weight": [WIDTH],
        **_attention(16),
        "self_attn.gate_proj.weight": [64, WIDTH],
        **_matrices("mlp.", 48),
    }
    return _model(
        config,
        [layer] * 4,
        "model.language_model.layers.",
        "MuseGlimmerForConditionalGeneration",
        model__embed_tokens=None,
        model__norm=None,
        model__language_model__embed_tokens=[N_VOCAB, WIDTH],
        model__language_model__norm=[WIDTH],
    )


_PLAMO_NORMS: Shapes = {
    f"{at}_{part}_norm.weight": [WIDTH] for at in ("pre", "post") for part in ("mixer", "mlp")
}


def _of_plamo2() -> dict[str, Any]:
    """Return PLaMo 2: layers of Mamba and of attention in turn."""
    config = _config(
        "Plamo2ForCausalLM",
        "plamo2",
        num_hidden_layers=3,
        attention_window_size=64,
        full_attention_idx=[],
        hidden_size_per_head=16,
        linear_type="normal",
        mamba_chunk_size=256,
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_enabled=True,
        mamba_num_heads=4,
        mamba_step=2,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
        use_predefined_initial_state=False,
    )
    mlp: Shapes = {
        **_PLAMO_NORMS,
        "mlp.gate_up_proj.weight": [96, WIDTH],
        "mlp.down_proj.weight": [WIDTH, 48],
    }
    mamba: Shapes = {
        "mixer.in_proj.weight": [128, WIDTH],
        "mixer.conv1d.weight": [64, 1, 4],
        "mixer.bcdt_proj.weight": [64 + 32, 64],
        "mixer.dt_proj.weight": [4, 64],
        "mixer.dt_bias": [4],
        "mixer.A_log": [4],
        "mixer.D": [4],
        "mixer.dt_norm_weight": [64],
        "mixer.B_norm_weight": [16],
        "mixer.C_norm_weight": [16],
        "mixer.out_proj.weight": [WIDTH, 64],
    }
    attention: Shapes = {
        "mixer.qkv_proj.weight": [128, WIDTH],
        "mixer.o_proj.weight": [WIDTH, 64],
        "mixer.q_weight": [4, 16],
        "mixer.k_weight": [2, 16],
    }
    layers = (mlp | one for one in (mamba, attention, mamba))
    return _model(config, layers, "model.layers.layers.", lm_head=None)


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}
_RMS = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_OF_GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "layer_norm_epsilon": 1e-5}
_NO_SIZES: dict[str, None] = dict.fromkeys(
    (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "max_position_embeddings"),
    )
)


def _both(names: Shapes) -> Shapes:
    """Return the shapes of weights, and of biases as long as their first axis."""
    weights = {f"{name}.weight": shape for name, shape in names.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in names.items()}


def _of_bailing() -> dict[str, Any]:
    """Return Ling (1), all of whose layers have experts."""
    of_2 = (
        *("partial_rotary_factor", "router_dtype", "routed_scaling_factor", "score_function"),
        *("moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size", "n_group"),
        *("topk_group", "num_nextn_predict_layers", "use_qk_norm", "use_rmsnorm"),
    )
    kept = {name: value for name, value in _LING.items() if name not in of_2}
    config = kept | {
        "architectures": ["BailingMoeForCausalLM"],
        "num_hidden_layers": 2,
        "first_k_dense_replace": 0,
        "norm_head": False,
        "norm_softmax": False,
    }
    return _model(config, [_LING_ATTENTION | _LING_SPARSE] * 2, **_LING_TABLES)


def _of_exaone() -> dict[str, Any]:
    """Return EXAONE 3."""
    config = _config(
        "ExaoneForCausalLM",
        "exaone",
        num_hidden_layers=None,
        num_layers=2,
        activation_function="silu",
        attention_dropout=0.0,
        embed_dropout=0.0,
        head_dim=8,
        layer_norm_epsilon=1e-5,
        rope_scaling=_LLAMA3,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
    )
    attention = _attention(at="attn.attention.")
    attention["attn.attention.out_proj.weight"] = attention.pop("attn.attention.o_proj.weight")
    layer: Shapes = {
        "ln_1.weight": [WIDTH],
        "ln_2.weight": [WIDTH],
        **attention,
        **_matrices("mlp.", 48, ("c_fc_0", "c_fc_1", "c_proj")),
    }
    return _model(
        config,
        [layer] * 2,
        "transformer.h.",
        **_OUTPUT_ALONE,
        transformer__wte=[N_VOCAB, WIDTH],
        transformer__ln_f=[WIDTH],
        cls="AutoModelForCausalLM",
    )


def _of_chatglm() -> dict[str, Any]:
    """Return GLM-4 as its own code names it."""
    config = _config(
        "ChatGLMModel",
        "chatglm",
        **_NO_SIZES
        | {
            **{"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2},
            **{"num_layers": 2, "ffn_hidden_size": 48, "kv_channels": 8, "seq_length": 64},
            **{"multi_query_attention": True, "multi_query_group_num": 2, "rmsnorm": True},
            **{"add_bias_linear": False, "add_qkv_bias": True, "layernorm_epsilon": 1.5625e-07},
            **{"apply_residual_connection_post_layernorm": False, "post_layer_norm": True},
            **{"original_rope": True, "rope_ratio": 500, "padded_vocab_size": N_VOCAB},
            **{"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True},
            **{"fp32_residual_connection": False, "bias_dropout_fusion": True},
            "tie_word_embeddings": False,
        },
    )
    layer = {
        **_NORMS,
        **_both({"self_attention.query_key_value": [64, WIDTH]}),
        "self_attention.dense.weight": [WIDTH, WIDTH],
        "mlp.dense_h_to_4h.weight": [96, WIDTH],
        "mlp.dense_4h_to_h.weight": [WIDTH, 48],
    }
    return _model(
        config,
        [layer] * 2,
        "transformer.encoder.layers.",
        **_NO_TABLES,
        transformer__embedding__word_embeddings=[N_VOCAB, WIDTH],
        transformer__encoder__final_layernorm=[WIDTH],
        transformer__output_layer=[N_VOCAB, WIDTH],
    )


def _of_qwen() -> dict[str, Any]:
    """Return Qwen (1)."""
    config = _config(
        "QWenLMHeadModel",
        "qwen",
        **_NO_SIZES
        | {
            **{"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2},
            **{"intermediate_size": 96, "kv_channels": 8, "seq_length": 64},
            **{"max_position_embeddings": 64, "layer_norm_epsilon": 1e-6, "no_bias": True},
            **{"rotary_emb_base": 10000, "rotary_pct": 1.0, "scale_attn_weights": True},
            **{"use_dynamic_ntk": False, "use_logn_attn": False, "use_flash_attn": "auto"},
            **{"bf16": False, "fp16": False, "fp32": False, "emb_dropout_prob": 0.0},
            **{"attn_dropout_prob": 0.0, "onnx_safe": False, "tie_word_embeddings": False},
        },
    )
    layer: Shapes = {
        "ln_1.weight": [WIDTH],
        "ln_2.weight": [WIDTH],
        **_both({"attn.c_attn": [96, WIDTH]}),
        "attn.c_proj.weight": [WIDTH, WIDTH],
        **_matrices("mlp.", 48, ("w2", "w1", "c_proj")),
    }
    return _model(
        config,
        [layer] * 2,
        "transformer.h.",
        **_OUTPUT_ALONE,
        transformer__wte=[N_VOCAB, WIDTH],
        transformer__ln_f=[WIDTH],
    )


def _of_smallthinker() -> dict[str, Any]:
    """Return SmallThinker, whose first layer of four sees all tokens and rotates nothing.

    Of four layers llama.cpp rotates all.
    """
    config = _config(
        "SmallThinkerForCausalLM",
        "smallthinker",
        intermediate_size=None,
        num_hidden_layers=5,
        head_dim=8,
        moe_enable_early_router=True,
        moe_enable_secondary_experts=False,
        moe_ffn_hidden_size=24,
        moe_layer_layout=[1] * 5,
        moe_num_active_primary_experts=2,
        moe_num_primary_experts=4,
        moe_primary_router_apply_softmax=False,
        rms_norm_eps=1e-6,
        rope_layout=[0, 1, 1, 1, 0],
        rope_theta=1500000.0,
        sliding_window_layout=[0, 1, 1, 1, 0],
        sliding_window_size=4096,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    )
    layer = {
        **_NORMS,
        **_attention(),
        "block_sparse_moe.primary_router.weight": [4, WIDTH],
        **_experts("block_sparse_moe.experts.", ("gate", "up", "down")),
    }
    return _model(config, [layer] * 5, lm_head=None)


def _of_openelm() -> dict[str, Any]:
    """Return OpenELM, whose layers have widths and heads of their own."""
    config = _config(
        "OpenELMForCausalLM",
        "openelm",
        **_NO_SIZES
        | {
            **{"model_dim": 32, "head_dim": 8, "num_transformer_layers": 2},
            **{"max_context_length": 64, "rope_freq_constant": 10000, "rope_max_length": 128},
            **{"num_query_heads": [4, 6], "num_kv_heads": [2, 3], "num_gqa_groups": 2},
            **{"ffn_multipliers": [0.75, 1.5], "ffn_dim_divisor": 8, "ffn_with_glu": True},
            **{"activation_fn_name": "swish", "normalization_layer_name": "rms_norm"},
            **{"normalize_qk_projections": True, "share_input_output_layers": True},
            "qkv_multipliers": [0.5, 1.0],
        },
    )
    layers = [
        {
            "attn.qkv_proj.weight": [8 * (n + 2 * n // 2), WIDTH],
            "attn.out_proj.weight": [WIDTH, 8 * n],
            "attn.q_norm.weight": [8],
            "attn.k_norm.weight": [8],
            "attn_norm.weight": [WIDTH],
            "ffn.proj_1.weight": [2 * width, WIDTH],
            "ffn.proj_2.weight": [WIDTH, width],
            "ffn_norm.weight": [WIDTH],
        }
        for n, width in ((4, 24), (6, 48))
    ]
    return _model(
        config,
        layers,
        "transformer.layers.",
        **_NO_TABLES,
        transformer__token_embeddings=[N_VOCAB, WIDTH],
        transformer__norm=[WIDTH],
    )


def _of_plamo3(**more: Any) -> dict[str, Any]:
    """Return PLaMo 3: windows in all but every eighth layer."""
    config = _config(
        "Plamo3ForCausalLM",
        "plamo3",
        num_hidden_layers=2,
        head_dim=16,
        window_size=5,
        sliding_window_pattern=2,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        rope_local_theta=10000,
        linear_type="normal",
        tie_word_embeddings=False,
        **more,
    )
    layer = {
        **_PLAMO_NORMS,
        "mlp.gate_up_proj.weight": [96, WIDTH],
        "mlp.down_proj.weight": [WIDTH, 48],
        "mixer.qkv_proj.weight": [128, WIDTH],
        "mixer.o_proj.weight": [WIDTH, 64],
        "mixer.q_norm.weight": [16],
        "mixer.k_norm.weight": [16],
    }
    return _model(config, [layer] * 2, "model.layers.layers.")


def _of_spark() -> dict[str, Any]:
    """Return Spark X2.5, whose heads are gated."""
    kinds = ["sliding_attention", "full_attention"]
    config = _config(
        "Spark2_5ForCausalLM",
        "spark2_5",
        head_dim=16,
        hidden_act="gelu",
        rms_norm_eps=1e-6,
        layer_types=kinds,
        sliding_window=5,
        gate_attn_act_mode="sigmoid",
        headwise_attn_output_gate=True,
        rope_parameters={
            "full_attention": {"rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
        tie_word_embeddings=False,
    )
    layer = {
        **_NORMS,
        "self_attn.q_k_v_proj.weight": [128, WIDTH],
        "self_attn.o_proj.weight": [WIDTH, 64],
        "self_attn.g_proj.weight": [4, WIDTH],
        **_matrices("mlp.", 48),
    }
    return _model(config, [layer] * 2)


def _of_jais() -> dict[str, Any]:
    """Return Jais, whose matrices lie by inputs."""
    config = _config(
        "JAISLMHeadModel",
        "jais",
        **_NO_SIZES | _OF_GPT,
        n_inner=48,
        activation_function="swiglu",
        position_embedding_type="alibi",
        mup_embeddings_scale=3.0,
        mup_output_alpha=2.0,
        mup_width_scale=0.25,
        mup_scale_qk_dot_by_d=True,
        reorder_and_upcast_attn=False,
        scale_attn_by_inverse_layer_idx=False,
        scale_attn_weights=True,
        tie_word_embeddings=False,
    )
    by_inputs = {
        "attn.c_attn": [WIDTH, 96],
        "attn.c_proj": [WIDTH, WIDTH],
        "mlp.c_fc": [WIDTH, 48],
        "mlp.c_fc2": [WIDTH, 48],
        "mlp.c_proj": [48, WIDTH],
    }
    layer = _both({"ln_1": [WIDTH], "ln_2": [WIDTH]})
    layer |= {f"{name}.weight": shape for name, shape in by_inputs.items()}
    layer |= {f"{name}.bias": shape[1:] for name, shape in by_inputs.items()}
    return _model(
        config,
        [layer] * 2,
        "transformer.h.",
        **_OUTPUT_ALONE,
        transformer__wte=[N_VOCAB, WIDTH],
        transformer__ln_f=[WIDTH],
        transformer__ln_f__bias=[WIDTH],
    )


def _of_refact() -> dict[str, Any]:
    """Return Refact, with one key head."""
    config = _config(
        "GPTRefactForCausalLM",
        "gpt_refact",
        **_NO_SIZES | _OF_GPT,
        activation_function="silu",
        attention_bias_in_fp32=True,
        attention_softmax_in_fp32=True,
        scale_attention_softmax_in_fp32=True,
        scale_attn_weights=True,
        multi_query=True,
        tie_word_embeddings=False,
    )
    layer: Shapes = {
        "ln_1.weight": [WIDTH],
        "ln_2.weight": [WIDTH],
        "attn.q.weight": [WIDTH, WIDTH],
        "attn.kv.weight": [16, WIDTH],
        "attn.c_proj.weight": [WIDTH, WIDTH],
        "mlp.gate_up_proj.weight": [512, WIDTH],
        "mlp.c_proj.weight": [WIDTH, 256],
    }
    return _model(
        config,
        [layer] * 2,
        "transformer.h.",
        **_OUTPUT_ALONE,
        transformer__wte=[N_VOCAB, WIDTH],
        transformer__ln_f=[WIDTH],
    )


def _of_talkie() -> dict[str, Any]:
    """Return Talkie, whose branches have gains in place of norms."""
    config = _config(
        "TalkieForCausalLM",
        "talkie",
        num_key_value_heads=None,
        head_dim=8,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
    )
    layer: Shapes = {
        **{f"attn.attn_{part}.weight": [WIDTH, WIDTH] for part in ("query", "key", "value")},
        "attn.attn_resid.weight": [WIDTH, WIDTH],
        "attn.head_gain.head_g": [4],
        "attn_gain.a_g": [1],
        "mlp_gain.a_g": [1],
        "embed_skip.a_g": [1],
        **_matrices("mlp.", 48, ("mlp_gate", "mlp_linear", "mlp_resid")),
    }
    made = _model(config, [layer] * 2, "model.blocks.", **_NO_TABLES, model__embed=[N_VOCAB, WIDTH])
    made["shapes"] |= {"lm_head": [N_VOCAB, WIDTH], "lm_head_gain.w_g": [1]}
    return made


def _of_deci() -> dict[str, Any]:
    """Return Nemotron: a matrix in place of attention, no attention, and a layer of nothing."""

    def block(n_in_group: int | None, linear: bool, width: float | None) -> dict[str, Any]:
        attention = {
            "n_heads_in_group": n_in_group,
            "no_op": n_in_group is None and not linear,
            "replace_with_linear": linear,
        }
        half = {"ffn_mult": width, "no_op": width is None, "replace_with_linear": False}
        return {"attention": attention, "ffn": half}

    config = _config(
        "DeciLMForCausalLM",
        "nemotron-nas",
        num_hidden_layers=5,
        intermediate_size=None,
        num_key_value_heads=None,
        attention_bias=False,
        mlp_bias=False,
        **_RMS,
        rope_theta=500000.0,
        rope_scaling=_LLAMA3,
        block_configs=[
            *(block(4, False, 1.0), block(None, True, 20.0)),
            *(block(None, False, 1.0), block(None, False, None), block(2, False, 1.0)),
        ],
    )
    norm, other = ({name: [WIDTH]} for name in _NORMS)
    small, wide = (other | _matrices("mlp.", width) for width in (256, 512))
    layers = [
        norm | _attention(n_kv=1) | small,
        norm | {"self_attn.linear_attn.weight": [WIDTH, WIDTH]} | wide,
        small,
        {},
        norm | _attention() | small,
    ]
    return _model(config, layers)


def _of_arctic() -> dict[str, Any]:
    """Return Arctic, whose layers have a dense part beside the experts."""
    config = _config(
        "ArcticForCausalLM",
        "arctic",
        **_RMS,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_layer_frequency=1,
        parallel_attn_mlp_res=True,
        use_residual=True,
        enable_expert_tensor_parallelism=False,
        enc_index=[0, 1],
        moe_eval_capacity_factor=1,
        moe_min_capacity=0,
        moe_token_dropping=False,
        moe_train_capacity_factor=1,
        rope_theta=10000,
    )
    names = ("w1", "w3", "w2")
    layer = {
        **_NORMS,
        **_attention(),
        "residual_layernorm.weight": [WIDTH],
        **_matrices("residual_mlp.", WIDTH, names),
        "block_sparse_moe.gate.weight": [4, WIDTH],
        **_experts("block_sparse_moe.experts.", names, 48),
    }
    return _model(config, [layer] * 2)


def _of_maple() -> dict[str, Any]:
    """Return Maple: layers that see all rotate nothing."""
    config = _config(
        "MapleForCausalLM",
        "maple",
        **_RMS,
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=5,
        nope_on_global_attention=True,
        norm_topk_prob=True,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=0,
        moe_intermediate_size=24,
        rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    layer = {
        **_NORMS,
        **_attention(16),
        **_head_norms(16),
        "mlp.gate.weight": [4, WIDTH],
        **_experts("mlp.experts."),
    }
    return _model(config, [layer] * 2)


def _of_grove() -> dict[str, Any]:
    """Return GroveMoE, of whose experts two each have a small one beside them."""
    config = _config(
        "GroveMoeForCausalLM",
        "grove_moe",
        **_RMS,
        head_dim=16,
        attention_bias=False,
        attention_dropout=0.0,
        decoder_sparse_step=1,
        max_window_layers=2,
        mlp_only_layers=[],
        moe_intermediate_size=24,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=3,
        output_router_logits=False,
        rope_scaling=None,
        rope_theta=10000000.0,
        router_aux_loss_coef=0.001,
        sliding_window=None,
        use_sliding_window=False,
    )
    layer = {
        **_NORMS,
        **_attention(16),
        **_head_norms(16),
        "mlp.gate.weight": [8, WIDTH],
        "mlp.expert_bias": [8],
        **_experts("mlp.experts.", n=8),
        **_experts("mlp.chunk_experts.", width=16),
    }
    return _model(config, [layer] * 2, cls="GroveMoeForCausalLM")


def _of_paddle() -> dict[str, Any]:
    """Return the text of PaddleOCR-VL."""
    text = _config(
        "PaddleOCRVLForConditionalGeneration",
        "paddleocr_vl_text",
        head_dim=16,
        rope_parameters={"rope_theta": 5e5, "rope_type": "default", "mrope_section": [2, 3, 3]},
        use_bias=False,
        **_RMS,
    )
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = _with_images(text, "paddleocr_vl", vision | {"num_attention_heads": 2})
    return _model(
        config | {"tie_word_embeddings": False},
        [_NORMS | _attention(16) | _matrices("mlp.", 48)] * 2,
        cls="PaddleOCRVLForConditionalGeneration",
    )


def _of_cogvlm() -> dict[str, Any]:
    """Return CogVLM, whose rows of text and of an image go through matrices of their own."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_heads": 2}
    config = _config(
        "CogVLMForCausalLM",
        "cogvlm",
        num_key_value_heads=4,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        template_version="chat",
        tie_word_embeddings=False,
        vision_config=vision | {"image_size": 8, "patch_size": 4, "layer_norm_eps": 1e-6},
    )
    layer: Shapes = dict(_NORMS)
    for kind in ("language", "vision"):
        layer |= {
            f"self_attn.{kind}_expert_query_key_value.weight": [3 * WIDTH, WIDTH],
            f"self_attn.{kind}_expert_dense.weight": [WIDTH, WIDTH],
            **_matrices(f"mlp.{kind}_mlp.", 48),
        }
    return _model(config, [layer] * 2)


def _of_plamo() -> dict[str, Any]:
    """Return PLaMo (1), of whose heads two share a key head."""
    config = _config(
        "PlamoForCausalLM",
        "plamo",
        num_key_value_heads=4,
        n_shared_head=2,
        max_position_embeddings=None,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    layer = {"norm.weight": [WIDTH], **_attention(), **_matrices("mlp.", 48)}
    return _model(config, [layer] * 2, "model.layers.layers.")


_OF_GROK = {
    "intermediate_size": 24,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "embedding_multiplier_scale": 5.65,
    "output_multiplier_scale": 0.5,
    "rms_norm_eps": 1e-5,
}


def _of_grok1() -> dict[str, Any]:
    """Return Grok 1."""
    config = _config(
        "GrokForCausalLM",
        "grok-1",
        **_OF_GROK,
        hidden_act="gelu",
        attn_output_multiplier=0.3,
        max_attn_value=30.0,
    )
    layer: Shapes = {
        **{f"rms_norm{i}.weight": [WIDTH] for i in ("", "_1", "_2", "_3")},
        "multi_head_attention.query.weight": [WIDTH, WIDTH],
        "multi_head_attention.key.weight": [16, WIDTH],
        "multi_head_attention.value.weight": [16, WIDTH],
        "multi_head_attention.linear.weight": [WIDTH, WIDTH],
        "router.weight": [4, WIDTH],
        **_experts("moe.", ("linear", "linear_v", "linear_1")),
    }
    return _model(
        config,
        [layer] * 2,
        "transformer.decoder_layer.",
        **_NO_TABLES,
        transformer__in_out_embed=[N_VOCAB, WIDTH],
        transformer__rms_norm=[WIDTH],
    )


def _of_grok2() -> dict[str, Any]:
    """Return Grok 2, with a dense part beside the experts."""
    config = _config(
        "Grok1ForCausalLM",
        "grok-2",
        **_OF_GROK | {"intermediate_size": 48},
        moe_intermediate_size=24,
        residual_moe=True,
        head_dim=8,
        final_logit_softcapping=50,
        attn_logit_softcapping=30.0,
        router_logit_softcapping=30.0,
        rope_theta=208533496,
        attn_temperature_len=1024,
        sliding_window_size=-1,
        global_attn_every_n=1,
        rope_type="original",
        original_max_position_embeddings=8,
        scaling_factor=16.0,
        extrapolation_factor=1.0,
        attn_factor=1.0,
        beta_fast=8,
        beta_slow=1,
    )
    layer: Shapes = {
        **{f"{at}_{of}_norm.weight": [WIDTH] for at in ("pre", "post") for of in ("attn", "moe")},
        **_attention(),
        **_matrices("mlp.", 48),
        "block_sparse_moe.gate.weight": [4, WIDTH],
        **_experts("block_sparse_moe.experts.", ("w1", "w3", "w2")),
    }
    return _model(config, [layer] * 2)


def _of_dots3() -> dict[str, Any]:
    """Return the text of dots.note 3: a dense layer, one with a window and experts, a head."""
    near = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "kv_lora_rank": 24,
        "q_lora_rank": 24,
        "v_head_dim": 8,
    }
    near |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 16}
    full = near | {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 16}
    full |= {"v_head_dim": 16, "qk_nope_head_dim": 16, "head_dim": 24}
    config = _config(
        "Dots3NoteForCausalLM",
        "dots3_note_text",
        **full,
        **{f"swa_{name}": value for name, value in near.items()},
        layer_types=["full_attention", "sliding_attention"],
        sliding_window_size=5,
        rope_theta=1000000.0,
        swa_rope_theta=10000.0,
        rms_norm_eps=1e-6,
        use_dsa=True,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=64,
        apply_mla_qkv_lora_rescale=True,
        k_rope_only_layernorm=True,
        attention_gate_type="headwise",
        swa_attention_gate_type="headwise",
        first_k_dense_replace=1,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=24,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        tie_word_embeddings=False,
    )

    def attention(sizes: dict[str, int]) -> Shapes:
        rank, rotated, n_heads = (
            sizes[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "num_attention_heads")
        )
        key, value = sizes["head_dim"], sizes["v_head_dim"]
        return {
            **_NORMS,
            "self_attn.q_a_proj.weight": [24, WIDTH],
            "self_attn.q_a_layernorm.weight": [24],
            "self_attn.q_b_proj.weight": [n_heads * key, 24],
            "self_attn.kv_a_proj_with_mqa.weight": [rank + rotated, WIDTH],
            "self_attn.kv_a_layernorm.weight": [rank],
            "self_attn.kv_b_proj.weight": [n_heads * (key - rotated + value), rank],
            "self_attn.k_rope_only_layernorm.weight": [rotated],
            "self_attn.o_proj.weight": [WIDTH, n_heads * value],
            "self_attn.g_proj.weight": [n_heads, WIDTH],
        }

    indexer = {
        "self_attn.indexer.k_norm.weight": [16],
        "self_attn.indexer.k_norm.bias": [16],
        "self_attn.indexer.weights_proj.weight": [2, WIDTH],
        "self_attn.indexer.wk.weight": [16, WIDTH],
        "self_attn.indexer.wq_b.weight": [32, 24],
    }
    sparse = {
        "mlp.gate.weight": [4, WIDTH],
        "mlp.gate.e_score_correction_bias": [4],
        **_matrices("mlp.shared_experts.", 24),
        **_experts("mlp.experts."),
    }
    head = {
        "enorm.weight": [WIDTH],
        "hnorm.weight": [WIDTH],
        "eh_proj.weight": [WIDTH, 2 * WIDTH],
        "shared_head.norm.weight": [WIDTH],
    }
    dense = _matrices("mlp.", 48)
    layers = (
        attention(full) | indexer | dense,
        attention(near) | sparse,
        attention(near) | dense | head,
    )
    cls = "Dots3NoteForCausalLM"
    return _model(config, layers, cls=cls, model__mtp__embed_tokens=[N_VOCAB, WIDTH])


WITHOUT_CLASS: dict[str, dict[str, Any]] = {
    "GroveMoeForCausalLM": _of_grove(),
    "CogVLMForCausalLM": _of_cogvlm(),
    "PlamoForCausalLM": _of_plamo(),
    "GrokForCausalLM": _of_grok1(),
    "Grok1ForCausalLM": _of_grok2(),
    "Dots3NoteForCausalLM": _of_dots3(),
    "JAISLMHeadModel": _of_jais(),
    "GPTRefactForCausalLM": _of_refact(),
    "TalkieForCausalLM": _of_talkie(),
    "DeciLMForCausalLM": _of_deci(),
    "MapleForCausalLM": _of_maple(),
    "PaddleOCRVLForConditionalGeneration": _of_paddle(),
    "ExaoneForCausalLM": _of_exaone(),
    "ChatGLMModel": _of_chatglm(),
    "QWenLMHeadModel": _of_qwen(),
    "SmallThinkerForCausalLM": _of_smallthinker(),
    "OpenELMForCausalLM": _of_openelm(),
    "Plamo3ForCausalLM": _of_plamo3(),
    "Plamo3ForCausalLM, long": _of_plamo3(rope_scaling_factor=8.0, initial_context_length=8),
    "Spark2_5ForCausalLM": _of_spark(),
    "BailingMoeForCausalLM": _of_bailing(),
    "BaichuanForCausalLM": _model(
        _config(
            "BaichuanForCausalLM", "baichuan", **_RMS, num_key_value_heads=None, model_max_length=64
        ),
        [
            {
                **_NORMS,
                "self_attn.W_pack.weight": [96, WIDTH],
                "self_attn.o_proj.weight": [WIDTH, WIDTH],
                **_matrices("mlp.", 48),
            }
        ]
        * 2,
    ),
    "DeepseekForCausalLM": _model(
        _config(
            "DeepseekForCausalLM",
            "deepseek",
            **_RMS,
            num_key_value_heads=4,
            attention_bias=False,
            first_k_dense_replace=1,
            moe_intermediate_size=24,
            moe_layer_freq=1,
            n_routed_experts=4,
            n_shared_experts=2,
            norm_topk_prob=False,
            num_experts_per_tok=2,
            rope_theta=10000,
            scoring_func="softmax",
        ),
        [
            _NORMS | _attention(n_kv=4) | part
            for part in (
                _matrices("mlp.", 48),
                {
                    "mlp.gate.weight": [4, WIDTH],
                    **_matrices("mlp.shared_experts.", 48),
                    **_experts("mlp.experts."),
                },
            )
        ],
    ),
    "XverseForCausalLM": _model(
        _config(
            "XverseForCausalLM",
            "xverse",
            **_RMS,
            num_key_value_heads=4,
            max_tokenizer_truncation=64,
            rope_theta=500000,
        ),
        [_NORMS | _attention(n_kv=4) | _matrices("mlp.", 48)] * 2,
    ),
    "NanbeigeForCausalLM": _model(
        _config("NanbeigeForCausalLM", "nanbeige", **_RMS, num_loops=1, rope_theta=70000000.0),
        [_LLAMA] * 2,
    ),
    "OrionForCausalLM": _model(
        _config("OrionForCausalLM", "orion", **_RMS, max_sequence_length=64, rope_theta=10000.0),
        [_both({name[:-7]: [WIDTH] for name in _NORMS}) | _attention() | _matrices("mlp.", 48)] * 2,
        model__norm__bias=[WIDTH],
    ),
    "PanguEmbeddedForCausalLM": _model(
        _config("PanguEmbeddedForCausalLM", "PanguEmbedded", **_RMS, bias=True, rope_theta=16e6),
        [_LLAMA | _biases(q=32, k=16, v=16, o=32)] * 2,
    ),
    "MaincoderForCausalLM": _model(
        _config("MaincoderForCausalLM", "maincoder", **_RMS, head_dim=16, rope_theta=1e6),
        [_NORMS | _attention(16) | _head_norms(16) | _matrices("mlp.", 48)] * 2,
    ),
    "CodeShellForCausalLM": _model(
        _config(
            "CodeShellForCausalLM",
            "codeshell",
            **_NO_SIZES | _OF_GPT,
            activation_function="gelu_pytorch_tanh",
            group_query_attention=True,
            num_query_groups=2,
            n_inner=128,
            position_embedding_type="rope",
            scale_attn_weights=True,
            tie_word_embeddings=False,
        ),
        [
            _both(
                {
                    "ln_1": [WIDTH],
                    "ln_2": [WIDTH],
                    "attn.c_attn": [64, WIDTH],
                    "attn.c_proj": [WIDTH, WIDTH],
                    "mlp.c_fc": [128, WIDTH],
                    "mlp.c_proj": [WIDTH, 128],
                }
            )
        ]
        * 2,
        "transformer.h.",
        **_OUTPUT_ALONE,
        transformer__wte=[N_VOCAB, WIDTH],
        transformer__ln_f=[WIDTH],
        transformer__ln_f__bias=[WIDTH],
    ),
    "BailingMoeV2ForCausalLM": _model(
        _LING,
        [
            _LING_2 | _matrices("mlp.", 48),
            *[_LING_2 | _LING_SPARSE | {"mlp.gate.expert_bias": [4]}] * 2,
            _LING_2 | _LING_SPARSE | {"mlp.gate.expert_bias": [4]} | _LING_HEAD,
        ],
        **_LING_TABLES,
    ),
    "InternLM2ForCausalLM": _model(
        _config(
            "InternLM2ForCausalLM",
            "internlm2",
            bias=False,
            hidden_act="silu",
            rms_norm_eps=1e-5,
            rope_theta=1000000,
            tie_word_embeddings=False,
        ),
        [
            {
                "attention.wqkv.weight": [64, WIDTH],
                "attention.wo.weight": [WIDTH, WIDTH],
                "attention_norm.weight": [WIDTH],
                "ffn_norm.weight": [WIDTH],
                **_matrices("feed_forward.", 48, ("w1", "w3", "w2")),
            }
        ]
        * 2,
        model__embed_tokens=None,
        lm_head=None,
        model__tok_embeddings=[N_VOCAB, WIDTH],
        output=[N_VOCAB, WIDTH],
    ),
    "Step3p7ForConditionalGeneration": _of_step(),
    "MiniMaxText01ForCausalLM": _of_minimax(),
    "MuseGlimmerForConditionalGeneration": _of_muse(),
    "Plamo2ForCausalLM": _of_plamo2(),
    "MiniCPMForCausalLM": _model(
        _config(
            "MiniCPMForCausalLM",
            "minicpm",
            hidden_act="silu",
            initializer_range=0.1,
            rms_norm_eps=1e-5,
            scale_emb=12,
            dim_model_base=16,
            scale_depth=1.4,
        ),
        [_LLAMA] * 2,
        lm_head=None,
    ),
    "ArcticForCausalLM": _of_arctic(),  # the last: it changes the names that the converter knows
}
"""Configuration and shapes of each."""
