"""A job of Ray Data: texts of all rows of a data set, in files that a stopped job goes on from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mtpcore.boundary.atomic import replacing
from mtpcore.cluster.application import check_installed
from mtpcore.cluster.row_files import Rows, rows_in
from mtpcore.cluster.rows import RowTexts
from mtpcore.errors import BatchError, CapacityError, MtpcoreError, spell
from mtpcore.lm.bar import show_progress

__all__ = ["JobResult", "write_texts"]

log = logging.getLogger("mtpcore")
_JOB = "job.json"


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did.

    Attributes
    ----------
    rows : int
        Rows of the data set.
    already : int
        Of them: whose texts were there before.
    written : int
        Of them: whose texts were written now.
    failed : int
        Of those written now: without a text; their column ``error`` says why.
    tokens : int
        Tokens written now.
    """

    rows: int
    already: int
    written: int
    failed: int
    tokens: int


def write_texts(
    source: str | PathLike[str] | Sequence[str | PathLike[str]],
    folder: str | PathLike[str],
    *,
    model: str,
    key: str = "id",
    prompt: str = "prompt",
    seed: int = 0,
    lm: Mapping[str, Any] = {},
    options: Mapping[str, Any] = {},
    actors: int = 1,
    cpus: int = 1,
    gpus: float = 0,
    batch_size: int = 64,
    progress: bool | None = None,
) -> JobResult:
    """Write a text for each row of Parquet or JSONL files, with Ray Data.

    The texts, with all columns of their rows, come into files of the same kind in ``folder``, one a
    batch, and each file is there as a whole or not at all. A job that was stopped, by whatever,
    leaves out the rows whose texts are there when it is called again; the texts are those that it
    would have written at once, since each has a seed of its own (``seed_of``).

    Call ``ray.init`` before it, to say which cluster; else Ray starts one on this machine.

    Parameters
    ----------
    source : path or sequence of paths
        Files, or a folder of them, that every node can read; by their endings ``.parquet``, or
        ``.jsonl`` and ``.json`` with an object a line.
    folder : path
        Every node can write there. It is made where there is none.
    model, key, prompt, seed, lm, options
        As ``RowTexts`` takes them. Keys are texts or whole numbers, and each has one row.
    actors : int
        Processes with an LM each.
    cpus, gpus : int, float
        What each takes of its node; its LM has so many threads.
    batch_size : int
        Rows whose texts are written together, and of a file.
    progress : bool, optional
        Whether a bar on standard error shows how many texts are finished; default: where that is a
        terminal.

    Returns
    -------
    JobResult

    Raises
    ------
    MtpcoreError
        Ray is not installed; files of no known kind; keys that are missing or that several rows
        have; or ``folder`` has texts of another job.
    """
    check_installed("ray", "pyarrow")
    for name, value in (("actors", actors), ("cpus", cpus), ("batch_size", batch_size)):
        if value < 1:
            raise CapacityError(f"{name} is a number of at least 1", got=spell(value))
    from ray.data import ActorPoolStrategy
    from ray.exceptions import RayError

    rows = rows_in([source] if isinstance(source, str | PathLike) else source, key, prompt)
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    writing = {"key": key, "prompt": prompt, "seed": seed, "options": dict(options)}
    _check_job(place, {"model": model, "kind": rows.kind, **writing})
    keys = rows.keys()
    done = keys & rows.written(place)
    with show_progress(len(keys), progress) as tell:
        tell(len(done))
        written = failed = tokens = 0
        if len(done) < len(keys):
            parts = rows.without(done, batch_size).map_batches(
                PartWriter,
                fn_constructor_args=(model, rows, str(place)),
                fn_constructor_kwargs={**writing, "lm": {"threads": cpus, **lm}},
                batch_size=batch_size,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(size=actors),
                num_cpus=cpus,
                num_gpus=gpus or None,
            )
            try:
                for part in parts.iter_rows():
                    written, failed = written + part["rows"], failed + part["failed"]
                    tokens += part["tokens"]
                    tell(len(done) + written)
            except RayError as error:
                lines = str(error).splitlines()
                said = [line for line in lines if line.startswith("mtpcore.errors.")] or lines[:1]
                raise MtpcoreError(
                    "the job has ended",
                    where=f"after {len(done) + written} of {len(keys)} rows",
                    got="".join(said[-1:]),
                    fix="call it again: what is written is not written again",
                ) from error
    if failed:
        log.warning("%d of %d rows have no text; their 'error' says why", failed, written)
    return JobResult(
        rows=len(keys), already=len(done), written=written, failed=failed, tokens=tokens
    )


def _check_job(place: Path, job: Mapping[str, Any]) -> None:
    """Write down what job a folder is of; raise MtpcoreError where it is another one's."""
    path = place / _JOB
    try:
        raw = msgspec.json.encode(job)
    except TypeError as error:
        raise BatchError("options of a job can be written as JSON", got=str(error)) from None
    if not path.exists() or not any(place.glob("texts-*")):
        with replacing(path) as part:
            part.write_bytes(raw)
    elif (found := path.read_bytes()) != raw:
        raise MtpcoreError(
            "the folder has texts of another job",
            where=str(place),
            wanted=raw.decode(),
            got=spell(found, lambda one: one.decode("utf-8", "replace")),
            fix="give the same settings, or another folder",
        )


class PartWriter:
    """Writes a batch of rows with their texts into a file: a class for ``map_batches``.

    The file's name follows from the keys in it: a batch that is written again, because a node was
    lost, takes the place of itself.

    Parameters
    ----------
    model : str
    rows : Rows
    folder : str
    **options
        As ``RowTexts`` takes them.
    """

    def __init__(self, model: str, rows: Rows, folder: str, **options: Any) -> None:
        self._rows, self._folder = rows, Path(folder)
        self._texts = RowTexts(model, **options)

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Write a batch, a table of Arrow; return how many rows, failures and tokens it has."""
        keys, prompts = self._rows.read(batch)
        found = self._texts.write(keys, prompts)
        name = hashlib.blake2b(repr(keys).encode("utf-8", "backslashreplace"), digest_size=16)
        with replacing(self._folder / f"texts-{name.hexdigest()}.{self._rows.kind}") as part:
            self._rows.save(batch, found, part)
        return {
            "rows": np.array([len(keys)]),
            "failed": np.array([sum(one.text is None for one in found)]),
            "tokens": np.array([sum(one.n_tokens for one in found)]),
        }
