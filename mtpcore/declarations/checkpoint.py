"""How a published checkpoint becomes a model file: data that trunks and drafters declare.

A *checkpoint* is a folder as models are published: ``config.json``, tensors in ``.safetensors``
files, a tokenizer. ``mtpcore convert`` reads one and asks the declarations of this module which
tensor of the checkpoint becomes which of the file, and which metadata follows from the
configuration. A declaration is a table; where a table cannot say it, a function of one line stands
in it. Imports only ``mtpcore.errors`` and ``mtpcore.boundary.sizes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.sizes import Depth
from mtpcore.errors import ModelFileError

__all__ = ["Checkpoint", "Config", "Key", "Rename", "Shards", "number"]


TensorValues = NDArray[np.generic]
"""Values of a tensor, of any type."""


class Key(msgspec.Struct, frozen=True):
    """A metadata key that holds the value of a field, and the default for files without it."""

    name: str
    default: bool | int | float | str | None = None


class Config:
    """A checkpoint's ``config.json``, as declarations read it.

    A *path* names a value, with dots into nested objects: ``rope_parameters.rope_theta``. A value
    of null counts as missing. A *type* is whatever ``msgspec.convert`` takes: ``int``, ``Count``,
    ``list[float]``; a value of another type is an error that names its path. Give one wherever a
    number becomes a loop or an allocation: anything may stand in the file.

    Attributes
    ----------
    values : dict
        The whole file, with the nested objects that ``Checkpoint.nested`` names laid open.
    file : str
        For errors.
    n_drafter_blocks : int
        Blocks of heads that the file gets after them; 0 where heads are left out.
    n_own_heads : int
        Heads that the tensors count in a file of their own; 0: the configuration counts its layers.
    target : Config or None
        The target's, for a drafter in a file of its own.
    layers : str
        The path that says how many layers there are.
    at : str
        With what the paths of these values begin, where they are an object of another's.
    read : set of str
        Paths that were read, from the outermost configuration on; with ``.*`` objects as a whole.
    defaults : dict
        ``Checkpoint.defaults``.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        file: str = "config.json",
        *,
        n_drafter_blocks: int = 0,
        n_own_heads: int = 0,
        target: Config | None = None,
        layers: str = "num_hidden_layers",
        at: str = "",
        read: set[str] | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.values, self.file = values, file
        self.n_drafter_blocks, self.n_own_heads = n_drafter_blocks, n_own_heads
        self.target, self.layers = target, layers
        self.at, self.read = at, set() if read is None else read
        self.defaults = defaults or {}

    @property
    def n_layers(self) -> int:
        """Layers of the trunk, or of a drafter in a file of its own."""
        return self.n_own_heads or int(self.require(self.layers, Depth))

    @property
    def n_blocks(self) -> int:
        """Layers and blocks of heads, as ``{arch}.block_count`` counts them."""
        return self.n_layers + self.n_drafter_blocks

    def __getitem__(self, path: str) -> Any:
        """Return the value at a path; raise ModelFileError where it is missing."""
        return self.require(path)

    def require(self, path: str, type: Any = Any) -> Any:
        """Return the value at a path, or at the first of several with ``|`` in between.

        Raises
        ------
        ModelFileError
            It is missing, or of another type.
        """
        value = self.get(*path.split("|"), type=type)
        if value is None:
            raise self._missing(path)
        return value

    def lacks(self, *paths: str) -> bool:
        """Say whether none of ``paths`` is there, not even as null."""
        return not any(self._holds(path) for path in paths)

    def get(self, *paths: str, default: Any = None, type: Any = Any) -> Any:
        """Return the value at the first of ``paths`` that is there, else ``default``.

        Where none is there, not even as null, the table's default for one of them goes before.
        Others of ``paths`` that say the same count as read, too. An object counts as a whole only
        where ``type`` says what is in it; its values are to be read one by one.

        Raises
        ------
        ModelFileError
            It is of another type, or the table has it that checkpoints must say it.
        """
        found = {path: value for path in paths if (value := self._find(path)) is not None}
        if not found:
            known = next((path for path in paths if path in self.defaults), None)
            if known is None or not self.lacks(*paths):
                return default
            if self.defaults[known] is None:
                raise self._missing(known)
            return self._convert(known, self.defaults[known], type)
        first, value = next(iter(found.items()))
        whole = isinstance(value, Mapping) and type not in (Any, dict)
        same = (path for path, other in found.items() if other == value)
        self.read.update(f"{self.at}{path}{'.*' * whole}" for path in same)
        return self._convert(first, value, type)

    def within(self, path: str) -> Config:
        """Return an object in the configuration as a configuration of its own.

        Raises
        ------
        ModelFileError
            It is missing, or no object.
        """
        values = self.require(path, dict)
        file = f"{self.file}: {path}"
        begin = f"{path}."
        defaults = {
            name.removeprefix(begin): value
            for name, value in self.defaults.items()
            if name.startswith(begin)
        }
        return Config(values, file, at=f"{self.at}{begin}", read=self.read, defaults=defaults)

    def has_read(self, path: str) -> bool:
        """Say whether the value at a path was read, alone or with an object around it."""
        parts = path.split(".")
        around = (".".join(parts[:n]) for n in range(1, len(parts)))
        return path in self.read or any(f"{one}.*" in self.read for one in around)

    def _find(self, path: str) -> Any:
        value: Any = self.values
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _holds(self, path: str) -> bool:
        around, _, name = path.rpartition(".")
        value = self._find(around) if around else self.values
        return isinstance(value, Mapping) and name in value

    def _missing(self, path: str) -> ModelFileError:
        return ModelFileError(
            "the configuration lacks a value",
            where=f"{self.file}: {path.replace('|', ' or ')}",
            fix="take config.json from the published model",
        )

    def _convert(self, path: str, value: Any, type: Any) -> Any:
        try:
            return msgspec.convert(value, type)
        except (msgspec.ValidationError, ValueError) as error:  # or broken text
            raise ModelFileError(
                f"wrong value: {error}",
                where=f"{self.file}: {path}",
                got=repr(value)[:80],
                fix="take config.json from the published model",
            ) from None


