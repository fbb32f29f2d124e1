"""Why a draft length was chosen, in a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from mtpcore.decoding.lengths.outlook import Outlook

__all__ = ["explain"]


def explain(seq: int, lengths: Mapping[int, int], outlook: Outlook) -> str:
    """Return why ``seq`` drafts as much as ``lengths`` says, the others doing what they do."""
    k = lengths[seq]
    first = outlook.reach[seq][0]
    plain = {**lengths, seq: 0}
    if k:
        return (
            f"drafting {k}: {_price(seq, k, plain, outlook)}, first draft accepted {first:.2f}: "
            f"{_gain(seq, k, plain, outlook):.2f} times as fast as without"
        )
    n = len(outlook.reach[seq])
    nearest = max(range(1, n + 1), key=lambda length: _gain(seq, length, plain, outlook))
    return (
        f"off: {_price(seq, nearest, plain, outlook)}, first draft accepted {first:.2f}: "
        f"drafting {nearest} would be {_gain(seq, nearest, plain, outlook):.2f} times as fast"
    )


def _gain(seq: int, k: int, plain: Mapping[int, int], outlook: Outlook) -> float:
    return outlook.speed({**plain, seq: k}) / outlook.speed(plain)


def _price(seq: int, k: int, plain: Mapping[int, int], outlook: Outlook) -> str:
    passes, drafted = outlook.costs.passes, {**plain, seq: k}
    few, many = outlook.rows(plain), outlook.rows(drafted)
    verify = passes.at(many) / passes.at(few)
    more = outlook.draft_seconds(drafted) - outlook.draft_seconds(plain)
    return (
        f"a pass of {many:.3g} rows costs {verify:.2f} of one of {few:.3g}, "
        f"drafting {k} costs {more / passes.at(few):.2f}"
    )
