"""Rounds of real texts, replayed: what lookup finds in them and what passes cost were recorded.

``benchmarks/record_rounds.py`` records them. A policy is told what a generator would tell it, but
for the clock: costs are those recorded, disturbed as a simulated machine's are.
"""

import json
import lzma
import random
from functools import cache
from itertools import cycle, islice
from math import inf
from pathlib import Path
from statistics import mean

import numpy as np

from harness.simulated_machine import Disturbance
from mtpcore.decoding import Controller, Expectation, Proposed, Round
from mtpcore.drafting.lookup import LOOKUP, Lookup

RECORDED = Path(__file__).parents[1] / "data" / "rounds" / "smollm2.json.xz"
ASK_SECONDS, ASK_ROUND = 8e-6, 20e-6
"""What it takes to ask lookup for a text, and in each round besides, with all that Python does for
it while its code and data are not in the caches; see ``benchmarks/asking.py``."""
FIXED = (0, 1, 2, 3, 4, 8)
ROLE = "lookup"


@cache
def recorded():
    """Return what was recorded: passes by texts at once and rows, tasks by name."""
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


@cache
def _passes():
    return {
        int(n): ([*map(int, passes)], [*passes.values()])
        for n, passes in sorted(recorded()["passes"].items(), key=lambda item: int(item[0]))
    }


def pass_seconds(rows, n_texts):
    """Return the seconds of a pass; those of other numbers of texts lie between recorded ones."""
    recorded_for = [*_passes()]
    below = max(n for n in recorded_for if n <= n_texts)
    above = min(n for n in recorded_for if n >= n_texts)
    low = np.interp(rows, *_passes()[below])
    if above == below or rows < above:  # a pass has a row for each text at least
        return low
    share = (n_texts - below) / (above - below)
    return (1.0 - share) * low + share * np.interp(rows, *_passes()[above])


class Place:
    """A place in a text: what lookup proposes there, and how much of that is right."""

    def __init__(self, lookup, tokens, at):
        proposal = lookup.propose(0, tokens[:at], LOOKUP.limit)
        draft = proposal.draft
        truth = tokens[at : at + len(draft)].tolist()
        same = [a == b for a, b in zip(draft, truth, strict=False)]
        self.made, self.right = len(draft), [*same, False].index(False)
        self.confidence = proposal.confidence


class Nothing:
    """A place where lookup finds nothing."""

    made = right = 0
    confidence = 0.0


@cache
def places(task):
    """Return the places of each text of a task; the first token comes with the prompt."""
    texts, lookup = [], Lookup()
    for prompt, text in recorded()["tasks"][task]["texts"]:
        tokens = np.array([*prompt, *text], np.int32)
        texts.append([Place(lookup, tokens, at) for at in range(len(prompt) + 1, len(tokens))])
    return texts


