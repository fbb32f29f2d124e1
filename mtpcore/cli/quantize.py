"""``mtpcore quantize``: a model file with its tensors in other types, or a part of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from mtpcore.cli.options import add_mtp_option, add_type_options
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import note, note_left_out, spell_bytes
from mtpcore.conversion import quantize

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Convert a model file's tensors to other types, or extract its trunk or heads"
EXAMPLES = """examples:
  mtpcore quantize model-f16.gguf model-q8_0.gguf --outtype q8_0
  mtpcore quantize model-f16.gguf model-q4_0.gguf --outtype q4_0 --mtp-type f16
  mtpcore quantize model-f16.gguf mtp-model.gguf --outtype f16 --mtp only
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument("source", metavar="IN", help="a GGUF file (the first part of a split one)")
    group.add_argument(
        "out",
        metavar="OUT",
        help="the file to write, with its companion for a model in two; replaced if it exists",
    )
    add_type_options(parser, None)
    add_mtp_option(group)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    with count_bytes("writing") as report:
        left_out = quantize(
            options.source,
            options.out,
            outtype=options.outtype,
            mtp_type=options.mtp_type,
            mtp=options.mtp,
            report=report,
        )
    note_left_out(left_out, options.verbose)
    note(f"wrote {options.out}, {spell_bytes(Path(options.out).stat().st_size)}")
    return 0
