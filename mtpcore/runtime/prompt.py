"""Prompts of tokens and other rows: embeddings of images, video and audio, and codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore.boundary.arguments import Whole31, read, read_below
from mtpcore.boundary.arrays import RowsLike, integers, numbers
from mtpcore.errors import BatchError, spell
from mtpcore.runtime.batch import Batch, Wanted
from mtpcore.runtime.layout import audio_positions, text_positions, video_positions

__all__ = ["Audio", "Codes", "Image", "Prompt", "Rows", "Video"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class Rows:
    """Embedding rows that stand one after the other, as tokens do.

    Parameters
    ----------
    rows : array_like, DLPack, shape (n, width)
        As wide as the model's embeddings. What an embedding is scaled by is not applied to them.

    Raises
    ------
    BatchError
        No such rows, or none.
    """

    def __init__(self, rows: RowsLike) -> None:
        self.rows = numbers(rows, "embedding rows")
        if self.rows.ndim != 2 or not len(self.rows):
            raise BatchError(
                "embedding rows have two axes", wanted="[n, width]", got=self.rows.shape
            )

    def __len__(self) -> int:
        return len(self.rows)

    def positions(self, start: int) -> I32:
        """Return int32[n, 4], where the first one comes at ``start``."""
        return text_positions(start, len(self))


class Audio(Rows):
    """Embedding rows of audio; see ``Rows`` and ``audio_positions``."""

    def positions(self, start: int) -> I32:
        """Return int32[n, 4], where the first one comes at ``start``."""
        return audio_positions(start, len(self))


class Video(Rows):
    """Embedding rows of ``nt`` pictures of ``ny`` lines of ``nx`` rows; see ``video_positions``.

    Parameters
    ----------
    rows : array_like, DLPack, shape (nt * ny * nx, width)
    nt, nx, ny, step : int
        As in ``video_positions``.

    Raises
    ------
    BatchError
        No such rows, or not ``nt * ny * nx``.
    """

    def __init__(self, rows: RowsLike, *, nt: int, nx: int, ny: int, step: int = 1) -> None:
        super().__init__(rows)
        self.nt, self.nx, self.ny, self.step = nt, nx, ny, step
        n = len(self.positions(0))
        if n != len(self):
            raise BatchError("not a row for each place of the grid", wanted=n, got=len(self))

    def positions(self, start: int) -> I32:
        """Return int32[n, 4], where the first one comes at ``start``."""
        return video_positions(start, self.nt, self.nx, self.ny, step=self.step)


class Image(Video):
    """Embedding rows of an image of ``ny`` lines of ``nx`` rows; see ``image_positions``.

    Parameters
    ----------
    rows : array_like, DLPack, shape (ny * nx, width)
    nx, ny : int

    Raises
    ------
    BatchError
        No such rows, or not ``ny * nx``.
    """

    def __init__(self, rows: RowsLike, *, nx: int, ny: int) -> None:
        super().__init__(rows, nt=1, nx=nx, ny=ny)


class Codes:
    """Frames of codes, for models that write them.

    Parameters
    ----------
    codes : array_like of int, DLPack, shape (n, n_codebooks)
        -1 where a row has none.
    tokens : array_like of int, DLPack, shape (n,), optional
        What is read with them, for models that read text beside speech; -1 where a row has none.

    Raises
    ------
    BatchError
        No such codes, or none, or not a token for each.
    """

    def __init__(self, codes: ArrayLike, tokens: ArrayLike | None = None) -> None:
        self.codes = integers(codes, "codes")
        if self.codes.ndim != 2 or not len(self.codes):
            raise BatchError("codes have two axes", wanted="[n, codebooks]", got=self.codes.shape)
        self.tokens: I32 = np.full(len(self.codes), -1, np.int32)
        if tokens is None:
            return
        self.tokens = integers(tokens, "tokens beside codes")
        if self.tokens.shape != (len(self.codes),) or int(self.tokens.min()) < -1:
            raise BatchError(
                "not a token for each frame",
                wanted=f"[{len(self.codes)}], -1 where there is none",
                got=spell(tokens)[:80],
            )

    def __len__(self) -> int:
        return len(self.codes)


PromptPart: TypeAlias = ArrayLike | Rows | Codes


class Prompt:
    """What a text begins with, in order.

    Parameters
    ----------
    *parts : sequence of int, Rows, Image, Video, Audio or Codes
        Token ids, and what stands between them.

    Attributes
    ----------
    tokens : int32[n]
        -1 where there is none.
    embeddings : float32[n, width] or None
    codes : int32[n, n_codebooks] or None
    positions : int32[n, 4] or None
        None where every row is where a token would be.
    until : int32[n]
        After the last row that each row sees, where models read images in both directions: the
        last of its picture.

    Raises
    ------
    BatchError
        No parts, or parts that do not fit each other.
    """

    def __init__(self, *parts: PromptPart) -> None:
        given = [part if isinstance(part, Rows | Codes) else _tokens(part) for part in parts]
        self.tokens: I32 = np.concatenate(
            [
                part
                if isinstance(part, np.ndarray)
                else part.tokens
                if isinstance(part, Codes)
                else np.full(len(part), -1, np.int32)
                for part in given
            ]
            or [np.zeros(0, np.int32)]
        )
        if not len(self.tokens):
            raise BatchError("a prompt has at least one row", fix="begin with a token")
        self.embeddings = _spread(
            given, [p.rows if isinstance(p, Rows) else None for p in given], 0
        )
        self.codes = _spread(given, [p.codes if isinstance(p, Codes) else None for p in given], -1)
        self.until: I32 = _spans(given)
        # Rows whose positions have three numbers: the last one is left at 0.
        self._has_three: NDArray[np.bool_] = np.repeat(
            [isinstance(part, Video | Audio) for part in given], [len(part) for part in given]
        )
        self.positions: I32 | None = _lay_out(given) if self._has_three.any() else None

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Prompt({len(self)} rows, {int((self.tokens >= 0).sum())} of them tokens)"

    @property
    def is_text(self) -> bool:
        """Whether all rows are tokens, and nothing else."""
        return self.codes is None and bool((self.tokens >= 0).all())

    def part(self, begin: int, end: int) -> Prompt:
        """Return rows ``begin`` to ``end``, which keep their positions; a cut cuts spans, too.

        Raises
        ------
        BatchError
            There are no such rows.
        """
        end = read_below(end, len(self) + 1, "a part ends with the prompt", where="end")
        begin = read_below(begin, end + 1, "a part begins before its end", where="begin")
        part = Prompt.__new__(Prompt)
        part.tokens = self.tokens[begin:end]
        part.until = np.minimum(self.until[begin:end], np.int32(end)) - np.int32(begin)
        for name in ("embeddings", "codes", "positions", "_has_three"):
            rows = getattr(self, name)
            setattr(part, name, None if rows is None else rows[begin:end])
        return part

    def batch(
        self,
        *,
        seq: int = 0,
        place: int = 0,
        start: int = 0,
        n_axes: int = 1,
        outputs: Wanted = "last",
    ) -> Batch:
        """Return the batch of all rows.

        Parameters
        ----------
        seq : int
        place : int
            Where the first row is stored: the sequence's length.
        start : int
            What is added to positions: ``Context.next_position`` where the prompt goes on after
            other rows.
        n_axes : int
            Axes of a position (``Program.n_axes``); where there is one, each row's is its place.
        outputs : as in ``Batch``

        Raises
        ------
        BatchError
            Numbers out of range.
        """
        place, start = (read(n, Whole31, "a number of rows") for n in (place, start))
        n_axes = read(n_axes, Whole31, "a number of axes")
        pos: I32 | int = place
        if self.positions is not None and n_axes > 1:
            pos = self.positions[:, :n_axes] + np.int32(start)
            if n_axes == 4:
                pos[self._has_three, 3] = 0
        return Batch(
            self.tokens,
            embeddings=self.embeddings,
            codes=self.codes,
            seq=seq,
            pos=pos,
            until=None if self.is_text else self.until + np.int32(place),
            outputs=outputs,
        )


def _tokens(part: Any) -> I32:
    if isinstance(part, str):
        raise BatchError(
            "a prompt is of token ids and rows",
            got="text",
            fix="encode it: model.tokenizer.encode(text)",
        )
    tokens = integers(part, "tokens of a prompt")
    if tokens.ndim != 1 or (len(tokens) and int(tokens.min()) < 0):
        raise BatchError("tokens of a prompt are a list of ids", got=spell(part)[:80])
    return tokens


def _spread(parts: Sequence[Any], given: Sequence[Any], fill: int) -> Any:
    """Return the given rows at the places of their parts, ``fill`` elsewhere; None if none are."""
    held = [rows for rows in given if rows is not None]
    if not held:
        return None
    widths = {rows.shape[1] for rows in held}
    if len(widths) > 1:
        raise BatchError("rows of a prompt differ in width", got=sorted(widths))
    (width,) = widths
    return np.concatenate(
        [
            np.full((len(part), width), fill, held[0].dtype) if rows is None else rows
            for part, rows in zip(parts, given, strict=True)
        ]
    )


def _lay_out(parts: Sequence[Any]) -> I32:
    """Return the position of each row: a part goes on after the largest number before it."""
    positions, start = [], 0
    for part in parts:
        if len(part):
            own = (
                part.positions(start)
                if isinstance(part, Rows)
                else text_positions(start, len(part))
            )
            positions.append(own)
            start = int(own.max()) + 1
    return np.concatenate(positions)


def _spans(parts: Sequence[Any]) -> I32:
    """Return for each row where the picture that it belongs to ends, after itself if to none."""
    until, begin = [], 0
    for part in parts:
        size = part.nx * part.ny if isinstance(part, Video) else 1
        own = np.arange(len(part)) // size * size + size
        until.append((begin + own).astype(np.int32))
        begin += len(part)
    return np.concatenate(until or [np.zeros(0, np.int32)])
