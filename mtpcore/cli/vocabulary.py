"""``mtpcore vocabulary``: the tokens worth drafting, counted in a text."""

from __future__ import annotations

import argparse

from mtpcore.boundary.texts import read_pieces
from mtpcore.cli import options as shared
from mtpcore.cli.terminal import note
from mtpcore.discovery.loading import load_model
from mtpcore.drafting.draft_vocabulary import DraftVocabulary

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Write a draft vocabulary: the frequent tokens of a text, which alone are drafted"
EXAMPLES = """examples:
  mtpcore vocabulary model.gguf -f books.txt
  mtpcore run model.gguf -p "Once upon a time" --draft-vocabulary 32768
  mtpcore vocabulary model.gguf -f books.txt -n 16384 -o books.vocabulary.json
  mtpcore run model.gguf -p "Once upon a time" --draft-vocabulary books.vocabulary.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser, runs=False)
    group = parser.add_argument_group("vocabulary")
    group.add_argument("-f", "--file", required=True, metavar="TEXT", help="a text in UTF-8")
    group.add_argument(
        "-n", type=shared.whole(1), metavar="N", help="keep the N most frequent (default: all)"
    )
    group.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="default: MODEL.vocabulary.json beside the model; for a demo, in the current folder",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    given, head = shared.model_path(options), options.mtp_path
    with load_model(given, mtp_path=head, sidecars=False) as model:
        vocabulary = DraftVocabulary.of_text(model, read_pieces(options.file))
        n_found = len(vocabulary)
        if options.n is not None:
            if options.n > n_found:
                note(f"-n {options.n}: all {n_found} tokens, as no more occur")
            vocabulary = vocabulary.cut(options.n)
        path = options.out or DraftVocabulary.beside(model)
        vocabulary.write(path)
        n_vocab = model.hparams.n_vocab
    note(f"{path}: {len(vocabulary)} of {n_vocab} tokens; {n_found} occur in {options.file}")
    return 0
