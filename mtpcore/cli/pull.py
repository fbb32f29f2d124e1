"""``mtpcore pull``: a model of the Hugging Face hub, fetched into its cache."""

from __future__ import annotations

import argparse

from mtpcore.cli.named import note_beside
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import harmless, note, spell_bytes
from mtpcore.discovery.fetching import pull
from mtpcore.hub import parse_name

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Fetch a model from the Hugging Face hub, or a newer one of its name"
EXAMPLES = """examples:
  mtpcore pull owner/repo                  Q4_K_M, else Q8_0, else the first file
  mtpcore pull owner/repo:Q6_K --drafter
  mtpcore pull owner/repo/file.gguf
  mtpcore run hf:owner/repo:Q6_K "Once upon a time"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "name", metavar="OWNER/REPO[:QUANT]", help="with all parts where it is split"
    )
    group.add_argument(
        "--drafter",
        action="store_true",
        help="fetch the drafter beside it, too: a file of its own with an MTP head, say",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    name = parse_name(options.name, "hf")
    assert name is not None  # without a store it is one of the hub's
    with count_bytes(f"fetching {name}") as report:
        fetched = pull(name, drafter=options.drafter, report=report)
    n_bytes = sum(one.n_bytes for one in fetched.files)
    note(f"{harmless(fetched.files[0].path)}, {spell_bytes(n_bytes)}")
    note_beside(name, fetched)
    if options.drafter and not fetched.beside:
        note("no drafter lies beside it: its own head drafts if it has one, else lookup")
    print(fetched.path)
    return 0
