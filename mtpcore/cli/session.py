"""From options to a model, its context, and the drafter that fits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import msgspec

from mtpcore.cli.lora import merged_adapters, open_adapters
from mtpcore.cli.options import draft_vocabulary_of, model_path
from mtpcore.cli.progress import progress
from mtpcore.cli.terminal import note
from mtpcore.cross import Cross, DrafterLike, find_drafter, link
from mtpcore.declarations.spec import TARGET, DrafterSpec
from mtpcore.decoding import Generator, Request, default_length
from mtpcore.discovery.loading import load_model
from mtpcore.drafting.lookup import LOOKUP, Lookup
from mtpcore.drafting.lookup_texts import LookupTexts
from mtpcore.errors import GraphError, LinkError, ModelFileError
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model

__all__ = [
    "Session",
    "finish",
    "make_context",
    "open_draft_model",
    "open_model",
    "open_session",
    "show_reading",
]


class Session(msgspec.Struct, frozen=True):
    """A target context, with its drafter where there is one.

    Of several drafters, which ``names`` has, ``drafter`` is the first with a graph. ``draft`` is
    how much it drafts; with ``auto`` that is where the search for a length begins.
    """

    model: Model
    cross: Cross
    drafter: DrafterSpec | None
    draft: int
    auto: bool = False
    names: tuple[str, ...] = ()

    @property
    def llm(self) -> Context:
        """The target's context."""
        return self.cross.llm

    @property
    def draft_or_auto(self) -> int | Literal["auto"]:
        """The drafts that a ``Generator`` is asked for."""
        return "auto" if self.auto else self.draft


def open_model(options: argparse.Namespace) -> Model:
    """Load the model that the options name; its head only if it may draft."""
    heads = options.draft != 0 or options.mtp_path is not None
    return load_model(
        model_path(options),
        mtp=heads,
        mtp_path=options.mtp_path,
        sidecars=options.model_draft is None,
        repack=options.repack,
        adapters=merged_adapters(options),
    )


def open_session(
    options: argparse.Namespace,
    model: Model,
    n_ctx: int,
    *,
    pack: bool = False,
    with_lookup: bool = True,
    others: int = 0,
    n_seq_max: int = 1,
) -> Session:
    """Make the context, link the drafter, and make the plans.

    What is timed packs weights first; and so does a backend that cannot pack them after runs.
    ``with_lookup``: where lengths are chosen and no drafter is named, lookup drafts beside a head:
    it costs next to nothing where it does not pay. ``others``: tokens of texts that ended in which
    lookup finds, too.

    Raises
    ------
    LinkError
        A drafter was asked for and none fits; says what to do.
    """
    session = _link(options, model, n_ctx, with_lookup, others, n_seq_max)
    _make_plans(session.cross)
    if pack or not session.llm.backend.packs_after_runs:
        _pack(session.cross)
    return session


def _link(
    options: argparse.Namespace,
    model: Model,
    n_ctx: int,
    with_lookup: bool,
    others: int,
    n_seq_max: int,
) -> Session:
    make = partial(make_context, options, model, n_ctx, n_seq_max)
    trained = getattr(model.hparams, "n_ctx_train", n_ctx)
    if n_ctx > trained:
        note(f"a context of {n_ctx} tokens; the model was trained on texts of up to {trained}")
    draft_model = open_draft_model(options, model) if options.draft else None
    chosen = _choose(options, model, draft_model, with_lookup, others)
    if not chosen:
        return Session(model, link(make(), []), None, 0)
    drafter = next((spec for spec in chosen if spec.shape != "proposer"), chosen[0])
    for beside in model.sidecars:
        if beside.used and drafter.shape != "proposer":
            note(f"{drafter.name} is in {beside.path}")
    if options.draft_tree:
        drafter = msgspec.structs.replace(drafter, shape="tree", tree=options.draft_tree)
        _note_least("--draft-tree", "levels", options.draft_tree.depth, drafter)
    length = default_length(drafter) if options.draft == "auto" else options.draft
    _note_least("--draft", "tokens", length, drafter)
    drafters: dict[str, DrafterLike] = {
        LOOKUP.name: Lookup([LookupTexts.open(model, p) for p in options.lookup], others=others)
    }
    if drafter is not LOOKUP:  # of lookup it has a tree, which link refuses
        drafters[drafter.name] = drafter
    llm = make()
    try:
        cross = link(
            llm,
            [drafters.get(spec.name, spec) for spec in chosen],
            draft_model=draft_model,
            tree=drafter.tree if len(chosen) == 1 else None,
            draft_vocabulary=draft_vocabulary_of(options, model),
        )
    except (LinkError, GraphError) as error:
        if _insists(options) or options.draft_vocabulary:
            raise
        note(f"decoding without drafts, as the drafter cannot be used: {error}")
        return Session(model, link(make(), []), None, 0)
    length, names = min(length, drafter.limit), tuple(spec.name for spec in chosen)
    return Session(model, cross, drafter, length, options.draft == "auto", names)


def _note_least(option: str, of_what: str, asked: int, drafter: DrafterSpec) -> None:
    if asked > drafter.limit:
        most = f"{drafter.name} drafts at most {drafter.limit} tokens in a row"
        note(f"{option} {asked}: {drafter.limit} {of_what}, as {most}")


def make_context(
    options: argparse.Namespace, model: Model, n_ctx: int, n_seq_max: int = 1
) -> Context:
    """Make a context for the target."""
    return Context(
        model,
        n_ctx,
        n_seq_max=n_seq_max,
        n_batch=options.batch_size,
        kv_dtype=options.kv_dtype,
        checkpoint_bytes=options.checkpoint_bytes,
        threads=options.threads,
        backend=options.backend,
        adapters=open_adapters(options),
    )


