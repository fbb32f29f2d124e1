"""What it would be worth to know how probable each draft of a head is, without a clock.

    python benchmarks/head_probability.py [--seeds 2]

``draft="auto"`` verifies all that a head drafts. Here it is replayed on places of real texts
(``record_drafts.py``) beside a policy that verifies a draft as deep as it pays by the probabilities
of its tokens, whose acceptance it learns by twelve levels of them, for first drafts and for later
ones. Printed are the speed of the best fixed length over plain decoding, and what both have of it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.head_replay import LIMIT, ROLE, HeadReplay, head_controller
from harness.replay import Fixed, share_of_best

from mtpcore.decoding import Controller, Expectation, LengthDecision, Proposed, Round
from mtpcore.decoding.lengths.rates import Calibration
from mtpcore.decoding.lengths.search import Offer

LEVELS, PRIOR, EXPECTED = 12, 12.0, 0.6
COSTS = (0.05, 0.2)
"""Of a draft, as a share of a pass of one row."""


class Knowing(Controller):
    """Verifies drafts of a head as deep as their probabilities say that it pays."""

    def __init__(self) -> None:
        super().__init__({ROLE: Expectation(LIMIT, 0.7, 0.15)})
        self._levels: dict[int, list[tuple[bool, int]]] = {}
        self._seen: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._calibrations: dict[int, Calibration] = defaultdict(Calibration)

    def keep(self, role: str, proposed: Mapping[int, Proposed]) -> dict[int, int]:
        """Return how deep drafts are to be verified."""
        self._levels = {seq: _levels(draft.confidence) for seq, draft in proposed.items()}
        if not self._turn.worth:
            return {seq: draft.depth for seq, draft in proposed.items()}
        reach = {
            seq: self._calibrations[seq].reach(self._rates(levels), self._round)
            for seq, levels in self._levels.items()
        }
        offer = Offer(reach, lambda seq, k: k)
        return self._decide(offer, self._turn.n_rows, self._turn.worth, self._turn.lost)[0]

    def observe(self, done: Round) -> list[LengthDecision]:
        """Learn how often drafts of a level are accepted."""
        for seq, levels in self._levels.items():
            accepted = done.accepted[seq]
            tried = levels[: min(done.made[seq], accepted + 1)]
            self._calibrations[seq].observe(self._rates(tried), accepted, self._round + 1)
            for at, (is_first, level) in enumerate(tried):
                for key in (is_first, (is_first, level)):
                    self._seen[key][0] += at < accepted
                    self._seen[key][1] += 1.0
        self._levels = {}
        return super().observe(msgspec.structs.replace(done, confidences={}))

    def _observe_accepted(self, done: Round, now: int) -> None:
        """Learn of what was verified: the rest is not known to be wrong."""
        super()._observe_accepted(msgspec.structs.replace(done, asked=done.made), now)

    def forget(self, seq: int) -> None:
        """Forget a text."""
        self._calibrations.pop(seq, None)
        super().forget(seq)

    def _rates(self, levels: Sequence[tuple[bool, int]]) -> list[float]:
        rates = []
        for is_first, level in levels:
            rate = EXPECTED
            for key in (is_first, (is_first, level)):
                good, tried = self._seen[key]
                rate = (good + PRIOR * rate) / (tried + PRIOR)
            rates.append(min(rate, 0.99))
        return rates


def _levels(probabilities: Any) -> list[tuple[bool, int]]:
    """Return of each draft whether it is the first one, and the level of its probability."""
    return [(at == 0, min(int(p * LEVELS), LEVELS - 1)) for at, p in enumerate(probabilities)]


class Told(HeadReplay):  # type: ignore[misc]
    """Tells a policy how probable drafts are."""

    def _confidence(self, place: Any, n: int) -> Any:
        return place.probabilities[:n]


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    print("| texts are | at once | a draft costs | best length | auto | by probabilities |")
    print("| --- | --- | --- | --- | --- | --- |")
    for sampling in ("greedy", "temperature 1"):
        for n in (1, 4, 16):
            for cost in COSTS:
                replay, told = HeadReplay(sampling, n, cost), Told(sampling, n, cost)
                auto = share_of_best([replay], seeds, head_controller)
                knowing = share_of_best([told], seeds, Knowing)
                best = 1.0 / share_of_best([replay], seeds, lambda: Fixed(0, ROLE))
                cells = f"{cost:g} | {best:.2f} | {auto:.3f} | {knowing:.3f}"
                print(f"| {sampling} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
