"""``link``: from an LLM context and a drafter's name to a Cross that can draft."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.arguments import offers
from mtpcore.cross.cross import Cross
from mtpcore.declarations.checks import check_tree
from mtpcore.declarations.draft_model import is_independent
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, Feed, Tap, TreeShape
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.drafting.fed import FedRole
from mtpcore.drafting.heads import head_role, n_heads
from mtpcore.drafting.lookup import LOOKUP
from mtpcore.drafting.proposers import DeclaredProposer
from mtpcore.drafting.upstream import order_graphs
from mtpcore.drafting.vocabulary import find_rows, shared_tokens
from mtpcore.errors import GraphError, LinkError, PluginError, spell
from mtpcore.graph import GraphType, Program
from mtpcore.links.links import role_of
from mtpcore.runtime.context import Context

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["OneDrafter", "find_drafter", "link"]

logger = logging.getLogger("mtpcore")
OneDrafter = str | DrafterSpec | Proposer
BUILT_IN = {spec.name: spec for spec in (LOOKUP,)}
"""Drafters that every model has; like a variant, one is used only if a caller names it."""


def link(
    llm: Context,
    drafter: OneDrafter | Sequence[OneDrafter] = "auto",
    *,
    draft_model: Model | None = None,
    tree: TreeShape | None = None,
    draft_vocabulary: DraftVocabulary | str | PathLike[str] | None = None,
) -> Cross:
    """Make the drafter's contexts, connect them, and return the Cross.

    So are the contexts of graphs that feed the target itself, as its declaration says: an encoder;
    and of the one that chooses the codes of a model that writes some.

    Parameters
    ----------
    llm : Context
        The target, before its first token (or made with the taps that the drafter needs).
    drafter : "auto", str (its name), DrafterSpec, Proposer, or several of them
        "auto" takes the draft model, or the model's drafter; if it has none, the Cross decodes
        without drafts and a log line says so. Every model has ``"lookup"``, which copies from
        earlier in the text. Of several, the first that proposes anything drafts; an empty list: no
        drafter.
    draft_model : Model, optional
        A file that drafts: a language model of the same vocabulary, usually a small one
        (``"draft_model"`` is its name), or a drafter in a file of its own. Default: the drafter
        that ``load_model`` found beside the model.
    tree : TreeShape, optional
        Let a drafter that drafts token by token grow trees of this shape; default: what its
        declaration says.
    draft_vocabulary : DraftVocabulary or path, optional
        The tokens that drafters with graphs may draft: only these rows of their output matrices
        are read, which makes drafts cheaper if the vocabulary is large. The text is the same.

    Raises
    ------
    LinkError
        No such drafter in the model, or it does not fit; says what to do. A draft model whose
        vocabulary differs: names the first token that does.
    ModelFileError
        The draft vocabulary's file cannot be read.
    """
    several = _read_drafters(drafter)
    if not isinstance(llm, Context):
        raise LinkError(
            "link() takes an LLM context",
            got=type(llm).__name__,
            fix="make one: link(Context(load_model(path)))",
        )
    if llm.owner is not None:
        raise LinkError("context belongs to another Cross", fix="make a new context")
    if draft_model is not None and not offers(draft_model, "find_drafter", "borrow_from"):
        raise LinkError(
            "the drafter's weights are a model",
            where="draft_model",
            got=type(draft_model).__name__,
            fix="load it: draft_model=load_model(path)",
        )
    if tree is not None and not isinstance(tree, TreeShape):
        raise LinkError("the shape of a tree is a TreeShape", where="tree", got=type(tree).__name__)
    tokens = _tokens_of(llm, draft_vocabulary)
    if draft_model is None and any(_lies_beside(llm.model, one) for one in several):
        draft_model = llm.model.open_draft_model()
    with draft_model.lock if draft_model is not None else nullcontext():
        return _link(llm, several, draft_model, tree, tokens)


def _lies_beside(model: Model, drafter: OneDrafter) -> bool:
    """Say whether a drafter is to be looked for in the model's sidecar."""
    if drafter == "auto":
        return all(spec.shape == "proposer" for spec in model.drafters)
    name = getattr(drafter, "name", drafter)
    return isinstance(drafter, (str, DrafterSpec)) and name not in {s.name for s in model.drafters}


def _link(
    llm: Context,
    several: Sequence[OneDrafter],
    draft_model: Model | None,
    tree: TreeShape | None,
    tokens: NDArray[np.int32] | None,
) -> Cross:
    borrows = draft_model is not None and draft_model.target is None
    try:
        return Cross(**_roles(llm, several, draft_model, tree, tokens))
    except BaseException:
        if draft_model is not None and borrows:
            draft_model.give_back()
        raise


