"""Operations that make a row of rows, without a product: values alone, norms, rotations, parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.codes import Codes, arrays_of
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
from mtpcore.graph.program import OUTPUTS

__all__ = [
    "KERNELS",
    "LAUNCHERS",
    "Mix",
    "Norm",
    "angles_of",
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

_ELEMENTWISE = {
    name: Kernel("elementwise", (("OPERATION", name),))
    for name in ("ADD", "MUL", "SCALE", "CLAMP", "ACTIVATION", "GATED")
}
_NORMALISE = {
    (centred, block): Kernel("normalise", (("CENTRED", str(int(centred))), ("BLOCK", str(block))))
    for centred in (False, True)
    for block in (0, 32, 256)
}
_ROPE = {style: Kernel("rope", (("PAIRS", str(i)),)) for i, style in enumerate(("halves", "pairs"))}
_COPY, _MIX, _NOT_FINITE = Kernel("copy"), Kernel("mix"), Kernel("not_finite")
_ADD_CHOSEN, _TOKEN_IDS = Kernel("add_chosen"), Kernel("token_ids")
_KEEP_BEST, _FIND_BEST = Kernel("keep_best"), Kernel("find_best")
_SCALE_BY_POSITION = Kernel("scale_by_position")
_XIELU, _GAUSSIAN_TOPK = Kernel("xielu"), Kernel("gaussian_topk")
_GROUP_IDS, _GIVEN_IDS, _PAIR_IDS = Kernel("group_ids"), Kernel("given_ids"), Kernel("pair_ids")
KERNELS = (
    *_ELEMENTWISE.values(),
    *_NORMALISE.values(),
    *_ROPE.values(),
    _COPY,
    _MIX,
    _NOT_FINITE,
    _KEEP_BEST,
    _FIND_BEST,
    _SCALE_BY_POSITION,
    _XIELU,
    _GAUSSIAN_TOPK,
    _GROUP_IDS,
    _GIVEN_IDS,
    _PAIR_IDS,
    _ADD_CHOSEN,
    _TOKEN_IDS,
)


def _elementwise(
    name: str,
    step: Step,
    n_rows: int,
    second: DeviceArray | None = None,
    *,
    period: int = 0,
    each: int = 0,
    ids: DeviceArray | None = None,
    kind: str = ACTIVATIONS[0],
    number: float = 0,
    offset: int = 0,
) -> list[Launch]:
    """Compute each value of the output alone; see the kernel for which of ``second`` it takes."""
    kernel, n = _ELEMENTWISE[name], n_rows * n_of_row(step.outputs[0])
    arguments = kernel.arguments(
        a=step.inputs[0],
        b=second,
        y=step.outputs[0],
        n=n,
        ids=ids,
        period=period,
        each=each,
        kind=ACTIVATIONS.index(kind),
        number=number,
        offset=offset,
    )
    return [Launch(kernel, (blocks_of(n), 1), arguments)]


def add(step: Step, n_rows: int) -> list[Launch]:
    """Add two values."""
    return _elementwise("ADD", step, n_rows, step.inputs[1])


def mul(step: Step, n_rows: int) -> list[Launch]:
    """Multiply two values, or each head by a value."""
    a, b = step.inputs
    each = a.shape[-1] if len(b.shape) < len(a.shape) else 0
    return _elementwise("MUL", step, n_rows, b, each=each)


def scale(step: Step, n_rows: int) -> list[Launch]:
    """Multiply by one number, rounded to float32."""
    return _elementwise("SCALE", step, n_rows, number=step.attrs["factor"])


def clamp(step: Step, n_rows: int) -> list[Launch]:
    """Cut values to a limit, rounded to float32."""
    return _elementwise("CLAMP", step, n_rows, number=step.attrs["limit"])


def scale_by_position(step: Step, n_rows: int) -> list[Launch]:
    """Multiply rows by factors that their positions give."""
    (x, positions), attrs = step.inputs, step.attrs
    arguments = _SCALE_BY_POSITION.arguments(
        x=x,
        positions=positions,
        y=step.outputs[0],
        width=n_of_row(x),
        n_axes=positions.shape[1],
        n=attrs["n"],
        offset=attrs["offset"],
        beta=attrs["beta"],
    )
    return [Launch(_SCALE_BY_POSITION, (n_rows, 1), arguments)]


def _by_weight(name: str, step: Step, n_rows: int) -> list[Launch]:
    """Compute with a weight for each value of a row or of the last axis, or for each head, or all.

    Of heads, [H, 1] are those that the values of each share.
    """
    weight = step.weights[0]
    is_of_heads = len(weight.shape) == 2 and weight.shape[1] == 1
    each = step.inputs[0].shape[-1] if is_of_heads else 0
    return _elementwise(name, step, n_rows, weight, period=prod(weight.shape), each=each)


def scale_by(step: Step, n_rows: int) -> list[Launch]:
    """Multiply by weights."""
    return _by_weight("MUL", step, n_rows)


def shift_by(step: Step, n_rows: int) -> list[Launch]:
    """Add weights."""
    return _by_weight("ADD", step, n_rows)


def group_ids(step: Step, n_rows: int) -> list[Launch]:
    """Divide the ids of experts by how many a group has."""
    ids, n = step.inputs[0], n_rows * n_of_row(step.outputs[0])
    arguments = _GROUP_IDS.arguments(ids=ids, groups=step.outputs[0], n=n, **step.attrs)
    return [Launch(_GROUP_IDS, (blocks_of(n), 1), arguments)]


def given_ids(step: Step, n_rows: int) -> list[Launch]:
    """Take the ids that a batch brings, of all of its rows or of those that were asked for."""
    given, ids = step.inputs[0], step.outputs[0]
    rows = step.chosen if step.attrs["rows"] == OUTPUTS else None
    arguments = _GIVEN_IDS.arguments(
        given=given, rows=rows, ids=ids, n_rows=n_rows, width=n_of_row(ids), n=step.attrs["n"]
    )
    return [Launch(_GIVEN_IDS, (blocks_of(n_rows * n_of_row(ids)), 1), arguments)]


def pair_ids(step: Step, n_rows: int) -> list[Launch]:
    """Pair an id of each row with each of its other ids."""
    (first, second), width = step.inputs, n_of_row(step.outputs[0])
    arguments = _PAIR_IDS.arguments(
        first=first,
        second=second,
        ids=step.outputs[0],
        n=n_rows * width,
        first_width=n_of_row(first),
        width=width,
        **step.attrs,
    )
    return [Launch(_PAIR_IDS, (blocks_of(n_rows * width), 1), arguments)]


def token_ids(step: Step, n_rows: int) -> list[Launch]:
    """Find the rows that a token has in tables."""
    tokens, tables = step.inputs
    width = n_of_row(tables)
    arguments = _TOKEN_IDS.arguments(
        tokens=tokens,
        tables=tables,
        ids=step.outputs[0],
        n=n_rows * width,
        width=width,
        **step.attrs,
    )
    return [Launch(_TOKEN_IDS, (blocks_of(n_rows * width), 1), arguments)]


def scale_chosen(step: Step, n_rows: int) -> list[Launch]:
    """Multiply each rank's row by the factor of its expert."""
    (x, ids), (weight,) = step.inputs, step.weights
    return _elementwise("MUL", step, n_rows, weight, each=x.shape[-1], ids=ids)


