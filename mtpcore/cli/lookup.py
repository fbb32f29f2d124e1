"""``mtpcore lookup``: an index of texts from which lookup drafts."""

from __future__ import annotations

import argparse
from itertools import chain

from mtpcore.boundary.texts import read_pieces
from mtpcore.cli import options as shared
from mtpcore.cli.terminal import note
from mtpcore.discovery.loading import load_model
from mtpcore.drafting.lookup_texts import LookupTexts

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Write an index of texts, from which lookup drafts"
EXAMPLES = """examples:
  mtpcore lookup model.gguf -f src/*.py -o project.lookup
  mtpcore chat model.gguf --lookup project.lookup --lookup yesterday.txt
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser, runs=False)
    group = parser.add_argument_group("lookup")
    shared.add_texts_option(group)
    group.add_argument("-o", "--out", required=True, metavar="FILE", help="the index to write")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    given, head = shared.model_path(options), options.mtp_path
    with load_model(given, mtp_path=head, sidecars=False) as model:
        texts = LookupTexts.of_texts(model, chain.from_iterable(map(read_pieces, options.file)))
    texts.write(options.out)
    n = len(options.file)
    note(f"{options.out}: {len(texts)} tokens of {'one text' if n == 1 else f'{n} texts'}")
    return 0
