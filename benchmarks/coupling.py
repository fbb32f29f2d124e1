"""How often the first draft of sampled text is accepted: coupled drafts against best tokens.

``python benchmarks/coupling.py [MODEL]`` (default: the demo) samples texts of its own at several
temperatures, each once with either way of drafting, and prints the rates. The texts are the same
both times, as drafting never changes them.
"""

from __future__ import annotations

import argparse

import mtpcore

PROMPT = "def read_config(path):\n    "


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    given = parser.parse_args()
    model = mtpcore.load_model(given.model)
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode(PROMPT)
    print(f"{model.path.name}: first drafts accepted, {given.seeds} texts of {given.tokens} tokens")
    for temperature in (0.5, 0.8, 1.0, 1.3):
        rates = {}
        for kind in ("argmax", "coupled"):
            cross = mtpcore.link(mtpcore.Context(model, len(prompt) + given.tokens))
            generator = mtpcore.Generator(cross, draft=1, draft_sampler=kind)
            for seed in range(given.seeds):
                sampling = mtpcore.Sampling(temperature=temperature, seed=seed)
                request = generator.add(
                    prompt, sampling=sampling, max_tokens=given.tokens, ignore_eos=True
                )
                while not request.done:
                    generator.step()
            rates[kind] = generator.stats.acceptance
        print(
            f"temperature {temperature}: best token {rates['argmax']:.3f}, "
            f"coupled {rates['coupled']:.3f}"
        )


if __name__ == "__main__":
    main()
