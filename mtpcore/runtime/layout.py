"""Positions of rows that are not tokens, on the axes of RoPE: images, video and audio.

A position has four numbers: time, height, width and one that such rows leave at 0 (M-RoPE, Wang et
al. 2024, arXiv 2409.12191). All four of a token are equal. A grid of rows moves the position by
less than it has rows: what follows goes on after the largest number of any of them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore.boundary.arguments import read

__all__ = ["audio_positions", "image_positions", "text_positions", "video_positions"]

I32 = NDArray[np.int32]
_GridSize = Annotated[int, Meta(ge=1, le=1 << 24, description="1 to 2**24")]
_Start = Annotated[int, Meta(ge=0, lt=1 << 30, description="0 to 2**30 - 1")]


def text_positions(start: int, n: int) -> I32:
    """Return int32[n, 4], the positions of ``n`` tokens from ``start`` on."""
    start, (n,) = _read(start, n)
    return np.repeat(np.arange(start, start + n, dtype=np.int32)[:, None], 4, axis=1)


def audio_positions(start: int, n: int) -> I32:
    """Return int32[n, 4], the positions of ``n`` rows of audio from ``start`` on: (p, p, p, 0)."""
    positions = text_positions(start, n)
    positions[:, 3] = 0
    return positions


def image_positions(start: int, nx: int, ny: int) -> I32:
    """Return int32[ny * nx, 4], the positions of an image's rows, line by line.

    The row of line y and column x is at (start, start + y, start + x, 0). What follows the image is
    at ``start + max(nx, ny)``.

    Parameters
    ----------
    start : int
        The position that a token would have in the place of its first row.
    nx, ny : int
        Rows in a line, and lines, as the encoder of images hands them out.
    """
    return video_positions(start, 1, nx, ny)


def video_positions(start: int, nt: int, nx: int, ny: int, *, step: int = 1) -> I32:
    """Return int32[nt * ny * nx, 4], the positions of a video's rows, picture by picture.

    As an image's, with (start + step * t) as the first number of picture t. What follows the video
    is at ``start + max(step * (nt - 1) + 1, nx, ny)``.

    Parameters
    ----------
    start : int
    nt : int
        Pictures.
    nx, ny : int
    step : int
        By how much time goes on from one picture to the next.
    """
    start, (nt, nx, ny, step) = _read(start, nt, nx, ny, step)
    _read(0, nt * nx * ny)
    _read(start + step * (nt - 1))
    t, y, x = np.meshgrid(np.arange(nt) * step, np.arange(ny), np.arange(nx), indexing="ij")
    axes = [start + axis.ravel() for axis in (t, y, x)]
    return np.stack([*axes, np.zeros(nt * ny * nx)], axis=1).astype(np.int32)


def _read(start: int, *counts: int) -> tuple[int, list[int]]:
    """Return a start and counts, checked."""
    what = "a layout counts rows"
    begin: int = read(start, _Start, "no position to begin at", where="start")
    return begin, [read(count, _GridSize, what) for count in counts]
