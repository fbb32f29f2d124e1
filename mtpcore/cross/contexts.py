"""The contexts that ``link`` makes: of the target's further graphs, and of a drafter's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import DrafterSpec, Feed, Tap
from mtpcore.drafting.upstream import head_role, n_heads, order_graphs
from mtpcore.drafting.vocabulary import find_rows
from mtpcore.errors import GraphError, LinkError
from mtpcore.graph import GraphType, Program
from mtpcore.links.links import role_of
from mtpcore.runtime.context import Context

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["codes_contexts", "drafter_contexts", "feeding_contexts"]

logger = logging.getLogger("mtpcore")


def feeding_contexts(llm: Context) -> dict[str, Context]:
    """Make a context for each further graph of the target's declaration that feeds the target.

    Where the graph's rows see each other a sequence is one batch.
    """
    spec = llm.model.spec
    feeds = spec.feeds if spec is not None and llm.drafter is None else ()
    names = dict.fromkeys(feed.src for feed in feeds if not feed.graph and feed.src != "target")
    return {
        name: Context(
            llm.model,
            llm.n_ctx,
            graph_type=GraphType(name),
            n_batch=max(llm.n_batch, llm.n_ctx),
            **_shared_settings(llm),
        )
        for name in names
    }


def codes_contexts(llm: Context) -> dict[str, Context]:
    """Make the context that chooses the codes of a model that writes some."""
    codebooks = llm.model.codebooks
    if codebooks is None:
        return {}
    return {
        codebooks.graph: Context(
            llm.model,
            codebooks.count,
            graph_type=codebooks.graph,
            n_batch=max(2 * llm.n_seq_max, codebooks.count),
            **_shared_settings(llm),
        )
    }


def drafter_contexts(
    llm: Context,
    source: Model,
    spec: DrafterSpec,
    role: str,
    tokens: NDArray[np.int32] | None,
) -> dict[str, Context]:
    """Make a context for each graph of a drafter; return them by role.

    Parameters
    ----------
    llm : Context
        The target.
    source : Model
        The model that holds the drafter.
    spec : DrafterSpec
    role : str
        The drafter's.
    tokens : int32[n], optional
        The tokens that it may draft; default: all.

    Raises
    ------
    LinkError, GraphError
        The target lacks a tap, or the graphs do not fit the declaration or each other.
    """
    if spec.adapter:
        return {role: _adapter_context(llm, spec, tokens)}
    order_graphs(spec)
    where = f"drafter {spec.full_name}"
    taps = [tap for feed in spec.feeds if feed.src == "target" for tap in feed.taps]
    try:
        llm.runner.with_taps([Tap.parse(tap) for tap in taps])
    except GraphError as error:
        raise error.at(where) from error
    logger.info(
        "drafting with %s: up to %d tokens, taps %s",
        spec.name,
        spec.limit,
        ", ".join(taps) or "none",
    )
    rows = None if tokens is None else find_rows(source, spec, tokens)
    if rows is not None and spec.block and spec.block.post_head:
        raise LinkError(
            "the drafts of a post-head are of the whole vocabulary",
            where=where,
            fix="leave draft_vocabulary= (--draft-vocabulary) out",
        )
    contexts = _make_contexts(llm, source, spec, role, rows)
    heads = [contexts[head_role(role, head)].program for head in range(n_heads(spec))]
    _check_recycled(heads, spec, where)
    _check_slots(contexts, role, spec, where)
    _check_widths(heads, spec, where)
    _check_later_steps(heads[0], spec, where)
    return contexts


def _adapter_context(llm: Context, spec: DrafterSpec, tokens: NDArray[np.int32] | None) -> Context:
    """Make the context in which the target's graph drafts with an adapter."""
    if tokens is not None:
        raise LinkError(
            "the drafts of an adapter are of the whole vocabulary",
            where=f"drafter {spec.full_name}",
            fix="leave draft_vocabulary= (--draft-vocabulary) out",
        )
    logger.info("drafting with %s, an adapter: up to %d tokens", spec.name, spec.limit)
    return Context(
        llm.model,
        llm.n_ctx,
        graph_type=GraphType.DRAFT,
        n_batch=llm.n_batch,
        drafter=spec,
        host=llm,
        **_shared_settings(llm),
    )


