"""Conformance: which files hold a head, and where tied weights come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.arguments import expect
from mtpcore.cross import link
from mtpcore.discovery.loading import load_model
from mtpcore.gguf import write_model_file
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.model import Model
from mtpcore.testing.subject import Subject
from mtpcore.testing.texts import Texts, decode

__all__ = ["check_layouts", "check_ties"]

TEXTS = Texts(n_texts=2, n_tokens=24)


def check_layouts(subject: Subject, folder: Path) -> None:
    """Split a model with a head into a trunk and a head, and put them together again.

    The trunk alone has no drafter of its own and gives the same text; completed by the head's file
    it drafts as the whole does. The files are written to ``folder``.

    Raises
    ------
    AssertionError
    """
    model = expect(subject, Subject, "a subject under test").model
    in_head = {n for n in model.tensors if (block_of(n) or 0) >= model.hparams.n_layers}
    outer = {n for n in model.tensors if block_of(n) is None}
    trunk = _write(folder / "trunk.gguf", model, set(model.tensors) - in_head)
    head = _write(folder / "head.gguf", model, in_head | outer)

    alone = load_model(trunk, sidecars=False, plugins=subject.plugins)
    assert alone.file_layout == "trunk-only"
    assert alone.drafters == (), f"{subject}: a trunk without its head has drafters"
    wanted, drafted = _decode(model, subject, subject.drafter)
    assert drafted > 0, f"{subject}: nothing is drafted"
    assert _decode(alone, subject, "auto")[0] == wanted
    assert load_model(head, plugins=subject.plugins).file_layout == "mtp-only"
    completed = load_model(trunk, mtp_path=head, plugins=subject.plugins)
    assert _decode(completed, subject, subject.drafter) == (wanted, drafted)
    without = load_model(subject.path, mtp=False, plugins=subject.plugins)
    assert not in_head & set(without.tensors)


def check_ties(subject: Subject, folder: Path) -> int:
    """Give the drafter weights of its own where it borrows: a copy, then another matrix.

    A copy changes nothing; a matrix with its rows in another order changes the drafts. Returns how
    many weights were borrowed. Files are written to ``folder``.

    Raises
    ------
    AssertionError
    """
    expect(subject, Subject, "a subject under test")
    source = subject.draft_model or subject.model
    if subject.draft_model is not None:
        source.borrow_from(subject.model)
    borrowed = [use for use in source.tie_report(subject.spec) if use.source == "borrowed"]
    wanted = _drafts(source, subject)
    for number, use in enumerate(borrowed):
        assert use.tensor is not None
        raw = _blocks(source, use.tensor)
        kind = source.tensors[use.tensor].type
        path = folder / f"copy-{number}.gguf"
        names = {n for n in source.tensors if not n.startswith("target:")}
        _write(path, source, names, {use.wanted: (raw, kind)})
        assert _drafts(load_model(path, plugins=subject.plugins), subject) == wanted, (
            f"{use.wanted}: a copy differs"
        )
        path = folder / f"other-{number}.gguf"
        other = np.ascontiguousarray(_other(raw))
        _write(path, source, names, {use.wanted: (other, kind)})
        assert _drafts(load_model(path, plugins=subject.plugins), subject) != wanted, (
            f"{use.wanted}: is not used"
        )
    return len(borrowed)


def _other(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return rows in reverse; of a float32 vector its values, every other one negated.

    Reversed alone, a norm whose weights are all near one would hardly change a draft.
    """
    if raw.ndim > 1:
        return raw[::-1]
    values = raw.copy().view(np.float32)[::-1].copy()
    values[::2] *= -1
    return values.view(np.uint8)


def _blocks(model: Model, name: str) -> NDArray[np.uint8]:
    tensor = model.tensors[name]
    return tensor.raw().reshape(*tensor.shape[:-1], -1)


def _write(
    path: Path,
    model: Model,
    names: Collection[str],
    more: Mapping[str, tuple[NDArray[np.uint8], int]] | None = None,
) -> Path:
    """Write some of a model's tensors, and some more, with the model's metadata."""
    tensors = {name: (_blocks(model, name), model.tensors[name].type) for name in sorted(names)}
    tensors |= more or {}
    write_model_file(
        path,
        model.architecture,
        model.metadata,
        {name: blocks for name, (blocks, _) in tensors.items()},
        {name: kind for name, (_, kind) in tensors.items()},
    )
    return path


def _decode(model: Model, subject: Subject, drafter: str) -> tuple[list[list[int]], int]:
    """Return texts of a model, and how many tokens were drafted for them."""
    cross = link(Context(model, n_seq_max=TEXTS.n_texts), drafter)
    texts, stats = decode(cross, subject, TEXTS)
    return texts, stats.drafted


def _drafts(source: Model, subject: Subject) -> list[Any]:
    """Return the drafts at each place of a text, from a model that holds the drafter."""
    in_own_file = subject.draft_model is not None
    llm = Context(subject.model if in_own_file else source)
    cross = link(llm, subject.drafter, draft_model=source if in_own_file else None)
    drafts = []
    for place, token in enumerate(subject.text(20)):
        llm.process(Batch.of([token], pos=place))
        drafts.append(cross.draft(0, 3))
    return drafts
