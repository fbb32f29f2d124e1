"""What a model file holds is read by somebody, known to be needless, or refused by name.

A tensor is read where a graph of the trunk or of a drafter names it, a metadata key of the
architecture where a declaration asks for it. With anything else in its file the model is another
one than would be computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mtpcore.declarations.patterns import pattern
from mtpcore.declarations.spec import TARGET, DrafterSpec, ModelSpec
from mtpcore.errors import ModelFileError, MtpcoreError, spell
from mtpcore.gguf import NEEDLESS_TENSORS, is_needless
from mtpcore.graph import GraphType
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.scales import idle_scales

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["account"]

log = logging.getLogger("mtpcore")

_ARCH = "{arch}."
_MOST_NAMES = 8
"""As many does an error spell out."""


def account(model: Model) -> None:
    """Account for every tensor of a model and for every key of its architecture.

    A drafter in a file of its own whose graphs need the target is accounted for when it is linked.
    Blocks after the trunk that no drafter reads at all are left out with a warning: without them
    the text is the same.

    Raises
    ------
    ModelFileError
        Something is read by nobody, and nothing says why; names it.
    """
    _account_for_keys(model)
    _account_for_tensors(model)


def _account_for_keys(model: Model) -> None:
    front, metadata = f"{model.architecture}.", dict(model.metadata)
    declared = [name.removeprefix(_ARCH) for name in _unread(model) if name.startswith(_ARCH)]
    names = [key.removeprefix(front) for key in metadata if key.startswith(front)]
    left = [
        name
        for name in names
        if front + name not in model.keys_read
        and not _matches(name, declared)
        and not is_needless(name, model.architecture, metadata)
    ]
    _refuse(
        model,
        "metadata that says how to compute, and that nothing reads",
        [f"{front}{name} = {spell(metadata[front + name])[:40]}" for name in left],
        "metadata that the hyper-parameters ask for",
        'asks for them in hparams, or adds ("{arch}.name", "why") to unread',
    )


def _account_for_tensors(model: Model) -> None:
    try:
        read = _read_by_graphs(model, _trunk(model))
    except MtpcoreError:
        return  # said where the graph is used
    heads = [spec for spec in model.drafters if not spec.variant_of]
    variants = [spec for spec in model.drafters if spec.variant_of]
    all_built = True
    for spec in heads:
        try:
            read |= _read_by_graphs(model, spec)
        except MtpcoreError:  # likewise
            all_built = False
    if model.spec is None and not all_built:
        return
    left = _left(model, read)
    for spec in variants if left else ():
        try:
            left = _left(model, read := read | _read_by_graphs(model, spec))
        except MtpcoreError:
            all_built = False
    n_layers: int | None = None  # of the trunk
    if model.spec is not None:
        n_layers = getattr(model.hparams, "n_layers", 0)
    if not all_built:
        left = [name for name in left if (block_of(name) or 0) < (n_layers or 0)]
    blocks_read = {block_of(name) for name in read}
    for block in sorted({block_of(name) or 0 for name in left} - blocks_read):
        if n_layers is not None and block >= n_layers:
            log.warning("%s: block %d is left out: no graph reads it", model.path, block)
            left = [name for name in left if block_of(name) != block]
    _refuse(
        model,
        "tensors that no graph reads",
        left,
        "tensors that the graphs read",
        'reads them in build, or adds ("name", "why") to unread',
    )


def _trunk(model: Model) -> ModelSpec | None:
    return None if model.file_layout == "mtp-only" else model.spec


def _read_by_graphs(model: Model, spec: ModelSpec | DrafterSpec | None) -> set[str]:
    """Return the tensors that a declaration's graphs read, in all heads.

    Raises
    ------
    MtpcoreError
        A graph cannot be built.
    """
    if spec is None or spec.build is None:
        return set()
    main, drafter, n_heads = GraphType.LLM, None, 1
    if isinstance(spec, DrafterSpec):
        assert isinstance(spec.heads.count, int)  # keys are read by now
        main, drafter, n_heads = GraphType.DRAFT, spec.name, spec.heads.count
    kinds = [main, *(GraphType(name) for name, _ in spec.graphs)]
    n_short = getattr(model.hparams, "n_ctx_short", None)
    contexts = (0,) if n_short is None else (0, n_short + 1)
    programs = [
        model.program(kind, drafter=drafter, head=head, n_ctx=n_ctx)
        for kind in kinds
        for head in range(n_heads)
        for n_ctx in contexts
    ]
    return {
        weight.tensor
        for program in programs
        for node in program.nodes
        for weight in node.weights
        if weight is not None
    }


def _left(model: Model, read: set[str]) -> list[str]:
    """Return the tensors that nothing has read, and nothing says why."""
    idle = idle_scales(model.tensors, model.scales)
    named = [name for name, _ in NEEDLESS_TENSORS]
    named += [name for name in _unread(model) if not name.startswith(_ARCH)]
    for spec in _specs(model):
        named += [*spec.fit.tensors, *(name for tie in spec.ties for name in tie.candidates)]
        if isinstance(spec, DrafterSpec):
            named += [spec.vocabulary, *(feed.mask for feed in spec.feeds)]
    return [
        name
        for name in model.tensors
        if name not in read
        and name not in idle
        and not name.startswith(TARGET)
        and not _matches(name, named)
    ]


def _specs(model: Model) -> list[ModelSpec | DrafterSpec]:
    return [*([model.spec] if model.spec is not None else []), *model.drafters]


def _unread(model: Model) -> list[str]:
    return [name for spec in _specs(model) for name, _ in spec.unread]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(pattern(one).fullmatch(name) for one in patterns)


def _refuse(model: Model, what: str, left: Sequence[str], wanted: str, remedy: str) -> None:
    """Raise where anything is left."""
    if not left:
        return
    names = " and ".join(spec.full_name for spec in _specs(model))
    more = f", and {len(left) - _MOST_NAMES} more" * (len(left) > _MOST_NAMES)
    raise ModelFileError(
        what,
        where=str(model.path),
        wanted=f"{wanted} of {names}",
        got=", ".join(left[:_MOST_NAMES]) + more,
        fix=f"take a file that was converted for this architecture; or the plugin {remedy}"
        + (f"; left out: {model.absent_plugins}" if model.absent_plugins else ""),
    )