def _make_contexts(
    llm: Context, source: Model, spec: DrafterSpec, role: str, rows: NDArray[np.int32] | None
) -> dict[str, Context]:
    graphs = [(head_role(role, head), "draft", head) for head in range(n_heads(spec))]
    graphs += [(role_of(name, role, spec), name, 0) for name, _ in spec.graphs]
    n_together = _rows_together(spec)
    contexts: dict[str, Context] = {}
    for name, graph, head in graphs:
        is_guest = spec.block is not None and graph == spec.block.entries
        contexts[name] = Context(
            source,
            llm.n_ctx,
            graph_type=GraphType(graph),
            head=head,
            n_batch=max(llm.n_batch, n_together),
            drafter=spec,
            logit_rows=rows if graph == "draft" else None,
            host=contexts[role] if is_guest else None,
            **_shared_settings(llm),
        )
    return contexts


def _shared_settings(llm: Context) -> dict[str, Any]:
    """Return the settings that all contexts of a Cross have in common with its target."""
    return {
        "n_seq_max": llm.n_seq_max,
        "kv_dtype": llm.kv_dtype,
        "checkpoint_bytes": llm.checkpoint_bytes,
        "threads": llm.threads,
        "backend": llm.backend,
    }


def _rows_together(spec: DrafterSpec) -> int:
    """Return how many rows of a sequence a drafter's graph reads in one batch at least.

    A head of several reads all drafts before its own; rows of a block may see each other.
    """
    size = spec.block.size if spec.block else 1
    assert isinstance(size, int)
    return max(n_heads(spec), size)


def _check_recycled(heads: Sequence[Program], spec: DrafterSpec, where: str) -> None:
    """Refuse heads that lack an output which feeds a slot in later steps."""
    recycled = {feed.recycle for feed in spec.feeds if feed.recycle}
    missing = sorted(name for name in recycled if any(name not in one.outputs for one in heads))
    if missing:
        raise LinkError(
            "the graph does not make what its declaration recycles",
            where=where,
            wanted=", ".join(missing),
            got=", ".join(heads[0].outputs),
        )


def _check_later_steps(program: Program, spec: DrafterSpec, where: str) -> None:
    """Refuse a slot that nothing feeds in later steps, where there are any."""
    once = [feed.slot for feed in spec.feeds if not feed.graph and not feed.recycle]
    has_own_heads = spec.heads.order == "each-step" and spec.heads.hidden_from == "target"
    has_steps = spec.shape in ("chain", "tree") and spec.limit > 1 and spec.schedule is None
    if once and has_steps and not has_own_heads:
        raise LinkError(
            "nothing takes the slot's place in later draft steps",
            where=f"{where}: slot {once[0]!r}",
            wanted=", ".join(program.outputs),
            fix=f"name an output of the graph: Feed(slot={once[0]!r}, recycle=...)",
        )


def _check_slots(contexts: Mapping[str, Context], role: str, spec: DrafterSpec, where: str) -> None:
    """Refuse a feed of a slot that its graph does not read."""
    for feed in spec.feeds:
        program = contexts[role_of(feed.graph, role, spec)].program
        if feed.slot not in program.inputs:
            raise LinkError(
                "the graph does not read the slot that its declaration feeds",
                where=f"{where}: slot {feed.slot!r}",
                got=f"inputs {', '.join(program.inputs)}",
                fix=f"read inputs[{feed.slot!r}] in its build, or leave the Feed out",
            )


def _check_widths(heads: Sequence[Program], spec: DrafterSpec, where: str) -> None:
    """Refuse a recycled output whose rows are not those of its slot, in the step that reads it."""
    steps = [(heads[0], heads[0])] if len(heads) == 1 else [*pairwise(heads)]
    for feed in spec.feeds:
        if feed.graph or not feed.recycle:
            continue
        if feed.width and feed.taps and any(head.memory or head.states for head in heads):
            raise LinkError(
                "heads with a memory read rows of the target at every token that it accepted",
                where=f"{where}: slot {feed.slot!r}",
                wanted="the taps' width in every head",
                got=f"width={feed.width}",
            )
        for made_by, read_by in steps:
            _check_width(feed, made_by, read_by, where)


def _check_width(feed: Feed, made_by: Program, read_by: Program, where: str) -> None:
    assert feed.recycle is not None
    if feed.slot in read_by.inputs:
        slot = read_by.values[read_by.inputs[feed.slot]].shape
        shape = made_by.shape(feed.recycle)
        if shape[0] != slot[0]:
            raise LinkError(
                f"the recycled output {feed.recycle!r} has other rows",
                where=f"{where}: slot {feed.slot!r}",
                wanted=slot,
                got=shape,
                fix="recycle what stands before g.output_rows",
            )
        if shape[1:] != slot[1:]:
            raise LinkError(
                f"the recycled output {feed.recycle!r} is of another width",
                where=f"{where}: slot {feed.slot!r}",
                wanted=f"{slot[1]} values a row",
                got=" x ".join(map(str, shape[1:])),
                fix="convert the drafter again; in a new graph: recycle rows of the slot's width",
            )
