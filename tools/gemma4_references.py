"""Compute what transformers makes of the small models of ``tests/harness/gemma4.py``.

    python tools/gemma4_references.py tests/data/gemma4

Needs torch and transformers 5. ``refs.npz`` gets for each shape, of one text and float32 weights,
``logits`` and ``hidden`` (after the final norm); ``layers``, the input of each layer; the same two
``with images``, where rows of an image see each other. For each
assistant, of drafts after the first n tokens and the next one, for each n of ``n``: ``drafts``,
and the ``logits`` and ``hidden`` rows that they come from. Of the target's layers with a window the
assistant is given as many of the newest keys as the window counts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
)
from transformers.models.gemma4.modeling_gemma4 import (
    create_masks_for_vision_model,
    get_block_sequence_ids_for_mask,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import gemma4

SEED = 0
PREFIXES = (1, 5, 9, 10, 23, 38)
N_DRAFTS = 4


def trunk(s: gemma4.Shape) -> Any:
    """Return transformers' model of a shape."""
    kinds = (Gemma4TextConfig, Gemma4ForCausalLM)
    if s.unified:
        kinds = (Gemma4UnifiedTextConfig, Gemma4UnifiedForCausalLM)
    config = kinds[0](**gemma4.text_config(s))
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = kinds[1](config).eval().float()
    assign(model, gemma4.weights(s, SEED))
    return model


def assign(model: Any, made: dict[str, np.ndarray]) -> None:
    """Set all parameters and buffers of a model that a checkpoint has."""
    found = {name: torch.from_numpy(values) for name, values in made.items()}
    found["lm_head.weight"] = found["model.embed_tokens.weight"]
    model.load_state_dict(found, strict=True)


def compute(s: gemma4.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape."""
    text = torch.from_numpy(gemma4.tokens()).long()[None]
    out = trunk(s)(text, use_cache=False, output_hidden_states=True)
    *layers, hidden = out.hidden_states
    found = {"logits": out.logits[0], "hidden": hidden[0], "layers": torch.stack(layers)[:, 0]}
    return {name: rows.numpy() for name, rows in found.items()}


def see(s: gemma4.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape with images."""
    model, (texts, images) = trunk(s), gemma4.with_images()
    rows, kinds = [], []
    for i, text in enumerate(texts):
        rows.append(model.model.embed_tokens(torch.tensor([text])))
        kinds += [0] * len(text)
        if i < len(images):
            rows.append(torch.from_numpy(images[i])[None])
            kinds += [1] * len(images[i])
    embeddings, positions = torch.cat(rows, 1), torch.arange(len(kinds))[None]
    blocks = get_block_sequence_ids_for_mask(torch.tensor([kinds]), embeddings.device)
    masks = create_masks_for_vision_model(model.config, embeddings, None, None, positions, blocks)
    out = model(
        inputs_embeds=embeddings,
        attention_mask=masks,
        position_ids=positions,
        use_cache=False,
        output_hidden_states=True,
    )
    found = {"logits": out.logits[0], "hidden": out.hidden_states[-1][0]}
    return {f"{name} with images": rows.numpy() for name, rows in found.items()}


def draft(a: gemma4.Assistant) -> dict[str, np.ndarray]:
    """Return the references of an assistant."""
    config = Gemma4AssistantConfig(**gemma4.assistant_config(a))
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    assistant = Gemma4AssistantForCausalLM(config).eval().float()
    assign(assistant, gemma4.assistant_weights(a))
    target, text = trunk(gemma4.SHAPES[a.target]), torch.from_numpy(gemma4.tokens()).long()[None]
    found: dict[str, list[np.ndarray]] = {"logits": [], "hidden": [], "drafts": []}
    for n in PREFIXES:
        out = target.model(text[:, :n], use_cache=False, return_shared_kv_states=True)
        shared = dict(out.shared_kv_states.items())
        shared[gemma4.NEAR] = tuple(x[:, :, -gemma4.WINDOW :] for x in shared[gemma4.NEAR])
        row, token = out.last_hidden_state[:, -1:], text[:, n : n + 1]
        steps = []
        for _ in range(N_DRAFTS):
            made = assistant(
                inputs_embeds=torch.cat([target.model.embed_tokens(token), row], -1),
                position_ids=torch.tensor([[n]]),
                shared_kv_states=shared,
            )
            row, token = made.last_hidden_state, made.logits.argmax(-1)
            steps.append((made.logits[0, 0], row[0, 0], token[0, 0]))
        for name, rows in zip(found, zip(*steps, strict=True), strict=True):
            found[name].append(torch.stack(rows).numpy())
    arrays = {name: np.stack(rows) for name, rows in found.items()}
    return arrays | {"n": np.array(PREFIXES, np.int32)}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    shapes = gemma4.SHAPES | {"unified": gemma4.UNIFIED}
    with torch.no_grad():
        found = {name: compute(shape) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            found[name] |= see(shape) if shape.spans else {}
        found |= {name: draft(one) for name, one in gemma4.ASSISTANTS.items()}
    arrays: dict[str, Any] = {
        f"{name}/{what}": rows for name, of in found.items() for what, rows in of.items()
    }
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
