"""``mtpcore merge``: the parts of a split model as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import note, spell_bytes
from mtpcore.discovery.loading import find_model
from mtpcore.gguf.splitting import join_parts

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Write the parts of a split model as one file, as llama.cpp's gguf-split does"
EXAMPLES = """examples:
  mtpcore merge model-00001-of-00003.gguf model.gguf
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument("source", metavar="IN", help="the first part")
    group.add_argument("out", metavar="OUT", help="the file to write; replaced if it exists")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    with count_bytes("writing") as report:
        join_parts(find_model(options.source), options.out, report=report)
    note(f"wrote {options.out}, {spell_bytes(Path(options.out).stat().st_size)}")
    return 0
