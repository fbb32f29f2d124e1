"""``fit_head``: from a model and texts to the head that makes it write fastest."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import take_path
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.fitting.lessons import LessonReader, Lessons, Watch
from mtpcore.fitting.measuring import MeasuredHead, measure_heads
from mtpcore.fitting.pace import Pace
from mtpcore.fitting.settings import Settings
from mtpcore.fitting.shape import Shape, find_shapes, needed_packages
from mtpcore.fitting.texts import encode_file, find_texts, split_files
from mtpcore.fitting.writing import read_head, write_head
from mtpcore.runtime.model import Model

__all__ = ["Fitted", "Watch", "fit_head"]

I32 = NDArray[np.int32]

_PACED = 4096
"""Tokens that are read to find out how long each part of the work takes."""


class Fitted(msgspec.Struct, frozen=True):
    """The head that was kept, and how fast each was.

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
    measured : dict of str to list of MeasuredHead
        By the name of each drafter that was tried: greedy, and at temperature 1. The lists are
        empty where no text that was held out is long enough.
    """

    path: Path
    drafter: str
    n_tokens: int
    n_written: int
    n_held_out: int
    n_vocabulary: int
    settings: Settings
    measured: dict[str, list[MeasuredHead]]


def fit_head(
    model: str | PathLike[str],
    texts: Iterable[str | PathLike[str]],
    out: str | PathLike[str],
    settings: Settings,
    watch: Watch,
    *,
    shapes: Sequence[str] = (),
    start: str | PathLike[str] | None = None,
    work: str | PathLike[str] | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    plugins: Registry | None = None,
) -> Fitted:
    """Fit heads to a model, measure them on texts that were held out, and write the fastest.

    The model reads the training texts and others that it writes itself; a head learns to foresee
    its distributions. The same model, texts, settings and packages give the same heads. What the
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
    shapes : sequence of str
        Names of the drafters to fit; default: all that can be, or the one that ``start`` is of.
        The head with which the model writes fastest is kept, greedily and at temperature 1 alike;
        the others stay in the folder.
    start : path, optional
        A head that was fitted before, to go on from.
    work : path, optional
        The folder; default: ``<out>.work``.
    minutes : float, optional
        About how long the fit may take; in place of ``settings.tokens`` this then decides from how
        many tokens the heads learn. What is found in the folder is for free.
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
    tried = find_shapes(known, shapes)
    with needed_packages("mtpcore.fitting.training"):
        from mtpcore.fitting.training import Trainer  # imports JAX, which takes a second

    s = settings
    split = split_files(find_texts(texts), s.seed)
    with load_model(model, sidecars=False, plugins=known) as target, ExitStack() as opened:
        begun = None
        if start is not None:
            tried = _of_file(take_path(start), tried, known)
            begun = read_head(take_path(start), target, *tried[0], s.depth, known)
        reader = LessonReader(target, split.train, folder, watch, threads)
        if minutes is not None:
            pace = _measure_pace(target, reader, tried, s)
            s = msgspec.structs.replace(s, tokens=pace.tokens_within(minutes, s))
        lessons: dict[tuple[str, ...], Lessons] = {}
        heads: dict[str, Model] = {}
        for spec, how in tried:
            taps = how.taps(target)
            if taps not in lessons:
                lessons[taps] = reader.read(taps, s, begun and begun.vocabulary)
            lesson = lessons[taps]
            trainer = Trainer(target, how, *lesson[:2], s, begun and begun.weights)
            with watch(f"training {spec.name}") as report:
                weights = trainer.run(folder, report)
            said = (
                f"A {spec.name} head fitted by mtpcore to {lesson.n_tokens} tokens, "
                f"{lesson.n_written} of them written by the model, in {s.epochs} epochs, "
                f"seed {s.seed}."
            )
            path = _head_path(folder, spec.name)
            write_head(path, target, spec, how, weights, lesson.vocabulary, s.depth, said, known)
            heads[spec.name] = load_model(path, sidecars=False, plugins=known)
            opened.callback(heads[spec.name].close)
        prompts = list(_open_held_out(target, split.held_out, s))
        with watch("measuring") as report:
            measured = measure_heads(
                target, heads, prompts, s.continuation, report, threads=threads
            )
    drafter = max(measured, key=lambda name: math.prod(one.drafted for one in measured[name]))
    _keep(_head_path(folder, drafter), out)
    return Fitted(
        path=out,
        drafter=drafter,
        n_tokens=lesson.n_tokens,
        n_written=lesson.n_written,
        n_held_out=len(split.held_out),
        n_vocabulary=len(lesson.vocabulary),
        settings=s,
        measured=measured,
    )


def _head_path(folder: Path, drafter: str) -> Path:
    """Return where a head lies that was tried."""
    return folder / f"{drafter}.gguf"


def _measure_pace(
    target: Model, reader: LessonReader, tried: Sequence[tuple[DrafterSpec, Shape]], s: Settings
) -> Pace:
    """Return how long a token takes on this machine now, as the first texts show it."""
    from mtpcore.fitting.training import Trainer

    few = msgspec.structs.replace(s, tokens=_PACED, written=0.0)
    lessons = {how.taps(target): reader.read(how.taps(target), few) for _, how in tried}
    paces = [reader.pace(taps, s, each) for taps, each in lessons.items()]
    learning = (Trainer(target, how, *lessons[how.taps(target)][:2], s).pace() for _, how in tried)
    return Pace(
        reading=sum(reading for reading, _ in paces),
        writing=max(writing for _, writing in paces),  # texts are written once
        training=sum(learning) if s.epochs else 0.0,
    )


def _of_file(
    path: Path, tried: Sequence[tuple[DrafterSpec, Shape]], known: Registry
) -> list[tuple[DrafterSpec, Shape]]:
    """Return the shape that a file is of; the first one where it is of none, which will say so."""
    with load_model(path, sidecars=False, plugins=known) as head:
        architecture = head.metadata.get("general.architecture")
    return [pair for pair in tried if architecture == pair[1].ARCHITECTURE][:1] or [*tried[:1]]


def _keep(head: Path, out: Path) -> None:
    """Copy the head that is kept to where it was asked for.

    Raises
    ------
    ModelFileError
        It cannot be written; what was there still is.
    """
    try:
        with replacing(out) as part:
            shutil.copyfile(head, part)
    except OSError as error:
        raise ModelFileError(
            "cannot write the head",
            where=str(out),
            got=error.strerror or error,
            fix=f"it is in {head}: copy it to another place",
        ) from error


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


def _open_held_out(target: Model, files: Sequence[Path], s: Settings) -> Iterator[I32]:
    """Yield the beginnings of held-out files that go on after them."""
    length = s.window // 4
    found = 0
    for path in files:
        tokens = encode_file(target.tokenizer, path, length)
        if len(tokens) == length and found < s.prompts:
            found += 1
            yield tokens
