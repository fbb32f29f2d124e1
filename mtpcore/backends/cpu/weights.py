"""Weights as the kernels read them, made once for a model and shared by its contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from mtpcore._ext._matmul import PackedMatrix, is_native, pack
from mtpcore.backends.base import F32, WeightSource
from mtpcore.errors import BackendError, CapacityError
from mtpcore.graph.program import Program, Weight

__all__ = ["Weights"]

Made = TypeVar("Made")

_ROWS = 32
"""Rows that are packed together; where a matrix has too few, zeros fill them up."""
_MOST_ADDED = 1 << 24
"""Zeros that are no reason to worry, whatever the matrices hold."""

_NATIVE = [int(kind) for kind in GGMLQuantizationType if is_native(int(kind))]
_F32 = int(GGMLQuantizationType.F32)


class Weights:
    """The packed weights of one model, in its ``packed`` table."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    def matrix(self, weight: Weight) -> PackedMatrix:
        """Return a matrix in its own type, or in the one its tie asks for."""

        def make() -> PackedMatrix:
            kind, data = self._blocks(weight)
            return pack(data, kind, *weight.shape)

        return self._once("matrix", weight, make)

    def exact_matrix(self, weight: Weight) -> PackedMatrix:
        """Return a matrix in float32."""
        return self._once(
            "exact matrix", weight, lambda: pack(self._values(weight), _F32, *weight.shape)
        )

    def stack(self, weight: Weight) -> list[PackedMatrix]:
        """Return the matrices of experts or heads, packed one by one."""

        def make() -> list[PackedMatrix]:
            kind, data = self._blocks(weight)
            return [pack(matrix, kind, *weight.shape[1:]) for matrix in data]

        return self._once("stack", weight, make)

    def pack_ahead(self, program: Program, threads: int) -> None:
        """Pack all matrices of a program, several at a time: packing waits for memory.

        Raises
        ------
        CapacityError
            There is no memory, or shapes are such that most of it would be filling.
        """
        forms = {
            "embed": self.matrix,
            "matmul": self.matrix,
            "expert_matmul": self.stack,
            "head_matmul": self.stack,
            "route": self.exact_matrix,
        }
        wanted = {
            (node.op, weight.tensor, weight.retype): (forms[node.op], weight)
            for node in program.nodes
            if node.op in forms
            for weight in node.weights[:1]
            if weight is not None
        }
        _check_padding([weight for _, weight in wanted.values()])
        with ThreadPoolExecutor(max(threads, 1)) as pool:
            for done in [pool.submit(make, weight) for make, weight in wanted.values()]:
                done.result()

    def vector(self, weight: Weight | None) -> F32 | None:
        """Return float32 values, or None where there is no weight."""
        if weight is None:
            return None
        return self._once("vector", weight, lambda: self._values(weight))

    def _once(self, form: str, weight: Weight, make: Callable[[], Made]) -> Made:
        key = ("cpu", form, weight.tensor, weight.retype)
        if key not in self._source.packed:
            self._source.packed[key] = make()
        made: Made = self._source.packed[key]
        return made

    def _values(self, weight: Weight) -> F32:
        return np.ascontiguousarray(self._source.tensors[weight.tensor].array(), np.float32)

    def _blocks(self, weight: Weight) -> tuple[int, NDArray[np.uint8]]:
        """Return a type with kernels and the tensor's bytes in it, uint8[*shape[:-1], n]."""
        tensor = self._source.tensors[weight.tensor]
        if weight.retype is None:
            return (tensor.type, tensor.raw()) if tensor.type in _NATIVE else tensor.native(_NATIVE)
        kind = GGMLQuantizationType[weight.retype]
        if int(kind) not in _NATIVE:
            raise BackendError("no kernels for the type", where=weight.wanted, got=weight.retype)
        try:
            data = quants.quantize(self._values(weight), kind)
        except NotImplementedError as error:
            raise BackendError(
                "no quantisation to the type", where=weight.wanted, got=weight.retype
            ) from error
        return int(kind), data.view(np.uint8)


def _check_padding(weights: Sequence[Weight]) -> None:
    """Refuse matrices of few and very long rows: a small file would take a lot of memory."""
    held = added = 0
    for weight in weights:
        values = math.prod(weight.shape)
        held += values
        added += values // weight.shape[-2] * (-weight.shape[-2] % _ROWS)
    if added > held + _MOST_ADDED:
        raise CapacityError(
            "matrices have few and very long rows",
            wanted=f"at most {held + _MOST_ADDED} values to fill up groups of {_ROWS} rows",
            got=added,
            fix="check that the file is what it says it is",
        )
