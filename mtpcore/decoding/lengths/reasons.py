"""Why a draft length was chosen, in a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtpcore.decoding.lengths.prospects import Prospects

__all__ = ["explain"]


def explain(
    k: int,
    reach: Sequence[float],
    drafter: Prospects,
    n_rows: int,
    pass_seconds: Callable[[float], float],
) -> str:
    """Return why a text drafts ``k`` tokens, in a pass that has ``n_rows`` without them.

    ``reach`` are the shares of rounds in which draft 1, 2, ... is accepted.
    """
    plain = pass_seconds(n_rows)

    def drafting(length: int) -> float:
        return drafter.seconds(1, length, pass_seconds(1))

    def speed(length: int) -> float:
        seconds = pass_seconds(n_rows + drafter.rows(length)) + drafting(length)
        return (1 + sum(reach[:length])) * plain / seconds

    shown = k or max(range(1, len(reach) + 1), key=speed, default=1)
    rows, first = n_rows + drafter.rows(shown), reach[0] if reach else 0.0
    price = (
        f"a pass of {rows:.3g} rows costs {pass_seconds(rows) / plain:.2f} of one of {n_rows}, "
        f"drafting {shown} costs {drafting(shown) / plain:.2f}, first draft accepted {first:.2f}: "
    )
    if k:
        return f"drafting {k}: {price}{speed(k):.2f} times as fast as without"
    return f"off: {price}drafting {shown} would be {speed(shown):.2f} times as fast"
