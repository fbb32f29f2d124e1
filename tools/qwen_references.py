"""Compute what transformers makes of the small hybrids of ``tests/harness/qwen.py``.

    python tools/qwen_references.py tests/data/qwen

Needs torch and transformers 5. ``refs.npz`` gets for each shape, of one text and float32 weights:
``logits`` and ``hidden`` (after the final norm) of the trunk; ``turned``, the same with positions
on several axes; ``head_logits`` and ``head_hidden`` of the MTP head, which is built of the trunk's
classes: its row p - 1 is of token p and the trunk's row p - 1. Gated DeltaNet is computed one token
after the other.

``rows.npz`` gets, for two shapes, the same of a text with an image in it: ``logits``, ``hidden``,
``head_logits`` and ``head_hidden``, the head's rows joined with the image's; and what follows
greedily: ``text`` int32[n], and ``drafts`` int32[n - 1, k], of which row i follows ``text[i]``.
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


class Models:
    """The trunk of a shape, and its head made of the trunk's classes."""

    def __init__(self, s: qwen.Shape) -> None:
        self.made = qwen.weights(s, SEED)
        module, config, self.model = text_model(s)
        assign(self.model, self.made)
        module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule
        stem = qwen.CLASSES[s.family].removesuffix("ForCausalLM")
        self.norm = getattr(module, f"{stem}RMSNorm")
        of_head = copy.deepcopy(config)
        of_head.layer_types, of_head.mlp_only_layers = [qwen.FULL], []
        self.layer = getattr(module, f"{stem}DecoderLayer")(of_head, 0).eval()
        assign(self.layer, self.made, "mtp.layers.0.")

    def normed(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return rows after one of the head's norms."""
        norm = self.norm(qwen.WIDTH, eps=qwen.EPS)
        assign(norm, self.made, f"mtp.{name}.")
        return norm(rows)

    def head(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Return the head's states [1, n, width] of embeddings and the hidden rows before them."""
        token = self.normed("pre_fc_norm_embedding", embedded)
        joined = torch.cat([token, self.normed("pre_fc_norm_hidden", hidden)], -1)
        x = joined @ torch.from_numpy(self.made["mtp.fc.weight"]).T
        n = x.shape[1]
        turns = self.model.model.rotary_emb(x, positions)
        unseen = torch.triu(torch.full((n, n), -torch.inf), 1)[None, None]
        own = positions if positions.ndim == 2 else positions[0]
        x = self.layer(x, position_embeddings=turns, attention_mask=unseen, position_ids=own)
        return self.normed("norm", x)


def compute(s: qwen.Shape) -> dict[str, np.ndarray]:
    """Return the references of a shape."""
    models = Models(s)
    model = models.model
    text = torch.from_numpy(qwen.tokens()).long()[None]
    hidden = model.model(text, use_cache=False).last_hidden_state
    embedded = model.model.embed_tokens(text[:, 1:])
    positions = torch.arange(1, text.shape[1])[None]
    head_hidden = models.head(embedded, hidden[:, :-1], positions)
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


N_TEXT, N_DRAFTS = 10, 3


def compute_rows(s: qwen.Shape) -> dict[str, np.ndarray]:
    """Return the references of a text with an image in it, and of what follows."""
    models = Models(s)
    model = models.model
    table, closest = model.model.embed_tokens, [np.inf]

    def choose(hidden: torch.Tensor) -> int:
        best = model.lm_head(hidden).sort(descending=True).values
        closest.append(float(best[0] - best[1]))
        return int(model.lm_head(hidden).argmax())

    def run(rows: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
        return model.model(inputs_embeds=rows, position_ids=axes, use_cache=False).last_hidden_state

    tokens = torch.from_numpy(np.maximum(qwen.tokens(), 0)).long()
    rows = table(tokens)[None].clone()
    rows[0, 4:10] = torch.from_numpy(qwen.image())
    axes = torch.from_numpy(qwen.positions()).long()[:, None]
    hidden = run(rows, axes)
    head_hidden = models.head(rows[:, 1:], hidden[:, :-1], axes[..., 1:])
    found = {
        "logits": model.lm_head(hidden)[0].numpy(),
        "hidden": hidden[0].numpy(),
        "head_logits": model.lm_head(head_hidden)[0].numpy(),
        "head_hidden": head_hidden[0].numpy(),
    }
    text, drafts = [choose(hidden[0, -1])], []
    while len(text) < N_TEXT:
        states, at, entries = hidden, axes, rows
        draft: list[int] = []
        for token in [text[-1], None, None][:N_DRAFTS]:
            row = table(torch.tensor([[draft[-1] if token is None else token]]))
            entries = torch.cat([entries, row], 1)
            at = torch.cat([at, at[..., -1:] + 1], -1)
            made = models.head(entries[:, 1:], states, at[..., 1:])
            draft.append(choose(made[0, -1]))
            states = torch.cat([states, made[:, -1:]], 1)
        drafts.append(draft)
        rows = torch.cat([rows, table(torch.tensor([[text[-1]]]))], 1)
        axes = torch.cat([axes, axes[..., -1:] + 1], -1)
        hidden = run(rows, axes)
        text.append(choose(hidden[0, -1]))
    assert min(closest) > 1e-3, "a choice is too close to call"
    return {**found, "text": np.array(text, np.int32), "drafts": np.array(drafts, np.int32)}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        found = {name: compute(shape) for name, shape in qwen.SHAPES.items()}
        of_rows = {name: compute_rows(qwen.SHAPES[name]) for name in qwen.WITH_ROWS}
    for file, each in (("refs", found), ("rows", of_rows)):
        arrays: dict[str, Any] = {
            f"{name}/{what}": rows for name, of in each.items() for what, rows in of.items()
        }
        np.savez_compressed(folder / f"{file}.npz", **arrays)


if __name__ == "__main__":
    main()
