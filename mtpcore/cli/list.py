"""``mtpcore list``: the models on this machine that have names."""

from __future__ import annotations

import argparse
import json
import time

from mtpcore.cli.terminal import harmless, note, spell_bytes
from mtpcore.discovery.fetching import held

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Show the models in the hub's cache, and in the stores of Ollama and LM Studio"
EXAMPLES = """examples:
  mtpcore list
  mtpcore list --json | jq -r '.[].name'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    models = [*held()]
    if options.json:
        described = [
            {
                "name": one.name,
                "bytes": one.n_bytes,
                "path": str(one.path),
                "modified": one.modified,
                "owner": one.owner or None,
                "partial": one.is_partial,
            }
            for one in models
        ]
        print(json.dumps(described))
        return 0
    if not models:
        note("no models; mtpcore pull OWNER/REPO fetches one of the hub")
        return 0
    rows = [
        (
            harmless(one.name),
            spell_bytes(one.n_bytes),
            time.strftime("%Y-%m-%d", time.localtime(one.modified)),
            "unfinished" if one.is_partial else one.owner and f"{one.owner}'s, read only",
        )
        for one in models
    ]
    width = max(len(row[0]) for row in rows)
    for name, size, day, owner in rows:
        print(f"{name:{width}}  {size:>9}  {day}  {owner}".rstrip())
    return 0
