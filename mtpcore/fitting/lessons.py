"""Lessons: what heads learn from, texts that were given and texts that the model writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import BatchError
from mtpcore.fitting.settings import Settings
from mtpcore.fitting.teacher import Shard, Teacher
from mtpcore.fitting.texts import cut_pieces, encode_file
from mtpcore.fitting.written_texts import Writer
from mtpcore.runtime.model import Model

__all__ = ["Lessons", "LessonReader", "Watch"]

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""``with watch(title) as report``: ``report(done, total)`` says how far a part of the work is."""

_LARGEST_SHARE = 32
"""No text gives more than one in so many of the tokens."""
_GENERAL = 0.2
"""What texts of all kinds count beside those that were read, when tokens are chosen."""
_NOT_RANKED = 300.0
"""Tokens before the first merged one: marks and single bytes."""


class Lessons(NamedTuple):
    """What heads that read the same taps learn from.

    Attributes
    ----------
    shards : list of Shard
    vocabulary : int64[n]
        Token ids that can be drafted.
    n_tokens, n_written : int
        Tokens in the shards, and how many of them the model wrote.
    """

    shards: list[Shard]
    vocabulary: I64
    n_tokens: int
    n_written: int


class LessonReader:
    """Lets a model read texts, and others that it writes, for heads that read some taps.

    Parameters
    ----------
    target : Model
    files : sequence of Path
        Texts for training.
    folder : Path
        Where rows and written texts lie.
    watch : Watch
    threads : int, optional
        Of the model.
    """

    def __init__(
        self,
        target: Model,
        files: Sequence[Path],
        folder: Path,
        watch: Watch,
        threads: int | None = None,
    ) -> None:
        self._target, self._files, self._folder = target, files, folder
        self._watch, self._threads = watch, threads

    def read(
        self, taps: Sequence[str], settings: Settings, vocabulary: I64 | None = None
    ) -> Lessons:
        """Return lessons of as many tokens as the settings say.

        Parameters
        ----------
        taps : sequence of str
        settings : Settings
        vocabulary : int64[n], optional
            Default: the most frequent tokens.

        Raises
        ------
        BatchError
            The texts are too short.
        ModelFileError
            A file cannot be read or written, or one that an earlier run left is damaged.
        LinkError
            The model's logits are not the product of its last row and a matrix.
        """
        s, teacher = settings, self._teacher(taps, settings)
        n_given = max(int(s.tokens * (1 - s.written)), s.window)
        with self._watch("reading texts") as report:
            given = list(self._read_texts(teacher, n_given, s.window, report))
        pieces = _pieces(given)
        with self._watch("writing texts") as report:
            written = list(_write(teacher, self._writer(pieces, s), s.tokens - n_given, report))
        shards = [*given, *written]
        if vocabulary is None:
            vocabulary = _count(self._target, shards, s.vocabulary)
        teacher.check_output(pieces[0], vocabulary)
        n_tokens, n_written = (sum(len(x.tokens) for x in each) for each in (shards, written))
        return Lessons(shards, vocabulary, n_tokens, n_written)

    def pace(
        self, taps: Sequence[str], settings: Settings, lessons: Lessons
    ) -> tuple[float, float]:
        """Return the seconds that it takes to read and to write a token; nothing is kept."""
        pieces = _pieces(lessons.shards)
        reading = self._teacher(taps, settings).pace(max(pieces, key=len))
        return reading, self._writer(pieces, settings).pace()

    def _teacher(self, taps: Sequence[str], s: Settings) -> Teacher:
        return Teacher(self._target, taps, self._folder, s.window, threads=self._threads)

    def _writer(self, pieces: Sequence[I32], s: Settings) -> Writer:
        return Writer(self._target, pieces, self._folder, s.window, s.seed, threads=self._threads)

    def _read_texts(
        self, teacher: Teacher, n: int, window: int, report: Callable[[int, int], None]
    ) -> Iterator[Shard]:
        """Yield the shards of texts, each of one, up to ``n`` tokens."""
        done, most = 0, max(n // _LARGEST_SHARE, window)
        for path in self._files:
            if done >= n:
                return
            tokens = encode_file(self._target.tokenizer, path, min(most, n - done))
            if pieces := cut_pieces(tokens, window):
                shard = teacher.read(pieces)
                done += len(shard.tokens)
                report(done, n)
                yield shard


def _pieces(shards: Sequence[Shard]) -> list[I32]:
    """Return the tokens of each piece of text; raise BatchError where there is none."""
    pieces = [piece for shard in shards for piece in np.split(shard.tokens, shard.begins[1:-1])]
    if not pieces:
        raise BatchError("the texts for training are too short", wanted="16 tokens or more")
    return pieces


def _write(
    teacher: Teacher, writer: Writer, n: int, report: Callable[[int, int], None]
) -> Iterator[Shard]:
    """Yield shards of texts that the model writes, until they have ``n`` tokens."""
    done = number = 0
    while done < n:
        report(done, n)  # texts are written side by side, and come all at once
        texts = writer.write(number)
        left = np.cumsum([0, *map(len, texts)])[:-1] < n - done
        shard = teacher.read([text for text, wanted in zip(texts, left, strict=True) if wanted])
        number += 1
        done += len(shard.tokens)
        report(done, n)
        yield shard


def _count(target: Model, shards: Sequence[Shard], n: int) -> I64:
    """Return the ids of the most frequent tokens in ascending order; those that end texts first.

    Of tokens that were read rarely or never, those with small ids are taken: vocabularies are made
    in the order of frequency in texts of all kinds.
    """
    general = 1 / (np.arange(target.hparams.n_vocab) + _NOT_RANKED)
    counts = general * (_GENERAL * sum(len(shard.tokens) for shard in shards) / general.sum())
    for shard in shards:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    counts[[token for token in target.tokenizer.end_tokens if token < len(counts)]] = np.inf
    return np.sort(np.argsort(-counts, kind="stable")[:n]).astype(np.int64)
