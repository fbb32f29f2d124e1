"""Which operation has which arithmetic; those that only move values keep the formulas' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mtpcore.backends.base import WeightTensor
from mtpcore.backends.reference.arithmetic import (
    block_rows,
    candidates,
    elementwise,
    experts,
    recurrent,
)
from mtpcore.backends.reference.arithmetic.attention import (
    attention,
    cross_attention,
    remember,
)
from mtpcore.backends.reference.arithmetic.fused import F32
from mtpcore.backends.reference.arithmetic.matrix import (
    FloatMatrix,
    Matrix,
    load_matrix,
    load_table,
)
from mtpcore.backends.reference.recurrent import causal_conv, delta_rule
from mtpcore.backends.reference.run import Array, Operation, Run, by_block, with_positions
from mtpcore.graph.program import Weight

__all__ = ["OPERATIONS", "load"]


def matmul(x: F32, w: Matrix, bias: F32 | None = None) -> F32:
    """Return w x, then plus bias: the sum with the bias is a rounding of its own."""
    y = w.times(x)
    return y if bias is None else y + bias


def at_once(formula: Callable[..., Any]) -> Operation:
    """Make an operation of a formula over all rows: ``formula(*inputs, *weights, **attrs)``."""

    def operation(
        run: Run, inputs: list[Array], weights: list[Any], attrs: dict[str, Any]
    ) -> tuple[Array, ...]:
        results = formula(*inputs, *weights, **attrs)
        return results if isinstance(results, tuple) else (results,)

    return operation


OPERATIONS: dict[str, Operation] = {
    "matmul": at_once(matmul),
    "matmul_by_position": with_positions(at_once(experts.matmul_by_position)),
    "rms_norm": at_once(elementwise.rms_norm),
    "l2_norm": at_once(elementwise.l2_norm),
    "layer_norm": at_once(elementwise.layer_norm),
    "scale": at_once(elementwise.scale),
    "clamp": at_once(elementwise.clamp),
    "scale_by_position": at_once(elementwise.scale_by_position),
    "activation": at_once(elementwise.activation),
    "xielu": at_once(elementwise.xielu),
    "gaussian_topk": at_once(elementwise.gaussian_topk),
    "gated": at_once(elementwise.gated),
    "rope": at_once(elementwise.rope),
    "attention": attention,
    "remember": remember,
    "cross_attention": cross_attention,
    "causal_conv": causal_conv(recurrent.convolve),
    "block_mean": by_block(block_rows.block_mean),
    "block_mix": by_block(block_rows.block_mix),
    "block_conv": by_block(block_rows.block_conv),
    "block_attention": by_block(candidates.block_attention),
    "block_walk": by_block(candidates.block_walk),
    "find_best": at_once(candidates.find_best),
    "delta_rule": delta_rule(recurrent.read_state),
    "route": at_once(experts.route),
    "expert_matmul": at_once(experts.expert_matmul),
    "cluster_matmul": at_once(experts.cluster_matmul),
    "head_matmul": at_once(experts.head_matmul),
    "rank_matmul": at_once(candidates.rank_matmul),
    "mix": at_once(experts.mix),
    "add_chosen": at_once(experts.add_chosen),
}

_MATRICES: dict[str, Callable[[WeightTensor, Weight], Any]] = {
    "embed": load_table,
    "embed_by_position": load_table,
    "embed_positions": load_table,
    "embed_codes": load_table,
    "embed_ids": load_table,
    "matmul": load_matrix,
    "matmul_by_position": load_matrix,
    "expert_matmul": load_matrix,
    "cluster_matmul": load_matrix,
    "head_matmul": load_matrix,
    "rank_matmul": load_matrix,
    "route": lambda tensor, weight: FloatMatrix(_array(tensor, weight)),
}


def load(op: str, index: int, tensor: WeightTensor, weight: Weight) -> Any:
    """Return weight ``index`` of an operation as its formula here takes it."""
    if index == 0 and op in _MATRICES:
        return _MATRICES[op](tensor, weight)
    return _array(tensor, weight)


def _array(tensor: WeightTensor, weight: Weight) -> F32:
    return np.asarray(tensor.array(), np.float32).reshape(weight.shape)
