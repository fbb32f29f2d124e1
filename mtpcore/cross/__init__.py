"""Crosses: contexts in roles and the links between them, which draft, verify and accept."""

from mtpcore.cross.cross import Cross
from mtpcore.cross.finding import DrafterLike, find_drafter
from mtpcore.cross.link import link
from mtpcore.cross.sequence import Verdict
from mtpcore.cross.speculation import (
    DraftPlan,
    DraftSampler,
    DraftSettings,
    KeepDrafts,
    RoundDrafts,
)
from mtpcore.cross.verification import Verdicts, draft_batch
from mtpcore.declarations.draft_tree import Draft

__all__ = [
    "Cross",
    "Draft",
    "DraftPlan",
    "DraftSampler",
    "DraftSettings",
    "DrafterLike",
    "KeepDrafts",
    "RoundDrafts",
    "Verdict",
    "Verdicts",
    "draft_batch",
    "find_drafter",
    "link",
]
