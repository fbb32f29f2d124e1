"""Streams of events: what is sent together, when comments are sent, and how streams end."""

import asyncio

from mtpcore.serving.refusals import Refusal
from mtpcore.serving.streams import COMMENT, EventStream


class Answer:
    """What pieces tell of: it only pauses."""

    async def pause(self):
        raise AssertionError("whoever sends takes its place")


def send_all(make_pieces, keep_alive=60.0, send=None, gone=None, media_type="text/event-stream"):
    """Return the bodies that a stream sends."""
    answer, sent = Answer(), []

    async def receive():
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def keep(message):
        if "body" in message:
            sent.append(message["body"])
        if send is not None:
            await send(message)

    async def work():
        pieces = make_pieces(answer)
        stream = EventStream(
            answer, pieces, lambda one: one.message.encode(), keep_alive, media_type
        )
        await stream({}, receive, keep)
        assert len(asyncio.all_tasks()) == 1  # nothing is left behind

    asyncio.run(work())
    return sent


def test_what_is_there_together_is_sent_together():
    async def pieces(answer):
        yield b"a"
        await answer.pause()
        yield b"b"
        yield b"c"
        await answer.pause()
        await answer.pause()
        yield b"d"

    assert send_all(pieces) == [COMMENT, b"a", b"bc", b"d", b""]


def test_no_more_is_held_than_a_connection_takes():
    async def pieces(answer):
        for _ in range(10):
            yield b"x" * 30_000

    sent = send_all(pieces)
    assert max(map(len, sent)) < 100_000
    assert sum(map(len, sent)) == 300_000 + len(COMMENT)


def test_an_error_follows_what_was_there_before_it():
    async def pieces(answer):
        yield b"a"
        yield b"b"
        raise Refusal(500, "failed")

    assert send_all(pieces) == [COMMENT, b"abfailed", b""]


def test_comments_are_sent_where_nothing_else_is_and_in_no_other_stream():
    async def pieces(answer):
        yield b"a"
        await answer.pause()
        await asyncio.sleep(0.1)
        yield b"b"

    sent = send_all(pieces, keep_alive=0.02)
    assert sent[:2] == [COMMENT, b"a"]
    assert sent[-2:] == [b"b", b""]
    assert 1 <= sent[2:-2].count(COMMENT) == len(sent[2:-2]) <= 5
    assert send_all(pieces, keep_alive=0.02, media_type="application/x-ndjson") == [b"a", b"b", b""]


def test_a_client_that_does_not_read_gets_no_comments_and_holds_pieces_back():
    given = []

    async def pieces(answer):
        for i in range(3):
            given.append(i)
            yield b"%d" % i
            await answer.pause()

    async def send(message):
        if message.get("body") == b"0":
            await asyncio.sleep(0.1)
            assert given == [0]

    assert send_all(pieces, keep_alive=0.01, send=send) == [COMMENT, b"0", b"1", b"2", b""]


def test_pieces_are_closed_where_the_client_goes_or_the_connection_breaks():
    for how in ("goes", "breaks", "breaks at once"):
        gone, closed = asyncio.Event(), []

        async def pieces(answer, gone=gone, closed=closed, how=how):
            try:
                yield b"a"
                await answer.pause()
                if how == "goes":
                    gone.set()
                    await asyncio.sleep(60)
                yield b"b"
            finally:
                closed.append(how)

        async def send(message, how=how):
            if message.get("body") == {"breaks": b"a", "breaks at once": COMMENT}.get(how, ""):
                raise OSError("broken")

        is_begun = how != "breaks at once"
        assert send_all(pieces, send=send, gone=gone) == [COMMENT, b"a"][: 1 + is_begun]
        assert closed == [how] * is_begun
