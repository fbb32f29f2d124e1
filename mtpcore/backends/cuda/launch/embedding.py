"""Rows of tables: of tokens, of tokens at a position, of codes, of what a graph found itself."""

from __future__ import annotations

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


def embed_positions(step: Step, n_rows: int) -> list[Launch]:
    """Look up each position, as if it were a token."""
    return _embed(step, n_rows)


def embed_codes(step: Step, n_rows: int) -> list[Launch]:
    """Add the rows of a row's codes, each of a part of its own."""
    n_parts = step.inputs[0].shape[1]
    return _embed(step, n_rows, n_parts=n_parts, n_first=step.attrs["n_first"], is_sum=True)


def embed_ids(step: Step, n_rows: int) -> list[Launch]:
    """Look up each id of each row."""
    return _embed(step, n_rows * step.inputs[0].shape[1])


def embedding_rows(step: Step, n_rows: int) -> list[Launch]:
    """Copy the row in a token's place."""
    tokens, given = step.inputs
    width = given.shape[1]
    arguments = _EMBEDDING_ROWS.arguments(
        tokens=tokens, given=given, y=step.outputs[0], n_cols=width
    )
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
    kernel = _EMBED[table.type, is_sum]
    of_first, of_part = part_sizes(table.n_rows, n_parts, n_first)
    arguments = kernel.arguments(
        ids=ids,
        positions=positions,
        given=given,
        low=table.low,
        high=table.high,
        subs=table.factors,
        scales=table.scales,
        y=step.outputs[0],
        n_cols=table.n_cols,
        rows_of_part=of_part,
        rows_of_first=of_first,
        n_ids=ids.shape[1] if is_sum else 1,
        stride=positions.shape[1] if positions else 0,
        first=first,
        n_parts=n_parts,
        absent=absent,
        factor=factor,
    )
    return [Launch(kernel, (n_rows, blocks_of(table.n_cols)), arguments)]


LAUNCHERS: dict[str, Launcher] = {
    "embed": embed,
    "embed_by_position": embed_by_position,
    "embed_positions": embed_positions,
    "embed_codes": embed_codes,
    "embed_ids": embed_ids,
    "embedding_rows": embedding_rows,
}
