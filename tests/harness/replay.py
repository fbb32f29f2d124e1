"""Rounds of real texts, replayed: what lookup finds in them and what passes cost were recorded.

``benchmarks/record_rounds.py`` records them. A policy is told what a generator would tell it, but
for the clock: costs are those recorded, disturbed as a simulated machine's are.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np

from harness.simulated_machine import Disturbance
from mtpcore.decoding import Controller, Expectation, Proposed, Round
from mtpcore.drafting.lookup import LOOKUP, Lookup

RECORDED = Path(__file__).parents[1] / "data" / "rounds" / "smollm2.json.xz"
ASK_SECONDS = 15e-6
"""What it takes to ask lookup, Python around it included; see ``benchmarks/lookup.py``."""
FIXED = (0, 1, 2, 3, 4, 8)
ROLE = "lookup"


@cache
def recorded():
    """Return what was recorded: passes by texts at once and rows, tasks by name."""
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


class Place:
    """A place in a text: what lookup proposes there, and how much of that is right."""

    def __init__(self, lookup, tokens, at):
        proposal = lookup.propose(0, tokens[:at], LOOKUP.limit)
        draft = proposal.draft
        truth = tokens[at : at + len(draft)].tolist()
        same = [a == b for a, b in zip(draft, truth, strict=False)]
        self.made, self.right = len(draft), [*same, False].index(False)
        self.confidence = proposal.confidence


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

    def __init__(self, task, n_seqs=1, *, only=None):
        texts = places(task)
        self.texts = texts if only is None else [texts[only]]
        self.n_seqs, self.n_tokens = n_seqs, n_seqs * sum(map(len, self.texts))
        costs = recorded()["tasks"][task]
        self.ask_seconds, self.choose_seconds = ASK_SECONDS, costs["choose_seconds"]
        passes = recorded()["passes"][str(n_seqs)]
        self.rows, self.seconds = [*map(int, passes)], [*passes.values()]

    def run(self, policy, seed=1):
        """Return tokens a second with a policy."""
        disturbance, seconds, tokens = Disturbance(seed), 0.0, 0
        at = {seq: (seq % len(self.texts), 0) for seq in range(self.n_seqs)}
        self._read_prompts(policy)
        while tokens < self.n_tokens:
            here = {seq: self.texts[text][place] for seq, (text, place) in at.items()}
            limits = {s: len(self.texts[text]) - place - 1 for s, (text, place) in at.items()}
            chosen = policy.choose(limits, {})
            asked = {
                seq: min(plan.get(ROLE, 0), LOOKUP.limit, limits[seq])
                for seq, plan in chosen.items()
            }
            found = {seq: n for seq, k in asked.items() if (n := min(k, here[seq].made))}
            proposed = {seq: Proposed(n, n, here[seq].confidence) for seq, n in found.items()}
            kept = policy.keep(ROLE, proposed) if proposed else {}
            made = {seq: kept.get(seq, 0) for seq in asked}
            accepted = {seq: min(k, here[seq].right) for seq, k in made.items()}
            rows, new = self.n_seqs + sum(made.values()), self.n_seqs + sum(accepted.values())
            draft, verify, choose = map(
                disturbance.take,
                (
                    self.ask_seconds * sum(k > 0 for k in asked.values()),
                    np.interp(rows, self.rows, self.seconds),
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
                    makers={seq: ROLE for seq, k in made.items() if k},
                    seconds_of={ROLE: draft} if any(asked.values()) else {},
                    confidences={seq: one.confidence for seq, one in proposed.items()},
                )
            )
            seconds, tokens = seconds + draft + verify + choose, tokens + new
            for seq, (text, place) in at.items():
                at[seq] = text, place + 1 + accepted[seq]
                if at[seq][1] >= len(self.texts[text]):
                    policy.forget(seq)
                    at[seq] = (text + 1) % len(self.texts), 0
        return float(tokens / seconds)

    def _read_prompts(self, policy):
        """Let a policy see that prompts were read."""
        rows = 100 * self.n_seqs
        seconds = rows * self.seconds[-1] / self.rows[-1]
        policy.observe(Round({}, {}, {}, rows, rows, 0.0, seconds, 0.0))


class Fixed:
    """Always the same length."""

    def __init__(self, k):
        self.k = k

    def choose(self, limits, fixed):
        return {seq: {ROLE: self.k} for seq in limits}

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

    return speed(make) / max(speed(lambda k=k: Fixed(k)) for k in FIXED)
