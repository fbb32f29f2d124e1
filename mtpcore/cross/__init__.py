"""Crosses: contexts in roles and the links between them, which draft, verify and accept."""

from mtpcore.cross.cross import Cross
from mtpcore.cross.link import OneDrafter, find_drafter, link
from mtpcore.cross.sequence import Verdict
from mtpcore.cross.speculation import Drafted, DraftSampler, Plan
from mtpcore.cross.verification import Verdicts, draft_batch
from mtpcore.declarations.draft_tree import Draft

__all__ = [
    "Cross",
    "Draft",
    "DraftSampler",
    "Drafted",
    "OneDrafter",
    "Plan",
    "Verdict",
    "Verdicts",
    "draft_batch",
    "find_drafter",
    "link",
]
