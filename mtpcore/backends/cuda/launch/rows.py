"""Operations that make a row of rows, without a product: values alone, norms, rotations, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.codes import Codes, arrays_of, made_of
from mtpcore.backends.cuda.launch.step import (
    Launch,
    Launcher,
    Step,
    blocks_of,
    counters_for,
    n_of_row,
    n_parts_of,
)
from mtpcore.graph.ops import ACTIVATIONS

__all__ = [
    "KERNELS",
    "LAUNCHERS",
    "Mix",
    "Norm",
    "copy_rows",
    "mark_not_finite",
    "normalise",
    "other_of",
]

_MOST_NORMED = 2
"""Rows that the block which ends last normalises, one after the other; more take it longer than a
launch of their own."""

_MOST_MIXED = 8
"""Rows that blocks of the products mix, sixteen columns each; a launch of their own has more blocks
for more."""

_NO_NORM = np.int32(0), *(None,) * 3, np.int32(0), *(None,) * 3, np.float32(0)

_ELEMENTWISE = {
    name: Kernel("elementwise", (("OPERATION", name),))
    for name in ("ADD", "MUL", "SCALE", "ACTIVATION", "GATED")
}
_NORMALISE = {
    (centred, block): Kernel("normalise", (("CENTRED", str(int(centred))), ("BLOCK", str(block))))
    for centred in (False, True)
    for block in (0, 32, 256)
}
_ROPE = {style: Kernel("rope", (("PAIRS", str(i)),)) for i, style in enumerate(("halves", "pairs"))}
_COPY, _MIX, _NOT_FINITE = Kernel("copy"), Kernel("mix"), Kernel("not_finite")
KERNELS = (
    *_ELEMENTWISE.values(),
    *_NORMALISE.values(),
    *_ROPE.values(),
    _COPY,
    _MIX,
    _NOT_FINITE,
)


def _elementwise(
    name: str,
    step: Step,
    n_rows: int,
    second: DeviceArray | None = None,
    *,
    period: int = 0,
    kind: str = ACTIVATIONS[0],
    number: float = 0,
    offset: int = 0,
) -> list[Launch]:
    """Compute each value of the output alone; ``second`` repeats where there is a period."""
    n = n_rows * n_of_row(step.outputs[0])
    arguments = (
        step.inputs[0],
        second,
        step.outputs[0],
        np.int64(n),
        np.int32(period),
        np.int32(ACTIVATIONS.index(kind)),
        np.float32(number),
        np.float32(offset),
    )
    return [Launch(_ELEMENTWISE[name], (blocks_of(n), 1), arguments)]


def add(step: Step, n_rows: int) -> list[Launch]:
    """Add two values."""
    return _elementwise("ADD", step, n_rows, step.inputs[1])


def mul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply two values."""
    return _elementwise("MUL", step, n_rows, step.inputs[1])


def scale(step: Step, n_rows: int) -> list[Launch]:
    """Multiply by one number, rounded to float32."""
    return _elementwise("SCALE", step, n_rows, number=step.attrs["factor"])


def scale_by(step: Step, n_rows: int) -> list[Launch]:
    """Multiply by a weight for each value of the last axis, or one for all."""
    weight = step.weights[0]
    return _elementwise("MUL", step, n_rows, weight, period=weight.shape[0])


def shift_by(step: Step, n_rows: int) -> list[Launch]:
    """Add a weight for each value of the last axis, or one for all."""
    weight = step.weights[0]
    return _elementwise("ADD", step, n_rows, weight, period=weight.shape[0])


def activation(step: Step, n_rows: int) -> list[Launch]:
    """Apply an activation."""
    return _elementwise("ACTIVATION", step, n_rows, kind=step.attrs["kind"])


def gated(step: Step, n_rows: int) -> list[Launch]:
    """Multiply an activation with the second input."""
    attrs = step.attrs
    return _elementwise(
        "GATED",
        step,
        n_rows,
        step.inputs[1],
        kind=attrs["kind"],
        number=attrs["limit"],
        offset=attrs["offset"],
    )


def rms_norm(step: Step, n_rows: int) -> list[Launch]:
    """Normalise the last axis by its root mean square; heads are rows of their own."""
    return [normalise("rms_norm", step, n_rows)]


def l2_norm(step: Step, n_rows: int) -> list[Launch]:
    """Normalise the last axis by its length; heads are rows of their own."""
    return [normalise("l2_norm", step, n_rows)]


