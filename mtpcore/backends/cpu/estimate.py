"""Bytes of packed weights, computed without packing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mtpcore._ext._matmul import is_native, packed_bytes
from mtpcore.backends.base import WeightTensor
from mtpcore.backends.cpu.weights import FORMS, stays_mapped
from mtpcore.gguf.types import BLOCKS, F16, F32
from mtpcore.graph.program import Program, Weight

__all__ = ["estimate_packed_bytes"]


def estimate_packed_bytes(
    programs: Iterable[Program], tensors: Mapping[str, WeightTensor], *, repack: bool = True
) -> dict[str, int]:
    """Return the bytes of each packed tensor, shared ones once.

    Without ``repack`` a matrix that stays in the mapped file takes none. Exact where a tensor's
    type has kernels. Another type counts as float16, which it becomes unless its values ask for
    float32.
    """
    sizes: dict[tuple[str, str], int] = {}
    for program in programs:
        for node in program.nodes:
            for i, weight in enumerate(node.weights):
                if weight is None:
                    continue
                form = FORMS.get(node.op, "vector") if i == 0 else "vector"
                key = (form, weight.tensor)
                if key not in sizes:
                    stored = tensors[weight.tensor].type
                    sizes[key] = _bytes(weight, stored, form)
                    if form != "vector" and not repack and stays_mapped(stored, form):
                        sizes[key] = 0
    total: dict[str, int] = {}
    for (_, tensor), n in sizes.items():
        total[tensor] = total.get(tensor, 0) + n
    return total


def _bytes(weight: Weight, stored: int, form: str) -> int:
    if form == "vector":
        return 4 * prod(weight.shape)
    kind = F32
    if form != "exact matrix":
        kind = stored
        if not is_native(stored):
            kind = F16 if BLOCKS[stored][0] > 1 else F32
    *stack, n_rows, n_cols = weight.shape
    return prod(stack) * packed_bytes(kind, n_rows, n_cols)