def activation(step: Step, n_rows: int) -> list[Launch]:
    """Apply an activation."""
    return _elementwise("ACTIVATION", step, n_rows, kind=step.attrs["kind"])


def xielu(step: Step, n_rows: int) -> list[Launch]:
    """Apply the expanded integral of ELU."""
    n = n_rows * n_of_row(step.outputs[0])
    arguments = _XIELU.arguments(x=step.inputs[0], y=step.outputs[0], n=n, **step.attrs)
    return [Launch(_XIELU, (blocks_of(n), 1), arguments)]


def gaussian_topk(step: Step, n_rows: int) -> list[Launch]:
    """Cut the last axis by its mean and deviation; heads are rows of their own."""
    x, y = step.inputs[0], step.outputs[0]
    arguments = _GAUSSIAN_TOPK.arguments(
        x=x,
        y=y,
        width=x.shape[-1],
        n_deviations=step.attrs["n_deviations"],
    )
    return [Launch(_GAUSSIAN_TOPK, (n_parts_of(x, n_rows), 1), arguments)]


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
    x, y = step.inputs[0], step.outputs[0]
    weight, bias = (*step.weights, None, None)[:2]
    kernel = _NORMALISE[op == "layer_norm", codes.block if codes else 0]
    arguments = kernel.arguments(
        x=x,
        weight=weight,
        bias=bias,
        y=y if is_kept else None,
        **arrays_of(codes),
        width=x.shape[-1],
        n=1 if op == "l2_norm" else x.shape[-1],
        eps=step.attrs["eps"],
        x_begin=x.begin,
        x_pitch=x.apart,
        y_begin=y.begin,
        y_pitch=y.apart,
    )
    return Launch(kernel, (n_parts_of(x, n_rows), 1), arguments, is_early=True)


def rope(step: Step, n_rows: int) -> list[Launch]:
    """Rotate the first pairs of each head by its row's positions."""
    x, y = step.inputs[0], step.outputs[0]
    kernel = _ROPE[step.attrs["style"]]
    arguments = kernel.arguments(
        x=x,
        y=y,
        **angles_of(step),
        n_heads=x.shape[1],
        width=x.shape[2],
        x_begin=x.begin,
        x_pitch=x.apart,
        y_begin=y.begin,
        y_pitch=y.apart,
    )
    return [Launch(kernel, (n_rows, 1), arguments)]


