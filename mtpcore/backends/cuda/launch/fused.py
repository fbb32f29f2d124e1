"""The launches of several nodes together; ``fusion`` says which."""

from __future__ import annotations

import msgspec

from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.attention import Heads, Joined, attend
from mtpcore.backends.cuda.launch.codes import Codes, codes_for, quantise, quantise_gated
from mtpcore.backends.cuda.launch.products import (
    Factor,
    Follows,
    Passed,
    Slots,
    can_gate,
    counters_of_gates,
    multiply_codes,
    multiply_gated,
    route,
    route_few,
    slots_of_experts,
    slots_of_rows,
)
from mtpcore.backends.cuda.launch.rows import Mix, Norm, normalise, other_of
from mtpcore.backends.cuda.launch.step import Launch, Step, n_parts_of

__all__ = ["FusedStep", "fused"]


class FusedStep(msgspec.Struct, frozen=True):
    """The nodes of a ``fusion.Group``, each with its arrays; fields are those of the group.

    ============== =============================================================================
    field          what it is beside the group's
    ============== =============================================================================
    ``op``         the maker's operation; empty where the products read rows that are there
    ``maker``      where ``op`` is empty, the first product
    ``source``     the product whose rows, or columns of whose heads, are read where ``op`` is empty
    ``heads``      what becomes of queries, keys and values that are made here
    ``block``      how many of the rows' int8 codes share a scale
    ``room``       the name of the scratch memory where these codes are
    ============== =============================================================================
    """

    op: str
    maker: Step
    ropes: tuple[Step, ...]
    norm: Step | None
    route: Step | None
    products: tuple[Step, ...]
    totals: tuple[Step, ...]
    followers: tuple[FusedStep, ...]
    next: FusedStep | None
    n_before: int
    heads: Heads | Joined | None
    is_stored: bool
    is_kept: bool
    is_sorted: bool
    source: DeviceArray | None
    block: int
    room: str


def fused(step: FusedStep, n_rows: int) -> list[Launch]:
    """Make rows, quantise them before they are stored, and multiply."""
    if step.op == "mix":
        return [_mix_of(step, n_rows).launch(n_rows), *_norm_after(step, n_rows)]
    if not step.products:
        return _attend(step, n_rows)
    codes = _codes_for(step)
    launches = _make(step, codes, n_rows)
    if step.route and (few := _route_and_sort(step, step.route, n_rows)):
        launches.append(few)
        step = msgspec.structs.replace(step, is_sorted=True)
    elif step.route:
        launches += route(step.route, n_rows)
    return launches + _multiply(step, codes, n_rows)


def _route_and_sort(step: FusedStep, chooses: Step, n_rows: int) -> Launch | None:
    """Return what chooses experts and sorts rows by them, where one launch does both.

    All that are chosen must be this route's.
    """
    ids, n_experts = chooses.outputs[0], chooses.weights[0].n_rows
    chosen = [product for product in step.products if len(product.inputs) > 1]
    first = chosen[0].weights[0]
    if first.n_matrices < n_experts or any(one.inputs[1] is not ids for one in chosen):
        return None
    slots, _ = slots_of_experts(chosen[0], first, step.products[0].inputs[0], ids, n_rows)
    return route_few(chooses, slots, n_rows)


def _mix_of(step: FusedStep, n_rows: int) -> Mix:
    """Return the mix that a step's maker is, with the norm of its rows if these are few."""
    norm = _norm_of(step)
    return Mix(step.maker, step.totals, norm if norm and norm.fits(n_rows) else None)


def _norm_after(step: FusedStep, n_rows: int) -> list[Launch]:
    """Return the norm of what a step makes last as a launch of its own, if that is more rows."""
    norm = _norm_of(step)
    return [] if norm is None or norm.fits(n_rows) else [norm.launch(n_rows)]


def _norm_of(step: FusedStep) -> Norm | None:
    """Return the norm of what a step makes last, for the next step."""
    if step.next is None:
        return None
    codes = _codes_for(step.next) if step.next.products else None
    return Norm(step.next.op, step.next.maker, codes, step.next.is_kept)


def _codes_for(step: FusedStep) -> Codes:
    """Return room for the rows that products read."""
    first = step.products[0]
    return codes_for(step.maker, step.block, first.inputs[0], first.weights[0].n_cols, step.room)


