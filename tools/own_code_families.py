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

    Names of a layer's tensors are without ``{prefix}{n}.``; ``whole`` are those of the others, with
    ``__`` for a dot and without ``.weight``.
    """
    tables: dict[str, list[int] | None] = {
        "model__embed_tokens": [N_VOCAB, WIDTH],
        "model__norm": [WIDTH],
        "lm_head": [N_VOCAB, WIDTH],
    }
    named = {f"{name.replace('__', '.')}.weight": s for name, s in (tables | whole).items() if s}
    for n, layer in enumerate(layers):
        named |= {f"{prefix}{n}.{name}": shape for name, shape in layer.items()}
    return {"config": config, "shapes": named, "class": cls}


def _with_images(config: Settings, model_type: str, vision: Settings, **settings: Any) -> Settings:
    """Return a configuration around that of a model's text."""
    text = config | {"architectures": None}
    whole = {"architectures": config["architectures"], "model_type": model_type}
    return whole | {"text_config": text, "vision_config": vision} | settings


_NO_TABLES: dict[str, None] = dict.fromkeys(("model__embed_tokens", "model__norm", "lm_head"))
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
    num_nextn_predict_layers=0,
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


WITHOUT_CLASS: dict[str, dict[str, Any]] = {
    "BailingMoeV2ForCausalLM": _model(
        _LING,
        [
            _LING_2 | _matrices("mlp.", 48),
            *[_LING_2 | _LING_SPARSE | {"mlp.gate.expert_bias": [4]}] * 2,
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
}
"""Configuration and shapes of each."""