def _make_plans(cross: Cross) -> None:
    """Make the plans, with a progress bar while weights of types without kernels are converted."""
    contexts = cross.contexts.values()
    sizes: dict[tuple[Model, str], int] = {}
    for model, program in [(context.model, context.program) for context in contexts]:
        own_tensors = model.tensors if model.repack else {}
        for name in own_tensors.keys() & program.weights().keys():
            lender = model.target if name.startswith(TARGET) else None
            sizes[lender or model, name.removeprefix(TARGET)] = own_tensors[name].n_bytes
    total, models = sum(sizes.values()), {model for model, _ in sizes}

    def count() -> tuple[int, int]:
        ready = {
            (model, name) for model in models for key in list(model.packed) for name in key[2:]
        }
        return sum(sizes.get(name, 0) for name in ready), total

    with progress("reading weights", count, "bytes"):
        cross.prepare(pack=False)


def _pack(cross: Cross) -> None:
    """Pack the weights, with a progress bar."""
    total = cross.bytes_to_pack
    with progress("packing weights", lambda: (total - cross.bytes_to_pack, total), "bytes"):
        cross.prepare()


@contextmanager
def show_reading(llm: Context, request: Request) -> Iterator[None]:
    """Show a progress bar while the block runs and the request's prompt is read.

    It counts what is processed, not what the KV cache holds already.
    """

    def count() -> tuple[float, int]:
        left = len(request.prompt) - request.n_prefilled
        done = request.n_prefilled - request.n_cached
        return done + llm.progress * min(llm.n_batch, left), done + left

    with progress("reading the prompt", count):
        yield


def finish(
    generator: Generator, request: Request, after_round: Callable[[], None] | None = None
) -> None:
    """Run a request to its end, with a progress bar while its prompt is read."""
    with show_reading(generator.cross.llm, request):
        while not request.done and request.n_prefilled < len(request.prompt):
            generator.step()
    while not request.done:
        if after_round:
            after_round()
        generator.step()


def _insists(options: argparse.Namespace) -> bool:
    asked = options.drafter, options.model_draft, options.mtp_path, options.draft_tree
    return options.draft != "auto" or any(asked)


def open_draft_model(options: argparse.Namespace, model: Model) -> Model | None:
    """Load what drafts from a file of its own: the one that was given, or the one beside the model.

    Raises
    ------
    ModelFileError
        It cannot be used, holds no drafter, or is the model itself.
    """
    path = options.model_draft
    if path is None:
        return model.open_draft_model()
    draft_model = load_model(path, sidecars=False, repack=options.repack)
    if draft_model.drafters_for_others and draft_model.path != model.path:
        return draft_model
    draft_model.close()
    with load_model(path) as given:
        beside = next((one.path for one in given.sidecars if one.used), None)
    raise ModelFileError(
        "the draft model is the model itself"
        if draft_model.drafters_for_others
        else "the file holds no drafter",
        where=path,
        fix=f"the drafter that belongs to it is {beside}"
        if beside
        else "give a smaller model of the same vocabulary, or a drafter that a plugin knows "
        "(mtpcore plugins lists them), or leave -md out",
    )


def _choose(
    options: argparse.Namespace,
    model: Model,
    draft_model: Model | None,
    with_lookup: bool,
    others: int,
) -> list[DrafterSpec]:
    """Return the drafters to use; of none, nothing is drafted."""
    looks_further = bool(options.lookup or others)
    if options.draft == 0:
        named = options.drafter, options.model_draft, options.draft_tree, options.draft_vocabulary
        if any(named) or looks_further:
            what = "the drafter, lookup, tree or vocabulary"
            note(f"--draft 0: nothing is drafted; {what} is not used")
        return []
    names = [name.strip() for name in (options.drafter or "auto").split(",")]
    if looks_further and LOOKUP.name not in names:
        names.insert(0, LOOKUP.name)
    if with_lookup and options.draft == "auto" and not (options.drafter or options.draft_tree):
        names.append(LOOKUP.name)
    found = [find_drafter(model, draft_model, name) for name in names]
    specs = [*{one[1].name: one[1] for one in found if one is not None}.values()]
    if specs:
        is_asked = options.drafter or looks_further
        is_substitute = specs[0].shape == "proposer" and not (is_asked or model.drafters)
        lacks = _absent(model) + _misfits(model)  # why it may be that there is no head
        if is_substitute and (lacks or _insists(options)):
            note(
                f"{model.path} has no head and no draft model: {specs[0].name} drafts, which "
                f"copies from earlier in the text{lacks}"
            )
        return specs
    if _insists(options):
        asked = "--draft-tree" if options.draft_tree else f"--draft {options.draft}"
        asked = f"--drafter {options.drafter}" if options.drafter else asked
        raise LinkError(
            "the model has no drafter",
            where=str(model.path),
            got=asked,
            fix="--draft auto decodes without drafts; --mtp-path FILE adds a head, -md FILE a "
            "draft model in a file of its own, --drafter lookup copies from earlier in the text, "
            "and plugins may bring others (mtpcore plugins)" + _absent(model) + _misfits(model),
        )
    note(f"{model.path} has no drafter: decoding without drafts{_misfits(model)}")
    return []


def _absent(model: Model) -> str:
    """Return which plugins that the file asks for are not there."""
    return f"; left out: {model.absent_plugins}" if model.absent_plugins else ""


def _misfits(model: Model) -> str:
    """Return what there is to say of sidecars where none is used."""
    n = len(model.sidecars)
    files = "one file" if n == 1 else f"{n} files"
    return f" ({files} beside it cannot be used: mtpcore inspect says why)" if n else ""
