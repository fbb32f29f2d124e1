"""Rows that wait: what is not finite is known where it lies, whatever was put, cut and released."""

from __future__ import annotations

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.backends.host_rows import HostRows
from mtpcore.errors import LinkError
from mtpcore.links.inbox import Inbox
from mtpcore.links.sources import InboxSource

acts = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "rewind", "release", "fork", "remove"]),
        st.integers(0, 12),
        st.lists(st.booleans(), min_size=1, max_size=6),
    ),
    max_size=12,
)


@searching(200)
@given(acts)
def test_sound_until_finds_the_first_row_that_is_not_finite(acts):
    box, mine = Inbox("role.slot", 2, 2, HostRows), 0
    for act, at, sound in acts:
        first, length = box._held[mine].first, box.length(mine)
        if act == "put":
            place = at if first == length else min(max(at, first), length)
            box.put(
                mine, place, np.array([[1.0, 0.0 if ok else np.inf] for ok in sound], np.float32)
            )
        elif act == "fork":
            box.remove(1 - mine)
            box.fork(mine, 1 - mine)
            mine = 1 - mine
        else:
            getattr(box, act)(mine, *([] if act == "remove" else [at]))
        first, length = box._held[mine].first, box.length(mine)
        rows = np.isfinite(box.get(mine, first, length)).all(axis=1)
        for begin in range(first, length):
            bad = np.flatnonzero(~rows[begin - first :])
            wanted = begin + int(bad[0]) if len(bad) else length
            assert box.finite_until(mine, begin, length) == wanted


def test_a_source_gives_mixed_sequences_their_own_rows():
    box = Inbox("role.slot", 1, 2, HostRows)
    for seq in (0, 1):
        box.put(seq, 0, 10 * seq + np.arange(4, dtype=np.float32)[:, None])
    source = InboxSource(box, "same-token")
    seq = np.array([1, 0, 1, 0], np.int32)
    assert source(seq, np.array([2, 0, 3, 1], np.int32)).ravel().tolist() == [12, 0, 13, 1]


def test_parts_lie_side_by_side():
    """Several taps of one batch make a row, whichever of its rows are delivered."""
    box = Inbox("role.slot", 3, 1, HostRows)
    left, right = np.arange(8, dtype=np.float32).reshape(4, 2), np.full((4, 1), -1, np.float32)
    box.put(0, 0, left[1:3], right[1:3])
    box.put(0, 2, left[[0, 3]], right[[0, 3]])
    assert box.get(0, 0, 4).tolist() == [[2, 3, -1], [4, 5, -1], [0, 1, -1], [6, 7, -1]]
    with pytest.raises(LinkError, match="another width"):
        box.put(0, 4, left)


@searching(100)
@given(acts)
def test_rows_that_nobody_delivered_are_zeros_where_gaps_are_allowed(acts):
    box, held, first = Inbox("role.slot", 2, 2, HostRows, has_gaps=True), {}, 0
    for act, at, sound in acts:
        if act == "put" and (not held or at >= first):
            rows = np.array([[1.0 + at, i] for i, _ in enumerate(sound)], np.float32)
            box.put(0, at, rows)
            first = first if held else at
            held = {p: row for p, row in held.items() if p < at}
            held |= {at + i: row for i, row in enumerate(rows)}
        elif act == "rewind":
            box.rewind(0, at)
            held = {p: row for p, row in held.items() if p < at}
        elif act == "remove":
            box.remove(0)
            held, first = {}, 0
        found = box.get(0, -1, 24)
        assert box.finite_until(0, -1, 24) == 24
        for place, row in zip(range(-1, 24), found, strict=True):
            assert np.array_equal(row, held.get(place, np.zeros(2)))
