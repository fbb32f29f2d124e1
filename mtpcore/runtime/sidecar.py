"""Files beside a model that may hold its drafter."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["Sidecar"]


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """A file beside a model that a drafter's declaration names, and what became of it.

    Attributes
    ----------
    path : Path
        The file; of a split one the first part.
    drafters : tuple of str
        Drafters whose declarations name such a file (``Fit.sidecars``).
    used : bool
        Whether it drafts for the model: at most one does.
    reason : str
        Why it is not used; empty where it is.
    """

    path: Path
    drafters: tuple[str, ...]
    used: bool = False
    reason: str = ""
