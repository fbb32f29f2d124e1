"""``fit_head``: from a model and texts to a head that drafts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.paths import take_path
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.fitting.measuring import MeasuredHead, measure_head
from mtpcore.fitting.pace import Pace
from mtpcore.fitting.settings import Settings
from mtpcore.fitting.shape import Shape, find_shape
from mtpcore.fitting.teacher import Shard, Teacher
from mtpcore.fitting.texts import cut_pieces, encode_file, find_texts, split_files
from mtpcore.fitting.writing import read_head, write_head
from mtpcore.fitting.written_texts import Writer
from mtpcore.runtime.model import Model

__all__ = ["Fitted", "Watch", "fit_head"]

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""``with watch(title) as report``: ``report(done, total)`` says how far a part of the work is."""

_LARGEST_SHARE = 32
"""No text gives more than one in so many of the tokens."""
_PACED = 4096
"""Tokens that are read to find out how long each part of the work takes."""
_GENERAL = 0.2
"""What texts of all kinds count beside those that were read, when tokens are chosen."""
_NOT_RANKED = 300.0
"""Tokens before the first merged one: marks and single bytes."""


class Fitted(msgspec.Struct, frozen=True):
    """A head that was fitted.

    Attributes
    ----------
    path : Path
    drafter : str
        Name of the drafter that runs it.
    n_tokens, n_written : int
        Tokens that it learned from, and how many of them the model wrote.
    n_held_out : int
        Files that were held out.
    n_vocabulary : int
        Tokens that it can draft.
    settings : Settings
        With which the same head can be fitted again, however long that takes.
    measured : list of MeasuredHead
        Greedy, and at temperature 1.
    """

    path: Path
    drafter: str
    n_tokens: int
    n_written: int
    n_held_out: int
    n_vocabulary: int
    settings: Settings
    measured: list[MeasuredHead]


def fit_head(
    model: str | PathLike[str],
    texts: Iterable[str | PathLike[str]],
    out: str | PathLike[str],
    settings: Settings,
    watch: Watch,
    *,
    shape: str | None = None,
    start: str | PathLike[str] | None = None,
    work: str | PathLike[str] | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    plugins: Registry | None = None,
) -> Fitted:
    """Fit a head to a model, write it, and measure it on texts that were held out.

    The model reads the training texts and others that it writes itself; the head learns to foresee
    its distributions. The same model, texts, settings and packages give the same file. What the
    model read stays in a folder: an interrupted fit goes on there, and another one reuses it.

    Parameters
    ----------
    model : path
    texts : iterable of path
        Files in UTF-8; of folders the sources and texts in them.
    out : path
        The file to write.
    settings : Settings
    watch : callable
        Shows progress; see ``Watch``.
    shape : str, optional
        Name of the drafter to fit; default: the first that can be.
    start : path, optional
        A head that was fitted before, to go on from.
    work : path, optional
        The folder; default: ``<out>.work``.
    minutes : float, optional
        About how long the fit may take; in place of ``settings.tokens`` this then decides from how
        many tokens the head learns. What is found in the folder is for free.
    threads : int, optional
        Threads of the model.
    plugins : Registry, optional
        Default: all that are installed.

    Raises
    ------
    BatchError
        Too few texts.
    ModelFileError
        A file cannot be read or written, or one that an earlier run left is damaged.
    LinkError
        The model's logits are not the product of its last row and a matrix.
    PluginError, MtpcoreError
        No such shape, or a package that it needs is missing.
    """
    out = take_path(out)
    _check_out(out, find_model(model))
    folder = Path(f"{out}.work") if work is None else take_path(work)
    known = registry() if plugins is None else plugins
    spec, how = find_shape(known, shape)
    from mtpcore.fitting.training import Trainer  # imports JAX, which takes a second

    s = settings
    split = split_files(find_texts(texts), s.seed)
    with load_model(model, sidecars=False, plugins=known) as target:
        begun = None if start is None else read_head(take_path(start), target, spec, how, known)
        teacher = Teacher(target, how.taps(target), folder, s.window, threads=threads)
        if minutes is not None:
            with watch("measuring the pace") as report:
                first = list(_read_texts(target, teacher, split.train, _PACED, s.window, report))
            pace = _measure_pace(target, how, teacher, first, folder, s, threads)
            s = msgspec.structs.replace(s, tokens=pace.tokens_within(minutes, s))
        n_given = max(int(s.tokens * (1 - s.written)), s.window)
        with watch("reading texts") as report:
            given = list(_read_texts(target, teacher, split.train, n_given, s.window, report))
        pieces = _pieces(given)
        writer = Writer(target, pieces, folder, s.window, s.seed, threads=threads)
        with watch("writing texts") as report:
            written = list(_write_texts(teacher, writer, s.tokens - n_given, report))
        shards = [*given, *written]
        vocabulary = _count(target, shards, s.vocabulary) if begun is None else begun.vocabulary
        teacher.check_output(pieces[0], vocabulary)
        trainer = Trainer(target, how, shards, vocabulary, s, begun and begun.weights)
        with watch("training") as report:
            weights = trainer.run(folder, report)
        n_tokens, n_written = (sum(len(x.tokens) for x in each) for each in (shards, written))
        said = (
            f"A {spec.name} head fitted by mtpcore to {n_tokens} tokens, {n_written} of them "
            f"written by the model, in {s.epochs} epochs, seed {s.seed}."
        )
        write_head(out, target, spec, how, weights, vocabulary, said, known)
        with (
            load_model(out, sidecars=False, plugins=known) as head,
            watch("measuring") as report,
        ):
            prompts = list(_open_held_out(target, split.held_out, s))
            measured = (
                measure_head(target, head, prompts, s.continuation, report, threads=threads)
                if prompts
                else []
            )
    return Fitted(
        out, spec.name, n_tokens, n_written, len(split.held_out), len(vocabulary), s, measured
    )


