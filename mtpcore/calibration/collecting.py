"""``collect_importance``: from a model and texts to the file by which it is quantised."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import Backend
from mtpcore.boundary.paths import take_path
from mtpcore.calibration.chunks import read_chunks
from mtpcore.calibration.reader import ChunkReader, Said
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import TotalSums
from mtpcore.conversion.importance_file import FileForm, ImportanceSums, read_sums, write_sums
from mtpcore.conversion.mixes import Described, is_of_output, is_quantised
from mtpcore.declarations.spec import TARGET
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import BatchError, LinkError, ModelFileError
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.types import is_float
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.runtime.model import Model

__all__ = [
    "Collected",
    "ShowProgress",
    "collect_importance",
    "find_missing",
    "merge_importance",
    "shapes_of",
]

I32 = NDArray[np.int32]
ShowProgress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""``with show(title) as report``: ``report(done, total)`` says how many tokens are read."""

_RUN, _READ, _SURPRISE, _COUNTED = (
    f"mtpcore.imatrix.{name}" for name in ("run", "chunks_read", "surprise", "tokens_counted")
)
"""What a file says of the run that wrote it, which goes on there if it was interrupted."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a file that was written.

    Attributes
    ----------
    path : Path
    n_chunks : int
        Those of files that were merged included.
    n_read, n_before : int
        Chunks that this run read, and that an interrupted one had read before.
    n_matrices : int
        Tensors with weights.
    perplexity : float or None
        Of the second half of each chunk.
    partial : dict of str to (int, int)
        Stacks of which some matrices saw no rows, by name: how many did, of how many.
    missing : tuple of str
        Matrices that would be quantised, and were multiplied with nothing.
    """

    path: Path
    n_chunks: int
    n_read: int
    n_before: int
    n_matrices: int
    perplexity: float | None
    partial: dict[str, tuple[int, int]]
    missing: tuple[str, ...]


def collect_importance(
    model: str | PathLike[str],
    texts: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    settings: ImportanceSettings,
    show: ShowProgress,
    *,
    mtp_path: str | PathLike[str] | None = None,
    draft_model: str | PathLike[str] | None = None,
    form: FileForm = "gguf",
    merged: Sequence[str | PathLike[str]] = (),
    threads: int | None = None,
    backend: str | Backend = "cpu",
    plugins: Registry | None = None,
) -> Collected:
    """Read texts with a model and its heads, and write the squares of what matrices saw.

    The file is written now and then while the texts are read, and when reading ends early: the same
    call goes on there, and makes the file that it would have made at once.

    Parameters
    ----------
    model : path
        Or what else ``load_model`` takes.
    texts : sequence of path
        Files in UTF-8, read one after the other.
    out : path
        The file to write; what it holds of the same run stays.
    settings : ImportanceSettings
    show : callable
        Shows progress; see ``ShowProgress``.
    mtp_path : path, optional
        A file with the head that the model lacks.
    draft_model : path, optional
        A drafter in a file of its own, which reads what the model makes: its matrices are weighed,
        and the model's are not.
    form : {"gguf", "dat"}
        ``dat`` is the form before GGUF, in which no run goes on.
    merged : sequence of path
        Files whose sums are added to.
    threads, backend
        As a context's.
    plugins : Registry, optional
        Default: all that are installed.

    Raises
    ------
    BatchError
        The texts are too short, or numbers are not finite.
    ModelFileError
        A file cannot be read or written, or is of another model.
    """
    s, out = settings, take_path(out)
    with ExitStack() as stack:
        loaded = load_model(model, mtp_path=mtp_path, sidecars=False, plugins=plugins)
        stack.enter_context(loaded)
        head = None
        if draft_model is not None:
            head = stack.enter_context(load_model(draft_model, sidecars=False, plugins=plugins))
            _check_drafter(head)
        _check_out(out, [*loaded.paths, *(head.paths if head else ())])
        chunks = read_chunks(loaded.tokenizer, texts, s.chunk_size, parse_special=s.parse_special)[
            s.first_chunk :
        ]
        if not len(chunks):
            raise BatchError(
                "no chunk of the text is left",
                wanted=f"more than {s.first_chunk} chunks of {s.chunk_size} tokens",
                fix="give a longer text, or pass over fewer (--chunk)",
            )
        reader = ChunkReader(loaded, s, draft_model=head, threads=threads, backend=backend)
        base = [(path, read_sums(path)) for path in map(take_path, merged)]
        said = [str(path) for path in texts]
        return _Collection(head or loaded, reader, s, out, form, base, said, chunks).collect(show)


