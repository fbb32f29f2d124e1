"""The values of a planned tensor, read and changed a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mtpcore.boundary.sizes import Count
from mtpcore.conversion.declared import ask
from mtpcore.conversion.float8 import find_ranks, regroup, scale_blocks
from mtpcore.conversion.plan import ConversionPlan, PlannedTensor, apply_change
from mtpcore.conversion.published import PublishedTensor
from mtpcore.declarations.checkpoint import Config
from mtpcore.errors import ModelFileError
from mtpcore.gguf.types import BLOCKS, block_type

__all__ = ["check_scales", "read_values"]

_FIX = "download the checkpoint again"
_PIECE = 1 << 20  # values read at once where nothing forbids it


def check_scales(plan: ConversionPlan, config: Config) -> None:
    """Check that matrices of eight bits can be multiplied by their scales.

    Raises
    ------
    ModelFileError
        Naming the scales that are not one for each block.
    """
    for planned in plan.tensors:
        for source in planned.sources:
            scales = plan.scales.get(source.name)
            if scales is not None:
                _check(planned, source, scales, config)


def _check(
    planned: PlannedTensor, source: PublishedTensor, scales: PublishedTensor, config: Config
) -> None:
    where, shape, block = f"{scales.file}: {scales.name}", source.shape, _block(config)
    if len(shape) != 2 or scales.is_integer:
        raise ModelFileError(
            "only matrices have scales, which are fractions",
            where=where,
            wanted="fractions for two axes",
            got=f"{scales.kind} for {len(shape)}",
            fix=_FIX,
        )
    n_columns = -(-shape[1] // block[1])
    if planned.rename.shards is None:
        wanted = (-(-shape[0] // block[0]), n_columns)
    else:
        shards = planned.rename.shards
        n_ranks = find_ranks(shape[0], scales.n_rows, block[0], shards.ranks)
        wanted = (scales.n_rows, n_columns)
        parts = ask(shards.parts, config, planned.n, what="no parts of the matrix", where=where)
        if sum(parts) != shape[0] or any(part < 0 or part % n_ranks for part in parts):
            raise ModelFileError(
                "the matrix is not cut as the configuration says",
                where=f"{source.file}: {source.name}",
                wanted=f"{n_ranks} ranks of {' + '.join(map(str, parts))} rows",
                got=f"{shape[0]} rows",
                fix=_FIX,
            )
    if scales.shape != wanted:
        raise ModelFileError(
            "not one scale for each block",
            where=where,
            wanted=wanted,
            got=scales.shape,
            fix=_FIX,
        )


def read_values(
    planned: PlannedTensor, plan: ConversionPlan, config: Config
) -> Iterator[np.ndarray]:
    """Yield a tensor's values, float32 or integers, one after the other.

    A source without a change comes in pieces of some rows, a stack of experts one by one, another
    source whole.
    """
    if planned.made is not None:
        yield planned.made
        return
    wanted = planned.shape[1:] if planned.stacked else planned.shape
    if planned.rename.blocks:
        wanted = (*wanted[:-1], _bytes_of(wanted[-1], planned.rename.blocks))
    for source in planned.sources:
        scales = plan.scales.get(source.name)
        if planned.rename.change is None and (scales is None or planned.rename.shards is None):
            yield from _pieces(source, scales, config)
            continue
        for item in _items(planned, source, scales, config):
            values = apply_change(planned.rename, item[0], config, source.name, *item[1:])
            if values.shape != wanted:
                raise ModelFileError(
                    "the change returned another shape than for zeros",
                    where=f"{config.file}: tensor {source.name}",
                    wanted=wanted,
                    got=values.shape,
                    fix="let the change's shapes depend on shapes alone",
                )
            yield values


def _items(
    planned: PlannedTensor,
    source: PublishedTensor,
    scales: PublishedTensor | None,
    config: Config,
) -> Iterator[list[np.ndarray]]:
    """Yield what a change gets: each expert of a stack, or the source as it is; what it gets also.

    Raises
    ------
    ModelFileError
        The other tensor holds another number of experts.
    """
    also = planned.also
    if not planned.rename.is_stack:
        yield [_whole(planned, source, scales, config), *(one.rows() for one in also)]
        return
    tensors = [source, *also]
    for one in also:
        if one.n_rows != source.n_rows:
            raise ModelFileError(
                "another number of experts",
                where=f"{one.file}: tensor {one.name!r}",
                wanted=source.n_rows,
                got=one.n_rows,
                fix=_FIX,
            )
    for i in range(source.n_rows):
        yield [tensor.rows(i, i + 1)[0] for tensor in tensors]


def _bytes_of(n_values: int, kind: str) -> int:
    """Return the bytes of a row of blocks."""
    per_block, n_bytes = BLOCKS[block_type(kind) or 0]
    return int(n_values // per_block * n_bytes)


def _pieces(
    source: PublishedTensor, scales: PublishedTensor | None, config: Config
) -> Iterator[np.ndarray]:
    block = _block(config) if scales is not None else (1, 1)
    step = max(1, _PIECE // max(1, math.prod(source.shape[1:])) // block[0]) * block[0]
    for begin in range(0, source.n_rows, step):
        end = min(begin + step, source.n_rows)
        values = source.rows(begin, end)
        if scales is not None:
            scale_blocks(values, scales.rows()[begin // block[0] : -(-end // block[0])], block)
        yield values


def _whole(
    planned: PlannedTensor,
    source: PublishedTensor,
    scales: PublishedTensor | None,
    config: Config,
) -> np.ndarray:
    values = source.rows()
    if scales is None:
        return values
    shards, block = planned.rename.shards, _block(config)
    if shards is None:
        scale_blocks(values, scales.rows(), block)
        return values
    n_ranks = find_ranks(len(values), scales.n_rows, block[0], shards.ranks)
    scale_blocks(values, scales.rows(), block, n_ranks)
    return regroup(values, shards.parts(config, planned.n), n_ranks)


def _block(config: Config) -> tuple[int, int]:
    path, default = "quantization_config.weight_block_size", (128, 128)
    block: tuple[int, int] = config.get(path, default=default, type=tuple[Count, Count])
    return block
