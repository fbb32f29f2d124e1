"""Context shift: a text that fills the context goes on without a part of what was said before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mtpcore.cross import Cross
from mtpcore.cross.speculation import Overwritten
from mtpcore.decoding.request import Request
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.stopwatch import Stopwatch
from mtpcore.errors import BatchError, CapacityError, LinkError

__all__ = ["check_shift", "shift_full"]

_NEXT_STREAM = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: shifts of streams with small numbers never meet."""


def check_shift(cross: Cross, request: Request) -> None:
    """Refuse a request that is to go on where the context is full, and never could.

    Raises
    ------
    BatchError
        Its prompt has rows that are no tokens.
    CapacityError
        It keeps too many tokens for any to be dropped.
    LinkError
        The target reads rows of another role by their places.
    """
    if request.when_full != "shift":
        return
    if request.rows is not None:
        raise BatchError(
            "a text after embedding rows cannot be shifted: they are not kept",
            where='when_full="shift"',
            fix='leave it out: the text ends where the context is full ("stop")',
        )
    n_ctx = cross.llm.n_ctx
    if _split(request, n_ctx)[0] >= n_ctx or n_ctx < 2:
        raise CapacityError(
            "no token can be dropped where the context is full",
            where='when_full="shift"',
            wanted=f"n_keep of at most {n_ctx - 1}, of a context of two tokens or more",
            got=f"n_keep={request.n_keep}, n_ctx={n_ctx}",
            fix="keep fewer tokens, or make n_ctx= (-c) larger",
        )
    if cross.links.inboxes("llm"):
        raise LinkError(
            "the target reads rows of another role by their places",
            where='when_full="shift"',
            fix='leave it out: the text ends where the context is full ("stop")',
        )


def shift_full(cross: Cross, running: Mapping[int, Request], stats: Stats) -> None:
    """Shift the texts that have no room for another token and are to go on, each as a whole.

    The first ``n_keep`` tokens stay, and half of those after them are dropped. What remains is
    processed again at its new positions (``Cross.shift``), so the text that follows is the one that
    this beginning has. Drafts never reach beyond the context: with or without them a text is
    shifted at the same token.

    Raises
    ------
    Exception
        Whatever a context raises; the sequence is what it was, then.
    """
    llm, speculation = cross.llm, cross.speculation
    for seq, request in running.items():
        if request.when_full != "shift" or llm.runner.lengths[seq] < llm.n_ctx:
            continue
        watch = Stopwatch()
        keep, drop = _split(request, llm.n_ctx)
        n_dropped, n_shifts = request.n_dropped + drop, request.n_shifts + 1
        with cross.transaction((seq,), Overwritten(speculation, seq), stats) as transaction:
            speculation.shift(seq, keep, drop)
            # Positions are used a second time: their noise must be another one.
            stream = request.sampling.stream + n_shifts * _NEXT_STREAM
            speculation.states[seq].set_stream(stream % 2**64)
            stats.shifts += 1
            stats.shift_seconds += watch.lap()
            transaction.commit(partial(request.note_shift, n_dropped, n_shifts))


def _split(request: Request, n_ctx: int) -> tuple[int, int]:
    """Return how many tokens a full context keeps, and how many after them it drops."""
    keep = request.n_keep
    if keep is None:
        keep = min(len(request.prompt), n_ctx // 2)
    return keep, (n_ctx - keep + 1) // 2
