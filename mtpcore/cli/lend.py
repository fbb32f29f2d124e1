"""``mtpcore lend``: a fine-tune that lost its heads gets those of the model it was made of."""

from __future__ import annotations

import argparse
from pathlib import Path

from mtpcore.cli.progress import count_bytes, progress
from mtpcore.cli.prompts import BUILT_IN, encode
from mtpcore.cli.terminal import note, spell_bytes
from mtpcore.conversion import lend
from mtpcore.cross import link
from mtpcore.decoding import Generator
from mtpcore.discovery.loading import load_model
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Write a fine-tune with the heads of its base model, as one file"
EXAMPLES = """examples:
  mtpcore lend base.gguf fine-tune.gguf -o fine-tune-mtp.gguf
  mtpcore run fine-tune-mtp.gguf -p "Once upon a time"
"""
_N_TOKENS = 48


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument("base", metavar="BASE", help="a GGUF file with heads")
    group.add_argument("fine_tune", metavar="FINE-TUNE", help="a GGUF file of its kind without")
    group.add_argument("-o", "--out", required=True, metavar="OUT", help="the file to write")
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="do not measure how often drafts are accepted, before and after",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    with count_bytes("writing") as report:
        drafters = lend(options.base, options.fine_tune, options.out, report=report)
    size = spell_bytes(Path(options.out).stat().st_size)
    note(f"wrote {options.out}, {size}, with {', '.join(drafters)}")
    if not options.no_measure:
        for name, path in (("the base", options.base), ("the fine-tune", options.out)):
            rate = _measure(path, name)
            if rate is not None:
                note(f"first drafts accepted in texts of {name}: {rate:.2f}")
    return 0


def _measure(path: str, name: str) -> float | None:
    """Return how often first drafts are accepted in greedy texts; None for heads without trunk."""
    with load_model(path, sidecars=False) as model:
        if model.file_layout == "mtp-only" or not model.has_tokenizer:
            return None
        prompts = [encode(model, text) for text in BUILT_IN.values()]
        n_ctx = max(map(len, prompts)) + _N_TOKENS + 1
        cross = link(Context(model, n_ctx=n_ctx, n_seq_max=len(prompts)))
        generator = Generator(cross, sampling=Sampling.greedy(), draft=1)
        for prompt in prompts:
            generator.add(prompt, max_tokens=_N_TOKENS, ignore_eos=True)
        total = len(prompts) * _N_TOKENS
        with progress(f"measuring {name}", lambda: (generator.stats.tokens, total), "tokens"):
            while generator.active:
                generator.step()
        stats = generator.stats
        return stats.accepted / stats.verify_steps if stats.verify_steps else 0.0
