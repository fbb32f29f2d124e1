"""Compute what transformers and llama.cpp's converter make of small checkpoints of many families.

    python tools/published_families.py [--converter LLAMA_CPP --program LOGITS] [NAME ...]

Each family is a class of transformers with small sizes. It writes a checkpoint, whose tensors then
get the values of ``tests/harness/published_families.py``; read again, it computes the logits of a
text. With the folder of llama.cpp's sources its converter is run on the same checkpoint, without a
tokenizer, and the digests of its tensors are kept. Needs torch and transformers 5.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import own_code_models  # noqa: E402
from harness import published_families as data  # noqa: E402
from own_code_families import SIZES, WITHOUT_CLASS  # noqa: E402

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
OF_FALCON = {"max_position_embeddings": 2048}
WINDOW = {"sliding_window": 5}
OF_JAMBA = {
    "num_hidden_layers": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "mamba_d_state": 8,
}

OF_GEMMA3N = {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "vocab_size_per_layer_input": data.N_VOCAB,
    "num_kv_shared_layers": 2,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0, 0.0, 0.75],
    "final_logit_softcapping": 3.0,
    **WINDOW,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.25,
}
MAMBA = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_expand": 2,
}
OF_NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
}
OF_INDEXERS = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "index_topk": 64,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "n_group": 1,
    "topk_group": 1,
}
OF_KIMI = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "head_dim": 16,
}

GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 4,
    "llama_4_scaling_beta": 0.1,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def of_text(text: dict[str, Any], vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the settings of a model of text and images."""
    return {"text_config": SIZES | text, "vision_config": vision, **more}


FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        "num_hidden_layers": 6,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        **WINDOW,
    },
    "Gemma3ForConditionalGeneration": of_text(
        {"num_hidden_layers": 6, "head_dim": 16, "query_pre_attn_scalar": 16, **WINDOW},
        VISION,
        mm_tokens_per_image=1,
    ),
    "Gemma2ForCausalLM": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        **WINDOW,
    },
    "GemmaForCausalLM": {"head_dim": 16},
    "Gemma3nForCausalLM": OF_GEMMA3N,
    "Gemma3nForCausalLM, short table": OF_GEMMA3N | {"vocab_size_per_layer_input": 48},
    "Qwen2MoeForCausalLM": EXPERTS | {"shared_expert_intermediate_size": 40},
    "Phi3ForCausalLM": {},
    "Phi3ForCausalLM, long": {
        "original_max_position_embeddings": 8,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "long_factor": [1.5, 2.0, 3.0, 4.0],
            "short_factor": [1.0, 1.25, 1.5, 1.75],
            "original_max_position_embeddings": 8,
        },
    },
    "Ministral3ForCausalLM": {"head_dim": 8, "rope_parameters": GROWING},
    "Mistral3ForConditionalGeneration": of_text(
        {"model_type": "ministral3", "head_dim": 8, "rope_parameters": GROWING},
        VISION | {"model_type": "pixtral", "head_dim": 8},
    ),
    "Glm4ForCausalLM": {"head_dim": 8},
    "GraniteForCausalLM": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
    },
    "GraniteMoeForCausalLM": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
    },
    "SmolLM3ForCausalLM": {"num_hidden_layers": 4},
    "Olmo2ForCausalLM": {},
    "Olmo3ForCausalLM": {"num_hidden_layers": 4, **WINDOW},
    "OlmoeForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2},
    "MambaForCausalLM": {"intermediate_size": 64, "state_size": 8, "time_step_rank": 3},
    "FalconMambaForCausalLM": {
        "intermediate_size": 64,
        "tie_word_embeddings": False,
        "mixer_rms_eps": 1e-5,
    },
    "JambaForCausalLM": OF_JAMBA | {"num_experts": 4, "expert_layer_period": 2},
    "JambaForCausalLM, dense": OF_JAMBA | {"num_experts": 1, "num_experts_per_tok": 1},
    "SeedOssForCausalLM": {"head_dim": 16},
    "Exaone4ForCausalLM": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 16},
    "HunYuanVLForConditionalGeneration": of_text(
        {
            "head_dim": 16,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 1000.0,
                "factor": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "mrope_section": [2, 2, 2, 2],
            },
        },
        VISION | {"out_hidden_size": 32, "text_hidden_size": 32},
        image_token_id=3,
    ),
    "HunYuanDenseV1ForCausalLM, long": {
        "head_dim": 16,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "alpha": 1000.0,
            "factor": 1.0,
        },
    },
    "HunYuanMoEV1ForCausalLM": {
        "head_dim": 16,
        "num_experts": 4,
        "moe_topk": [2, 2],
        "moe_intermediate_size": [48, 48],
        "num_shared_expert": [1, 1],
    },
    "ArceeForCausalLM": {},
    "ApertusForCausalLM": {},
    "Ernie4_5ForCausalLM": {"head_dim": 8},
    "Ernie4_5_MoeForCausalLM": {
        "num_hidden_layers": 3,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 12,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 2,
    },
    "Cohere2ForCausalLM": {"rotary_pct": 1.0, "num_hidden_layers": 4, "head_dim": 8, **WINDOW},
    "CohereForCausalLM": {},
    "CohereForCausalLM, normed heads": {"use_qk_norm": True},
    "MiniMaxM2ForCausalLM": {
        "rotary_dim": 8,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "Dots1ForCausalLM": {
        "num_hidden_layers": 3,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
    },
    "NemotronForCausalLM": {"head_dim": 8},
    "Starcoder2ForCausalLM": {},
    "StableLmForCausalLM": {"use_qkv_bias": True},
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "FalconForCausalLM": {"num_kv_heads": 2, "new_decoder_architecture": True, **OF_FALCON},
    "FalconForCausalLM, one key head": {"num_kv_heads": 1, **OF_FALCON},
    "PhiForCausalLM": {"num_key_value_heads": 4, "intermediate_size": 128},
    "GPTNeoXForCausalLM": {},
    "Qwen3VLForConditionalGeneration": of_text(
        {"head_dim": 16},
        {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
        },
    ),
    "MellumForCausalLM": {
        "num_hidden_layers": 4,
        "head_dim": 8,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        **EXPERTS,
        **WINDOW,
    },
    "OlmoForCausalLM": {"clip_qkv": 1.0},
    "GraniteMoeSharedForCausalLM": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
    },
    "GPTBigCodeForCausalLM": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "n_inner": 128,
    },
    "Jais2ForCausalLM": {"head_dim": 8},
    "Qwen2_5_VLForConditionalGeneration": of_text(
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [1, 1, 2],
            }
        },
        {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
        },
    ),
    "Qwen2VLForConditionalGeneration": of_text(
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [1, 1, 2],
            }
        },
        {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2},
    ),
    "GraniteMoeHybridForCausalLM": MAMBA
    | MULTIPLIERS
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
    },
    "GraniteMoeHybridForCausalLM, dense": MAMBA
    | MULTIPLIERS
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 48,
    },
    "GraniteMoeHybridForCausalLM, attention alone": MAMBA
    | MULTIPLIERS
    | {
        "layer_types": ["full_attention"] * 3,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
    },
    "NemotronHForCausalLM": OF_NEMOTRON
    | {"layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"]},
    "NemotronHForCausalLM, experts": OF_NEMOTRON
    | {
        "layers_block_type": ["linear_attention", "full_attention", "moe", "linear_attention"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "routed_scaling_factor": 2.5,
    },
    "NemotronHForCausalLM, narrow experts": OF_NEMOTRON
    | {
        "layers_block_type": ["linear_attention", "full_attention", "moe"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": 16,
        "routed_scaling_factor": 2.5,
    },
    "BambaForCausalLM": MAMBA | {"attn_layer_indices": [1]},
    "FalconH1ForCausalLM": {
        **MAMBA,
        "num_hidden_layers": 2,
        "mamba_d_ssm": 64,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "head_dim": 16,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.75,
        "attention_in_multiplier": 1.5,
        "attention_out_multiplier": 0.625,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.875,
        "mlp_multipliers": [0.75, 1.5],
        "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 1.75],
    },
    "FalconH1ForCausalLM, without a norm": {
        **MAMBA,
        "num_hidden_layers": 2,
        "mamba_d_ssm": 64,
        "mamba_rms_norm": False,
        "head_dim": 16,
    },
    "Mamba2ForCausalLM": {
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "expand": 2,
    },
    "Qwen3VLMoeForConditionalGeneration": of_text(
        {
            "head_dim": 16,
            **EXPERTS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
        },
    ),
    "ExaoneMoeForCausalLM": {
        "num_hidden_layers": 4,
        **EXPERTS,
        **WINDOW,
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "AfmoeForCausalLM": {
        "num_hidden_layers": 4,
        **EXPERTS,
        **WINDOW,
        "head_dim": 16,
        "num_dense_layers": 1,
        "num_shared_experts": 1,
        "route_scale": 2.5,
        "mup_enabled": True,
    },
    "Cohere2MoeForCausalLM": {
        "num_hidden_layers": 5,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        **WINDOW,
        "head_dim": 16,
        "num_shared_experts": 1,
        "expert_selection_fn": "sigmoid",
        "first_k_dense_replace": 1,
        "prefix_dense_intermediate_size": 40,
    },
    "LagunaForCausalLM": {
        "num_hidden_layers": 5,
        **EXPERTS,
        **WINDOW,
        "head_dim": 16,
        "shared_expert_intermediate_size": 24,
        "moe_routed_scaling_factor": 2.5,
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
    },
    "HYV3ForCausalLM": {
        "num_hidden_layers": 3,
        **EXPERTS,
        "head_dim": 16,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "GlmMoeDsaForCausalLM": OF_INDEXERS,
    "DeepseekV32ForCausalLM": OF_INDEXERS,
    "KimiLinearForCausalLM": OF_KIMI
    | {
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_experts_per_token": 2,
        "moe_intermediate_size": 24,
        "num_experts": 4,
    },
    "PhimoeForCausalLM": {"num_local_experts": 4, "attention_bias": True, "lm_head_bias": True},
    "BailingHybridForCausalLM": OF_KIMI
    | {
        "layer_group_size": 3,
        "first_k_dense_replace": 1,
        "num_experts": 4,
        "num_expert_group": 2,
        "topk_group": 1,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 24,
        "num_nextn_predict_layers": 1,
    },
    "MiniCPM3ForCausalLM": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
    "HrmTextForCausalLM": {"head_dim": 8, "L_cycles": 2},
    "MptForCausalLM": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"clip_qkv": 1.0},
    },
    "MiniMaxForCausalLM": {
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        **{f"{of}_alpha_factor": 1.5 for of in ("linear_attn", "full_attn", "mlp")},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "MiniMaxM3SparseForConditionalGeneration": of_text(
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 8,
            "rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
            "dense_intermediate_size": 48,
            "intermediate_size": 24,
            "shared_intermediate_size": 24,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 8,
            "index_topk_blocks": 8,
        },
        VISION,
        projector_hidden_size=16,
    ),
    "GlmForCausalLM": {"head_dim": 8},
    "GraniteSWAForCausalLM": {
        "num_hidden_layers": 4,
        "head_dim": 8,
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        **MULTIPLIERS,
        **WINDOW,
    },
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "DbrxForCausalLM": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
        "ffn_config": {
            "ffn_hidden_size": 24,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 32,
        },
    },
    "Llama4ForCausalLM": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "intermediate_size": 24,
        "intermediate_size_mlp": 48,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
    },
    "GptOssForCausalLM": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}

