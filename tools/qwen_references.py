"""Compute what transformers makes of the small hybrids of ``tests/harness/qwen.py``.

    python tools/qwen_references.py tests/data/qwen

Needs torch and transformers 5. ``refs.npz`` gets for each shape, of one text and float32 weights:
``logits`` and ``hidden`` (after the final norm) of the trunk; ``turned``, the same with positions
on several axes; ``head_logits`` and ``head_hidden`` of the MTP head, which is built of the trunk's
classes: its row p - 1 is of token p and the trunk's row p - 1. Gated DeltaNet is computed one token
after the other.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import qwen

SEED = 0


def text_model(s: qwen.Shape) -> tuple[Any, Any, Any]:
    """Return the module of a family in transformers, its configuration and its model."""
    module = importlib.import_module(f"transformers.models.{s.family}.modeling_{s.family}")
    settings = importlib.import_module(f"transformers.models.{s.family}.configuration_{s.family}")
    stem = qwen.CLASSES[s.family].removesuffix("ForCausalLM")
    kind = getattr(settings, f"{stem}Config" if s.family == "qwen3_next" else f"{stem}TextConfig")
    config = kind(**qwen.text_config(s))
    config._attn_implementation = "eager"
    if s.family != "qwen3_5":
        config._experts_implementation = "eager"
    return module, config, getattr(module, f"{stem}ForCausalLM")(config).eval()


def assign(module: Any, made: dict[str, np.ndarray], prefix: str = "") -> None:
    """Set all of a module's parameters."""
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        if prefix + name == "lm_head.weight" and "lm_head.weight" not in made:
            continue
        parameter.data.copy_(torch.from_numpy(made[prefix + name]))


def compute(s: qwen.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape."""
    made = qwen.weights(s, SEED)
    module, config, model = text_model(s)
    assign(model, made)
    module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule
    text = torch.from_numpy(qwen.tokens()).long()[None]
    hidden = model.model(text, use_cache=False).last_hidden_state
    stem = qwen.CLASSES[s.family].removesuffix("ForCausalLM")
    norm = getattr(module, f"{stem}RMSNorm")

    def normed(name: str, rows: torch.Tensor) -> torch.Tensor:
        made_norm = norm(qwen.WIDTH, eps=qwen.EPS)
        assign(made_norm, made, f"mtp.{name}.")
        return made_norm(rows)

    of_head = copy.deepcopy(config)
    of_head.layer_types, of_head.mlp_only_layers = [qwen.FULL], []
    layer = getattr(module, f"{stem}DecoderLayer")(of_head, 0).eval()
    assign(layer, made, "mtp.layers.0.")
    token = normed("pre_fc_norm_embedding", model.model.embed_tokens(text[:, 1:]))
    joined = torch.cat([token, normed("pre_fc_norm_hidden", hidden[:, :-1])], -1)
    x = joined @ torch.from_numpy(made["mtp.fc.weight"]).T
    n = x.shape[1]
    positions = torch.arange(1, n + 1)[None]
    rotary = model.model.rotary_emb
    turns = rotary(x, positions)
    unseen = torch.triu(torch.full((n, n), -torch.inf), 1)[None, None]
    x = layer(x, position_embeddings=turns, attention_mask=unseen, position_ids=positions)
    head_hidden = normed("norm", x)
    found = {
        "logits": model.lm_head(hidden),
        "hidden": hidden,
        "head_logits": model.lm_head(head_hidden),
        "head_hidden": head_hidden,
    }
    if s.family != "qwen3_next":
        axes = torch.from_numpy(qwen.positions()).long()[:, None]
        found["turned"] = model.model(text, position_ids=axes, use_cache=False).last_hidden_state
    return {name: rows[0].numpy() for name, rows in found.items()}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        found = {name: compute(shape) for name, shape in qwen.SHAPES.items()}
    arrays = {f"{name}/{what}": rows for name, of in found.items() for what, rows in of.items()}
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
