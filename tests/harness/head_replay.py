"""What a head drafts at each place of real texts, replayed at the costs of recorded passes.

``benchmarks/record_drafts.py`` records the places.
"""

import json
import lzma
from functools import cache
from pathlib import Path

from harness.replay import Replay, pass_seconds
from mtpcore.decoding import Controller, Expectation

RECORDED = Path(__file__).parents[1] / "data" / "rounds" / "demo_head.json.xz"
ROLE, LIMIT = "draft", 6
FURTHER_TEXT = 0.1
"""What a draft takes more for a further text, of what it takes for one."""


class HeadPlace:
    """A place in a text: what a head drafts there, and how much of that is right.

    ``probabilities`` are those of the drafts for the head, each after the ones before it.
    """

    confidence = None

    def __init__(self, right, probabilities):
        self.made, self.right, self.probabilities = len(probabilities), right, probabilities


@cache
def head_places(sampling):
    """Return the places of each text that was chosen with some settings."""
    recorded = json.loads(lzma.decompress(RECORDED.read_bytes()))
    return [[HeadPlace(*place) for place in text] for text in recorded[sampling]]


class HeadReplay(Replay):
    """Texts, ``n_seqs`` at once, with drafts that each cost some share of a pass of one row."""

    role, limit = ROLE, LIMIT

    def __init__(self, sampling, n_seqs, cost):
        self.texts, self.n_seqs = 3 * head_places(sampling), n_seqs
        self.n_tokens = n_seqs * sum(map(len, self.texts))
        self.cost, self.choose_seconds = cost, 0.0

    def _drafting(self, lengths):
        share = 1.0 + FURTHER_TEXT * (len(lengths) - 1)
        return self.cost * max(lengths, default=0) * share * pass_seconds(1, 1)


def head_controller():
    """Return what ``draft="auto"`` has for such a head."""
    return Controller({ROLE: Expectation(LIMIT, 0.7, 0.15)})