def _check_drafter(head: Model) -> None:
    """Refuse what is no drafter in a file of its own.

    Raises
    ------
    LinkError
    """
    if head.as_draft_model is not None:
        raise LinkError(
            "the draft model is a language model",
            where=str(head.path),
            wanted="a drafter that reads another model's rows",
            fix="weigh its matrices as any model's, without another one",
        )


def merge_importance(
    merged: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    form: FileForm = "gguf",
    chunk_size: int = 512,
) -> Collected:
    """Write the sums of several files as one; ``chunk_size`` is that of files of the old form.

    Raises
    ------
    ModelFileError
        One cannot be read or written, or they are of different models.
    """
    out, total = take_path(out), TotalSums({})
    found = [(path, read_sums(path)) for path in map(take_path, merged)]
    for path, one in found:
        total.merge(one, chunk_size, str(path))
    datasets = [name for _, one in found for name in one.datasets]
    n_chunks = sum(one.n_chunks for _, one in found)
    sizes = {one.chunk_size for _, one in found if one.chunk_size}
    size = sizes.pop() if len(sizes) == 1 else chunk_size
    write_sums(out, ImportanceSums(total.sums, total.counts, tuple(datasets), n_chunks, size, form))
    return Collected(
        path=out,
        n_chunks=n_chunks,
        n_read=0,
        n_before=0,
        n_matrices=len(total.sums),
        perplexity=None,
        partial=_partial(total),
        missing=(),
    )


def _check_out(out: Path, read: Sequence[Path]) -> None:
    """Refuse now what could not be written at the end."""
    reason = None
    if not out.parent.is_dir() or out.is_dir():
        reason = "a file in a folder that there is"
    elif out.exists() and any(out.samefile(path) for path in read):
        reason = "another file than the model's"
    if reason:
        raise ModelFileError(
            "the importance matrix cannot be written there", where=str(out), wanted=reason
        )


def _partial(total: TotalSums) -> dict[str, tuple[int, int]]:
    seen = {name: int(np.count_nonzero(counts)) for name, counts in total.counts.items()}
    return {
        name: (n, len(total.counts[name]))
        for name, n in seen.items()
        if n < len(total.counts[name])
    }


def find_missing(model: Model, total: TotalSums) -> tuple[str, ...]:
    """Return the matrices that would be quantised, and were multiplied with nothing.

    Tables and the output matrix are not looked for.
    """
    seen = {name for name, counts in total.counts.items() if counts.any()}
    return tuple(
        name
        for name, tensor in model.tensors.items()
        if name not in seen
        and not name.startswith(TARGET)
        and is_float(tensor.type)
        and is_quantised(Described(name, tensor.shape, tensor.type))
        and not is_of_output(name)
    )


def shapes_of(model: Model) -> dict[str, tuple[int, int]]:
    """Return how many matrices of how many columns tensors have, by name."""
    return {
        name: (math.prod(tensor.shape[:-2]), tensor.shape[-1])
        for name, tensor in model.tensors.items()
        if tensor.shape and not name.startswith(TARGET)
    }


