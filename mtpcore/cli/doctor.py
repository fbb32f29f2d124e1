"""``mtpcore doctor``: what this machine can do, and what would make it faster."""

from __future__ import annotations

import argparse
import json

import msgspec

from mtpcore._ext._cpu import check_environment
from mtpcore.cli.machine import examine
from mtpcore.cli.terminal import harmless

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Say what this machine can do, and what would make it faster"
EXAMPLES = """examples:
  mtpcore doctor
  mtpcore doctor --json | jq '.[] | select(.advice != "")'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    check_environment()
    found = [*examine()]
    if options.json:
        print(json.dumps(msgspec.to_builtins(found)))
        return 0
    width = max(len(one.name) for one in found)
    for one in found:
        advice = f"; {one.advice}" if one.advice else ""
        print(harmless(f"{one.name:{width}}  {one.said}{advice}"))
    return 0
