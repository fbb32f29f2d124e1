"""One LM in several threads and event loops: each text is that of a call alone."""

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import LM, MtpcoreError

PROMPTS = [f"def f{i}(x):\n    " for i in range(6)]
OPTIONS = {"max_tokens": 16, "seed": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm():
    with LM("demo", n_ctx=100, n_seq_max=3, draft=2, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(lm):
    return [lm.generate(prompt, **OPTIONS).text for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def short_turns():
    """Let threads take turns often: their calls meet in all places."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


async def read(lm, prompt, **options):
    pieces = [piece async for piece in lm.astream(prompt, **(OPTIONS | options))]
    return "".join(pieces)


def test_threads_share_rounds(lm, wanted):
    def work(seed):
        chance, found = random.Random(seed), []
        for _ in range(6):
            i = chance.randrange(len(PROMPTS))
            how = chance.randrange(4)
            if how == 0:
                found.append((i, lm.generate(PROMPTS[i], **OPTIONS).text))
            elif how == 1:
                found.append((i, "".join(lm.stream(PROMPTS[i], **OPTIONS))))
            elif how == 2:
                found.append((i, asyncio.run(read(lm, PROMPTS[i]))))
            else:
                stream = lm.stream(PROMPTS[i], **OPTIONS)
                assert wanted[i].startswith(next(stream))
                stream.close()
        return found

    with ThreadPoolExecutor(6) as threads:
        for found in threads.map(work, range(6)):
            assert [text for _, text in found] == [wanted[i] for i, _ in found]
    assert lm.n_running == 0


def test_a_round_serves_all_texts(lm, wanted):
    """Three at once take as many rounds as the longest, not as all of them together."""

    async def read_three():
        return await asyncio.gather(*(read(lm, prompt, draft=0) for prompt in PROMPTS[:3]))

    before = lm.stats.passes
    assert asyncio.run(read_three()) == wanted[:3]
    assert lm.stats.passes - before < 2 * 16


def test_the_event_loop_is_free_while_rounds_run(lm):
    async def count():
        turns, reader = 0, asyncio.create_task(read(lm, PROMPTS[0]))
        while not reader.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(count()) > 16


@searching(20)
@given(at=st.integers(0, 12), how=st.sampled_from(["cancel", "break", "aclose", "timeout"]))
def test_cancelling_frees_the_sequence_and_changes_no_other_text(lm, wanted, at, how):
    stream = lm.astream(PROMPTS[1], **(OPTIONS | {"max_tokens": 80}))

    async def read_some():
        n = 0
        async for _ in stream:
            n += 1
            if n >= at:
                if how == "break":
                    break
                if how == "aclose":
                    await stream.aclose()
                await asyncio.sleep(0)

    async def work():
        beside = asyncio.create_task(read(lm, PROMPTS[0]))
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await read_some()
        else:
            reader = asyncio.create_task(read_some())
            if how == "cancel":
                for _ in range(at):
                    await asyncio.sleep(0)
                reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if how == "break":
            await stream.aclose()
        return await beside

    assert asyncio.run(work()) == wanted[0]
    lm._engine.executor.submit(int).result(60)  # a round may be running still
    assert lm.generator.cross.owners.describe() == []
    assert lm.n_running == 0


def test_what_is_closed_while_a_round_runs_ends_with_the_round(lm):
    """The thread that runs the round does it; nobody needs to come back for it."""
    other = lm.stream(PROMPTS[0], **(OPTIONS | {"max_tokens": 80}))
    next(other)

    def close_other(tokens, logits):
        thread = threading.Thread(target=other.close)
        thread.start()
        thread.join()

    stream = lm.stream(PROMPTS[1], max_tokens=1, logits_processor=close_other)
    list(stream)
    assert lm.generator.cross.owners.describe() == []


def test_letting_go_of_an_asynchronous_stream_ends_it(lm):
    async def work():
        async for _ in lm.astream(PROMPTS[1], **(OPTIONS | {"max_tokens": 80})):
            break

    asyncio.run(work())
    gc.collect()
    lm._engine.executor.submit(int).result(60)
    assert lm.generator.cross.owners.describe() == []


def test_errors_reach_their_consumer_in_an_event_loop(lm, wanted):
    def fail(tokens, logits):
        raise ZeroDivisionError

    async def work():
        return await asyncio.gather(
            read(lm, PROMPTS[0]),
            read(lm, PROMPTS[1], logits_processor=fail),
            read(lm, PROMPTS[2], temprature=1),
            read(lm, PROMPTS[3], max_tokens=-1),
            return_exceptions=True,
        )

    found = asyncio.run(work())
    assert found[0] == wanted[0]
    assert isinstance(found[1], ZeroDivisionError)
    assert "temperature=" in str(found[2])
    assert isinstance(found[3], MtpcoreError)


def test_close_ends_what_other_threads_read():
    lm = LM("demo", n_ctx=400, draft=0, threads=1)
    begun, errors = threading.Barrier(4), []

    def work(make):
        begun.wait()
        try:
            make()
        except MtpcoreError as error:
            errors.append(str(error))

    options = {"ignore_eos": True}
    calls = [
        lambda: [list(lm.stream("a", **options)) for _ in range(1000)],
        lambda: [lm.generate("b", **options) for _ in range(1000)],
        lambda: [asyncio.run(read(lm, "c", max_tokens=None)) for _ in range(1000)],
    ]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begun.wait()
    while not lm.stats.tokens:
        time.sleep(0)
    lm.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(errors) == 3
    assert all("the LM is closed" in error for error in errors)


def test_a_fork_goes_on_by_itself(lm, wanted):
    """With a KV cache that holds what its parent read, and a thread of its own for event loops."""
    asyncio.run(read(lm, PROMPTS[0]))
    child = os.fork()
    if not child:
        signal.alarm(60)
        found = [lm.generate(PROMPTS[1], **OPTIONS).text, asyncio.run(read(lm, PROMPTS[2]))]
        os._exit(found != wanted[1:3])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lm.generate(PROMPTS[3], **OPTIONS).text == wanted[3]


def test_a_fork_out_of_the_middle_of_a_round_says_so():
    """Its round is one that nobody ends."""
    with LM("demo", n_ctx=100, threads=1) as lm:
        inside, go_on = threading.Event(), threading.Event()

        def wait(tokens, logits):
            inside.set()
            go_on.wait(60)

        options = OPTIONS | {"max_tokens": 1}
        thread = threading.Thread(
            target=lm.generate, args=("a",), kwargs=options | {"logits_processor": wait}
        )
        thread.start()
        inside.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(60)
            try:
                lm.generate("b", **options)
            except MtpcoreError as error:
                os._exit("after a fork" not in str(error))
            os._exit(2)
        status = os.waitpid(child, 0)[1]
        go_on.set()
        thread.join()
        assert os.waitstatus_to_exitcode(status) == 0
