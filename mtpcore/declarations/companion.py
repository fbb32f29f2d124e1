"""A second file that holds the rest of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

__all__ = ["Companion"]


class Companion(msgspec.Struct, frozen=True, kw_only=True):
    """A second file that holds the rest of a trunk, under names of its own.

    It is looked for beside a file that lacks tensors which it may hold.

    Attributes
    ----------
    file : str
        How it is called, as ``mmproj-*.gguf``, where ``*`` stands for the model's name; upper and
        lower case are equal.
    architecture : str
        What it says in ``general.architecture``.
    tensors : tuple of (str, tuple of str)
        What the graphs call a tensor, and the names in the file: of one tensor, or of several whose
        rows come one after the other. ``{n}`` stands for a number.
    metadata : callable
        ``metadata(model, companion)`` returns keys and values that follow from both files, with
        ``{arch}`` for the model's architecture; those that the model's file has itself hold. The
        files are read by ``Fields.of(file)`` and ``file.tensors``. It raises ValueError where they
        do not belong together.
    """

    file: str
    architecture: str
    tensors: tuple[tuple[str, tuple[str, ...]], ...]
    metadata: Callable[..., Mapping[str, object]]
