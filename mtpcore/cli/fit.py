"""``mtpcore fit``: a drafter for a model that has none."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from mtpcore.cli import options as shared
from mtpcore.cli.progress import count_tokens
from mtpcore.cli.terminal import note, spell_bytes
from mtpcore.fitting.fit import fit_head
from mtpcore.fitting.settings import Settings

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Fit a head to a model that has none: it learns what the model will say"
EXAMPLES = """examples:
  mtpcore fit model.gguf ~/src ~/notes -o model-draft.gguf
  mtpcore fit model.gguf ~/src -o model-draft.gguf --tokens 1000000
  mtpcore fit model.gguf ~/letters -o letters-draft.gguf --from model-draft.gguf
"""
_DEFAULT = Settings()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("model and texts")
    group.add_argument("model", metavar="MODEL", help="a GGUF file, demo, or demo:FAMILY")
    group.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="files in UTF-8, or folders with sources and texts; one in twenty is held out",
    )
    group.add_argument(
        "--tokens",
        type=shared.whole(1),
        default=_DEFAULT.tokens,
        metavar="N",
        help="read so many tokens (default: %(default)s)",
    )
    group.add_argument(
        "--minutes",
        type=shared.whole(1),
        metavar="M",
        help="read as many tokens as leave the fit done in about M minutes, in place of --tokens",
    )
    group.add_argument(
        "--written",
        type=shared.probability,
        default=_DEFAULT.written,
        metavar="SHARE",
        help="share of them that the model writes itself (default: %(default)s)",
    )
    group = parser.add_argument_group("head")
    group.add_argument("-o", "--out", required=True, metavar="HEAD", help="the file to write")
    group.add_argument(
        "--shape",
        default="auto",
        metavar="NAME[,NAME...]",
        help="drafters to fit, of which the fastest is kept; auto (the default): all that can be",
    )
    group.add_argument("--from", dest="start", metavar="HEAD", help="go on from a fitted head")
    group.add_argument(
        "--vocabulary",
        type=shared.whole(1),
        default=_DEFAULT.vocabulary,
        metavar="N",
        help="draft the N most frequent tokens (default: %(default)s)",
    )
    group = parser.add_argument_group("training")
    for name, kind, said in (
        ("epochs", shared.whole(0), "learn so many times from each text; 0: only begin"),
        ("depth", shared.whole(1, 9), "learn so many drafts in a row"),
        ("seed", shared.whole(0), "decides what is held out, written, and the order"),
    ):
        group.add_argument(
            f"--{name}",
            type=kind,
            default=getattr(_DEFAULT, name),
            metavar="N",
            help=f"{said} (default: %(default)s)",
        )
    shared.add_threads_option(group)
    group.add_argument(
        "--work",
        metavar="FOLDER",
        help="where the model's rows are kept, from which a fit goes on (default: HEAD.work)",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if not options.texts:
        library = sysconfig.get_path("stdlib")
        options.parser.error(
            "a head is fitted to texts: give files or folders of the kind that the model is to "
            f"write, as your own sources; any Python has some in {library}"
        )
    chosen = {
        name: getattr(options, name)
        for name in ("tokens", "written", "vocabulary", "epochs", "depth", "seed")
    }
    fitted = fit_head(
        options.model,
        options.texts,
        options.out,
        Settings(**chosen),
        count_tokens,
        shapes=() if options.shape == "auto" else options.shape.split(","),
        start=options.start,
        work=options.work,
        minutes=options.minutes,
        threads=options.threads,
    )
    size = spell_bytes(Path(fitted.path).stat().st_size)
    tried = ", ".join(fitted.measured)
    kept = fitted.drafter if len(fitted.measured) == 1 else f"{fitted.drafter} of {tried}"
    note(
        f"wrote {fitted.path}, {size}: {kept}, {fitted.n_tokens} tokens read, "
        f"{fitted.n_written} of them written by the model; drafts {fitted.n_vocabulary} tokens"
    )
    if options.minutes:
        note(f"--tokens {fitted.settings.tokens} in place of --minutes gives the same heads")
    if not any(fitted.measured.values()):
        note("no held-out text is long enough to measure a head")
    for name, measured in fitted.measured.items():
        for one in measured:
            rates = " ".join(f"{rate:.2f}" for rate in one.acceptance)
            print(
                f"{name}, temperature {one.temperature:g}: acceptance by position {rates}; "
                f"{one.plain:.1f} tokens/s without drafts, {one.drafted:.1f} with "
                f"({one.predicted:.1f} predicted)"
            )
    return 0
