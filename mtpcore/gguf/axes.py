"""Axes of 1, which files leave out."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fit_axes"]


def fit_axes(shape: Sequence[int], n: int) -> tuple[int, ...]:
    """Return a shape with ``n`` axes, where axes of 1 at its front make the difference.

    To ggml every tensor has four axes, and those of 1 at the end of its order, the front of ours,
    are the same as none: what it writes lacks them. So [1, 96] and [96] are one shape; what has
    more axes than ``n`` that are not 1 keeps these.
    """
    axes = [*shape]
    while len(axes) > n and axes[0] == 1:
        del axes[0]
    return (*(1,) * (n - len(axes)), *axes)
