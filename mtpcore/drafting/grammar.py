"""Drafts that a grammar forces: what must follow in a text of its form."""

from __future__ import annotations

from mtpcore.drafting.drafters import DraftJob

__all__ = ["FORCED", "LONGEST_FORCED", "draft_forced"]

FORCED = "grammar"
"""The role, and the name, of the drafts of grammars."""

LONGEST_FORCED = 16
"""Drafts that a grammar makes at once where no length is given: as many as lookup makes."""


def draft_forced(jobs: list[DraftJob]) -> dict[int, list[int]]:
    """Return what must follow in each sequence, as its vocabulary mostly spells it."""
    return {job.seq: job.matcher.forced(job.text, job.k) for job in jobs if job.matcher is not None}
