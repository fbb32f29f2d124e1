"""Compute what transformers makes of the small models of ``tests/harness/gpt_oss.py``.

    python tools/gpt_oss_references.py tests/data/gpt-oss

Needs torch and transformers 5. ``refs.npz`` gets for each shape, of one text and float32 weights,
``logits`` and ``hidden`` (after the final norm); ``layers``, the input of each layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GptOssConfig, GptOssForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import gpt_oss

SEED = 0


def compute(s: gpt_oss.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape."""
    settings = gpt_oss.configuration(s)
    config = GptOssConfig(**{name: v for name, v in settings.items() if name != "architectures"})
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = GptOssForCausalLM(config).eval().float()
    made = {name: torch.from_numpy(v) for name, v in gpt_oss.weights(s, SEED).items()}
    model.load_state_dict(made, strict=True)
    text = torch.from_numpy(gpt_oss.tokens()).long()[None]
    out = model(text, use_cache=False, output_hidden_states=True)
    *layers, hidden = out.hidden_states
    found = {"logits": out.logits[0], "hidden": hidden[0], "layers": torch.stack(layers)[:, 0]}
    return {name: rows.numpy() for name, rows in found.items()}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        found = {name: compute(shape) for name, shape in gpt_oss.SHAPES.items()}
    arrays: dict[str, Any] = {
        f"{name}/{what}": rows for name, of in found.items() for what, rows in of.items()
    }
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
