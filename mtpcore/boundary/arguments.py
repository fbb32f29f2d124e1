"""Reading arguments: msgspec converts and checks them, and an MtpcoreError says what is wrong.

A kind of argument is a type with its bounds, declared once; its description is what errors say was
wanted. Numbers of NumPy and of other libraries become plain ones; booleans are no numbers. Whatever
a caller's object raises while it is looked at becomes the same error. What is nobody's fault does
not: a ``MemoryError``, and a ``RecursionError`` about a value that has no depth.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from mtpcore.errors import BatchError, MtpcoreError, spell

__all__ = [
    "Bias",
    "DraftLength",
    "Finite",
    "Flag",
    "Growth",
    "Length",
    "Penalty",
    "Probability",
    "Repetition",
    "Share",
    "Temperature",
    "Unsigned",
    "Whole31",
    "Whole64",
    "LastTokens",
    "expect",
    "offers",
    "one_of",
    "read",
    "read_below",
]


T = TypeVar("T")


class Also(NamedTuple):
    """A rule that bounds cannot say."""

    holds: Callable[[Any], bool]


_TOP31, _TOP64 = 2**31 - 1, 2**64 - 1
_FLOAT32 = 3.4028234663852886e38
"""The largest number of float32."""

Flag = Annotated[bool, Meta(description="True or False")]
Length = Annotated[int, Meta(ge=0, le=1 << 53, description=">= 0")]
DraftLength = Annotated[Length | Literal["auto"], Meta(description=">= 0, or 'auto'")]
Probability = Annotated[float, Meta(ge=0, le=1, description="a number in [0, 1]")]
Share = Annotated[float, Meta(gt=0, le=1, description="a number in (0, 1]")]
Finite = Annotated[
    float, Meta(ge=-sys.float_info.max, le=sys.float_info.max, description="a finite number")
]
Whole31 = Annotated[int, Meta(ge=0, le=_TOP31, description=f"a whole number from 0 to {_TOP31}")]
Whole64 = Annotated[
    int,
    Meta(ge=0, description=f"a whole number from 0 to {_TOP64}"),
    Also(lambda x: x <= _TOP64),  # more than bounds of msgspec can say
]
# Whatever is added, multiplied or divided, no logit of ordinary size leaves float32.
Penalty = Annotated[float, Meta(ge=-1e30, le=1e30, description="a number in [-1e30, 1e30]")]
Repetition = Annotated[float, Meta(ge=1e-30, le=1e30, description="a number in [1e-30, 1e30]")]
Unsigned = Annotated[float, Meta(ge=0, le=1e30, description="a number in [0, 1e30]")]
Growth = Annotated[float, Meta(ge=1, le=1e30, description="a number in [1, 1e30]")]
LastTokens = Annotated[
    int, Meta(ge=-1, le=_TOP31, description=f"-1 for all, or a whole number from 0 to {_TOP31}")
]
Temperature = Annotated[
    float,
    Meta(ge=0, le=sys.float_info.max, description="0, or a finite number >= 1e-30"),
    Also(lambda x: x == 0 or x >= 1e-30),  # its inverse times any logit is finite
]
Bias = Annotated[
    float,
    Meta(le=_FLOAT32, description="-inf, or a finite number of float32"),
    Also(lambda x: x >= -_FLOAT32 or x == -math.inf),
]


class _PreparedKind(NamedTuple):
    """A kind made ready: msgspec would read its annotations at every call, a struct's once."""

    kind: Any
    holder: type[Any]
    rules: tuple[Callable[[Any], bool], ...]
    wanted: object


_FLAT = (str, bytes, int, float, type(None))
_MOST_KINDS = 256

_prepared: dict[int, _PreparedKind] = {}
"""By ``id``, which costs least, of kinds that are kept alive here."""


@lru_cache(_MOST_KINDS)  # some kinds are made for one call, equal ones each time
def _prepare(kind: Any) -> _PreparedKind:
    metadata = getattr(kind, "__metadata__", ())
    rules = tuple(rule.holds for rule in metadata if isinstance(rule, Also))
    wanted = next((rule.description for rule in metadata if isinstance(rule, Meta)), kind)
    holder = msgspec.defstruct("Argument", [("value", kind)])
    prepared = _PreparedKind(kind, holder, rules, wanted)
    if len(_prepared) < _MOST_KINDS:
        _prepared[id(kind)] = prepared
    return prepared


def read(
    value: object,
    kind: Any,
    what: str,
    *,
    where: str = "",
    wanted: object = None,
    fix: str = "",
    error: type[MtpcoreError] = BatchError,
) -> Any:
    """Return an argument as a value of its kind.

    Parameters
    ----------
    value : object
        What the caller gave.
    kind : type
        Whatever ``msgspec.convert`` takes; most are declared in this module.
    what, where, wanted, fix : str
        Of the error; ``wanted`` is the kind's description where it is left out.
    error : type
        Which error.
    """
    known = _prepared.get(id(kind)) or _prepare(kind)
    try:
        try:
            converted = msgspec.convert({"value": value}, known.holder).value
        except msgspec.ValidationError:
            converted = msgspec.convert({"value": _plain(value)}, known.holder).value
        if all([holds(converted) for holds in known.rules]):
            return converted
    except MemoryError:
        raise
    except RecursionError:
        if isinstance(value, _FLAT):  # the caller's stack is full
            raise
    except Exception:  # a wrong value, and whatever a caller's object raises
        pass
    if wanted is None:
        wanted = known.wanted
    raise error(what, where=where, wanted=wanted, got=spell(value), fix=fix)


def read_below(
    value: object,
    end: int,
    what: str,
    *,
    where: str = "",
    fix: str = "",
    error: type[MtpcoreError] = BatchError,
) -> int:
    """Return an argument that is a whole number from 0 on and below ``end``."""
    if type(value) is int and 0 <= value < end:  # each round asks this several times
        return value
    wanted = f"0..{end - 1}"
    number: int = read(value, Length, what, where=where, wanted=wanted, fix=fix, error=error)
    if not 0 <= number < end:
        raise error(what, where=where, wanted=wanted, got=number, fix=fix)
    return number


def one_of(*names: str) -> Any:
    """Return the kind of an argument that is one of these texts."""
    return Annotated[Literal[names], Meta(description=", ".join(names))]


def expect(
    value: object,
    kind: type[T],
    what: str,
    *,
    where: str = "",
    fix: str = "",
    error: type[MtpcoreError] = BatchError,
) -> T:
    """Return an argument that is an object of a class."""
    if isinstance(value, kind):
        return value
    raise error(what, where=where, wanted=kind.__name__, got=type(value).__name__, fix=fix)


def offers(value: object, *methods: str) -> bool:
    """Say whether an object has these methods; one that raises when it is asked has none."""
    try:
        return all(callable(getattr(value, name, None)) for name in methods)
    except MemoryError:
        raise
    except Exception:  # whatever a caller's object raises
        return False


def _plain(value: object) -> object:
    """Return a number of another library as Python's."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)
