"""From a model to a generator: its drafter found, its context sized."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from mtpcore.backends.base import Backend
from mtpcore.cross import Cross, DrafterLike, link
from mtpcore.drafting.lookup import LOOKUP
from mtpcore.errors import GraphError, LinkError
from mtpcore.gguf.adapter import Adapter
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model

__all__ = ["default_n_ctx", "open_cross"]

log = logging.getLogger("mtpcore")
_LONGEST = 4096
"""Places of a sequence by default: models may be trained on texts for which there is no memory."""


def open_cross(
    model: Model,
    *,
    n_ctx: int | None,
    draft: int | Literal["auto"],
    drafter: DrafterLike | Sequence[DrafterLike],
    draft_model: Model | None,
    n_seq_max: int,
    n_batch: int,
    kv_dtype: str,
    checkpoint_bytes: int | None,
    threads: int | None,
    backend: str | Backend,
    adapters: Mapping[str, Adapter],
) -> Cross:
    """Make the context and link the drafter; the arguments are those of ``LM``.

    Raises
    ------
    LinkError
        Drafts were asked for, and nothing can make them.
    """

    def make_context() -> Context:
        return Context(
            model,
            default_n_ctx(model) if n_ctx is None else n_ctx,
            n_seq_max=n_seq_max,
            n_batch=n_batch,
            kv_dtype=kv_dtype,
            checkpoint_bytes=checkpoint_bytes,
            threads=threads,
            backend=backend,
            adapters=adapters,
        )

    if draft == 0:
        return _planned(link(make_context(), []))
    insists = draft != "auto" or not isinstance(drafter, str) or drafter != "auto"
    if not insists:  # lookup costs next to nothing, and what is found is verified where it pays
        drafter = ["auto", LOOKUP.name]
    try:
        cross = _planned(link(make_context(), drafter, draft_model=draft_model))
    except (LinkError, GraphError) as error:
        if insists:
            raise
        log.warning("decoding without drafts, as the drafter cannot be used: %s", error)
        return _planned(link(make_context(), []))
    if insists and not cross.drafters:
        raise LinkError(
            "the model has no drafter",
            where=str(model.path),
            got=f"draft={draft}",
            fix='draft="auto" decodes without drafts where there is none; draft_model= gives a '
            'drafter in a file of its own, drafter="lookup" copies from earlier in the text, and '
            "plugins may bring others",
        )
    return cross


def _planned(cross: Cross) -> Cross:
    """Return a Cross that can run: what a backend refuses is refused now."""
    cross.prepare(pack=False)
    return cross


def default_n_ctx(model: Model) -> int:
    """Return how many tokens fit by default: what the model was trained on, at most 4096."""
    trained = getattr(model.hparams, "n_ctx_train", 0)
    return min(trained, _LONGEST) or _LONGEST
