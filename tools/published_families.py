"""Compute what transformers and llama.cpp's converter make of small checkpoints of many families.

    python tools/published_families.py [--converter LLAMA_CPP] [NAME ...]

Each family is a class of transformers with small sizes. It writes a checkpoint, whose tensors then
get the values of ``tests/harness/published_families.py``; read again, it computes the logits of a
text. With the folder of llama.cpp's sources its converter is run on the same checkpoint, without a
tokenizer, and the digests of its tensors are kept. Needs torch and transformers 5.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from harness import published_families as data  # noqa: E402

SIZES = {
    "vocab_size": data.N_VOCAB,
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
}

OF_THE_CLASS = {"Gemma3nForCausalLM, short table"}
"""Held against transformers alone: llama.cpp's converter fills up a table with zeros, where the
class reads its first row."""

SPELLED: dict[str, dict[str, Any]] = {
    "GPTNeoXForCausalLM": {"rotary_pct": 0.25},
    "GPT2LMHeadModel": {"n_ctx": 64},
}
"""What the converter reads of older files, which transformers 5 writes elsewhere."""


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
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    save_file(data.tensors(shapes), path, {"format": "pt"})
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = model(torch.from_numpy(data.tokens()).long()[None], use_cache=False)
    said = json.loads((folder / "config.json").read_text())
    return said, shapes, out.logits[0].float().numpy()


def converted(folder: Path, sources: Path) -> dict[str, dict[str, Any]]:
    """Return what llama.cpp's converter makes of a checkpoint: digests, and a family's metadata."""
    vocabulary = {"vocab": {str(i): i for i in range(data.N_VOCAB)}}
    text = json.dumps({"model": vocabulary, "added_tokens": []})
    (folder / "tokenizer.json").write_text(text)
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    conversion, gguf = importlib.import_module("conversion"), importlib.import_module("gguf")
    base = importlib.import_module("conversion.base")
    hparams = base.ModelBase.load_hparams(folder, False)
    architecture = base.get_model_architecture(hparams, base.ModelType.TEXT)
    cls = conversion.get_model_class(architecture)
    path = folder / "peer.gguf"
    with torch.inference_mode():
        model = cls(folder, gguf.LlamaFileType.ALL_F32, path)
        model.hparams |= SPELLED.get(architecture, {})
        for one in (model, getattr(model, "impl", model)):
            one.set_vocab = lambda: None
        model.write()
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{arch}.") or key == "general.architecture"
    }
    return {"metadata": metadata, "tensors": {t.name: digest(t.data) for t in reader.tensors}}


def digest(values: np.ndarray) -> str:
    """Return a digest of values."""
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="classes; default: all")
    parser.add_argument("--converter", type=Path, help="llama.cpp's sources")
    options = parser.parse_args()
    of_logits = data.FOLDER / "logits.npz"
    found = data.known() if of_logits.exists() else {}
    arrays = {name: data.logits(name) for name in found}
    for name in options.names or FAMILIES:
        with tempfile.TemporaryDirectory() as where, torch.no_grad():
            folder = Path(where)
            config, shapes, arrays[name] = checkpoint(name, folder)
            found[name] = {"config": config, "shapes": shapes}
            if options.converter and name not in OF_THE_CLASS:
                found[name]["peer"] = converted(folder, options.converter)
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in FAMILIES)
    (data.FOLDER / "families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    written: dict[str, Any] = {name: arrays[name].astype(np.float32) for name in FAMILIES}
    np.savez_compressed(of_logits, **written)


if __name__ == "__main__":
    main()
