"""Typed reading of metadata: nothing enters a model unchecked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_origin, overload

import msgspec
import numpy as np

from mtpcore.errors import ModelFileError
from mtpcore.gguf.file import ModelFile
from mtpcore.gguf.header import Metadata, MetadataValue
from mtpcore.gguf.spellings import BY_LAYER, ZERO_IS_NONE, other_numbers

__all__ = ["Fields", "convert"]

T = TypeVar("T")
D = TypeVar("D")
S = TypeVar("S", bound=msgspec.Struct)

_FIX = "convert the model again, or give the right file"


class Fields:
    """The metadata of one model, read by key and type.

    A key may contain ``{arch}``, which stands for the architecture. A type is whatever
    ``msgspec.convert`` takes: ``int``, ``list[float]``, ``Annotated[int, Meta(ge=1)]``, a union.
    A number that is not finite is of no type: nothing but NaN would be computed with it. Whole
    floats serve as integers, 0 and 1 as flags; of the keys in ``mtpcore.gguf.spellings`` a 0 counts
    as missing, or a list of equal numbers as one of them.

    Parameters
    ----------
    metadata : dict
    architecture : str
    file : str
        For errors.
    asked : set of str, optional
        Gets the name of every key that is asked for, whether it is there or not: what loading
        finds unread is refused.
    """

    def __init__(
        self,
        metadata: Metadata,
        architecture: str,
        file: str = "metadata",
        *,
        asked: set[str] | None = None,
    ) -> None:
        self.metadata, self.architecture, self.file = metadata, architecture, file
        self.asked: set[str] = set() if asked is None else asked

    @classmethod
    def of(cls, model: ModelFile) -> Fields:
        """Return the fields of an open file."""
        return cls(model.metadata, model.architecture, str(model.path))

    def replace(self, values: Mapping[str, MetadataValue]) -> Fields:
        """Return these fields with other values of some keys, which may contain ``{arch}``."""
        known = self.metadata | {self.key(key): value for key, value in values.items()}
        return Fields(known, self.architecture, self.file, asked=self.asked)

    def within(self, name: str) -> Fields:
        """Return the fields of a part of the model: ``{arch}`` then means ``{arch}.<name>``."""
        return Fields(self.metadata, f"{self.architecture}.{name}", self.file, asked=self.asked)

    def dismiss(self, *keys: str) -> None:
        """Count keys as asked for that mean nothing in this file, by what others say."""
        self.asked.update(map(self.key, keys))

    def key(self, key: str) -> str:
        """Put the architecture in for ``{arch}``."""
        return key.replace("{arch}", self.architecture)

    def _name(self, key: str) -> str:
        """Return a key without the architecture."""
        return self.key(key).removeprefix(f"{self.architecture}.")

    def __contains__(self, key: str) -> bool:
        value = self.metadata.get(self.key(key))
        is_none = isinstance(value, int | float) and value == 0 and self._name(key) in ZERO_IS_NONE
        return value is not None and not is_none

    @overload
    def require(self, key: str, type: type[T]) -> T: ...
    @overload
    def require(self, key: str, type: Any) -> Any: ...
    def require(self, key: str, type: Any) -> Any:
        """Read a key that must be there.

        Raises
        ------
        ModelFileError
            If it is missing or of another type.
        """
        self.asked.add(self.key(key))
        if self.key(key) not in self.metadata:
            raise self.error(key, "the key is missing", wanted=type)
        return self._convert(key, self.metadata[self.key(key)], type)

    @overload
    def get(self, key: str, type: type[T], default: D) -> T | D: ...
    @overload
    def get(self, key: str, type: Any, default: Any) -> Any: ...
    def get(self, key: str, type: Any, default: Any) -> Any:
        """Read a key, or return ``default`` where it is missing."""
        self.asked.add(self.key(key))
        return self.require(key, type) if key in self else default

    def per_layer(
        self, key: str, n_layers: int, type: type[T], default: T | None = None
    ) -> list[T]:
        """Read a key that holds one value for all layers, or a list of one for each.

        Parameters
        ----------
        n_layers : int
            As ``block_count`` counts them: those of a head included.
        type : type
            Of one value.
        default : optional
            For every layer where the key is missing; None: it must be there.

        Returns
        -------
        list of ``n_layers`` values
        """
        if default is not None and key not in self:
            return [default] * n_layers
        either: Any = type | GenericAlias(list, (type,))
        values: T | list[T] = self.require(key, either)
        if not isinstance(values, list):
            return [values] * n_layers
        if len(values) != n_layers:
            raise self.error(key, "not one entry a layer", wanted=n_layers, got=len(values))
        return values

    def error(
        self, key: str, what: str, *, wanted: object = None, got: object = None
    ) -> ModelFileError:
        """Make an error that names file and key: ``what``, and what was ``wanted`` and ``got``."""
        if get_origin(wanted) is Annotated:  # a type with bounds
            wanted = wanted.__origin__  # type: ignore[attr-defined]
        wanted = getattr(wanted, "__name__", wanted)
        where = f"{self.file}: metadata key {self.key(key)!r}"
        return ModelFileError(what, where=where, wanted=wanted, got=got, fix=_FIX)

    def _convert(self, key: str, value: object, type: Any) -> Any:
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(plain, float) and not math.isfinite(plain):
            raise self.error(key, "not a finite number", got=plain)
        try:
            return msgspec.convert(plain, type)
        except msgspec.ValidationError as error:
            found = error
        for other in other_numbers(plain):
            with suppress(msgspec.ValidationError):
                return msgspec.convert(other, type)
        if isinstance(plain, list) and self._name(key) in BY_LAYER:
            return self._convert(key, self._one_of_all(key, plain), type)
        raise self.error(key, f"wrong value: {found}", got=repr(plain)[:80])

    def _one_of_all(self, key: str, values: list[object]) -> object:
        """Return the value that all blocks have."""
        n_blocks = self.metadata.get(self.key("{arch}.block_count"))
        if len(values) != n_blocks:
            raise self.error(key, "not one entry a layer", wanted=n_blocks, got=len(values))
        if any(value != values[0] for value in values):
            raise self.error(key, "layers differ", wanted="the same for all", got=repr(values)[:80])
        return values[0]


@cache  # as all of its annotations are evaluated
def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def convert(fields: Fields, struct: type[S], prefix: str = "{arch}.") -> S:
    """Fill a struct from metadata.

    Each field is read from the key ``prefix`` + its encoded name, so that
    ``n_head: int = msgspec.field(name="attention.head_count")`` reads
    ``{arch}.attention.head_count``. Fields without a default must be there.

    Raises
    ------
    ModelFileError
        Naming the key that is missing or has a wrong value.
    """
    values: dict[str, Any] = {}
    for field in _fields(struct):
        key = prefix + field.encode_name
        if field.required or key in fields:
            values[field.name] = fields.require(key, field.type)
    try:
        return struct(**values)
    except (ValueError, TypeError) as error:  # __post_init__ of the struct
        if isinstance(error, ModelFileError):
            raise
        raise fields.error(prefix + "*", f"wrong values: {error}") from error
