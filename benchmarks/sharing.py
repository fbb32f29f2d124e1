"""Whether threads should share the passes of a small model: never, as it is decided, always.

``python benchmarks/sharing.py [MODEL] [--busy N]`` (default: the demo) prints what a token takes
with one thread, with two, and with two that share whatever is little work too: in passes that
follow each other at once, and in texts, where Python chooses tokens between passes. The ways take
turns. ``--busy`` runs so many other programs meanwhile, which compute all the time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from timing import Sample, once

import mtpcore
from mtpcore.backends.cpu import backend

WAYS = {
    "one thread": (1, backend.WORTH_SHARING),
    "two": (2, backend.WORTH_SHARING),
    "always shared": (2, 0.0),
}
PROMPT, GENERATED, TURNS = [5] * 32, 240, 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other programs")
    options = parser.parse_args()
    model = mtpcore.load_model(options.model)
    contexts = {way: _context(model, *how) for way, how in WAYS.items()}
    generators = {
        way: mtpcore.Generator(_context(model, *how), sampling=mtpcore.Sampling.greedy())
        for way, how in WAYS.items()
    }
    passes, texts = ({way: Sample() for way in WAYS} for _ in range(2))
    with ExitStack() as others:
        for _ in range(options.busy):
            others.enter_context(_busy())
        for _ in range(TURNS):
            for way in WAYS:
                _time_passes(contexts[way], passes[way])
                _time_text(generators[way], texts[way])
    for way in WAYS:
        print(f"{way}: a pass {passes[way]}; a token of a text {texts[way]}")


def _context(model: mtpcore.Model, threads: int, worth: float) -> mtpcore.Context:
    """Return a context that shares passes of so many nanoseconds of work."""
    backend.WORTH_SHARING = worth
    context = mtpcore.Context(model, 512, threads=threads)
    context.prepare()
    return context


@contextmanager
def _busy() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def _time_passes(context: mtpcore.Context, sample: Sample) -> None:
    context.process(mtpcore.Batch.of(PROMPT))
    for pos in range(len(PROMPT), len(PROMPT) + GENERATED):
        batch = mtpcore.Batch.of([7], seq=0, pos=pos, outputs="last")
        sample.append(once(partial(context.process, batch)))
    context.rewind(0, 0)


def _time_text(generator: mtpcore.Generator, sample: Sample) -> None:
    """Add what a token of one text takes, on average."""
    text = generator.generate(PROMPT, max_tokens=GENERATED, ignore_eos=True)
    sample.append(once(lambda: list(text)) / GENERATED)


if __name__ == "__main__":
    main()
