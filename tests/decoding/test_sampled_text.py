"""Drafted text is drawn from the target's own distribution: chi-square at 1e5 draws."""

import math

import numpy as np
from harness.hashed import N_VOCAB, HashBackend, HashModel, HashPlan

from mtpcore.cross import link
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

N_DRAWS, ALPHA, K = 100_000, 1e-6, 3
LOGITS = (np.random.default_rng(7).normal(size=N_VOCAB) * 1.5).astype(np.float32)
MISLED = 0.6 * LOGITS + 0.4 * np.roll(LOGITS, 4)


class FlatPlan(HashPlan):
    """The same logits at every place: then all choices of a text come from one distribution."""

    def run(self, rows, memory):
        n = len(rows.tokens)
        target = self.program.name == "llm"
        arrays = {
            name: np.zeros((n, 4), np.float32) for name in self.program.outputs if name != "logits"
        }
        if "logits" in self.program.outputs:
            arrays["logits"] = np.tile(LOGITS if target else MISLED, (len(rows.outputs), 1))
        return arrays


class FlatBackend(HashBackend):
    """The drafter has another distribution than the target: some drafts are accepted."""

    def plan(self, program, source, *, n_batch, n_ctx, threads, stores, states=None):
        return FlatPlan(program, stores[0], self)


def expected(sampling):
    """The target's distribution, from the definition of the cuts."""
    order = np.argsort(-LOGITS, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    p = np.zeros(N_VOCAB)
    scaled = LOGITS[order].astype(np.float64) / sampling.temperature
    p[order] = np.exp(scaled - scaled.max())
    return p / p.sum()


def chi_square_bound(freedom):
    """The quantile 1 - ALPHA by Wilson and Hilferty, a little high."""
    z = 4.753424  # of the normal distribution, at 1e-6
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3 * 1.02


def check(counts, sampling):
    p = expected(sampling)
    assert counts.sum() >= N_DRAWS
    assert not counts[p == 0].any()
    kept = p > 0
    wanted = p[kept] * counts.sum()
    assert wanted.min() > 10
    statistic = ((counts[kept] - wanted) ** 2 / wanted).sum()
    assert statistic < chi_square_bound(kept.sum() - 1), statistic


def texts(samplings, n):
    """Return int[sequence, n]: tokens for each of these settings, drafted by three, together."""
    llm = Context(HashModel(), n + K + 2, n_seq_max=len(samplings), backend=FlatBackend())
    cross = link(llm)
    seqs = dict(enumerate(samplings))
    llm.process(Batch(np.zeros(len(seqs), np.int32), seq=list(seqs)))
    made = {seq: [] for seq in seqs}
    accepted = 0
    while open_ := {seq: K for seq in seqs if len(made[seq]) < n}:
        drafts = cross.draft(open_, sampling=seqs)
        for seq, verdict in cross.verify(drafts, seqs).items():
            made[seq] += verdict.committed
            accepted += verdict.accepted
            cross.accept(seq)
    assert accepted > 0
    return np.asarray([tokens[:n] for tokens in made.values()])


def count(tokens):
    return np.bincount(tokens.ravel(), minlength=N_VOCAB).astype(float)


def test_over_positions_of_one_seed():
    """Ten streams of one seed; neighbours in a text are independent of each other too."""
    settings = {"temperature": 1.5, "top_k": 8}
    samplings = [Sampling(seed=99, stream=stream, **settings) for stream in range(10)]
    made = texts(samplings, N_DRAWS // 10)
    check(count(made), samplings[0])
    p = expected(samplings[0])
    order = np.argsort(p)
    half = np.zeros(N_VOCAB, int)
    half[order[np.cumsum(p[order]) > 0.5]] = 1
    bits = half[made]
    pairs = np.bincount((bits[:, :-1] * 2 + bits[:, 1:]).ravel(), minlength=4).reshape(2, 2)
    wanted = np.outer(pairs.sum(axis=1), pairs.sum(axis=0)) / pairs.sum()
    assert ((pairs - wanted) ** 2 / wanted).sum() < chi_square_bound(1)


def test_over_seeds():
    """The first four choices of 25,000 seeds: what a first draft accepts or rejects."""
    counts = np.zeros(N_VOCAB)
    for first in range(0, N_DRAWS // 4, 500):
        samplings = [Sampling(temperature=1.0, seed=first + i) for i in range(500)]
        counts += count(texts(samplings, 4))
    check(counts, samplings[0])
