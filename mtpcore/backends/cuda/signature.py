"""What a kernel takes, read from its own source: its parameters' types, names and defaults.

A kernel that is declared as

.. code-block:: c

    extern "C" __global__ void shift(const float *x, float *y, int n, const float *by = nullptr)

is launched with ``arguments(y=y, x=x, n=3)``, which are ``(x, y, np.int32(3), None)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from operator import index
from typing import Any

import msgspec
import numpy as np

__all__ = ["Parameter", "Signature", "read_signature"]

_ENTRY = re.compile(r'extern "C" __global__ [^;{}]*?(\w+)\(([^(){}]*)\)\s*\{')
_PARAMETER = re.compile(r"(?P<type>[^=]*[\s*])(?P<name>\w+)(?:\s*=\s*(?P<default>nullptr|0))?")


def _array(given: Any) -> Any:
    if isinstance(given, (int, float, np.generic)):
        raise TypeError("wanted an array on the device, or None")
    return given


def _integer(kind: Callable[[int], Any]) -> Callable[[Any], Any]:
    return lambda given: kind(index(given))


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": _integer(np.int32),
    "unsigned": _integer(np.uint32),
    "long long": _integer(np.int64),
    "float": np.float32,
    "double": np.float64,
    "unsigned long long": lambda given: given,  # a condition of a graph, as its device made it
}


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a kernel; ``type`` is the source's, qualifiers included."""

    type: str
    name: str
    has_default: bool

    @property
    def is_pointer(self) -> bool:
        """Whether it takes an array, or nothing."""
        return "*" in self.type

    @property
    def is_written(self) -> bool:
        """Whether the kernel may write to its array."""
        return self.is_pointer and not self.type.startswith("const ")

    @property
    def convert(self) -> Callable[[Any], Any]:
        """Return what makes an argument of a value; it raises TypeError of one of another kind."""
        return _array if self.is_pointer else _SCALARS[self.type]

    @property
    def default(self) -> Any:
        """Return the argument where none is given: null, or zero."""
        return self.convert(None if self.is_pointer else 0)


class Signature:
    """The parameters of a kernel, in their order."""

    def __init__(self, name: str, parameters: tuple[Parameter, ...]) -> None:
        self.name, self.parameters = name, parameters
        self._converters = {one.name: one.convert for one in parameters}
        self._defaults = {one.name: one.default for one in parameters}  # in order
        self._required = {one.name for one in parameters if not one.has_default}

    def arguments(self, **given: Any) -> tuple[Any, ...]:
        """Return the arguments in order and of the declared types; arrays stay what they are.

        Raises
        ------
        TypeError
            A name that the kernel does not have, or one missing that has no default; a number for
            an array, an array for a number, or a number that its type cannot hold.
        """
        converters = self._converters
        try:
            made = {name: converters[name](value) for name, value in given.items()}
        except (KeyError, TypeError, OverflowError) as error:
            raise TypeError(f"kernel {self.name}: {self._fault(given)}") from error
        if not self._required <= given.keys():
            raise TypeError(f"kernel {self.name}: {self._fault(given)}")
        return tuple((self._defaults | made).values())

    def _fault(self, given: dict[str, Any]) -> str:
        """Say what is wrong with arguments."""
        if unknown := given.keys() - self._converters.keys():
            return f"has no {', '.join(sorted(unknown))}"
        if missing := self._required - given.keys():
            return f"also wants {', '.join(sorted(missing))}"
        for name, value in given.items():
            try:
                self._converters[name](value)
            except (TypeError, OverflowError) as error:
                return f"{name}={value!r}: {error}"
        return ""


@cache
def read_signature(source: str) -> Signature:
    """Return the signature of the one kernel in a source.

    Raises
    ------
    ValueError
        There is none, or more than one, or a parameter is declared in a way that is not read.
    """
    entries = _ENTRY.findall(source)
    if len(entries) != 1:
        raise ValueError(f"a source with one kernel, not {len(entries)}")
    ((name, declared),) = entries
    parameters = []
    for text in declared.split(","):
        found = _PARAMETER.fullmatch(" ".join(text.split()))
        if found is None or not ("*" in text or found["type"].strip() in _SCALARS):
            raise ValueError(f"kernel {name} has a parameter of no known form: {text.strip()}")
        has_default = found["default"] is not None
        parameters.append(Parameter(found["type"].strip(), found["name"], has_default))
    if len({one.name for one in parameters}) < len(parameters):
        raise ValueError(f"kernel {name} has two parameters of one name")
    return Signature(name, tuple(parameters))