def _pieces(shards: Sequence[Shard]) -> list[I32]:
    """Return the tokens of each piece of text; raise BatchError where there is none."""
    pieces = [piece for shard in shards for piece in np.split(shard.tokens, shard.begins[1:-1])]
    if not pieces:
        raise BatchError("the texts for training are too short", wanted="16 tokens or more")
    return pieces


def _measure_pace(
    target: Model,
    how: Shape,
    teacher: Teacher,
    first: Sequence[Shard],
    folder: Path,
    s: Settings,
    threads: int | None,
) -> Pace:
    """Return how long a token takes on this machine now, as the first texts show it."""
    from mtpcore.fitting.training import Trainer

    pieces = _pieces(first)
    trainer = Trainer(target, how, first, _count(target, first, s.vocabulary), s)
    return Pace(
        reading=teacher.pace(max(pieces, key=len)),
        writing=Writer(target, pieces, folder, s.window, s.seed, threads=threads).pace(),
        training=trainer.pace() if s.epochs else 0.0,
    )


def _check_out(out: Path, model: Path) -> None:
    """Refuse now what could not be written at the end.

    Raises
    ------
    ModelFileError
    """
    reason = None
    if not out.parent.is_dir() or out.is_dir():
        reason = "a file in a folder that there is"
    elif out.exists() and model.exists() and out.samefile(model):
        reason = "another file than the model's"
    if reason:
        raise ModelFileError("the head cannot be written there", where=str(out), wanted=reason)


def _read_texts(
    target: Model,
    teacher: Teacher,
    files: Sequence[Path],
    n: int,
    window: int,
    report: Callable[[int, int], None],
) -> Iterator[Shard]:
    """Yield the shards of texts, each of one, up to ``n`` tokens."""
    done, most = 0, max(n // _LARGEST_SHARE, window)
    for path in files:
        if done >= n:
            return
        tokens = encode_file(target.tokenizer, path, min(most, n - done))
        if pieces := cut_pieces(tokens, window):
            shard = teacher.read(pieces)
            done += len(shard.tokens)
            report(done, n)
            yield shard


def _write_texts(
    teacher: Teacher, writer: Writer, n: int, report: Callable[[int, int], None]
) -> Iterator[Shard]:
    """Yield shards of texts that the model writes, until they have ``n`` tokens."""
    done = number = 0
    while done < n:
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


def _open_held_out(target: Model, files: Sequence[Path], s: Settings) -> Iterator[I32]:
    """Yield the beginnings of held-out files that go on after them."""
    length = s.window // 4
    found = 0
    for path in files:
        tokens = encode_file(target.tokenizer, path, length)
        if len(tokens) == length and found < s.prompts:
            found += 1
            yield tokens
