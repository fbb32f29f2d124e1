"""Weights on the device as their operations read them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from mtpcore.backends.base import WeightSource, WeightTensor
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.products import ClusteredMatrix, DeviceMatrix
from mtpcore.backends.cuda.layout import FORMATS, NATIVE_TYPES, PackedMatrix, pack
from mtpcore.backends.cuda.stacks import SHARED
from mtpcore.backends.cuda.uploads import Upload, convert, send_all
from mtpcore.errors import BackendError
from mtpcore.graph.buckets import distance_buckets
from mtpcore.graph.program import Node, Weight

__all__ = ["MATRICES", "CudaWeights", "upload"]

MATRICES = {
    "embed": "matrix",
    "embed_by_position": "matrix",
    "embed_positions": "matrix",
    "embed_codes": "matrix",
    "embed_ids": "matrix",
    "matmul": "matrix",
    "matmul_by_position": "matrix",
    "expert_matmul": "matrix",
    "head_matmul": "matrix",
    "rank_matmul": "matrix",
    "cluster_matmul": "clusters",
    "route": "exact matrix",
}
"""How operations want their first weight, where it is no vector; all others are vectors."""


def upload(device: Device, packed: PackedMatrix) -> DeviceMatrix:
    """Copy a packed matrix, or a stack of them, to the device."""
    planes: list[Any] = [None if plane is None else device.upload(plane) for plane in packed.planes]
    return DeviceMatrix(packed.type, packed.n_matrices, packed.n_rows, packed.n_cols, *planes)


class CudaWeights:
    """The weights of one plan, in the table of their model: each is on a device once.

    Vectors are there when they are loaded, and so are matrices of types without kernels, which are
    converted. The others have room there, and are sent by ``send``.
    """

    def __init__(self, device: Device, source: WeightSource, threads: int) -> None:
        self._device, self._source, self._threads = device, source, threads
        self._uploads: list[Upload] = []

    @property
    def bytes_left(self) -> int:
        """Bytes of matrices that are still to be sent, as they are in the file."""
        return sum(one.bytes_left for one in self._uploads)

    def send(self) -> bool:
        """Send what was not sent yet, by this plan or another one; say whether there was any.

        Raises
        ------
        BackendError
            The device does not answer; what has not arrived is left to be sent.
        """
        if not self._uploads:
            return False
        send_all(self._device, self._uploads, self._threads)
        self._uploads = []
        return True

    def are_alike(self, stack: Weight, matrix: Weight) -> bool:
        """Whether a matrix can be one more of a stack, which is multiplied with rows in int8."""
        kinds = {self._source.tensors[weight.tensor].type for weight in (stack, matrix)}
        return stack.shape[1:] == matrix.shape and len(kinds) == 1 and kinds <= {*FORMATS}

    def load(self, node: Node, index: int) -> Any:
        """Return weight ``index`` of a node on the device.

        Raises
        ------
        BackendError
            The device has no room, or no kernel for the type; or clusters name rows that the matrix
            does not have.
        """
        weight = node.weights[index]
        assert weight is not None
        form = MATRICES.get(node.op, "vector") if index == 0 else "vector"
        if node.op == "attention" and index == 1:
            form = f"bias by distance, {node.attrs['mask']}, {node.attrs['max_distance']}"
        shared = [node.attrs[SHARED].tensor] if index == 0 and SHARED in node.attrs else []
        if form == "vector":
            return self.vector(weight)
        key = ("cuda", f"{form}, {self._device.name}", weight.tensor, *shared)
        packed = self._source.packed
        if key not in packed:
            packed[key] = self._make(form, node, weight)
        made = packed[key]
        if not isinstance(made, Upload):
            return made
        if made not in self._uploads:
            self._uploads.append(made)
        return made.matrix

    def vector(self, weight: Weight) -> DeviceArray:
        """Return a weight's values on the device, float32 of its shape."""
        key, packed = ("cuda", f"vector, {self._device.name}", weight.tensor), self._source.packed
        if key not in packed:
            packed[key] = self._device.upload(self._values(weight))
        found: DeviceArray = packed[key]
        return found

    def _values(self, weight: Weight) -> NDArray[np.float32]:
        values = self._source.tensors[weight.tensor].array()
        return np.asarray(values, np.float32).reshape(weight.shape)

    def _make(self, form: str, node: Node, weight: Weight) -> Any:
        """Return a weight, or the upload of a matrix, for all plans of the model."""
        tensor = self._source.tensors[weight.tensor]
        if SHARED in node.attrs:
            n_matrices, *shape = weight.shape
            tensors = tensor, self._source.tensors[node.attrs[SHARED].tensor]
            return Upload(self._device, tensors, (n_matrices + 1, *shape))
        if form == "matrix":
            return self._matrix(tensor, weight.shape, NATIVE_TYPES)
        if form == "exact matrix":
            return self._matrix(tensor, weight.shape, (int(Type.F32),))
        if form == "clusters":
            return self._clusters(tensor, node, weight.shape)
        assert form.startswith("bias")
        values, ahead = self._values(weight), node.attrs["mask"] == "block"
        buckets = distance_buckets(len(values), node.attrs["max_distance"], ahead=ahead)
        return self._device.upload(values[buckets])

    def _matrix(
        self, tensor: WeightTensor, shape: tuple[int, ...], kinds: Collection[int]
    ) -> Upload | DeviceMatrix:
        if tensor.type in kinds:
            return Upload(self._device, [tensor], shape)
        return convert(self._device, tensor, shape, kinds)

    def _clusters(self, tensor: WeightTensor, node: Node, shape: tuple[int, ...]) -> Any:
        """Return a matrix whose rows are in the order of their clusters."""
        ordering = node.weights[1]
        assert ordering is not None
        rows = _ordering(self._source.tensors[ordering.tensor], shape[0], ordering.tensor)
        kind, raw = tensor.native(NATIVE_TYPES)
        cut = raw.reshape(shape[0], -1)[rows]
        n = node.attrs["n_clusters"]
        stack = pack(cut.reshape(-1), kind, (n, shape[0] // n, shape[1]))
        return ClusteredMatrix(upload(self._device, stack), self._device.upload(rows))


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
