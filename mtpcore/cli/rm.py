"""``mtpcore rm``: models of the hub's cache removed."""

from __future__ import annotations

import argparse

from mtpcore.cli.terminal import harmless, note, spell_bytes
from mtpcore.discovery.fetching import remove_held
from mtpcore.hub import parse_name

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Remove models from the hub's cache; other programs' stores are only read"
EXAMPLES = """examples:
  mtpcore rm owner/repo:Q4_K_M
  mtpcore rm owner/repo             all its GGUF files, and unfinished ones
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="as mtpcore list shows it")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    names = [parse_name(name, "hf") for name in options.names]
    for name in names:
        assert name is not None  # without a store it is one of the hub's
        removed, n_bytes = remove_held(name)
        for path in removed:
            note(f"removed {harmless(path)}")
        note(f"{spell_bytes(n_bytes)} free again")
    return 0
