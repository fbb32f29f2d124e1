"""Crosses: contexts in roles and the links between them, which draft, verify and accept."""

from mtpcore.cross.cross import Cross
from mtpcore.cross.link import link
from mtpcore.cross.sequence import Verdict
from mtpcore.cross.speculation import DraftSampler
from mtpcore.cross.verification import draft_batch
from mtpcore.declarations.draft_tree import Draft

__all__ = ["Cross", "Draft", "DraftSampler", "Verdict", "draft_batch", "link"]