class Replay:
    """A task's texts, ``n_seqs`` at once: each sequence writes them all, from another one on.

    With ``only`` one sequence writes that text alone.
    """

    role, limit = ROLE, LOOKUP.limit

    def __init__(self, task, n_seqs=1, *, only=None):
        texts = places(task)
        self.texts = texts if only is None else [texts[only]]
        self.n_seqs, self.n_tokens = n_seqs, n_seqs * sum(map(len, self.texts))
        costs = recorded()["tasks"][task]
        self.ask_seconds, self.choose_seconds = ASK_SECONDS, costs["choose_seconds"]

    def run(self, policy, seed=1):
        """Return tokens a second with a policy."""
        disturbance, seconds, tokens = Disturbance(seed), 0.0, 0
        coming = self._coming(seed)
        at = {seq: (next(texts), 0) for seq, texts in coming.items()}
        self._read_prompts(policy)
        while at and tokens < self.n_tokens:
            here = {seq: self.texts[text][place] for seq, (text, place) in at.items()}
            limits = {s: len(self.texts[text]) - place - 1 for s, (text, place) in at.items()}
            chosen = policy.choose(limits, {})
            asked = {
                seq: min(plan.get(self.role, 0), self.limit, limits[seq])
                for seq, plan in chosen.items()
            }
            found = {seq: n for seq, k in asked.items() if (n := min(k, here[seq].made))}
            sure = {seq: self._confidence(here[seq], n) for seq, n in found.items()}
            proposed = {seq: Proposed(n, n, sure[seq]) for seq, n in found.items()}
            kept = policy.keep(self.role, proposed) if proposed else {}
            made = {seq: kept.get(seq, 0) for seq in asked}
            accepted = {seq: min(k, here[seq].right) for seq, k in made.items()}
            rows, new = len(at) + sum(made.values()), len(at) + sum(accepted.values())
            draft, verify, choose = map(
                disturbance.take,
                (
                    self._drafting([k for k in asked.values() if k]),
                    pass_seconds(rows, len(at)),
                    self.choose_seconds * new,
                ),
            )
            disturbance.round += 1
            policy.observe(
                Round(
                    asked,
                    made,
                    accepted,
                    rows,
                    0,
                    draft,
                    verify,
                    choose,
                    makers={seq: self.role for seq, k in made.items() if k},
                    seconds_of={self.role: draft} if any(asked.values()) else {},
                    confidences={seq: one for seq, one in sure.items() if one is not None},
                )
            )
            seconds, tokens = seconds + draft + verify + choose, tokens + new
            for seq, (text, place) in [*at.items()]:
                at[seq] = text, place + 1 + accepted[seq]
                if at[seq][1] >= len(self.texts[text]):
                    policy.forget(seq)
                    del at[seq]
                    for new in islice(coming[seq], 1):
                        at[seq] = new, 0
        return float(tokens / seconds)

    def _coming(self, seed):
        """Return the texts of each sequence, one after another."""
        n = len(self.texts)
        return {seq: cycle([*range(seq % n, n), *range(seq % n)]) for seq in range(self.n_seqs)}

    def _confidence(self, place, n):
        return place.confidence

    def _drafting(self, lengths):
        """Return what drafts take of the texts that are to have so many."""
        return ASK_ROUND + self.ask_seconds * len(lengths) if lengths else 0.0

    def _read_prompts(self, policy):
        """Let a policy see that prompts were read."""
        rows, (sizes, passes) = 100 * self.n_seqs, _passes()[self.n_seqs]
        seconds = rows * passes[-1] / sizes[-1]
        policy.observe(Round({}, {}, {}, rows, rows, 0.0, seconds, 0.0))


class Traffic(Replay):
    """Short answers of all kinds, as a server writes them: who has one done begins another.

    In the end there are fewer and fewer at once.
    """

    def __init__(self, n_seqs, *, longest=96, times=1):
        super().__init__(next(iter(recorded()["tasks"])), n_seqs)
        self.texts = times * [t[:longest] for task in recorded()["tasks"] for t in places(task)]
        self.n_tokens = inf

    def _coming(self, seed):
        order = random.Random(seed).sample(range(len(self.texts)), len(self.texts))
        return dict.fromkeys(range(self.n_seqs), iter(order))


class Fixed:
    """Always the same length."""

    def __init__(self, k, role=ROLE):
        self.k, self.role = k, role

    def choose(self, limits, fixed):
        return {seq: {self.role: self.k} for seq in limits}

    def keep(self, role, proposed):
        return {seq: draft.depth for seq, draft in proposed.items()}

    def observe(self, done):
        return []

    def forget(self, seq):
        pass


def make_controller():
    """Return what ``draft="auto"`` has for lookup."""
    expected = sum(LOOKUP.acceptance) / 2
    return Controller({ROLE: Expectation(LOOKUP.limit, expected, finds=True)})


def replays(task):
    """Return a task's replays by name: each text as the first one, and all, 1, 4 and 16 at once."""
    first = [Replay(task, only=only) for only in range(len(places(task)))]
    return {"first": first} | {str(n): [Replay(task, n)] for n in (1, 4, 16)}


def share_of_best(runs, seeds=(1,), make=make_controller):
    """Return the speed of ``auto`` over that of the best fixed length, plain decoding included."""

    def speed(new):
        return mean(one.run(new(), seed) for one in runs for seed in seeds)

    role, limit = runs[0].role, runs[0].limit
    return speed(make) / max(speed(lambda k=k: Fixed(k, role)) for k in FIXED if k <= limit)
