"""What the CUDA backend computes, to the last bit: the reference with its own orders of sums."""

import functools

import numpy as np

from harness.cuda_orders import PLACES, Product, above_cutoff, normalised
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.backends.reference.arithmetic.attention import attention, cross_attention
from mtpcore.backends.reference.arithmetic.formats import stored
from mtpcore.backends.reference.arithmetic.table import at_once

PRODUCTS = (
    "matmul",
    "matmul_by_position",
    "expert_matmul",
    "cluster_matmul",
    "head_matmul",
    "rank_matmul",
)


def rms_norm(x, w=None, *, eps):
    return normalised(x, w, n=x.shape[-1], eps=eps)


def l2_norm(x, *, eps):
    return normalised(x, n=1, eps=eps)


def layer_norm(x, w=None, bias=None, *, eps):
    return normalised(x, w, bias, n=x.shape[-1], eps=eps, centred=True)


def gaussian_topk(x, *, n_deviations):
    return above_cutoff(x, n_deviations)


BY_ROW = (rms_norm, l2_norm, layer_norm, gaussian_topk)
OPERATIONS = {
    **{function.__name__: at_once(function) for function in BY_ROW},
    "attention": functools.partial(attention, n_of_range=PLACES),
    "cross_attention": functools.partial(cross_attention, n_of_range=PLACES),
}


class CudaDefinition(ReferenceBackend):
    """``ReferenceBackend`` in the order in which the CUDA kernels add."""

    def __init__(self):
        super().__init__(quantise_activations=True)

    def operation(self, op):
        return OPERATIONS.get(op) or super().operation(op)

    def _load_as_kernels(self, node, index, weight, source):
        if index or node.op not in (*PRODUCTS, "route"):
            return super()._load_as_kernels(node, index, weight, source)
        key = ("cuda definition", node.op, weight.tensor)
        if key not in source.packed:
            source.packed[key] = self._product(node.op, weight.shape, source.tensors[weight.tensor])
        return source.packed[key]

    def _product(self, op, shape, tensor):
        if op == "route":
            return Product(0, np.asarray(tensor.array(), np.float32).view(np.uint8))
        kind, raw = stored(tensor)
        raw = raw.reshape(*shape[:-1], -1)
        return Product(kind, raw) if len(shape) == 2 else [Product(kind, part) for part in raw]


@functools.cache
def definition():
    return CudaDefinition()