def _read_drafters(drafter: object) -> list[OneDrafter]:
    """Return one drafter or several as a list; refuse anything else."""
    try:
        given: list[Any] = list(drafter) if isinstance(drafter, (list, tuple)) else [drafter]
    except Exception:  # whatever a caller's list raises
        given = [None]
    for item in given:
        if not isinstance(item, (str, DrafterSpec)) and not offers(item, "propose"):
            raise LinkError(
                "no drafter is named by this",
                wanted="'auto', a name, a DrafterSpec, a Proposer, or a list of them",
                got=type(item).__name__,
            )
    return given


def _tokens_of(
    llm: Context, vocabulary: DraftVocabulary | str | PathLike[str] | None
) -> NDArray[np.int32] | None:
    """Return the tokens that may be drafted; None: all."""
    if vocabulary is None:
        return None
    if isinstance(vocabulary, (str, PathLike)):
        vocabulary = DraftVocabulary.read(vocabulary)
    if not isinstance(vocabulary, DraftVocabulary):
        raise LinkError(
            "no draft vocabulary",
            wanted="a DraftVocabulary or the path of its file",
            got=type(vocabulary).__name__,
        )
    vocabulary.check(llm.model)
    return vocabulary.tokens


def _roles(
    llm: Context,
    several: Sequence[OneDrafter],
    draft_model: Model | None,
    tree: TreeShape | None,
    tokens: NDArray[np.int32] | None,
) -> dict[str, Context | Proposer | FedRole]:
    """Return the target, what feeds it or chooses its codes, and what drafts for it, by role."""
    roles: dict[str, Context | Proposer | FedRole] = {
        "llm": llm,
        **_feeding_contexts(llm),
        **_codes(llm),
    }
    for number, wanted in enumerate(several):
        role = "draft" if number == 0 else f"draft{number + 1}"
        if not isinstance(wanted, (str, DrafterSpec)):
            roles[role] = wanted
            continue
        found = _find(llm.model, draft_model, wanted, tree)
        if found is None:
            logger.info("%s has no drafter: decoding without drafts", llm.model.path)
            continue
        source, spec = found
        if spec.shape == "proposer":
            roles[role] = _proposer(llm, spec)
            continue
        may_draft = tokens
        trunk = source.as_draft_model if source is draft_model else None
        if trunk is not None and spec.name == trunk.name:
            may_draft = shared_tokens(llm.model, source, tokens)
        elif source is not llm.model:
            source.borrow_from(llm.model)
            if is_independent(spec):
                may_draft = shared_tokens(llm.model, source, tokens)
            else:
                _compare_tokens(llm.model, source)
        roles |= _contexts(llm, source, spec, role, may_draft)
    return roles


def _feeding_contexts(llm: Context) -> dict[str, Context]:
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
            n_seq_max=llm.n_seq_max,
            n_batch=max(llm.n_batch, llm.n_ctx),
            kv_dtype=llm.kv_dtype,
            checkpoint_bytes=llm.checkpoint_bytes,
            threads=llm.threads,
            backend=llm.backend,
        )
        for name in names
    }


def _codes(llm: Context) -> dict[str, Context]:
    """Make the context that chooses the codes of a model that writes some."""
    codebooks = llm.model.codebooks
    if codebooks is None:
        return {}
    return {
        codebooks.graph: Context(
            llm.model,
            codebooks.count,
            graph_type=codebooks.graph,
            n_seq_max=llm.n_seq_max,
            n_batch=max(2 * llm.n_seq_max, codebooks.count),
            kv_dtype=llm.kv_dtype,
            threads=llm.threads,
            backend=llm.backend,
        )
    }


def find_drafter(
    model: Model, draft_model: Model | None, drafter: str | DrafterSpec
) -> tuple[Model, DrafterSpec] | None:
    """Return which model holds a drafter, and its declaration; None: there is none for "auto".

    A name is looked for in the draft model, in the model itself, and among what comes with mtpcore.

    Raises
    ------
    PluginError
        None has it.
    """
    source = draft_model or model
    if drafter == "auto":
        if source is draft_model and draft_model.as_draft_model:
            return source, draft_model.as_draft_model
        return (source, source.find_drafter(None)) if source.drafters else None
    name = drafter.name if isinstance(drafter, DrafterSpec) else drafter
    if draft_model and name in {spec.name for spec in draft_model.drafters_for_others}:
        return draft_model, draft_model.find_drafter(drafter)
    if name in {spec.name for spec in model.drafters}:
        return model, model.find_drafter(drafter)
    if name in BUILT_IN:
        return model, BUILT_IN[name]
    return source, source.find_drafter(drafter)


