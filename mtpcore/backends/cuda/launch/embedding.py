"""Rows of tables: of tokens, of tokens at a position, of codes."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.launch.step import Launch, Launcher, Step, blocks_of
from mtpcore.backends.cuda.layout import FLOATS, FORMATS
from mtpcore.graph.parts import part_sizes

__all__ = ["KERNELS", "LAUNCHERS"]

_EMBED = {
    (kind, is_sum): Kernel("embed", (*variant, ("IS_SUM", str(int(is_sum)))))
    for kind, variant in [
        *((kind, layout.defines()) for kind, layout in FORMATS.items()),
        *((kind, (("TYPE", str(number)),)) for kind, number in FLOATS.items()),
    ]
    for is_sum in (False, True)
}
_EMBEDDING_ROWS = Kernel("embedding_rows")
KERNELS = (*_EMBED.values(), _EMBEDDING_ROWS)


def embed(step: Step, n_rows: int) -> list[Launch]:
    """Look up each token, or copy the row in its place."""
    given = (*step.inputs, None)[1]
    attrs = step.attrs
    return _embed(step, n_rows, given=given, absent=attrs["absent"], factor=attrs["scale"])


def embed_by_position(step: Step, n_rows: int) -> list[Launch]:
    """Look up each token in the part of its position, or copy the row in its place."""
    positions, given = (*step.inputs, None)[1:3]
    return _embed(step, n_rows, positions=positions, given=given, **step.attrs)


def embed_codes(step: Step, n_rows: int) -> list[Launch]:
    """Add the rows of a row's codes, each of a part of its own."""
    n_parts = step.inputs[0].shape[1]
    return _embed(step, n_rows, n_parts=n_parts, n_first=step.attrs["n_first"], is_sum=True)


def embedding_rows(step: Step, n_rows: int) -> list[Launch]:
    """Copy the row in a token's place."""
    tokens, given = step.inputs
    width = given.shape[1]
    arguments = (tokens, given, step.outputs[0], np.int32(width))
    return [Launch(_EMBEDDING_ROWS, (n_rows, blocks_of(width)), arguments)]


def _embed(
    step: Step,
    n_rows: int,
    *,
    positions: DeviceArray | None = None,
    given: DeviceArray | None = None,
    n_parts: int = 1,
    first: int = 0,
    n_first: int = 0,
    absent: int = -1,
    factor: float = 1.0,
    is_sum: bool = False,
) -> list[Launch]:
    ids, table = step.inputs[0], step.weights[0]
    assert isinstance(table, DeviceMatrix)
    n_ids = ids.shape[1] if is_sum else 1
    stride = positions.shape[1] if positions else 0
    of_first, of_part = part_sizes(table.n_rows, n_parts, n_first)
    sizes = (table.n_cols, of_part, of_first, n_ids, stride, first, n_parts, absent)
    arguments = (
        *(ids, positions, given, table.low, table.high, table.factors, table.scales),
        step.outputs[0],
        *map(np.int32, sizes),
        np.float32(factor),
    )
    return [Launch(_EMBED[table.type, is_sum], (n_rows, blocks_of(table.n_cols)), arguments)]


LAUNCHERS: dict[str, Launcher] = {
    "embed": embed,
    "embed_by_position": embed_by_position,
    "embed_codes": embed_codes,
    "embedding_rows": embedding_rows,
}
