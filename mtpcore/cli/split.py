"""``mtpcore split``: a model file in parts, for hosts and disks with a limit."""

from __future__ import annotations

import argparse
import re

from mtpcore.cli.options import whole
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import note, spell_bytes
from mtpcore.discovery.loading import find_model
from mtpcore.gguf.splitting import split_file

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Write a model file in parts, as llama.cpp's gguf-split does"
EXAMPLES = """examples:
  mtpcore split model.gguf parts/model --split-max-size 40G
  mtpcore run parts/model-00001-of-00003.gguf -p "Once upon a time"
  mtpcore merge parts/model-00001-of-00003.gguf model.gguf
"""
_UNITS = {"M": 10**6, "G": 10**9}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument("source", metavar="IN", help="a GGUF file that is not split")
    group.add_argument(
        "out",
        metavar="OUT",
        help="what the parts are called: OUT-00001-of-00003.gguf and so on; replaced if they exist",
    )
    limits = parser.add_argument_group("parts").add_mutually_exclusive_group()
    limits.add_argument(
        "--split-max-tensors",
        type=whole(1),
        metavar="N",
        help="most tensors of a part (default: 128)",
    )
    limits.add_argument(
        "--split-max-size",
        type=_size,
        metavar="N(M|G)",
        help="most megabytes or gigabytes of a part's tensors; one that is larger has its own part",
    )
    parser.add_argument(
        "--no-tensor-first-split",
        action="store_true",
        help="the first part has the metadata alone",
    )
    parser.add_argument("--dry-run", action="store_true", help="write nothing: say what would be")


def _size(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([MG])", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"wanted a size as 500M or 40G, got {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    with count_bytes("writing") as report:
        parts = split_file(
            find_model(options.source),
            options.out,
            max_tensors=options.split_max_tensors,
            max_bytes=options.split_max_size,
            empty_first=options.no_tensor_first_split,
            dry_run=options.dry_run,
            report=report,
        )
    for part in parts:
        said = f"{part.path}, {len(part.tensors)} tensors, {spell_bytes(part.n_bytes)}"
        if options.dry_run:
            print(said)
        else:
            note(f"wrote {said}")
    return 0
