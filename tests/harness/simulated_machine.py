"""A machine whose every price is known, and texts whose acceptance is; its clock is simulated."""

import math
import random

from mtpcore.decoding import Round

LIMIT = 8
ROLE = "head"


class Disturbance:
    """What makes measurements take longer: a spread of ``noise``, slow rounds, a slow machine."""

    def __init__(self, seed, noise=0.05, slow_round=50, speed=None):
        self.noise, self.slow_round, self.speed = noise, slow_round, speed or (lambda i: 1.0)
        self.random, self.round = random.Random(seed), 0

    def take(self, seconds):
        """Return the seconds that something takes in this round."""
        slow = 5 if self.random.randrange(self.slow_round) == 0 else 1
        return seconds * slow * self.speed(self.round) * (1 + abs(self.random.gauss(0, self.noise)))


class Machine:
    """Takes ``verify(rows)`` and ``draft(steps)`` seconds, and more where it is disturbed.

    ``steps`` has for each step of drafting how many sequences share it. ``noise`` is the spread of
    what comes on top; every ``slow_round``-th measurement takes five times as long. ``speed(i)``
    says how slow everything is in round i. A drafter reads what it lacks of a text at ``read``
    seconds a token; to begin with, ``prompt`` tokens. ``cold(rows)`` says how much longer a pass
    takes that is not warm yet, and 0 of others.
    """

    def __init__(
        self,
        verify,
        draft,
        *,
        noise=0.05,
        slow_round=50,
        speed=None,
        read=0.0005,
        prompt=100,
        cold=None,
    ):
        self.verify, self.draft, self.read, self.prompt = verify, draft, read, prompt
        self.noise, self.slow_round, self.speed = noise, slow_round, speed or (lambda i: 1.0)
        self.cold = cold or (lambda rows: 0)

    def run(self, choose, rates, n_rounds, *, n_seqs=1, observe=None, seed=1):
        """Run rounds; ``rates(i, seq)`` are those of drafts 1, 2, ... after accepted ones.

        Returns tokens a second, the lengths asked for in each round, and what was said.
        """
        rng = random.Random(seed)
        disturbance = Disturbance(seed + 1, self.noise, self.slow_round, self.speed)
        seqs, unread = range(n_seqs), dict.fromkeys(range(n_seqs), self.prompt)
        room = dict.fromkeys(seqs, 10**6)  # of each text, less with every token
        tokens = seconds = 0.0
        asked_by_round, said = [], []
        for i in range(n_rounds):
            disturbance.round = i
            asked = {
                seq: plan if isinstance(plan, int) else plan.get(ROLE, 0)
                for seq, plan in choose(room, {}).items()
            }
            accepted = {}
            for seq, k in asked.items():
                accepted[seq] = 0
                while accepted[seq] < k and rng.random() < rates(i, seq)[accepted[seq]]:
                    accepted[seq] += 1
            drafting = [seq for seq, k in asked.items() if k]
            draft = disturbance.take(self.draft(steps(asked.values()))) if drafting else 0.0
            draft += self.read * sum(unread[seq] for seq in drafting)
            for seq in seqs:
                room[seq] -= accepted[seq] + 1
                unread[seq] = accepted[seq] + 1 + (0 if asked[seq] else unread[seq])
            rows = n_seqs + sum(asked.values())
            cold = self.cold(rows)
            verify = disturbance.take(self.verify(rows) * (cold or 1.0))
            if observe:
                makers = dict.fromkeys(drafting, ROLE)
                seconds_of = {ROLE: draft} if drafting else {}
                done = Round(
                    *(asked, asked, accepted, rows, 0, draft, verify, 0.0, makers, seconds_of),
                    is_warm=not cold,
                )
                said += observe(done)
            seconds += draft + verify
            tokens += n_seqs + sum(accepted.values())
            asked_by_round.append(asked)
        return tokens / seconds, asked_by_round, said

    def fixed(self, k, rates, n_rounds, **settings):
        """Return tokens a second with one length."""
        return self.run(lambda limits, _: dict.fromkeys(limits, k), rates, n_rounds, **settings)[0]

    def expected(self, k, rates, n_seqs=1):
        """Return tokens a second with one length, on average, where rates stay as they are."""
        tokens = 0.0
        for seq in range(n_seqs):
            share = 1.0
            for rate in (1.0, *rates(0, seq)[:k]):
                share *= rate
                tokens += share
        disturbed = (1 + self.noise * (2 / math.pi) ** 0.5) * (1 + 4 / self.slow_round)
        draft = self.draft([n_seqs] * k) * disturbed + self.read * tokens if k else 0.0
        return tokens / (draft + self.verify(n_seqs * (k + 1)) * disturbed)

    def best(self, rates, n_seqs=1):
        """Return the tokens a second of the best fixed length, on average."""
        return max(self.expected(k, rates, n_seqs) for k in range(LIMIT + 1))


def steps(lengths):
    """Return for each step of drafts of these lengths how many share it."""
    return [sum(k > i for k in lengths) for i in range(max(lengths))]


def falling(first):
    """Rates of drafts after accepted ones: each a little lower than the one before it."""
    rates = [first * 0.97**i for i in range(LIMIT)]
    return lambda i, seq: rates


SHAPES = {
    "dense": (lambda n: 1 + 0.04 * (n - 1), lambda s: 0.05 + 0.11 * len(s)),
    "tiles of four rows": (lambda n: 1 + 0.05 * (n - 1) + 0.5 * (n > 4), lambda s: 0.15 * len(s)),
    "experts": (lambda n: 1 + 0.6 * (n - 1) ** 0.9, lambda s: 0.12 * len(s)),
    "plateau": (lambda n: 1.0 if n == 1 else 1.8 if n < 9 else 3.0, lambda s: 0.06 * len(s)),
    "dear drafts": (lambda n: 1 + 0.05 * (n - 1), lambda s: 0.6 * len(s)),
    "never pays": (lambda n: float(n), lambda s: 0.5 * len(s)),
    "drafts dearer than passes": (lambda n: 1 + 0.05 * n, lambda s: 5.0 * len(s)),
}
"""Seconds of a pass by rows, and of a draft by steps."""

TWO_CORES = (
    lambda n: 1 + 0.035 * (n - 1) + 0.1 * max(n - 8, 0) - 0.02 * max(n - 20, 0),
    lambda s: 0.06 + sum(max(0.06, 0.02 * n) for n in s),
)
"""Much like a model of 1 B parameters on two cores: from eight rows on each row costs as much as
the next, in the drafter's steps too."""
