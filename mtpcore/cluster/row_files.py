"""Rows in Parquet and JSONL files: read by Ray Data, and written with their texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mtpcore.cluster.rows import RowText
from mtpcore.errors import BatchError, MtpcoreError, spell

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

__all__ = ["Rows", "rows_in"]

RowKey = str | int
_RANGE = 16 << 20
"""Bytes of a file that are read at once."""


class Rows(ABC):
    """The rows of files of one kind.

    Parameters
    ----------
    files : sequence of str
    key, prompt : str
        Their columns.
    """

    kind: str
    """The ending of the files."""

    def __init__(self, files: Sequence[str], key: str, prompt: str) -> None:
        self._files, self._key, self._prompt = files, key, prompt

    def keys(self) -> set[RowKey]:
        """Return the keys of all rows.

        Raises
        ------
        BatchError
            One is missing, neither a text nor a whole number, or there twice.
        """
        return self._keys_of(self._files)

    def written(self, folder: Path) -> set[RowKey]:
        """Return the keys of the rows whose texts a folder has."""
        files = sorted(str(path) for path in folder.glob(f"texts-*.{self.kind}"))
        return self._keys_of(files) if files else set()

    def without(self, done: AbstractSet[RowKey], batch_size: int) -> Dataset:
        """Return the rows but those with these keys, in blocks of a batch each."""
        import ray

        def leave_out(batch: pyarrow.Table, shared: ray.ObjectRef) -> pyarrow.Table:
            keys = ray.get(shared)
            return batch.filter(np.array([one not in keys for one in self.read_keys(batch)], bool))

        data = self._open(self._files)
        if done:
            data = data.map_batches(
                leave_out, fn_args=(ray.put(done),), batch_format="pyarrow", batch_size=None
            )
        return data.repartition(target_num_rows_per_block=batch_size)

    def read(self, batch: pyarrow.Table) -> tuple[list[RowKey], list[Any]]:
        """Return keys and prompts of a batch.

        Raises
        ------
        BatchError
            A row, or all, have no such column, or no key.
        """
        return self.read_keys(batch), self._column(batch, self._prompt)

    def read_keys(self, batch: pyarrow.Table) -> list[RowKey]:
        """Return the keys of a batch; raises as ``read``."""
        found = self._column(batch, self._key)
        for one in found:
            if isinstance(one, bool) or not isinstance(one, str | int):
                raise BatchError(
                    "a key is a text or a whole number",
                    where=f"column {self._key!r}",
                    got=spell(one),
                )
        return found

    @abstractmethod
    def save(self, batch: pyarrow.Table, texts: Sequence[RowText], path: Path) -> None:
        """Write the rows of a batch with their texts into a file."""

    @abstractmethod
    def _open(self, files: Sequence[str]) -> Dataset: ...

    @abstractmethod
    def _column(self, batch: pyarrow.Table, name: str) -> list[Any]: ...

    def _keys_of(self, files: Sequence[str]) -> set[RowKey]:
        def read(batch: pyarrow.Table) -> pyarrow.Table:
            import pyarrow

            raw, said = [], None
            try:
                raw = [msgspec.json.encode(one) for one in self.read(batch)[0]]
            except MtpcoreError as error:  # which Ray would make a text of
                raw, said = [b"null"], str(error)
            kinds = {"key": pyarrow.binary(), "error": pyarrow.string()}
            found = {"key": raw, "error": [said] * len(raw)}
            return pyarrow.table({name: pyarrow.array(found[name], kinds[name]) for name in kinds})

        data = self._open(files).map_batches(read, batch_format="pyarrow", batch_size=None)
        found: set[RowKey] = set()
        for row in data.iter_rows():
            if row["error"] is not None:
                raise BatchError("the rows cannot be read", got=row["error"])
            key = msgspec.json.decode(row["key"])
            if key in found:
                raise BatchError(
                    "two rows have the same key", where=f"column {self._key!r}", got=spell(key)
                )
            found.add(key)
        return found


class ParquetRows(Rows):
    """Rows of Parquet files, whose other columns stay as they are."""

    kind = "parquet"

    def save(self, batch: pyarrow.Table, texts: Sequence[RowText], path: Path) -> None:
        """Write the rows of a batch with their texts into a file."""
        import pyarrow
        from pyarrow import parquet

        kinds = (pyarrow.string(), pyarrow.string(), pyarrow.int64(), pyarrow.string())
        for i, (name, kind) in enumerate(zip(RowText._fields, kinds, strict=True)):
            column = pyarrow.array([one[i] for one in texts], kind)
            if name in batch.column_names:
                batch = batch.set_column(batch.column_names.index(name), name, column)
            else:
                batch = batch.append_column(name, column)
        parquet.write_table(batch, path)

    def _open(self, files: Sequence[str]) -> Dataset:
        import ray.data

        return ray.data.read_parquet(list(files))

    def _column(self, batch: pyarrow.Table, name: str) -> list[Any]:
        if name not in batch.column_names:
            raise BatchError(
                "rows have no such column", wanted=name, got=", ".join(batch.column_names)
            )
        return batch[name].to_pylist()  # type: ignore[no-any-return]


class JsonRows(Rows):
    """Rows of files with a JSON object a line; each may have fields of its own."""

    kind = "jsonl"

    def save(self, batch: pyarrow.Table, texts: Sequence[RowText], path: Path) -> None:
        """Write the rows of a batch with their texts into a file."""
        rows = zip(self._objects(batch), texts, strict=True)
        lines = [msgspec.json.encode({**row, **text._asdict()}) for row, text in rows]
        path.write_bytes(b"\n".join([*lines, b""]))

    def _open(self, files: Sequence[str]) -> Dataset:
        # Ray's own readers split lines at characters that JSON has within texts, or make dates of
        # texts that look like some.
        import ray.data

        ranges = [
            {"path": file, "begin": begin}
            for file in files
            for begin in range(0, Path(file).stat().st_size or 1, _RANGE)
        ]
        data = ray.data.from_items(ranges, override_num_blocks=len(ranges))
        return data.map_batches(_read_lines, batch_format="pyarrow", batch_size=1)

    def _column(self, batch: pyarrow.Table, name: str) -> list[Any]:
        rows = self._objects(batch)
        for row in rows:
            if name not in row:
                raise BatchError("a row has no such field", wanted=name, got=spell(row))
        return [row[name] for row in rows]

    def _objects(self, batch: pyarrow.Table) -> list[dict[str, Any]]:
        found = []
        for line in batch["line"].to_pylist():
            try:
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BatchError("a line is no JSON object", got=spell(line)) from error
        return found


def _read_lines(ranges: pyarrow.Table) -> pyarrow.Table:
    """Return the lines that begin within a range of a file; empty ones are none."""
    import pyarrow

    ((path, begin),) = [(one["path"], one["begin"]) for one in ranges.to_pylist()]
    lines = []
    with open(path, "rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the rest of a line that begins before
        while file.tell() < begin + _RANGE and (line := file.readline()):
            lines.append(line.strip())
    return pyarrow.table({"line": pyarrow.array(filter(None, lines), pyarrow.large_binary())})


_KINDS: dict[str, type[Rows]] = {
    ".parquet": ParquetRows,
    ".jsonl": JsonRows,
    ".json": JsonRows,
}


def rows_in(paths: Iterable[str | PathLike[str]], key: str, prompt: str) -> Rows:
    """Return the rows of files, and of the files in folders, which are of one kind.

    Raises
    ------
    MtpcoreError
        There is no such file, none of a kind that is known, or they are of two.
    """
    files: list[Path] = []
    for path in (Path(fspath(one)) for one in paths):
        if path.is_dir():
            files += sorted(one for one in path.iterdir() if one.suffix in _KINDS)
        elif path.is_file():
            files.append(path)
        else:
            raise MtpcoreError("no such file", got=str(path))
    kinds = {_KINDS.get(path.suffix) for path in files}
    if len(kinds) != 1 or None in kinds:
        raise MtpcoreError(
            "rows are in files of one kind",
            wanted="Parquet (.parquet), or JSON with an object a line (.jsonl, .json)",
            got=", ".join(sorted({path.name for path in files})[:5]) or "none",
        )
    (kind,) = kinds
    assert kind is not None
    return kind([str(path.absolute()) for path in files], key, prompt)
