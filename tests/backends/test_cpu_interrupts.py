"""A signal ends a long batch in its middle, and the state is that before it."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from harness.draft_runs import draft_after

from mtpcore import Batch, Context, Sampling, load_model
from mtpcore._ext._plan import use_order
from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.backends.schedule import Text
from mtpcore.graph import GraphType

N_LONG = 4096
TRIES = 5
SHORT = Batch.of([5, 6, 7])


@pytest.fixture(scope="module")
def demo():
    return load_model("demo")


def long_text():
    return Batch.of(np.arange(N_LONG, dtype=np.int32) % 1000)


def make(demo, **sizes):
    return Context(demo, **({"n_ctx": N_LONG, "n_batch": N_LONG, "threads": 1} | sizes))


class Sender:
    """Sends a signal to the process as soon as a context has begun to run."""

    def __init__(self, context, number):
        self._context, self._number = context, number
        self._over = threading.Event()
        self.sent_at = 1.0  # share of the batch that was done by then

    def send(self):
        while not self._over.is_set():
            if self._context.progress > 0:
                os.kill(os.getpid(), self._number)
                self.sent_at = self._context.progress
                return
            time.sleep(1e-3)

    def __enter__(self):
        self._thread = threading.Thread(target=self.send)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@contextmanager
def handling(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def run_and_wait(run):
    """Give a signal that was sent too late time to come."""
    run()
    time.sleep(5)


def interrupted(context, run):
    """Interrupt a run; return which share of it was done when Python handled the signal."""
    seen = []

    def handle(number, frame):
        seen.append(context.progress)
        raise KeyboardInterrupt

    for _ in range(TRIES):  # a busy machine may send too late
        with (
            handling(signal.SIGINT, handle),
            Sender(context, signal.SIGINT) as sender,
            pytest.raises(KeyboardInterrupt),
        ):
            run_and_wait(run)
        if seen[-1] > 0 and sender.sent_at < 0.3:
            return seen[-1]
    pytest.fail("the signal came too late each time")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_ends_a_batch_before_its_end(demo, threads):
    context, fresh = make(demo, threads=threads), make(demo)
    for one in (context, fresh):
        one.process(SHORT)
    long = Batch.of(long_text().tokens[: N_LONG - 3], pos=3)
    assert interrupted(context, lambda: context.process(long)) < 0.7
    assert context.progress == 0
    assert context.length(0) == 3
    assert context.digest(0) == fresh.digest(0)
    outputs = [one.process(Batch.of([9, 8], pos=3)).logits for one in (context, fresh)]
    assert np.array_equal(*outputs)
    assert context.digest(0) == fresh.digest(0)


@pytest.mark.parametrize("order", ["first to last", "last to first"])
def test_all_threads_leave_together_whichever_goes_first(demo, order):
    context = make(demo, threads=3)
    use_order(order)
    assert interrupted(context, lambda: context.process(long_text())) < 0.7
    assert len(context.process(SHORT).logits) == 1


def test_a_draft_is_interrupted_while_the_drafter_reads_the_prompt(demo):
    """A head is small, so the prompt is long; a chain's first pass, and a block's."""
    n = 2 * N_LONG
    contexts = [
        make(demo, graph_type=GraphType.DRAFT, n_ctx=n + 8, n_batch=n, threads=threads)
        for threads in (2, 1)
    ]
    rows = np.random.default_rng(0).standard_normal((n, demo.hparams.width), np.float32)
    tokens = np.arange(n, dtype=np.int32) % 1000
    sampler = Sampler(Sampling.greedy(), Scratch(demo.hparams.n_vocab))

    text = Text(sampler, tokens, n, n)

    def draft(context, is_block=False):
        outputs = np.arange(n) >= n - (4 if is_block else 1)
        batch = Batch(tokens, outputs=outputs, slots={"hidden": rows})
        feeds = {} if is_block else {"hidden": ("hidden",)}
        with context.journal.transaction((context.runner.sequences,)):
            return draft_after(context.runner, batch, 4, text, feeds, is_block=is_block)

    one, fresh = contexts
    for is_block in (True, False):
        assert interrupted(one, partial(draft, one, is_block)) < 0.9
        assert one.length(0) == 0
    assert draft(one) == draft(fresh)
    assert one.digest(0) == fresh.digest(0)


def test_a_handler_that_raises_nothing_changes_no_bit(demo):
    context, fresh, seen = make(demo), make(demo), []
    with handling(signal.SIGUSR1, lambda *_: seen.append(context.progress)):
        for _ in range(TRIES):
            context.remove(0)
            with Sender(context, signal.SIGUSR1):
                logits = context.process(long_text()).logits
            if 0 < seen[-1] < 1:
                break
    assert 0 < seen[-1] < 1
    assert np.array_equal(logits, fresh.process(long_text()).logits)
    assert context.digest(0) == fresh.digest(0)


def test_a_handler_may_run_another_context(demo):
    """With the threads that wait for it to return."""
    context, other = make(demo, threads=2), make(demo, threads=2, n_batch=512)
    text, found = Batch.of([7] * 512), []

    def handle(number, frame):
        other.remove(0)
        found.append(other.process(text).logits)

    with handling(signal.SIGUSR1, handle), Sender(context, signal.SIGUSR1):
        context.process(long_text())
    assert np.array_equal(found[0], make(demo).process(text).logits)


def test_what_a_handler_raises_comes_out(demo):
    class Stop(Exception):
        pass

    def handle(number, frame):
        raise Stop

    context = make(demo)
    with (
        handling(signal.SIGUSR1, handle),
        Sender(context, signal.SIGUSR1),
        pytest.raises(Stop),
    ):
        run_and_wait(lambda: context.process(long_text()))
    assert context.length(0) == 0


def test_other_threads_run_to_their_end(demo):
    """Python lets only the main thread handle signals; it does so, and the batch goes on."""
    context, fresh, done = make(demo), make(demo), threading.Event()

    def work():
        context.process(long_text())
        done.set()

    thread = threading.Thread(target=work)
    with (
        handling(signal.SIGINT, signal.default_int_handler),
        Sender(context, signal.SIGINT),
        pytest.raises(KeyboardInterrupt),
    ):
        run_and_wait(thread.start)
    thread.join()
    assert done.is_set()
    fresh.process(long_text())
    assert context.digest(0) == fresh.digest(0)