class _Collection:
    """One reading of a text, which may go on where an earlier one ended."""

    def __init__(
        self,
        model: Model,
        reader: ChunkReader,
        settings: ImportanceSettings,
        out: Path,
        form: FileForm,
        base: Sequence[tuple[Path, ImportanceSums]],
        texts: Iterable[str],
        chunks: I32,
    ) -> None:
        self._model, self._reader, self._settings = model, reader, settings
        self._out, self._form, self._chunks = out, form, chunks
        self._datasets = (*(name for _, one in base for name in one.datasets), *texts)
        self._n_base = sum(one.n_chunks for _, one in base)
        self._total, self._said = TotalSums(shapes_of(model)), Said()
        self._key = self._identity(base)
        self._n_read = self._n_before = 0
        if not self._go_on():
            for path, one in base:
                self._total.merge(one, settings.chunk_size, str(path))

    def _identity(self, base: Sequence[tuple[Path, ImportanceSums]]) -> str:
        """Return a hash of all that decides what the file holds, but for how far it is read."""
        s = self._settings
        prints = [Fingerprint.of(one.runner) for one in self._reader.cross.contexts.values()]
        asked = (s.chunk_size, s.first_chunk, s.with_output, s.heads, s.perplexity)
        key = hashlib.blake2b(msgspec.json.encode((prints, asked)), digest_size=16)
        key.update(self._chunks.tobytes())
        for _, one in base:
            for name in sorted(one.sums):
                key.update(name.encode() + one.sums[name].tobytes() + one.counts[name].tobytes())
        return key.hexdigest()

    def _go_on(self) -> bool:
        """Take what the same run wrote before; say whether there is anything."""
        if self._form != "gguf" or not self._out.exists():
            return False
        try:
            found = read_sums(self._out)
        except ModelFileError:
            return False  # of another kind, and replaced
        n = found.said.get(_READ)
        if found.said.get(_RUN) != self._key or not isinstance(n, int):
            return False
        self._total.sums, self._total.counts = found.sums, found.counts
        surprise, counted = (float(found.said.get(key, 0)) for key in (_SURPRISE, _COUNTED))  # type: ignore[arg-type]
        self._said = Said(surprise, int(counted))
        self._n_read = self._n_before = n
        return True

    def collect(self, show: ShowProgress) -> Collected:
        s = self._settings
        most = len(self._chunks) if s.n_chunks is None else min(s.n_chunks, len(self._chunks))
        saved = self._n_read
        try:
            with show("reading texts") as report:
                for begin in range(self._n_read, most, self._reader.together):
                    report(begin * s.chunk_size, most * s.chunk_size)
                    end = min(begin + self._reader.together, most)
                    for sums, said in self._reader.read(self._chunks[begin:end]):
                        self._total.add(sums)
                        self._said.add_all(said)
                        self._n_read += 1
                        if s.keep_every and self._n_read % s.keep_every == 0:
                            self._write(self._out.with_name(f"{self._out.name}.at_{self._n_read}"))
                    if s.save_every and self._n_read - saved >= s.save_every:
                        self._write(self._out)
                        saved = self._n_read
        finally:
            if self._n_read > saved:
                self._write(self._out)
        return self._collected()

    def _write(self, path: Path) -> None:
        said: dict[str, MetadataValue | np.generic] = {
            _RUN: self._key,
            _READ: np.uint32(self._n_read),
            _SURPRISE: np.float64(self._said.surprise),
            _COUNTED: np.uint64(self._said.n),
        }
        write_sums(
            path,
            ImportanceSums(
                self._total.sums,
                self._total.counts,
                self._datasets,
                self._n_base + self._n_read,
                self._settings.chunk_size,
                self._form,
                said,
            ),
        )

    def _collected(self) -> Collected:
        return Collected(
            path=self._out,
            n_chunks=self._n_base + self._n_read,
            n_read=self._n_read - self._n_before,
            n_before=self._n_before,
            n_matrices=sum(bool(counts.any()) for counts in self._total.counts.values()),
            perplexity=self._said.perplexity,
            partial=_partial(self._total),
            missing=find_missing(self._model, self._total),
        )