Change = Callable[..., TensorValues | tuple[TensorValues, ...]]
"""``change(values, config)``: the file's array from the checkpoint's (float32, or integers)."""


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """A block-scaled matrix that was cut into ranks before it was scaled.

    Each rank holds its share of every part, and its last block of scales may reach over its end.
    ``parts(config, n)`` returns the parts' rows in the whole matrix of layer n, as of q, k and v;
    ``ranks`` are the numbers of ranks to try, the first that the scales fit is taken. The parts
    come out whole, one after the other. Matrices without scales are left as they are.
    """

    parts: Callable[..., tuple[int, ...]]
    ranks: tuple[int, ...]


class Rename(msgspec.Struct, frozen=True):
    """A tensor of the checkpoint, and the file's tensor that is made from it.

    Attributes
    ----------
    source, tensor : str
        Names. ``{n}`` in both stands for a block's number in the file, ``{i}`` in the source for
        its place among the blocks of this table (0, 1, ...), ``{e}`` in the source for an expert:
        experts are stacked along a new first axis, ``{arch}.expert_count`` of them. One source may
        stand in several renames, and becomes several tensors.
    change : callable, optional
        ``change(values, config)`` returns the file's array: a slice, a permutation, swapped
        halves, a norm that is stored minus one. It gets one expert at a time: one of the sources,
        or of a source that holds several. Only shapes may decide what shape it returns.
    layers : callable, optional
        ``layers(config)`` returns the numbers that ``{n}`` takes. Default: in a trunk's table its
        layers, in a head's the blocks after them, in the table of a drafter with a file of its
        own all of them.
    optional : bool or callable
        Whether the checkpoint may lack it, or ``optional(config)`` that says so.
    copy_of : str
        Another tensor of the checkpoint: where both are equal the file does without this one, as
        a tie replaces it.
    shards : Shards, optional
    is_stack : bool
        Whether the source holds several experts, along its first axis.
    sources : callable, optional
        ``sources(config)`` returns the names of several tensors in place of ``source``. They are
        stacked along a new first axis, as experts are.
    also : str or tuple of str
        Another tensor of the checkpoint, named like the source, which the change gets as well, or
        several: ``change(values, config, *also)``. Of a stack they hold as many experts.
    blocks : str
        The type of tensor whose blocks, uint8[..., bytes of a row], the change makes, whatever type
        was asked for: weights that are published quantised keep their bits, and others get the one
        type that a reader takes.
    n_of_group : int
        How many experts a group has, where ``{e}`` stands for a group.
    """

    source: str
    tensor: str
    change: Change | None = None
    layers: Callable[[Config], Iterable[int]] | None = None
    optional: bool | Callable[[Config], bool] = False
    copy_of: str = ""
    shards: Shards | None = None
    is_stack: bool = False
    also: str | tuple[str, ...] = ()
    blocks: str = ""
    sources: Callable[[Config], Iterable[str]] | None = None
    n_of_group: int = 1

    @property
    def further(self) -> tuple[str, ...]:
        """The names in ``also``."""
        return _listed(self.also)


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) * bool(names) if isinstance(names, str) else names


