"""The launches of several nodes together; ``fusion`` says which."""

from __future__ import annotations

import msgspec

from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.attention import attend
from mtpcore.backends.cuda.launch.codes import Codes, codes_for, quantise, quantise_gated
from mtpcore.backends.cuda.launch.products import (
    Factor,
    multiply_codes,
    route,
    slots_of_experts,
    slots_of_rows,
)
from mtpcore.backends.cuda.launch.rows import mix_rows, normalise, other_of
from mtpcore.backends.cuda.launch.step import Launch, Step

__all__ = ["FusedStep", "fused"]


class FusedStep(msgspec.Struct, frozen=True):
    """The nodes of a ``fusion.Group``, each with its arrays.

    ``op`` is the maker's, empty where the products read rows that are there; ``block`` is that of
    the codes.
    """

    op: str
    maker: Step
    ropes: tuple[Step, ...]
    route: Step | None
    products: tuple[Step, ...]
    total: Step | None
    is_kept: bool
    is_sorted: bool
    block: int


def fused(step: FusedStep, n_rows: int) -> list[Launch]:
    """Make rows, turn them into codes while they are at hand, and multiply these."""
    if step.op == "mix":
        return [mix_rows(step.maker, n_rows, step.total)]
    if not step.products:
        return attend(step.op, step.maker, n_rows, step.ropes)
    x = step.products[0].inputs[0]
    codes = codes_for(step.maker, step.block, x, step.products[0].weights[0].n_cols)
    launches = _make(step, codes, x, n_rows)
    if step.route:
        launches += route(step.route, n_rows)
    return launches + _multiply(step, codes, x, n_rows)


def _make(step: FusedStep, codes: Codes, x: DeviceArray, n_rows: int) -> list[Launch]:
    n_rows_of_x = n_rows * (x.shape[1] if len(x.shape) == 3 else 1)
    if step.op in ("attention", "cross_attention"):
        return attend(step.op, step.maker, n_rows, step.ropes, codes)
    if step.op == "gated":
        return [quantise_gated(step.maker, codes, n_rows_of_x)]
    if not step.op:
        return [quantise(x, codes, n_rows_of_x)]
    return [normalise(step.op, step.maker, n_rows, codes, is_kept=step.is_kept)]


def _multiply(step: FusedStep, codes: Codes, x: DeviceArray, n_rows: int) -> list[Launch]:
    """Multiply with all plain matrices, then with those of experts, by who chooses them."""
    plain, of_experts = list[Factor](), dict[int, list[tuple[Step, Factor]]]()
    residual = None
    for product in step.products:
        w, bias = (*product.weights, None)[:2]
        y = product.outputs[0]
        if step.total:
            residual, y = other_of(step.total, y), step.total.outputs[0]
        if len(product.inputs) == 1:
            plain.append(Factor(w, bias, y))
        else:
            of_ids = of_experts.setdefault(id(product.inputs[1]), [])
            of_ids.append((product, Factor(w, bias, y)))
    launches = []
    if plain:
        launches += multiply_codes(codes, slots_of_rows(plain[0].w, n_rows), plain, residual)
    for found in of_experts.values():
        first, ids = found[0][0], found[0][0].inputs[1]
        slots, group = slots_of_experts(first, found[0][1].w, x, ids, n_rows)
        launches += [] if step.is_sorted else [group]
        launches += multiply_codes(codes, slots, [factor for _, factor in found])
    return launches
