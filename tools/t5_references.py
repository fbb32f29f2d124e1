"""Compute what transformers makes of the small models of ``tests/harness/t5.py``.

    python tools/t5_references.py tests/data/t5

Needs torch and transformers 5. ``refs.npz`` gets for each shape, with float32 weights: ``hidden``,
the encoder's states after its final norm; ``logits`` of the decoder for a given text; ``greedy``,
the text that it writes by itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import t5

N_GREEDY = 32


def compute(s: t5.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape."""
    made = t5.weights(s)
    kinds = (T5Config, T5ForConditionalGeneration)
    if s.own_biases:
        kinds = (UMT5Config, UMT5ForConditionalGeneration)
    config = kinds[0](**t5.configuration(s))
    config._attn_implementation = "eager"
    model = kinds[1](config).eval()
    assert config.scale_decoder_outputs == s.tied
    if not s.tied:  # transformers 5 ties them, unless a checkpoint that it loads has both
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    used = set()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(torch.from_numpy(made[name]))
        used.add(name)
    assert used == made.keys(), used ^ made.keys()
    source, text = (torch.from_numpy(tokens)[None] for tokens in (t5.source(s), t5.text(s)))
    out = model(input_ids=source, decoder_input_ids=text)
    tokens = torch.tensor([[config.decoder_start_token_id]])
    for _ in range(N_GREEDY):
        logits = model(input_ids=source, decoder_input_ids=tokens).logits[:, -1:]
        tokens = torch.cat([tokens, logits.argmax(-1)], 1)
    return {
        "hidden": out.encoder_last_hidden_state[0].numpy(),
        "logits": out.logits[0].numpy(),
        "greedy": tokens[0, 1:].numpy().astype(np.int32),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        found = {name: compute(shape) for name, shape in t5.SHAPES.items()}
    arrays: dict[str, Any] = {
        f"{name}/{what}": rows for name, of in found.items() for what, rows in of.items()
    }
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