def layer_norm(step: Step, n_rows: int) -> list[Launch]:
    """Normalise the last axis less its mean by its deviation."""
    return [normalise("layer_norm", step, n_rows)]


def normalise(
    op: str, step: Step, n_rows: int, codes: Codes | None = None, *, is_kept: bool = True
) -> Launch:
    """Divide by the root of the sum of squares; rows become ``codes``, too, or these alone."""
    x = step.inputs[0]
    weight, bias = (*step.weights, None, None)[:2]
    grid = (n_parts_of(x, n_rows), 1)
    n = 1 if op == "l2_norm" else x.shape[-1]
    sizes = (np.int32(x.shape[-1]), np.float32(n), np.float32(step.attrs["eps"]))
    y = step.outputs[0] if is_kept else None
    lies = map(np.int32, (x.begin, x.apart, step.outputs[0].begin, step.outputs[0].apart))
    arguments = (x, weight, bias, y, *arrays_of(codes), *sizes, *lies)
    kernel = _NORMALISE[op == "layer_norm", codes.block if codes else 0]
    return Launch(kernel, grid, arguments, is_early=True)


def rope(step: Step, n_rows: int) -> list[Launch]:
    """Turn the first pairs of each head by its row's positions."""
    (x, positions), y = step.inputs, step.outputs[0]
    attrs, factors = step.attrs, (*step.weights, None)[0]
    arguments = (
        x,
        positions,
        step.constant(np.asarray(attrs["frequencies"], np.float64)),
        step.constant(np.asarray(attrs["axes"], np.int32)),
        factors,
        y,
        np.int32(len(attrs["frequencies"])),
        np.int32(positions.shape[1]),
        *map(np.int32, (*x.shape[1:], x.begin, x.apart, y.begin, y.apart)),
        np.float64(attrs["magnitude"]),
    )
    return [Launch(_ROPE[attrs["style"]], (n_rows, 1), arguments)]


def _copy(
    x: DeviceArray,
    y: DeviceArray,
    n_rows: int,
    width: int,
    *,
    begin: int = 0,
    to: int = 0,
    repeats: int = 1,
    rows: DeviceArray | None = None,
    from_row: int = 0,
    to_row: int = 0,
) -> Launch:
    """Copy columns of rows, counted over all axes but the last; of these ``rows``, if given."""
    sizes = (width, x.apart, x.begin + begin, y.shape[-1], to, repeats)
    counts = map(np.int64, (n_rows, from_row, to_row))
    arguments = (x, rows, y, *counts, *map(np.int32, sizes))
    return Launch(_COPY, (blocks_of(n_rows * width), 1), arguments)


def copy_rows(
    x: DeviceArray,
    y: DeviceArray,
    n_rows: int,
    *,
    from_row: int = 0,
    rows: DeviceArray | None = None,
    to_row: int,
    to: int = 0,
) -> Launch:
    """Copy rows of x, from one on or these, to rows of y, from column ``to`` of one on."""
    return _copy(x, y, n_rows, x.shape[1], to=to, rows=rows, from_row=from_row, to_row=to_row)


def mark_not_finite(
    x: DeviceArray, marks: DeviceArray, first: int, n_rows: int, begin: int = 0
) -> Launch:
    """Say which of n rows of x, from one on, hold NaN or infinity: int32, from ``begin`` on."""
    arguments = (x, marks, np.int64(first), *map(np.int32, (begin, x.shape[1])))
    return Launch(_NOT_FINITE, (n_rows, 1), arguments)


def concat(step: Step, n_rows: int) -> list[Launch]:
    """Copy each part to its place on the last axis, unless it was made there."""
    y, launches, to = step.outputs[0], [], 0
    for x in step.inputs:
        if not x.pitch or x.memory is not y.memory:
            launches.append(_copy(x, y, n_parts_of(x, n_rows), x.shape[-1], to=to))
        to += x.shape[-1]
    return launches


def slice_(step: Step, n_rows: int) -> list[Launch]:
    """Copy some columns, unless they are read where they are."""
    x, y = step.inputs[0], step.outputs[0]
    if y.pitch:
        return []
    return [_copy(x, y, n_parts_of(x, n_rows), y.shape[-1], begin=step.attrs["start"])]


