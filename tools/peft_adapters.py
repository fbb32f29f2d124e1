"""Compute what PEFT makes of adapters of small checkpoints of many families.

    python tools/peft_adapters.py

The checkpoints are those of ``tests/harness/published_families.py``. Each gets a LoRA adapter,
of all its linear layers where not said, whose tensors have values that their names give; the logits
of a text, and
the configuration and shapes that PEFT saves, are kept in ``tests/data/published``. Needs torch,
transformers 5 and peft.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from harness import published_families as data  # noqa: E402

PLAIN: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"}
PATTERNS = {
    "r": 4,
    "lora_alpha": 8,
    "target_modules": "all-linear",
    "use_rslora": True,
    "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 3},
    "alpha_pattern": {"^model.layers.1.mlp.up_proj": 5.0, "o_proj": 16},
}
WITH_OUTPUT = {
    "r": 3,
    "lora_alpha": 3,
    "use_rslora": True,
    "target_modules": ["q_proj", "v_proj", "lm_head"],
}
OF_TABLE = {"r": 3, "lora_alpha": 5, "target_modules": ["embed_tokens", "v_proj"]}
OF_BOTH = {**OF_TABLE, "target_modules": ["embed_tokens", "lm_head", "v_proj"]}
OF_MAMBA = {**PLAIN, "target_modules": ["q_proj", "in_proj", "down_proj"]}
"""PEFT refuses the others of such layers, which are never called as layers."""
QV: dict[str, Any] = {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}
WITH_TABLES = "save_embedding_layers"
"""Of saving, and no setting of the adapter."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, PLAIN)
        for name in (
            *("SmolLM3ForCausalLM", "GraniteForCausalLM", "Ministral3ForCausalLM"),
            *("Gemma2ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "Olmo2ForCausalLM"),
            *("GlmForCausalLM", "GPTNeoXForCausalLM", "StableLmForCausalLM"),
            *("CohereForCausalLM", "Exaone4ForCausalLM", "FalconForCausalLM", "BloomForCausalLM"),
            *("Starcoder2ForCausalLM", "NemotronForCausalLM", "MptForCausalLM"),
        )
    },
    "FalconH1ForCausalLM": ("FalconH1ForCausalLM", OF_MAMBA),
    "SmolLM3ForCausalLM, patterns": ("SmolLM3ForCausalLM", PATTERNS),
    "Olmo2ForCausalLM, output": ("Olmo2ForCausalLM", WITH_OUTPUT),
    "Olmo2ForCausalLM, table": ("Olmo2ForCausalLM", OF_TABLE),
    "Gemma2ForCausalLM, table": ("Gemma2ForCausalLM", OF_TABLE),  # whose rows are scaled
    "Gemma2ForCausalLM, tied": ("Gemma2ForCausalLM", OF_BOTH),
    "Gemma2ForCausalLM, one table": (
        "Gemma2ForCausalLM",
        {**QV, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "Gemma2ForCausalLM, rows": ("Gemma2ForCausalLM", {**QV, "trainable_token_indices": [3, 40]}),
    "Gemma2ForCausalLM, saved": ("Gemma2ForCausalLM", {**QV, "modules_to_save": ["embed_tokens"]}),
    "Olmo2ForCausalLM, rows": (
        "Olmo2ForCausalLM",
        {**QV, "trainable_token_indices": {"embed_tokens": [5], "lm_head": [1, 9, 60]}},
    ),
    "Olmo2ForCausalLM, saved": (
        "Olmo2ForCausalLM",
        {**QV, "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "Olmo2ForCausalLM, norms": (
        "Olmo2ForCausalLM",
        {**QV, "modules_to_save": ["norm", "post_attention_layernorm"]},
    ),
    "SmolLM3ForCausalLM, saved": (
        "SmolLM3ForCausalLM",
        {**QV, "modules_to_save": ["lm_head", "k_proj"]},
    ),
    "Starcoder2ForCausalLM, biases": ("Starcoder2ForCausalLM", {**PLAIN, "bias": "lora_only"}),
    "Starcoder2ForCausalLM, all biases": ("Starcoder2ForCausalLM", {**PLAIN, "bias": "all"}),
    "Starcoder2ForCausalLM, shifts": ("Starcoder2ForCausalLM", {**PLAIN, "lora_bias": True}),
    "GPT2LMHeadModel, biases": ("GPT2LMHeadModel", {**PLAIN, "bias": "lora_only"}),
    **{
        f"OlmoeForCausalLM, {name}": ("OlmoeForCausalLM", {**QV, "target_parameters": stacks})
        for name, stacks in (
            ("experts", ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
            ("last products", ["experts.down_proj"]),
        )
    },
    **{  # whose checkpoints have experts under other names, or as stacks, inputs first
        f"{name}, experts": (
            name,
            {**QV, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
        )
        for name in ("MiniMaxM2ForCausalLM", "Llama4ForCausalLM", "GptOssForCausalLM")
    },
    "Qwen2MoeForCausalLM, experts": (
        "Qwen2MoeForCausalLM",
        {
            **PATTERNS,
            "target_modules": ["q_proj", "shared_expert.down_proj"],
            "rank_pattern": {"experts.gate_up_proj": 3},
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
    ),
    "Olmo2ForCausalLM, whole tables": ("Olmo2ForCausalLM", {**QV, WITH_TABLES: True}),
    "Gemma2ForCausalLM, whole table": ("Gemma2ForCausalLM", {**QV, WITH_TABLES: True}),
    "SmolLM3ForCausalLM, lengths": ("SmolLM3ForCausalLM", {**PATTERNS, "use_dora": True}),
    "Phi3ForCausalLM, lengths": ("Phi3ForCausalLM", {**PLAIN, "use_dora": True}),
}


def computed(name: str, given: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Return an adapter's configuration and shapes, and the logits with it."""
    family = data.known()[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(family["config"]))
        save_file(data.tensors(family["shapes"]), folder / "model.safetensors", {"format": "pt"})
        cls = getattr(transformers, family["config"]["architectures"][0])
        base = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        settings = {key: value for key, value in given.items() if key != WITH_TABLES}
        get_peft_model(base, LoraConfig(**settings)).save_pretrained(
            folder / "adapter", save_embedding_layers=given.get(WITH_TABLES, False)
        )
        config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = "base"
        config["target_modules"] = sorted(config["target_modules"])  # a set, in any order
        path = folder / "adapter" / "adapter_model.safetensors"
        saved = load_file(path)
        shapes = {one: list(array.shape) for one, array in saved.items()}
        # PEFT saves copies of tables beside adapters of them, which are the base model's.
        own = {one: shape for one, shape in shapes.items() if ".base_layer.w" not in one}
        values = data.adapter_tensors(name, own)
        save_file({**saved, **values}, path, {"format": "pt"})
        base = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model = PeftModel.from_pretrained(base, folder / "adapter")
        with torch.no_grad():
            logits = model(torch.from_numpy(data.tokens()[None]).long()).logits[0]
    return {"config": config, "shapes": shapes}, logits.float().numpy()


def main() -> None:
    """Compute all cases."""
    found, logits = {}, {}
    for case, (name, given) in CASES.items():
        print(case)
        adapter, logits[case] = computed(name, given)
        found[case] = {"family": name, **adapter}
    text = json.dumps(found, indent=1, default=sorted)
    (data.FOLDER / "adapters.json").write_text(f"{text}\n")
    np.savez_compressed(data.FOLDER / "adapters.npz", **logits)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
