"""How often the first and the second draft of each of a model's drafters equal the target's text.

``python benchmarks/heads.py [MODEL] [--text FILE]`` lets the model generate greedily after some
prompts (windows of a JSON object's ``held_ids``, or a line of code), and asks every drafter for two
drafts at every position of the generated text. The positions are the same for all, so the rates
compare variants of one head's dataflow, which some plugins declare.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import mtpcore

PROMPT = "def read_config(path):\n    "
WIDTH, STRIDE = 48, 300


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--text", type=Path, help="JSON with token ids, held_ids")
    parser.add_argument("--prompts", type=int, default=6, help="windows of the text")
    parser.add_argument("--tokens", type=int, default=64, help="written after each prompt")
    given = parser.parse_args()
    model = mtpcore.load_model(given.model)
    if given.text:
        held = json.loads(given.text.read_text("utf-8"))["held_ids"]
        prompts = [held[STRIDE * i : STRIDE * i + WIDTH] for i in range(given.prompts)]
    else:
        prompts = [model.tokenizer.encode(PROMPT)]
    texts = [write(model, prompt, given.tokens) for prompt in prompts]
    print(f"{model.path.name}: {len(prompts)} greedy texts of {given.tokens} tokens")
    for drafter in model.drafters:
        right = [
            found
            for prompt, text in zip(prompts, texts, strict=True)
            for found in judge(model, drafter.name, prompt, text)
        ]
        first, second = np.mean(right, axis=0)
        print(f"{drafter.name:32} first {first:.3f}, first and second {second:.3f}")


def write(model: mtpcore.Model, prompt: list[int], n_tokens: int) -> list[int]:
    """Return a greedy continuation."""
    generator = mtpcore.Generator(
        mtpcore.Context(model, len(prompt) + n_tokens), sampling=mtpcore.Sampling.greedy()
    )
    return list(generator.generate(prompt, max_tokens=n_tokens, ignore_eos=True))


def judge(
    model: mtpcore.Model, drafter: str, prompt: list[int], text: list[int]
) -> list[tuple[bool, bool]]:
    """Return of each place whether the first draft was right, and whether both were."""
    llm = mtpcore.Context(model, len(prompt) + len(text) + 2)
    cross = mtpcore.link(llm, drafter)
    llm.process(mtpcore.Batch.of(prompt))
    found = []
    for i in range(len(text) - 2):
        drafts = cross.draft(0, 2)
        assert not isinstance(drafts, mtpcore.DraftTree)
        one, two = [*drafts, -1, -1][:2]
        found.append((one == text[i + 1], [one, two] == text[i + 1 : i + 3]))
        llm.process(mtpcore.Batch.of([text[i]], pos=len(prompt) + i))
    return found


if __name__ == "__main__":
    main()
