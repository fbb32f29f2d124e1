"""Contexts in roles, the links between them, and what a round needs of them."""

from mtpcore.cross.cross import Acceptance, Cross, DraftSampler
from mtpcore.cross.link import link
from mtpcore.cross.sequence import Verdict
from mtpcore.cross.walk import Draft, draft_batch

__all__ = ["Acceptance", "Cross", "Draft", "DraftSampler", "Verdict", "draft_batch", "link"]
