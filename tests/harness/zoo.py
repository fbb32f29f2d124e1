"""Values that no caller should give, and objects that raise wherever they are touched."""

import decimal
import fractions
import math
import threading
from types import SimpleNamespace

import numpy as np

from mtpcore import Sampling, Tap, TreeShape


class Hostile(Exception):
    """What the objects of the zoo raise."""


def _raise(*_, **__):
    raise Hostile


def raising(*methods, base=object):
    """Return an object whose methods of these names raise."""
    kind = type(f"Raising{''.join(methods)}", (base,), dict.fromkeys(methods, _raise))
    return kind()


def _recursive():
    one = []
    one.append(one)
    return one


def _strided():
    return np.arange(12, dtype=np.int64)[::3]


def _read_only():
    made = np.arange(3, dtype=np.int32)
    made.flags.writeable = False
    return made


HUGE = 10**5000
DIGITS = "9" * 5000
ZOO = {
    "none": lambda: None,
    "true": lambda: True,
    "minus one": lambda: -1,
    "minus a lot": lambda: -(2**63) - 1,
    "zero": lambda: 0,
    "seven": lambda: 7,
    "2**31": lambda: 2**31,
    "2**64": lambda: 2**64,
    "10**400": lambda: 10**400,
    "5000 digits": lambda: HUGE,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e308": lambda: 1e308,
    "complex": lambda: 1j,
    "fraction": lambda: fractions.Fraction(10**400, 3),
    "decimal": lambda: decimal.Decimal("sNaN"),
    "numpy int": lambda: np.int64(-3),
    "numpy float": lambda: np.float32(np.nan),
    "numpy bool": lambda: np.True_,
    "empty text": lambda: "",
    "text": lambda: "hostile",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "a\ud800b",
    "digits": lambda: DIGITS,
    "layer": lambda: "layer_input:" + DIGITS,
    "format": lambda: "{n}{arch}%s\x1b[2J",
    "bytes": lambda: b"abc",
    "empty list": lambda: [],
    "list": lambda: [1, 2],
    "floats": lambda: [0.5, math.nan],
    "texts": lambda: ["a", ""],
    "nones": lambda: [None, None],
    "bools in a list": lambda: [1, True],
    "huge in a list": lambda: [1, HUGE],
    "lists in a list": lambda: [[1, 2], [3]],
    "long list": lambda: [1] * 300_000,
    "recursion": _recursive,
    "tuple": lambda: (1, (2, (3,))),
    "set": lambda: {1, 2},
    "range": lambda: range(10**9, 10**9 + 3),
    "generator": lambda: (n for n in (1, 2, 3)),
    "raising generator": lambda: (_raise() for _ in (1,)),
    "empty mapping": lambda: {},
    "mapping": lambda: {0: 1},
    "mapping of nonsense": lambda: {"x": HUGE, None: []},
    "mapping of far": lambda: {10**30: [1], 0: HUGE},
    "array": lambda: np.arange(3, dtype=np.int32),
    "0-d": lambda: np.array(1),
    "empty array": lambda: np.zeros((0, 3)),
    "floats array": lambda: np.array([1.0, np.nan, np.inf]),
    "2-d": lambda: np.ones((2, 3), np.float32),
    "wide": lambda: np.full((3, 64), 1e300),
    "3-d": lambda: np.zeros((2, 2, 2), np.int64),
    "strided": _strided,
    "read-only": _read_only,
    "big-endian": lambda: np.arange(3, dtype=">i8"),
    "objects": lambda: np.array([1, None, "x"], object),
    "record": lambda: np.zeros(3, [("a", "i4")]),
    "dates": lambda: np.zeros(3, "datetime64[s]"),
    "texts array": lambda: np.array(["1", "2"]),
    "uint64": lambda: np.array([2**64 - 1], np.uint64),
    "endless strides": lambda: np.broadcast_to(np.int32(1), (10**12,)),
    "masked": lambda: np.ma.array([1, 2], mask=[True, False]),
    "object": object,
    "class": lambda: dict,
    "callable": lambda: lambda *_, **__: HUGE,
    "raising callable": lambda: _raise,
    "module": lambda: math,
    "lock": threading.Lock,
    "namespace": lambda: SimpleNamespace(n_vocab=-1, width=HUGE, propose=3),
    "raises __index__": lambda: raising("__index__", "__int__", "__float__"),
    "raises __len__": lambda: raising("__len__"),
    "raises __iter__": lambda: raising("__iter__"),
    "raises __array__": lambda: raising("__array__"),
    "raises __dlpack__": lambda: raising("__dlpack__", "__dlpack_device__"),
    "raises __eq__": lambda: raising("__eq__", "__ne__", "__lt__", "__hash__"),
    "raises __hash__": lambda: raising("__hash__"),
    "raises __repr__": lambda: raising("__repr__", "__str__", "__format__"),
    "raises __getattr__": lambda: raising("__getattr__"),
    "raises __bool__": lambda: raising("__bool__"),
    "raises __fspath__": lambda: raising("__fspath__"),
    "raises in a list": lambda: [raising("__index__", "__eq__", "__hash__", "__repr__")],
    "list that raises": lambda: raising("__iter__", "__len__", "__getitem__", base=list),
    "mapping that raises": lambda: raising("items", "keys", "__iter__", "__getitem__", base=dict),
    "number that raises": lambda: raising("__int__", "__float__", "__eq__", base=int),
    "sampling": Sampling.greedy,
    "tap": lambda: Tap("layer_input", HUGE),
    "tree": lambda: TreeShape(depth=1.5, width=math.nan, n_nodes="x"),
    "tree of nonsense": lambda: TreeShape(paths=((0,), 3)),
}
