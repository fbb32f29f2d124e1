"""``link``: from an LLM context and a drafter's name to a Cross that can draft."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.acts.guards import holding
from mtpcore.boundary.arguments import offers
from mtpcore.cross.contexts import codes_contexts, drafter_contexts, feeding_contexts
from mtpcore.cross.cross import Cross
from mtpcore.cross.finding import BUILT_IN, DrafterLike, find_with_tree
from mtpcore.declarations.draft_model import is_independent
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, TreeShape
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.drafting.fed import FedRole
from mtpcore.drafting.lookup import LOOKUP, Lookup
from mtpcore.drafting.proposers import DeclaredProposer
from mtpcore.drafting.vocabulary import shared_tokens
from mtpcore.errors import LinkError, PluginError, spell
from mtpcore.runtime.accounting import account
from mtpcore.runtime.context import Context

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["link"]

logger = logging.getLogger("mtpcore")


def link(
    llm: Context,
    drafter: DrafterLike | Sequence[DrafterLike] = "auto",
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
        "auto" takes the draft model, or the model's drafter; if it has none, ``"lookup"``, which
        every model has: it copies from earlier in the text. A model that writes frames of codes
        goes without, and a log line says so. Of several, the first that proposes anything drafts;
        an empty list: no drafter.
    draft_model : Model, optional
        A file that drafts: a language model of the same vocabulary, usually a small one
        (``"draft_model"`` is its name), or a drafter in a file of its own. Default: the drafter
        that ``load_model`` found beside the model.
    tree : TreeShape, optional
        Let a drafter draft trees of this shape, if it drafts token by token or has rounds of its
        own; default: what its declaration says.
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
    if draft_model is None:
        return _link(llm, several, None, tree, tokens)
    return holding(draft_model.lock, _link, llm, several, draft_model, tree, tokens)


def _lies_beside(model: Model, drafter: DrafterLike) -> bool:
    """Say whether a drafter is to be looked for in the model's sidecar."""
    if drafter == "auto":
        return all(spec.shape == "proposer" for spec in model.drafters)
    name = getattr(drafter, "name", drafter)
    known = {*BUILT_IN, *(spec.name for spec in model.drafters)}
    return isinstance(drafter, (str, DrafterSpec)) and name not in known


def _link(
    llm: Context,
    several: Sequence[DrafterLike],
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


def _read_drafters(drafter: object) -> list[DrafterLike]:
    """Return one drafter or several as a list; refuse anything else."""
    try:
        given: list[Any] = list(drafter) if isinstance(drafter, (list, tuple)) else [drafter]
    except MemoryError:
        raise
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
    several: Sequence[DrafterLike],
    draft_model: Model | None,
    tree: TreeShape | None,
    tokens: NDArray[np.int32] | None,
) -> dict[str, Context | Proposer | FedRole]:
    """Return the target, what feeds it or chooses its codes, and what drafts for it, by role."""
    roles: dict[str, Context | Proposer | FedRole] = {
        "llm": llm,
        **feeding_contexts(llm),
        **codes_contexts(llm),
    }
    for number, wanted in enumerate(several):
        role = "draft" if number == 0 else f"draft{number + 1}"
        if isinstance(wanted, Lookup):
            for texts in wanted.texts:
                texts.check(llm.model)
            wanted = DeclaredProposer(wanted, LOOKUP)
        if not isinstance(wanted, (str, DrafterSpec)):
            roles[role] = wanted
            continue
        found = find_with_tree(llm.model, draft_model, wanted, tree)
        if found is None:
            logger.info("%s has no drafter: decoding without drafts", llm.model.path)
            continue
        source, spec = found
        if spec is LOOKUP and any(_is_lookup(one) for one in roles.values()):
            continue  # it is what "auto" found
        if spec.shape == "proposer":
            roles[role] = _proposer(llm, spec)
            continue
        may_draft = tokens
        trunk = source.as_draft_model if source is draft_model else None
        if trunk is not None and spec.name == trunk.name:
            may_draft = shared_tokens(llm.model, source, tokens)
        elif source is not llm.model:
            source.borrow_from(llm.model)
            account(source)
            if is_independent(spec):
                may_draft = shared_tokens(llm.model, source, tokens)
            else:
                _compare_tokens(llm.model, source)
        roles |= drafter_contexts(llm, source, spec, role, may_draft)
    return roles


def _is_lookup(role: object) -> bool:
    return isinstance(role, DeclaredProposer) and role.spec is LOOKUP


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
