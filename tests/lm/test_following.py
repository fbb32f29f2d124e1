"""Texts that one consumer of an event loop reads together, while rounds go on."""

import asyncio
import threading
import time

import pytest

from mtpcore import LM, LinkError, MtpcoreError
from mtpcore.lm import read_together

PROMPTS = [f"def f{i}(x):\n    " for i in range(4)]
OPTIONS = {"max_tokens": 24, "seed": 4, "ignore_eos": True}


@pytest.fixture
def lm():
    with LM("demo", n_ctx=100, n_seq_max=3, draft=2, threads=1) as made:
        yield made


async def go_on():
    """Wait for nothing."""


async def begin(lm, prompts=PROMPTS, **options):
    streams = [lm.astream(prompt, **(OPTIONS | options)) for prompt in prompts]
    for stream in streams:
        await stream.begin()
    return streams


async def read(streams, pause=go_on, end=None):
    """Return the texts as their pieces had them, and the completions' own."""
    found, ended = [""] * len(streams), {}
    async for i, piece in read_together(streams, pause, end):
        assert i not in ended
        if piece is None:
            ended[i] = streams[i].completion.text
        else:
            found[i] += piece
    return found, [ended[i] for i in range(len(streams))]


def test_texts_read_together_are_those_of_generate(lm):
    wanted = [one.text for one in lm.generate(PROMPTS, **OPTIONS)]

    async def work():
        return await asyncio.gather(read(await begin(lm)), read(await begin(lm)))

    for found, completed in asyncio.run(work()):
        assert found == completed == wanted
    assert lm.n_running == 0


def test_a_round_calls_each_event_loop_once(lm):
    n_calls, step, n_rounds = 0, lm.generator.step, 0

    def counted():
        nonlocal n_rounds
        n_rounds += 1
        time.sleep(0.005)  # the loop keeps up
        step()

    async def work():
        loop = asyncio.get_running_loop()
        several = [await begin(lm, [prompt]) for prompt in PROMPTS[:3]]
        call = loop.call_soon_threadsafe

        def count(*args, **options):
            nonlocal n_calls
            n_calls += 1
            return call(*args, **options)

        loop.call_soon_threadsafe = count
        await asyncio.gather(*map(read, several))

    lm.generator.step = counted
    asyncio.run(work())
    assert 1 <= n_calls <= n_rounds + 3  # each reader's first call of the thread


def test_all_that_is_there_is_given_before_a_pause(lm):
    given, at_pauses = [], []

    async def pause():
        at_pauses.append(len(given))
        while lm.n_running:  # rounds go on meanwhile
            await asyncio.sleep(0.001)

    async def work():
        (stream,) = await begin(lm, PROMPTS[:1])
        async for _, piece in read_together([stream], pause):
            given.append(piece)

    asyncio.run(work())
    assert len(given) > 2
    assert at_pauses == [0]


def test_what_is_asked_meanwhile_waits_for_one_round_at_most(lm):
    step, n_rounds, waited = lm.generator.step, 0, []

    def counted():
        nonlocal n_rounds
        n_rounds += 1
        step()

    async def ask():
        asked = n_rounds
        waited.append(await lm.run_between_rounds(lambda: n_rounds) - asked)

    async def work():
        reading = asyncio.create_task(read(await begin(lm, max_tokens=60, draft=0)))
        while not reading.done():
            await ask()

    lm.generator.step = counted
    asyncio.run(work())
    assert len(waited) > 10
    assert max(waited) <= 2  # the one that runs, and one that begins while the loop asks


def test_what_a_round_raises_is_for_one_reader(lm):
    step, wanted = lm.generator.step, lm.generate(PROMPTS[1], **OPTIONS).text
    n_rounds = 0

    def fail_once():
        nonlocal n_rounds
        n_rounds += 1
        if n_rounds == 3:
            raise LinkError("a row is missing")
        step()

    async def work():
        several = [await begin(lm, [prompt]) for prompt in PROMPTS[:2]]
        return await asyncio.gather(*map(read, several), return_exceptions=True)

    lm.generator.step = fail_once
    failed, (found, _) = asyncio.run(work())
    assert isinstance(failed, LinkError)
    assert found == [wanted]


def test_a_text_s_own_error_is_raised(lm):
    def fail(tokens, logits):
        raise ZeroDivisionError

    async def work():
        with pytest.raises(ZeroDivisionError):
            await read(await begin(lm, logits_processor=fail))

    asyncio.run(work())


@pytest.mark.parametrize("how", ["cancel", "time", "loop"])
def test_rounds_end_when_nobody_reads_any_more(lm, how):
    async def work():
        streams = await begin(lm, PROMPTS[:1], max_tokens=90)
        now = asyncio.get_running_loop().time()
        reading = asyncio.create_task(read(streams, end=now + 0.001 if how == "time" else None))
        while not streams[0].stats.tokens and not reading.done():
            await asyncio.sleep(0.001)
        if how == "time":
            with pytest.raises(TimeoutError):
                await reading
        elif how == "cancel":
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(work())  # whose end cancels what still reads
    lm._engine.executor.submit(int).result(60)
    assert not lm._engine._followers
    lm._engine.executor.submit(int).result(60)  # and what was let go of there
    assert lm.generator.cross.owners.describe() == []


def test_closing_tells_whoever_reads(lm):
    async def work():
        reading = [asyncio.create_task(read(await begin(lm, [one]))) for one in PROMPTS[:2]]
        threading.Thread(target=lm.close).start()
        return await asyncio.gather(*reading, return_exceptions=True)

    step = lm.generator.step

    def slowly():
        time.sleep(0.01)
        step()

    lm.generator.step = slowly
    for error in asyncio.run(work()):
        assert isinstance(error, MtpcoreError)
        assert "closed" in str(error)