def angles_of(rope: Step) -> dict[str, Any]:
    """Return what a kernel makes cosines and sines of, by the names that all kernels have for it.

    That are positions, and of each pair the frequency, what divides it, and the axis of positions.
    """
    positions, attrs = rope.inputs[1], rope.attrs
    return {
        "positions": positions,
        "frequencies": rope.constant(np.asarray(attrs["frequencies"], np.float64)),
        "axes": rope.constant(np.asarray(attrs["axes"], np.int32)),
        "factors": (*rope.weights, None)[0],
        "n_pairs": len(attrs["frequencies"]),
        "n_axes": positions.shape[1],
        "magnitude": attrs["magnitude"],
    }


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
    arguments = _COPY.arguments(
        x=x,
        rows=rows,
        y=y,
        n_rows=n_rows,
        from_row=from_row,
        to_row=to_row,
        width=width,
        x_width=x.apart,
        x_begin=x.begin + begin,
        y_width=y.shape[-1],
        y_begin=to,
        repeats=repeats,
    )
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
    arguments = _NOT_FINITE.arguments(x=x, marks=marks, first=first, begin=begin, width=x.shape[1])
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


def add_chosen(step: Step, n_rows: int) -> list[Launch]:
    """Add the ranks' rows that a row chose, each times its share."""
    (given, x, ids, shares), y = step.inputs, step.outputs[0]
    arguments = _ADD_CHOSEN.arguments(
        given=given,
        x=x,
        ids=ids,
        shares=shares,
        y=y,
        n_rows=n_rows,
        n_ranks=x.shape[1],
        width=x.shape[2],
        n=step.attrs["n"],
    )
    return [Launch(_ADD_CHOSEN, (blocks_of(n_rows * n_of_row(y)), 1), arguments)]


def keep_best(step: Step, n_rows: int) -> list[Launch]:
    """Keep the largest values of each row, by one block of threads."""
    x, y = step.inputs[0], step.outputs[0]
    arguments = _KEEP_BEST.arguments(x=x, y=y, n_columns=x.shape[1], n=step.attrs["n"])
    return [Launch(_KEEP_BEST, (n_rows, 1), arguments, block=1024)]


def find_best(step: Step, n_rows: int) -> list[Launch]:
    """Find the largest values of each row, and their shares, by one block of threads."""
    x, (ids, shares) = step.inputs[0], step.outputs
    arguments = _FIND_BEST.arguments(
        x=x, ids=ids, shares=shares, n_columns=x.shape[1], n=step.attrs["n"]
    )
    return [Launch(_FIND_BEST, (n_rows, 1), arguments, block=1024)]


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
    def weights(self) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Weight and bias, each if there is one."""
        weight, bias = (*self.step.weights, None, None)[:2]
        return weight, bias

    @property
    def kept(self) -> DeviceArray | None:
        """Where rows go that somebody reads."""
        return self.step.outputs[0] if self.is_kept else None

    @property
    def eps(self) -> float:
        """What is added to the mean square."""
        return float(self.step.attrs["eps"])


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
        x, (first, second) = self.step.inputs[0], self.residuals
        _, n_ranks, width = x.shape
        normed: dict[str, Any] = {}
        if norm := self.norm:
            weight, bias = norm.weights
            normed = {
                "counters": counters_for(self.step, 1),
                "is_centred": norm.is_centred,
                **arrays_of(norm.codes),
                "of_codes": norm.codes.block if norm.codes else 0,
                "weight": weight,
                "bias": bias,
                "normed": norm.kept,
                "eps": norm.eps,
            }
        arguments = _MIX.arguments(
            x=x,
            shares=self.shares,
            first=first,
            second=second,
            y=self.y,
            n_rows=n_rows,
            n_ranks=n_ranks,
            width=width,
            **normed,
        )
        return Launch(_MIX, (blocks_of(n_rows * width), 1), arguments)

    @property
    def shares(self) -> DeviceArray:
        """The share of each rank."""
        return self.step.inputs[1]

    @property
    def residuals(self) -> tuple[DeviceArray | None, DeviceArray | None]:
        """What is added to the mixed rows, and what to that sum."""
        made = self.step.outputs[0], *(total.outputs[0] for total in self.totals)
        others = (other_of(total, part) for total, part in zip(self.totals, made, strict=False))
        first, second = (*others, None, None)[:2]
        return first, second

    @property
    def y(self) -> DeviceArray:
        """Where rows go in the end."""
        return (self.step, *self.totals)[-1].outputs[0]


def other_of(total: Step, part: DeviceArray) -> DeviceArray:
    """Return what a sum adds to a part."""
    (other,) = (given for given in total.inputs if given is not part)
    return other


LAUNCHERS: dict[str, Launcher] = {
    "add": add,
    "mul": mul,
    "scale": scale,
    "clamp": clamp,
    "scale_by": scale_by,
    "scale_by_position": scale_by_position,
    "shift_by": shift_by,
    "scale_chosen": scale_chosen,
    "activation": activation,
    "xielu": xielu,
    "gaussian_topk": gaussian_topk,
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
    "add_chosen": add_chosen,
    "keep_best": keep_best,
    "find_best": find_best,
    "group_ids": group_ids,
    "given_ids": given_ids,
    "pair_ids": pair_ids,
    "token_ids": token_ids,
}