def repeat(step: Step, n_rows: int) -> list[Launch]:
    """Copy one head to all."""
    x, y = step.inputs[0], step.outputs[0]
    return [_copy(x, y, n_parts_of(y, n_rows), x.shape[-1], repeats=y.shape[1])]


def outputs(step: Step, n_rows: int) -> list[Launch]:
    """Copy the rows that were asked for."""
    x, y = (_flat(array) for array in (step.inputs[0], step.outputs[0]))
    return [_copy(x, y, n_rows, x.shape[1], rows=step.chosen)]


def _flat(array: DeviceArray) -> DeviceArray:
    """See a row as one axis."""
    return msgspec.structs.replace(array, shape=(array.shape[0], n_of_row(array)))


def seen_otherwise(step: Step, n_rows: int) -> list[Launch]:
    """Do nothing: the output is the input's memory with another shape."""
    return []


def mix(step: Step, n_rows: int) -> list[Launch]:
    """Add the ranks' rows, each times its share."""
    return [Mix(step).launch(n_rows)]


class Norm(msgspec.Struct, frozen=True):
    """Rows that may be normalised where they are made, by the block that ends last.

    They become ``codes`` where these are given, and are kept where somebody reads them.
    """

    op: str
    step: Step
    codes: Codes | None
    is_kept: bool

    def fits(self, n_rows: int) -> bool:
        """Whether they are so few that one block does it, and whole rows."""
        return n_rows <= _MOST_NORMED and not self.step.outputs[0].pitch

    def launch(self, n_rows: int) -> Launch:
        """Return a launch of its own."""
        return normalise(self.op, self.step, n_rows, self.codes, is_kept=self.is_kept)

    @property
    def is_centred(self) -> bool:
        """Whether rows lose their mean."""
        return self.op == "layer_norm"

    @property
    def made(self) -> tuple[Any, ...]:
        """Return the codes as kernels take them, and how many values are a block."""
        return made_of(self.codes)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the rest that kernels take."""
        weight, bias = (*self.step.weights, None, None)[:2]
        y = self.step.outputs[0] if self.is_kept else None
        return weight, bias, y, np.float32(self.step.attrs["eps"])


class Mix(msgspec.Struct, frozen=True):
    """Ranks' rows that become one, each times its share, plus what up to two ``totals`` add.

    Few may be mixed where the ranks' rows are made; ``norm`` is that of rows that are mixed.
    """

    step: Step
    totals: Sequence[Step] = ()
    norm: Norm | None = None

    @staticmethod
    def fits(n_rows: int) -> bool:
        """Whether they are so few that blocks of the products do it."""
        return n_rows <= _MOST_MIXED

    def launch(self, n_rows: int) -> Launch:
        """Return a launch of its own."""
        x, (shares, first, second, y) = self.step.inputs[0], self.arguments
        sizes, grid = (n_rows, *x.shape[1:]), (blocks_of(n_rows * x.shape[2]), 1)
        counters, normed = None, _NO_NORM
        if norm := self.norm:
            counters = counters_for(self.step, 1)
            normed = np.int32(norm.is_centred), *norm.made, *norm.arguments
        arguments = (x, shares, first, second, y, *map(np.int32, sizes), counters, *normed)
        return Launch(_MIX, grid, arguments)

    @property
    def arguments(self) -> tuple[DeviceArray | None, ...]:
        """Return the shares, what is added first and second, and where that is put."""
        y, residuals = self.step.outputs[0], list[DeviceArray]()
        for total in self.totals:
            residuals.append(other_of(total, y))
            y = total.outputs[0]
        first, second = (*residuals, None, None)[:2]
        return self.step.inputs[1], first, second, y


def other_of(total: Step, part: DeviceArray) -> DeviceArray:
    """Return what a sum adds to a part."""
    (other,) = (given for given in total.inputs if given is not part)
    return other


LAUNCHERS: dict[str, Launcher] = {
    "add": add,
    "mul": mul,
    "scale": scale,
    "scale_by": scale_by,
    "shift_by": shift_by,
    "activation": activation,
    "gated": gated,
    "rms_norm": rms_norm,
    "l2_norm": l2_norm,
    "layer_norm": layer_norm,
    "rope": rope,
    "concat": concat,
    "slice": slice_,
    "repeat": repeat,
    "split_heads": seen_otherwise,
    "merge_heads": seen_otherwise,
    "outputs": outputs,
    "mix": mix,
}