def _make(step: FusedStep, codes: Codes, n_rows: int) -> list[Launch]:
    if step.n_before:
        return []
    x = step.products[0].inputs[0]
    n_parts = n_parts_of(x, n_rows)
    if step.op in ("attention", "cross_attention"):
        return _attend(step, n_rows, codes)
    if step.op == "gated":
        return [quantise_gated(step.maker, codes, n_parts)]
    if not step.op:
        return [quantise(x, codes, n_parts)]
    return [normalise(step.op, step.maker, n_rows, codes, is_kept=step.is_kept)]


def _attend(step: FusedStep, n_rows: int, codes: Codes | None = None) -> list[Launch]:
    given = step.op, step.maker, n_rows, step.ropes, codes
    return attend(*given, norm=step.norm, is_stored=step.is_stored)


def _multiply(step: FusedStep, codes: Codes, n_rows: int) -> list[Launch]:
    """Multiply with all plain matrices, then with those of experts, by who chooses them.

    What follows two of them multiplies the codes that their launch has made, or makes them.
    """
    plain, of_experts = list[Factor](), dict[int, list[tuple[Step, Factor]]]()
    residual = None
    for product in step.products:
        w, bias = (*product.weights, None)[:2]
        y = product.outputs[0]
        for total in step.totals:
            residual, y = other_of(total, y), total.outputs[0]
        if len(product.inputs) == 1:
            plain.append(Factor(w, bias, y))
        else:
            of_ids = of_experts.setdefault(id(product.inputs[1]), [])
            of_ids.append((product, Factor(w, bias, y)))
    launches, made = list[Launch](), dict[int, Codes]()
    if plain:
        slots = slots_of_rows(plain[0].w, n_rows)
        launches += step.heads.before(n_rows) if step.heads else []
        launches += _multiply_all(step, codes, n_rows, slots, plain, residual, made)
        launches += step.heads.after(n_rows) if step.heads else []
    for found in of_experts.values():
        first, ids = found[0][0], found[0][0].inputs[1]
        x, factors = step.products[0].inputs[0], [factor for _, factor in found]
        slots, group = slots_of_experts(first, factors[0].w, x, ids, n_rows)
        launches += [] if step.is_sorted else [group]
        launches += _multiply_all(step, codes, n_rows, slots, factors, None, made)
    for number, follower in enumerate(step.followers):
        if number in made:
            launches += _multiply(follower, made[number], n_rows)
        else:
            launches += fused(follower, n_rows)
    return launches + _norm_after(step, n_rows)


def _multiply_all(
    step: FusedStep,
    codes: Codes,
    n_rows: int,
    slots: Slots,
    factors: list[Factor],
    residual: DeviceArray | None,
    made: dict[int, Codes],
) -> list[Launch]:
    """Multiply the same rows with all matrices; ``made`` gets the codes that followers read."""
    launches = list[Launch]()
    for number, follower in enumerate(step.followers):
        gates = [f for given in follower.maker.inputs for f in factors if f.y is given]
        if follower.op != "gated" or len(gates) < 2:
            continue
        gate, other = gates
        counters = counters_of_gates(follower.maker, gate.w, follower.block)
        if can_gate(slots, gate, other):
            ready, attrs = _codes_for(follower), follower.maker.attrs
            launches += multiply_gated(codes, slots, gate, other, ready, counters, attrs)
            made[number] = ready
            factors = [f for f in factors if f.y is not gate.y and f.y is not other.y]
    heads, norm = step.heads, _norm_of(step)
    heads = None if slots.is_wide or (heads and not heads.are_few(n_rows)) else heads
    follows: Follows | None = heads or (norm if norm and norm.fits(slots.n) else None)
    for number, follower in enumerate(step.followers):
        if follower.op == "mix" and not slots.is_wide and Mix.fits(n_rows):
            follows, made[number] = _mix_of(follower, n_rows), codes  # a norm is left of it at most
        if follows or follower.source is None:
            continue
        x, ready = follower.products[0].inputs[0], _codes_for(follower)
        passed = Passed(follower.maker, follower.source, x, ready)
        if passed.are_of(factors, slots):
            follows, made[number] = passed, ready
    return launches + multiply_codes(codes, slots, factors, residual, follows)
