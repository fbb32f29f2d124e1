"""Weights on the device as their operations read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mtpcore.backends.base import WeightSource, WeightTensor
from mtpcore.backends.cuda.device import Device
from mtpcore.backends.cuda.launch.products import ClusteredMatrix, DeviceMatrix
from mtpcore.backends.cuda.layout import NATIVE_TYPES, PackedMatrix, pack
from mtpcore.errors import BackendError
from mtpcore.graph.buckets import distance_buckets
from mtpcore.graph.program import Node

__all__ = ["MATRICES", "load_weight", "upload"]

MATRICES = {
    "embed": "matrix",
    "embed_by_position": "matrix",
    "embed_codes": "matrix",
    "matmul": "matrix",
    "matmul_by_position": "matrix",
    "expert_matmul": "matrix",
    "head_matmul": "matrix",
    "cluster_matmul": "clusters",
    "route": "exact matrix",
}
"""How operations want their first weight, where it is no vector; all others are vectors."""


def upload(device: Device, packed: PackedMatrix) -> DeviceMatrix:
    """Copy a packed matrix, or a stack of them, to the device."""
    planes = (packed.high, packed.factors, packed.scales)
    return DeviceMatrix(
        packed.type,
        packed.n_matrices,
        packed.n_rows,
        packed.n_cols,
        device.upload(packed.low),
        *(None if plane is None else device.upload(plane) for plane in planes),
    )


def load_weight(device: Device, node: Node, index: int, source: WeightSource) -> Any:
    """Return weight ``index`` of a node on the device, shared by all plans of the source.

    Raises
    ------
    BackendError
        Clusters name rows that the matrix does not have.
    """
    weight = node.weights[index]
    assert weight is not None
    form = MATRICES.get(node.op, "vector") if index == 0 else "vector"
    if node.op == "attention" and index == 1:
        form = f"bias by distance, {node.attrs['mask']}, {node.attrs['max_distance']}"
    key = ("cuda", device.name, form, weight.tensor)
    if key not in source.packed:
        tensor, shape = source.tensors[weight.tensor], weight.shape
        if form == "matrix":
            made: Any = upload(device, pack(*_native(tensor), shape))
        elif form == "exact matrix":
            values = np.asarray(tensor.array(), np.float32)
            made = upload(device, pack(values.view(np.uint8).reshape(-1), int(Type.F32), shape))
        elif form == "clusters":
            ordering = node.weights[1]
            assert ordering is not None
            rows = _ordering(source.tensors[ordering.tensor], shape[0], ordering.tensor)
            raw, kind = _native(tensor)
            cut = raw.reshape(shape[0], -1)[rows]
            n = node.attrs["n_clusters"]
            stack = upload(device, pack(cut.reshape(-1), kind, (n, shape[0] // n, shape[1])))
            made = ClusteredMatrix(stack, device.upload(rows))
        elif form.startswith("bias"):
            table = np.asarray(tensor.array(), np.float32)
            furthest, ahead = node.attrs["max_distance"], node.attrs["mask"] == "block"
            made = device.upload(table[distance_buckets(len(table), furthest, ahead=ahead)])
        else:
            made = device.upload(np.asarray(tensor.array(), np.float32))
        source.packed[key] = made
    return source.packed[key]


def _native(tensor: WeightTensor) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes of a tensor in a type that has kernels, and that type."""
    if tensor.type in NATIVE_TYPES:
        return tensor.raw(), tensor.type
    kind, rows = tensor.native(NATIVE_TYPES)
    return rows, kind


def _ordering(tensor: WeightTensor, n_rows: int, name: str) -> NDArray[np.int32]:
    rows = np.ascontiguousarray(tensor.array(), np.int32)
    if rows.min() < 0 or rows.max() >= n_rows:
        raise BackendError(
            "clusters of rows that the matrix does not have",
            where=name,
            wanted=f"0..{n_rows - 1}",
            got=f"{rows.min()}..{rows.max()}",
        )
    return rows
