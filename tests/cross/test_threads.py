"""Several threads on one Cross: each call runs alone, or is refused and may be made again."""

import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mtpcore import Batch, BusyError, Context, Generator, Sampling, link, load_model
from mtpcore.testing.deliveries import intercept

SECONDS = float(os.environ.get("MTPCORE_STRESS_SECONDS", "0"))
N_THREADS, N_ACTS = 4, 40
REFUSED = Counter()


@pytest.fixture(autouse=True)
def short_turns():
    """Let threads take turns often: their calls meet in all places."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def insist(call, *args, **kwargs):
    """Make a call again until no other one is in its way."""
    while True:
        try:
            return call(*args, **kwargs)
        except BusyError:
            REFUSED[call.__name__] += 1
            time.sleep(0)


class Script:
    """Random acts on one sequence, and on a copy of it; says all that they returned.

    Each act is drawn before it is made, so that how often it was refused makes no difference.
    """

    def __init__(self, cross, seq, seed):
        self.cross, self.seq, self.copy = cross, seq, seq + N_THREADS
        self.random, self.said = random.Random(seed), []
        self.sampling = Sampling(temperature=1.0, seed=seed, stream=seq)

    def run(self):
        for _ in range(N_ACTS):
            if not self.cross.tokens(self.seq):
                self.read(self.random.choices(range(3, 900), k=self.random.randint(1, 80)))
            self.said.append(self.random.choice([self.round, self.go_back, self.branch])())
        self.said.append(insist(self.cross.digest, self.seq))
        insist(self.cross.remove, self.seq)
        return self.said

    def read(self, tokens):
        at = len(self.cross.tokens(self.seq))
        insist(self.cross.llm.process, Batch.of(tokens, seq=self.seq, pos=at))
        insist(self.cross.pending, self.seq, self.sampling)

    def round(self):
        if len(self.cross.tokens(self.seq)) > 200:
            return insist(self.cross.remove, self.seq)
        k = self.random.randint(0, 4)
        drafts = insist(self.cross.draft, self.seq, k, self.sampling)
        verdict = insist(self.cross.verify, {self.seq: drafts}, self.sampling)[self.seq]
        n = self.random.randint(0, verdict.accepted)
        insist(self.cross.accept, self.seq, n)
        return drafts, verdict, n

    def go_back(self):
        n = len(self.cross.tokens(self.seq))
        at = self.random.randint(0, n)
        insist(self.cross.rollback, self.seq, at)
        if at:
            self.read([at + 3, 7])
        return at

    def branch(self):
        insist(self.cross.fork, self.seq, self.copy, stream=99)
        digests = [insist(self.cross.digest, one) for one in (self.seq, self.copy)]
        insist(self.cross.remove, self.copy)
        return digests


def make_cross(name="demo"):
    return link(Context(load_model(name), 256, n_seq_max=2 * N_THREADS, threads=2))


def holds_nothing(cross):
    """Say whether every page is free again, and used by nobody."""
    pages = [group.pages for one in cross.contexts.values() for group in one.runner.memory.groups]
    for one in pages:
        one.save()  # until here the pages of the last act could be restored
    return all(one.n_free == len(one.uses) and not np.any(one.uses) for one in pages)


def compare(seed):
    """Run scripts in threads on one Cross, and each alone; hold them against each other."""
    name = ("demo", "demo:deepseek", "demo:mimo2")[seed % 3]
    cross = make_cross(name)
    scripts = [Script(cross, seq, seed + seq) for seq in range(N_THREADS)]
    with ThreadPoolExecutor(N_THREADS) as pool:
        found = [each.result() for each in [pool.submit(script.run) for script in scripts]]
    alone = make_cross(name)
    assert found == [Script(alone, seq, seed + seq).run() for seq in range(N_THREADS)]
    assert holds_nothing(cross)


def test_threads_that_insist_do_what_each_does_alone():
    REFUSED.clear()
    end, seed = time.monotonic() + SECONDS, 0
    while seed < 3 or time.monotonic() < end:
        compare(seed)
        seed += 1
    assert sum(REFUSED.values()) > 10
    print(f"{seed} runs of {N_THREADS} threads, refused: {dict(REFUSED)}")


def test_an_iterator_that_is_closed_while_a_round_runs_gives_its_sequence_back():
    """Whoever closes it, the collector of garbage say: it cannot wait, and nothing may stay."""
    cross = link(Context(load_model("demo"), 256, n_seq_max=2, threads=1))
    sampling = Sampling(temperature=1.0, seed=3)
    generator, closed = Generator(cross, draft=2, sampling=sampling), []
    iterator = generator.generate([5, 6, 7], max_tokens=100, ignore_eos=True)
    text = [next(iterator)]

    def close(batch, output):
        if not closed:
            closed.append(cross.tokens(0) or cross.tokens(1))
            iterator.close()

    request = generator.add([4, 4, 4], max_tokens=12, ignore_eos=True)
    with intercept(cross.llm, close):
        while generator.active:
            generator.step()
    assert closed
    assert text
    assert generator.stats.tokens < 60  # nobody wrote the other text to its end
    assert len(request.tokens) == 12
    assert [cross.tokens(seq) for seq in range(2)] == [[], []]
    assert not generator.cross.owners.describe()
    assert holds_nothing(cross)
    alone = Generator(link(Context(load_model("demo"), 256, threads=1)), sampling=sampling)
    assert [*alone.generate([4, 4, 4], max_tokens=12, ignore_eos=True)] == request.tokens