Tokens = tuple[tuple[str, str], ...]
"""Kinds and texts of tokens."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How published checkpoints name the tensors and settings of a trunk, or of its heads.

    A trunk's and its heads' tables are used together: ``convert --mtp keep`` takes both, ``drop``
    the trunk's alone. Tensors that stand in no table are an error.

    Attributes
    ----------
    architectures : set of str
        ``architectures`` in the configuration; empty: whichever, for a layout that ``requires`` or
        ``has`` tells.
    requires : tuple of str
        Paths that the configuration must have besides, or one of several with ``|`` in between, or
        a path and the text that it must hold, ``model_type=text``; of several declarations
        that match the one that requires most is taken.
    has : str or tuple of str
        Names of tensors that checkpoints of this layout alone have, for layouts that configurations
        do not tell apart; a declaration that names one goes before others. Patterns, as in
        ``dropped``.
    folders : tuple of str
        Folders of the checkpoint with tensors of their own, which are read as well where they are
        there. Their names begin with the folder's: ``codec/conv.weight``.
    note : str
        What ``convert`` says of every file of this layout, as what it lacks.
    completed : callable, optional
        ``completed(config)`` returns values that a configuration lacks, by name, such as sizes that
        it calls by one word.
    defaults : tuple of (str, value)
        Paths, and what a configuration means that does not speak of them, not even to say null:
        the default of the class that runs the model, as transformers' configuration classes have
        it. None: whatever the class has fits one model, and a checkpoint must say it. Of a value
        with several spellings one is enough.
    layers : str
        The path in the configuration that says how many layers there are.
    tensors : tuple of Rename
    is_beside_target : bool
        Of a trunk: whether such checkpoints hold its heads alone. ``tensors``, the tables that
        heads share with the trunk, come from the target's checkpoint then.
    dropped : tuple of str
        Names (``{n}``, ``{i}`` and ``{e}`` are any numbers, ``*`` is anything) that are knowingly
        left out.
    made : tuple of (str, callable)
        Tensors that follow from the configuration: ``make(config)`` returns the array, or None
        where the file does without.
    metadata : tuple of (str, source)
        Key (``{arch}`` stands for the file's architecture) and where its value comes from: a path
        that must be there, a ``Key`` with a default (None: no key), or ``value(config)``, which
        may return None for no key. ``{arch}.block_count`` and ``{arch}.nextn_predict_layers`` are
        written by ``convert`` itself. Floats must be floats: see ``number``.
    numbers : tuple of (str, str)
        Keys whose values the checkpoint holds as tensors of one value: key and tensor. Where the
        name has ``{n}`` there is one for each layer, and the key holds a list. Of trunks alone.
    heads : str
        Of heads, after a trunk or in a file of their own: name of a tensor that each has, with
        ``{n}`` or ``{i}``. They are counted by it.
    counts : tuple of str
        Paths of the configuration that say how many heads there are. Where it disagrees with the
        tensors, ``convert`` says so and goes by these.
    prefixes : tuple of (str, str)
        Names that begin with the first are read as if they began with the second, the longest
        first; for checkpoints that differ by nothing else.
    nested : tuple of str
        Objects in the configuration whose values are read as the configuration's own, where that
        lacks them.
    constants : tuple of (str, tuple)
        Paths of settings that no model file holds, with the values that the graphs compute with;
        others are refused. Settings that are left out have one of these.
    harmless : tuple of (str, str)
        Names or paths, with spaces in between, of settings that change nothing in a model file, and
        the reason. What stands nowhere in a table, and is read by none of its functions, is
        refused, unless it is null, false, zero or empty.
    special_tokens : tuple of (str, str) or callable
        Kind (``bos``, ``eos``, ``eot``, ``eom``, ``unknown``, ...) and text of tokens whose ids the
        family's files name, where the checkpoint itself does not say which they are; or
        ``special_tokens(config)`` that returns them, where the family has several vocabularies.
    more_tokens : callable, optional
        ``more_tokens(config)`` yields texts of control tokens after those of the tokenizer.
    companion : Checkpoint, optional
        Tensors and metadata of the file beside the model's, as ``ModelSpec.companion`` reads it;
        nothing else of this table counts.
    """

    architectures: frozenset[str]
    requires: tuple[str, ...] = ()
    has: str | tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    note: str = ""
    completed: Callable[[Config], Mapping[str, object]] | None = None
    defaults: tuple[tuple[str, object], ...] = ()
    layers: str = "num_hidden_layers"
    tensors: tuple[Rename, ...] = ()
    is_beside_target: bool = False
    dropped: tuple[str, ...] = ()
    made: tuple[tuple[str, Callable[[Config], TensorValues | None]], ...] = ()
    metadata: tuple[tuple[str, str | Key | Callable[[Config], object]], ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    heads: str = ""
    counts: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    nested: tuple[str, ...] = ()
    constants: tuple[tuple[str, tuple[object, ...]], ...] = ()
    harmless: tuple[tuple[str, str], ...] = ()
    special_tokens: Tokens | Callable[[Config], Tokens] = ()
    more_tokens: Callable[[Config], Iterable[str]] | None = None
    companion: Checkpoint | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """The names in ``has``."""
        return _listed(self.has)


def number(*paths: str, default: float | None = None) -> Callable[[Config], float | None]:
    """Return a source of metadata: the first of ``paths`` that is there, else ``default``.

    It is a float, whatever the configuration holds.

    Configurations write 10000 as well as 10000.0; model files tell the two apart.
    """

    def read(config: Config) -> float | None:
        value: float | None = config.get(*paths, default=default, type=float)
        return None if value is None else float(value)

    return read
