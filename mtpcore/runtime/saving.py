"""Saved states: a sequence of a context, or of all contexts of a Cross, as a file or as bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from os import PathLike
from typing import Literal, TypeVar

import msgspec

from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import open_regular, take_path
from mtpcore.boundary.sections import Pieces, read_sections, write_sections
from mtpcore.errors import BatchError, ModelFileError, StateError, spell
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.runtime.runner import GraphRunner
from mtpcore.runtime.sequences import SequenceRecord
from mtpcore.version import version

__all__ = [
    "SavedState",
    "Sections",
    "StateSource",
    "check_empty",
    "dump_graph",
    "dump_origin",
    "load_graph",
    "most_bytes",
    "open_state",
    "write_state",
]

Sections = Iterator[tuple[str, Pieces]]
StateSource = bytes | bytearray | memoryview | str | PathLike[str]
"""Bytes of a state, or the path of its file."""

T = TypeVar("T")
Kind = Literal["Context", "Cross"]

_FORMAT = 2
_ROOM = 1 << 20
"""Bytes of a state besides what grows with the context."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a state was saved from: the first section."""

    kind: Kind
    mtpcore: str
    graphs: dict[str, Fingerprint]


class SavedState:
    """The sections of a state that is being loaded, each of which is taken once."""

    def __init__(self, sections: Mapping[str, memoryview]) -> None:
        self._sections = dict(sections)

    @contextmanager
    def section(self, name: str) -> Iterator[memoryview]:
        """Take a section; a StateError raised in the block names it.

        Raises
        ------
        StateError
            There is none of this name.
        """
        if name not in self._sections:
            raise StateError("a part of the state is missing", where=name)
        try:
            yield self._sections.pop(name)
        except StateError as error:
            raise error.at(name) from error

    def decode(self, name: str, kind: type[T]) -> T:
        """Take a section that is one value.

        Raises
        ------
        StateError
            It is missing, or something else.
        """
        with self.section(name) as data:
            try:
                return msgspec.msgpack.decode(data, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StateError("not what is saved there", got=error) from error

    def check_origin(self, kind: Kind, runners: Mapping[str, GraphRunner]) -> None:
        """Refuse a state that was saved from anything else.

        Raises
        ------
        StateError
            Says what differs.
        """
        origin = self.decode("origin", Origin)
        if origin.kind != kind:
            raise StateError(
                f"the state is of a {origin.kind}", wanted=f"one of a {kind}", got=origin.kind
            )
        if origin.mtpcore != version():
            raise StateError(
                "the state was saved by another version of mtpcore",
                wanted=version(),
                got=origin.mtpcore,
                fix="process the text again",
            )
        if origin.graphs.keys() != runners.keys():
            raise StateError(
                "the state is of other roles",
                wanted=", ".join(runners),
                got=", ".join(origin.graphs),
                fix="link the drafter that the state was saved with, or none where there was none",
            )
        for role, runner in runners.items():
            Fingerprint.of(runner).check(origin.graphs[role], f"role {role}")

    def finish(self) -> None:
        """Refuse sections that nobody took.

        Raises
        ------
        StateError
            There are some.
        """
        if self._sections:
            raise StateError("the state has a further part", where=next(iter(self._sections)))


def check_empty(seq: int, length: int) -> None:
    """Raise BatchError where a sequence to load into holds rows."""
    if length:
        raise BatchError(
            "a state is loaded into an empty sequence",
            where=f"sequence {seq}",
            got=f"{length} rows",
            fix="remove it first",
        )


def dump_origin(kind: Kind, runners: Mapping[str, GraphRunner]) -> Sections:
    """Yield the section that says what a state is of."""
    graphs = {role: Fingerprint.of(runner) for role, runner in runners.items()}
    yield "origin", [msgspec.msgpack.encode(Origin(kind, version(), graphs))]


def dump_graph(role: str, runner: GraphRunner, seq: int) -> Sections:
    """Yield the sections of one graph: where its sequence is, and what its memory holds."""
    if runner.host is not None:  # its rows are its host's
        return
    yield f"{role}: sequence", [msgspec.msgpack.encode(runner.sequences.dump(seq))]
    for number, part in enumerate(runner.memory.parts if runner.memory else ()):
        yield f"{role}: memory {number}", part.dump(seq)


def load_graph(role: str, runner: GraphRunner, seq: int, state: SavedState) -> None:
    """Let an empty sequence of a graph hold what ``dump_graph`` gave.

    Raises
    ------
    StateError
        Sections that are missing, or that are something else.
    """
    if runner.host is not None:
        return
    for number, part in enumerate(runner.memory.parts if runner.memory else ()):
        with state.section(f"{role}: memory {number}") as data:
            part.load(seq, data)
    name = f"{role}: sequence"
    record = state.decode(name, SequenceRecord)
    try:
        runner.sequences.load(seq, record, runner.n_ctx)
    except StateError as error:
        raise error.at(name) from error


def most_bytes(runners: Iterable[GraphRunner]) -> int:
    """Return how many bytes a state of one sequence of these graphs has at most."""
    n_bytes = _ROOM
    for runner in runners:
        parts = runner.memory.parts if runner.memory else ()
        n_bytes += 4 * runner.program.n_axes * runner.n_ctx
        n_bytes += sum(part.most_bytes(runner.n_ctx) for part in parts)
    return n_bytes


def write_state(path: str | PathLike[str] | None, sections: Sections) -> bytes | None:
    """Write a state to a file, as a whole or not at all; without a path return its bytes.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    if path is None:
        buffer = BytesIO()
        write_sections(buffer, _FORMAT, sections)
        return buffer.getvalue()
    try:
        whole = take_path(path)
        with replacing(whole) as part, open(part, "wb") as file:
            write_sections(file, _FORMAT, sections)
    except ModelFileError as error:
        raise error.into(StateError) from error
    except OSError as error:
        raise StateError(
            "cannot write the file", where=str(path), got=error.strerror or error
        ) from error
    return None


def open_state(source: StateSource, limit: int) -> SavedState:
    """Return a state's sections, each as it was saved.

    Parameters
    ----------
    source : bytes or path
    limit : int
        No state that fits has more bytes; longer ones are not read.

    Raises
    ------
    StateError
        The file cannot be read; or no state, of another format, cut short or damaged.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        try:
            view = memoryview(source)
        except ValueError as error:  # a view that was released
            raise StateError("not the bytes of a state", got=error) from error
        _check_size(view.nbytes, limit)
        return SavedState(read_sections(view.tobytes(), _FORMAT))
    if not isinstance(source, str | PathLike):
        raise StateError("not a saved state", wanted="bytes, or a path", got=spell(source))
    try:
        path = take_path(source)
        with open_regular(path, fix="give a file that save() wrote") as file:
            _check_size(os.fstat(file.fileno()).st_size, limit)
            data = file.read()
    except ModelFileError as error:
        raise error.into(StateError) from error
    except OSError as error:
        raise StateError(
            "cannot read the file", where=str(path), got=error.strerror or error
        ) from error
    try:
        return SavedState(read_sections(data, _FORMAT))
    except StateError as error:
        raise error.at(str(path)) from error


def _check_size(n_bytes: int, limit: int) -> None:
    if n_bytes > limit:
        raise StateError(
            "the state is larger than any that fits",
            wanted=f"at most {limit} bytes",
            got=f"{n_bytes} bytes",
            fix="make n_ctx larger",
        )