def _find(
    model: Model, draft_model: Model | None, drafter: str | DrafterSpec, tree: TreeShape | None
) -> tuple[Model, DrafterSpec] | None:
    """Return which model holds a drafter, and its declaration with the tree that was asked for."""
    try:
        found = find_drafter(model, draft_model, drafter)
        if tree is not None:
            check_tree(tree)
    except PluginError as error:
        raise LinkError(
            error.what, where=error.where, wanted=error.wanted, got=error.got, fix=error.fix
        ) from None
    if tree is None or found is None:
        return found
    source, spec = found
    if spec.shape not in ("chain", "tree"):
        raise LinkError(
            "only a drafter that drafts token by token can grow trees",
            where=f"drafter {spec.full_name}",
            got=f"shape {spec.shape}",
            fix="leave tree out",
        )
    return source, msgspec.structs.replace(spec, shape="tree", tree=tree)


def _proposer(llm: Context, spec: DrafterSpec) -> Proposer | FedRole:
    where = f"drafter {spec.full_name}"
    assert spec.proposer is not None
    try:
        proposer: Any = spec.proposer(llm.model)
    except Exception as error:  # whatever a plugin raises
        raise PluginError(
            f"no proposer could be made: {type(error).__name__}: {spell(error, str)}",
            where=where,
        ) from error
    logger.info("drafting with %s: up to %d tokens", spec.name, spec.limit)
    if offers(proposer, "draft"):
        return FedRole(proposer, spec)
    if spec.feeds or not offers(proposer, "propose"):
        wanted = "draft(ask)" if spec.feeds else "propose(seq, tokens, k) or draft(ask)"
        raise PluginError(
            "made no Proposer", where=where, wanted=wanted, got=type(proposer).__name__
        )
    return DeclaredProposer(proposer, spec)


def _compare_tokens(target: Model, source: Model) -> None:
    """Warn where a drafter's file spells tokens otherwise than its target's."""
    ours, theirs = (model.metadata.get("tokenizer.ggml.tokens") for model in (target, source))
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return
    other = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if other:
        logger.warning(
            "%s spells %d of %d tokens otherwise than %s, the first at id %d: "
            "made for another model, its drafts are rarely accepted",
            source.path,
            len(other),
            len(theirs),
            target.path,
            other[0],
        )


def _contexts(
    llm: Context,
    source: Model,
    spec: DrafterSpec,
    role: str,
    tokens: NDArray[np.int32] | None,
) -> dict[str, Context]:
    """Make a context for each of the drafter's graphs; return them by role."""
    order_graphs(spec)
    where = f"drafter {spec.full_name}"
    taps = [tap for feed in spec.feeds if feed.src == "target" for tap in feed.taps]
    try:
        llm.runner.with_taps([Tap.parse(tap) for tap in taps])
    except GraphError as error:
        raise error.at(where) from error
    recycled = {feed.recycle: None for feed in spec.feeds if feed.recycle}
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
            n_seq_max=llm.n_seq_max,
            n_batch=max(llm.n_batch, n_together),
            kv_dtype=llm.kv_dtype,
            checkpoint_bytes=llm.checkpoint_bytes,
            threads=llm.threads,
            backend=llm.backend,
            drafter=spec,
            logit_rows=rows if graph == "draft" else None,
            host=contexts[role] if is_guest else None,
        )
    heads = [contexts[head_role(role, head)].program for head in range(n_heads(spec))]
    outputs = heads[0].outputs
    missing = sorted(name for name in recycled if any(name not in one.outputs for one in heads))
    if missing:
        raise LinkError(
            "the graph does not make what its declaration recycles",
            where=where,
            wanted=", ".join(missing),
            got=", ".join(outputs),
        )
    _check_slots(contexts, role, spec, where)
    _check_widths(heads, spec, where)
    once = [feed.slot for feed in spec.feeds if not feed.graph and not feed.recycle]
    has_own_heads = spec.heads.order == "each-step" and spec.heads.hidden_from == "target"
    if once and not has_own_heads and spec.shape in ("chain", "tree") and spec.limit > 1:
        raise LinkError(
            "nothing takes the slot's place in later draft steps",
            where=f"{where}: slot {once[0]!r}",
            wanted=", ".join(outputs),
            fix=f"name an output of the graph: Feed(slot={once[0]!r}, recycle=...)",
        )
    return contexts


def _rows_together(spec: DrafterSpec) -> int:
    """Return how many rows of a sequence a drafter's graph reads in one batch at least.

    A head of several reads all drafts before its own; rows of a block may see each other.
    """
    size = spec.block.size if spec.block else 1
    assert isinstance(size, int)
    return max(n_heads(spec), size)


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
