"""Which parts of a model a file gets: trunk and heads, or one of them (``--mtp``)."""

from __future__ import annotations

from typing import Literal, get_args

from mtpcore.errors import ModelFileError

__all__ = ["MTP", "check_parts", "left_out_of"]

MTP = Literal["keep", "only", "drop"]
"""Whether the file gets trunk and heads, the heads (and the tables they share), or the trunk."""


def left_out_of(mtp: MTP, block: int | None, in_head: bool) -> str:
    """Return why a file does without a tensor, or nothing where it gets it.

    Heads share with the trunk what belongs to no block.
    """
    unwanted = in_head if mtp == "drop" else mtp == "only" and not in_head and block is not None
    return f"--mtp {mtp}" if unwanted else ""


def check_parts(
    mtp: MTP, where: str, *, standalone: bool, has_heads: bool, has_trunk: bool = True
) -> None:
    """Raise ModelFileError where the file has no such part."""
    if mtp not in get_args(MTP):
        wanted = ", ".join(get_args(MTP))
        raise ModelFileError(
            "no such part",
            where="mtp",
            wanted=wanted,
            got=repr(mtp)[:80],
            fix="name one of these",
        )
    if mtp == "keep":
        return
    fix = f"leave --mtp {mtp} out"
    if standalone:
        what = "this is a drafter alone: there is nothing to take apart"
    elif mtp == "only" and not has_heads:
        what, fix = (
            "there are no heads that a plugin knows",
            f"{fix}, or install the drafter's plugin",
        )
    elif mtp == "drop" and not has_trunk:
        what = "there is no trunk beside the heads"
    else:
        return
    raise ModelFileError(what, where=where, fix=fix)
