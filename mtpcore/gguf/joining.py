"""Joining the pieces of a text by score, as SentencePiece's byte-pair encoding does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

__all__ = ["join_pieces"]

_JOINED = -1  # in place of a piece that is part of the one before it


def join_pieces(
    tokens: Sequence[int], joints: Mapping[tuple[int, int], tuple[float, int]]
) -> list[int]:
    """Join neighbours until none can be: the best joint first, the leftmost of those that tie.

    Parameters
    ----------
    tokens : sequence of int
        A token for each character.
    joints : mapping
        The rank, lower ones first, and the token of what a left and a right token make together.

    Returns
    -------
    list of int
        Takes n log n steps for n characters.
    """
    pieces, n = list(tokens), len(tokens)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    queue: list[tuple[float, int, int, tuple[int, int], int]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < n:
            pair = pieces[left], pieces[right]
            if pair in joints:
                rank, joint = joints[pair]
                heappush(queue, (rank, left, right, pair, joint))

    for right in range(1, n):
        offer(right - 1, right)
    while queue:
        _, left, right, pair, joint = heappop(queue)
        if (pieces[left], pieces[right]) != pair:
            continue  # one of them has become part of another piece
        pieces[left], pieces[right] = joint, _JOINED
        after[left] = after[right]
        if after[left] < n:
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [piece for piece in pieces if piece != _JOINED]