OF_THE_CLASS = {
    "BambaForCausalLM",
    "Gemma3nForCausalLM, short table",
    "GlmForCausalLM",
    "GptOssForCausalLM",
    "MiniMaxForCausalLM",
}
"""Held against transformers alone: llama.cpp's converter orders what Bamba does not rotate as if it
were rotated, fills up a table with zeros, where the class reads its first row, and does not know
MiniMax-01 and the context and the number in norms of GLM-4 as transformers writes them. What it
makes of gpt-oss is held elsewhere (``tests/plugins/test_gpt_oss.py``)."""

_ROTATION_OF_PHI = {"original_max_position_embeddings": 64}
_NO_EXPERTS = dict.fromkeys(("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"))
_ONE_HEAD = {"num_nextn_predict_layers": 1}
_MAMBA_FIRST = {"layer_types": ["mamba", "attention", "mamba"]}
SPELLED: dict[str, dict[str, Any]] = {
    "GraniteMoeHybridForCausalLM": _MAMBA_FIRST,
    "GraniteMoeHybridForCausalLM, dense": _MAMBA_FIRST,
    "GraniteMoeHybridForCausalLM, attention alone": {"layer_types": ["attention"] * 3},
    "BailingHybridForCausalLM": {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 1,
        "n_group": 2,
        "head_dim": 16,
        "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
        "moe_shared_expert_intermediate_size": 24,
        "norm_topk_prob": True,
    },
    "PhimoeForCausalLM": {"architectures": ["PhiMoEForCausalLM"], **_ROTATION_OF_PHI},
    "MptForCausalLM": {"architectures": ["MPTForCausalLM"]},
    "MiniMaxM3SparseForConditionalGeneration": {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "n_shared_experts": 1,
        "moe_layer_freq": [0, 1, 1],
        "scoring_func": "sigmoid",
        "sparse_attention_config": {
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 16,
            "sparse_block_size": 8,
            "sparse_topk_blocks": 8,
            "sparse_local_block": 1,
        },
    },
    "Cohere2MoeForCausalLM": _ONE_HEAD,
    "DeepseekV32ForCausalLM": _ONE_HEAD,
    "ExaoneMoeForCausalLM": {"scoring_func": "sigmoid"} | _ONE_HEAD,
    "GlmMoeDsaForCausalLM": _ONE_HEAD,
    "HYV3ForCausalLM": _ONE_HEAD,
    "NemotronHForCausalLM, experts": _ONE_HEAD,
    "KimiLinearForCausalLM": {
        "linear_attn_config": {
            "full_attn_layers": [3],
            "kda_layers": [1, 2],
            "head_dim": 16,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
        "moe_router_activation_func": "sigmoid",
    },
    "NemotronHForCausalLM": {"hybrid_override_pattern": "M*-M", **_NO_EXPERTS},
    "GPTNeoXForCausalLM": {"rotary_pct": 0.25},
    "GPT2LMHeadModel": {"n_ctx": 64},
}
"""What the converter reads of older files, which transformers 5 writes elsewhere; None: nothing."""


def copied(shapes: dict[str, list[int]], begin: str, to: str) -> dict[str, list[int]]:
    """Return the tensors of a layer under another name."""
    return {
        to + name.removeprefix(begin): shape
        for name, shape in shapes.items()
        if name.startswith(begin)
    }


def joined(at: str, *norms: str, matrix: str = "eh_proj") -> dict[str, list[int]]:
    """Return what a NextN head has beside a layer."""
    return {f"{at}{name}.weight": [32] for name in norms} | {f"{at}{matrix}.weight": [32, 64]}


def head_after(*norms: str) -> Callable[[dict[str, list[int]]], dict[str, list[int]]]:
    """Return a function that makes a head, which transformers does not read: as the last layer."""

    def head(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
        begin = "model.layers."
        n = 1 + max(int(name.split(".")[2]) for name in shapes if name.startswith(begin))
        made = copied(shapes, f"{begin}{n - 1}.", f"{begin}{n}.")
        return made | joined(f"{begin}{n}.", "enorm", "hnorm", *norms)

    return head


def head_of_exaone(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return K-EXAONE's, whose layer is dense, as the first one."""
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return copied(shapes, "model.layers.0.", "mtp.layers.0.") | joined("mtp.", *norms, matrix="fc")


def head_of_nemotron(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return Nemotron's: a layer that attends, and one with experts."""
    begin = next(name for name in shapes if ".layers." in name).partition("layers.")[0] + "layers."
    made = copied(shapes, f"{begin}1.", "mtp.layers.0.") | joined("mtp.layers.0.", "enorm", "hnorm")
    made |= copied(shapes, f"{begin}2.", "mtp.layers.1.")
    return made | {"mtp.layers.1.final_layernorm.weight": [32]}


FIXED = ("_decay", ".slope_rate")
"""What names of tensors end in that follow from the configuration (MiniMax-01)."""
HEADS = {
    "BailingHybridForCausalLM": head_after("final_layernorm"),
    "Cohere2MoeForCausalLM": head_after("shared_head.norm"),
    "DeepseekV32ForCausalLM": head_after("shared_head.norm"),
    "ExaoneMoeForCausalLM": head_of_exaone,
    "GlmMoeDsaForCausalLM": head_after("shared_head.norm"),
    "HYV3ForCausalLM": head_after("final_layernorm"),
    "NemotronHForCausalLM, experts": head_of_nemotron,
}
"""Tensors of heads that checkpoints have beside what transformers writes."""


def as_published(name: str, shape: list[int]) -> list[int]:
    """Return the shape of a tensor as checkpoints of Qwen3-VL have it: experts by inputs."""
    return [shape[0], shape[2], shape[1]] if "mlp.experts." in name else shape


ANOTHER_ROUTER = ("PhimoeForCausalLM",)
"""Classes whose experts are weighted otherwise than llama.cpp's graph does; its logits are held."""


RUNS_WITH: dict[str, dict[str, Any]] = {
    "Plamo2ForCausalLM": {"attention.head_count": 4},
    "QWenLMHeadModel": {"attention.layer_norm_rms_epsilon": 1e-6},
}
"""Keys without which llama.cpp does not run what its converter makes.

Of a model whose first layer has no heads it does not know how wide the rotation is; Qwen's number
in norms the converter names as that of other norms.
"""


def without_class(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Write a checkpoint that no class of transformers writes so; see ``checkpoint``."""
    config, shapes = (WITHOUT_CLASS[name][part] for part in ("config", "shapes"))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(data.tensors(shapes), folder / "model.safetensors", {"format": "pt"})
    return config, shapes


def logits_of_class(cls: Any, folder: Path) -> np.ndarray:
    """Return the logits that a class of transformers computes of a checkpoint."""
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = model(torch.from_numpy(data.tokens()).long()[None], use_cache=False)
    return np.asarray(out.logits[0].float().numpy())


def computed(program: Path, path: Path) -> np.ndarray:
    """Return the logits of a model file as ``tools/llama_cpp_logits.cpp`` writes them."""
    ids = " ".join(map(str, (data.N_TOKENS, *data.tokens())))
    run = subprocess.run(
        [program, path], input=ids.encode(), capture_output=True, check=True, timeout=30
    )
    return np.frombuffer(run.stdout, np.float32).reshape(data.N_TOKENS, data.N_VOCAB)


def checkpoint(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[int]], np.ndarray]:
    """Write a checkpoint; return its configuration, the tensors' shapes and the logits."""
    cls = getattr(transformers, name.split(",")[0])
    sized = SIZES.keys() & cls.config_class().to_dict().keys()
    settings = FAMILIES[name]
    if "text_config" not in settings:
        settings = {name: SIZES[name] for name in sized} | settings
    config = cls.config_class(**json.loads(json.dumps(settings)))
    cls(config).float().save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "numpy") as file:
        shapes = {
            key: file.get_slice(key).get_shape()
            for key in file.keys()  # noqa: SIM118
            if not key.endswith(FIXED)
        }
    if name.startswith("Qwen3VLMoe"):
        shapes = {key: as_published(key, shape) for key, shape in shapes.items()}
    elif name.startswith("KimiLinear"):  # whose dense layers transformers renames as sparse ones
        dense = ".0.block_sparse_moe."
        shapes = {key.replace(dense, ".0.mlp."): shape for key, shape in shapes.items()}
    shapes |= HEADS.get(name, dict)(shapes)
    save_file(data.tensors(shapes), path, {"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    return said, shapes, logits_of_class(cls, folder)


def write_by_converter(
    folder: Path, sources: Path, spelled: dict[str, Any], path: Path, **changed: Any
) -> Any:
    """Write the file that llama.cpp's converter makes of a checkpoint; return a reader of it.

    ``changed`` are keys of the architecture that are to have another value.
    """
    vocabulary = {"vocab": {str(i): i for i in range(data.N_VOCAB)}}
    text = json.dumps({"model": vocabulary, "added_tokens": []})
    (folder / "tokenizer.json").write_text(text)
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    conversion, gguf = importlib.import_module("conversion"), importlib.import_module("gguf")
    base = importlib.import_module("conversion.base")
    hparams = base.ModelBase.load_hparams(folder, False) | copy.deepcopy(spelled)
    hparams = {key: value for key, value in hparams.items() if spelled.get(key, key) is not None}
    architecture = base.get_model_architecture(hparams, base.ModelType.TEXT)
    cls = conversion.get_model_class(architecture)
    repair(architecture, cls, base.TextModel)
    with torch.inference_mode():
        model = cls(folder, gguf.LlamaFileType.ALL_F32, path, hparams=hparams)
        for one in (model, getattr(model, "impl", model)):
            one.set_vocab = lambda: add_vocabulary(model.gguf_writer)
            one._get_suppress_tokens = list  # which reads a tokenizer
        set_parameters = model.set_gguf_parameters

        def set_gguf_parameters() -> None:
            set_parameters()
            for key, value in changed.items():
                add = "add_float32" if isinstance(value, float) else "add_uint32"
                getattr(model.gguf_writer, add)(f"{model.gguf_writer.arch}.{key}", value)

        model.set_gguf_parameters = set_gguf_parameters
        model.write()
    return gguf.GGUFReader(path)


def repair(architecture: str, cls: Any, above: Any) -> None:
    """Let converters run that stop: see the page of the architectures."""
    if architecture == "BaichuanForCausalLM":  # which calls itself without end
        unpack = cls.modify_tensors

        def modify_tensors(self: Any, values: Any, name: str, bid: int | None) -> Any:
            method = unpack if "W_pack" in name else above.modify_tensors
            return method(self, values, name, bid)

        cls.modify_tensors = modify_tensors
    elif architecture == "CogVLMForCausalLM":  # which drops what its graph asks for
        keep = cls.filter_tensors.__func__

        def filter_tensors(cls: Any, item: tuple[str, Any]) -> Any:
            name, values = item
            kept = keep(cls, (name.replace("vision_", "sight_"), values))
            return kept and (kept[0].replace("sight_", "vision_"), values)

        cls.filter_tensors = classmethod(filter_tensors)
    elif architecture == "PlamoForCausalLM":  # which knows one size
        cls.shuffle_attn_q_weight = lambda self, q: by_key_head(self, q)
        cls.shuffle_attn_output_weight = lambda self, o: by_key_head(self, o.T).T
        set_parameters = cls.set_gguf_parameters

        def set_gguf_parameters(self: Any) -> None:
            set_parameters(self)
            n_heads, n_shared = (
                self.hparams[name] for name in ("num_attention_heads", "n_shared_head")
            )
            self.gguf_writer.add_head_count_kv(n_heads // n_shared)

        cls.set_gguf_parameters = set_gguf_parameters


def by_key_head(model: Any, rows: Any) -> Any:
    """Return rows of PLaMo's heads as its converter orders those of the published size."""
    n_heads, n_shared = (model.hparams[name] for name in ("num_attention_heads", "n_shared_head"))
    heads = rows.reshape(n_shared, n_heads // n_shared, -1, rows.shape[1])
    return torch.permute(heads, (1, 0, 2, 3)).reshape(rows.shape)


def converted(folder: Path, sources: Path, spelled: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what llama.cpp's converter makes of a checkpoint: digests, and a family's metadata."""
    reader = write_by_converter(folder, sources, spelled, folder / "peer.gguf")
    arch = reader.fields["general.architecture"].contents()
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{arch}.") or key == "general.architecture"
    }
    return {"metadata": metadata, "tensors": {t.name: digest(t.data) for t in reader.tensors}}


def add_vocabulary(writer: Any) -> None:
    """Give a file the vocabulary without which llama.cpp does not load it."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(data.N_VOCAB)])
    writer.add_token_types([1] * data.N_VOCAB)
    writer.add_token_merges(["t 0"])


def digest(values: np.ndarray) -> str:
    """Return a digest of values."""
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="classes; default: all")
    parser.add_argument("--converter", type=Path, help="llama.cpp's sources")
    parser.add_argument("--program", type=Path, help="tools/llama_cpp_logits.cpp, compiled")
    options = parser.parse_args()
    of_logits = data.FOLDER / "logits.npz"
    found = data.known() if of_logits.exists() else {}
    arrays = {name: data.logits(name) for name in found}
    every = (*FAMILIES, *WITHOUT_CLASS)
    for name in options.names or every:
        with tempfile.TemporaryDirectory() as where, torch.no_grad():
            folder = Path(where)
            if name in WITHOUT_CLASS:
                config, shapes = without_class(name, folder)
                if cls := WITHOUT_CLASS[name]["class"]:
                    held = getattr(transformers, cls, None) or getattr(own_code_models, cls)
                    arrays[name] = logits_of_class(held, folder)
            else:
                config, shapes, arrays[name] = checkpoint(name, folder)
            found[name] = {"config": config, "shapes": shapes}
            if options.converter and name not in OF_THE_CLASS:
                spelled = config if name in WITHOUT_CLASS else SPELLED.get(name, {})
                found[name]["peer"] = converted(folder, options.converter, spelled)
            held = WITHOUT_CLASS.get(name, {"class": name not in ANOTHER_ROUTER})
            if options.program and not held["class"]:
                path = folder / "peer.gguf"
                if changed := RUNS_WITH.get(name):
                    path = folder / "changed.gguf"
                    write_by_converter(folder, options.converter, spelled, path, **changed)
                arrays[name] = computed(options.program, path)
                found[name]["witness"] = "llama.cpp"
    every = tuple(name for name in every if name in arrays)  # some may not be made yet
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in every)
    (data.FOLDER / "families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    written: dict[str, Any] = {name: arrays[name].astype(np.float32) for name in every}
    np.savez_compressed(of_logits, **written)


if __name__ == "__main__":
    main()
