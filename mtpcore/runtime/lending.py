"""Tied weights: where each comes from, and what a drafter borrows of its target's file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Literal

import msgspec

from mtpcore.declarations.draft_model import is_independent
from mtpcore.declarations.spec import TARGET, DrafterSpec, ModelSizes, Tie
from mtpcore.errors import LinkError
from mtpcore.gguf import Tensor
from mtpcore.graph import GraphBuilder
from mtpcore.runtime.fit import FittedDrafter

__all__ = ["PackedWeights", "TieUse", "borrow", "check_target", "report_ties"]


class PackedWeights(MutableMapping[Any, Any]):
    """Weights that backends packed, by keys that contain the tensor's name.

    A tensor that was borrowed from a target (``target:name``) is kept by the target, under its own
    name there: it is packed once for both.
    """

    def __init__(self) -> None:
        self._own: dict[Any, Any] = {}
        self.lender: MutableMapping[Any, Any] | None = None

    def _place(self, key: Any) -> tuple[MutableMapping[Any, Any], Any]:
        if self.lender is None or not isinstance(key, tuple):
            return self._own, key
        plain = tuple(p.removeprefix(TARGET) if isinstance(p, str) else p for p in key)
        return (self._own if plain == key else self.lender), plain

    def __getitem__(self, key: Any) -> Any:
        keeper, plain = self._place(key)
        return keeper[plain]

    def __setitem__(self, key: Any, value: Any) -> None:
        keeper, plain = self._place(key)
        keeper[plain] = value

    def __delitem__(self, key: Any) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class TieUse(msgspec.Struct, frozen=True):
    """Where a tied weight comes from: ``own``, ``borrowed`` or ``missing``.

    ``tensor`` is the name that was found, ``type`` the name of its type. Shape and type are empty
    for a weight of a target that is not linked yet.
    """

    wanted: str
    source: Literal["own", "borrowed", "missing"]
    tensor: str | None = None
    shape: tuple[int, ...] = ()
    type: str = ""


def report_ties(
    g: GraphBuilder,
    ties: Iterable[Tie],
    tensors: Mapping[str, Tensor],
    head_only: Collection[str] = (),
) -> list[TieUse]:
    """Return where the weights of these ties come from, as a builder resolves them.

    A drafter's own are also those that only heads see, whatever they are called.
    """
    report = []
    source: Literal["own", "borrowed", "missing"]
    for tie in ties:
        weight = g.resolve(tie.tensor)
        wanted = tie.tensor.replace("{n}", str(g.n))
        if weight is None:
            elsewhere = [name for name in tie.candidates if name.startswith(TARGET)]
            source = "borrowed" if elsewhere else "missing"
            report.append(TieUse(wanted, source, elsewhere[0] if elsewhere else None))
            continue
        source = "own" if weight.tensor in (wanted, *head_only) else "borrowed"
        stored = tensors[weight.tensor].type_name
        report.append(TieUse(wanted, source, weight.tensor, weight.shape, stored))
    return report


def borrow(drafters: Iterable[DrafterSpec], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the target's tensors that drafters name in ties, by the names used there.

    A matrix comes with its scale, where it has one.
    """
    named = {n for spec in drafters for tie in spec.ties for n in (tie.tensor, *tie.candidates)}
    scales = {n.removesuffix(".weight") + ".scale" for n in named if n.endswith(".weight")}
    return {
        name: tensors[name.removeprefix(TARGET)]
        for name in sorted(named | scales)
        if name.startswith(TARGET) and name.removeprefix(TARGET) in tensors
    }


def check_target(
    drafter: FittedDrafter, architecture: str, hparams: ModelSizes, where: str
) -> None:
    """Check that a drafter was made for a target of this architecture and these sizes.

    The vocabulary of an independent one is compared token by token when it is linked.

    Raises
    ------
    LinkError
    """
    spec = drafter.spec
    if spec.fit.targets and architecture not in spec.fit.targets:
        raise LinkError(
            f"the drafter {spec.name!r} was made for other targets",
            where=where,
            wanted=", ".join(sorted(spec.fit.targets)),
            got=architecture,
            fix="give the drafter that was made for this target",
        )
    if not is_independent(spec) and drafter.hparams.n_vocab != hparams.n_vocab:
        raise LinkError(
            f"the drafter {spec.name!r} reads rows or tables of its target, and its vocabulary is "
            "another one",
            where=where,
            wanted=f"{hparams.n_vocab} tokens, as the target has",
            got=f"{drafter.hparams.n_vocab} tokens",
            fix="give the drafter that was made for this target",
        )
    width = hparams.width
    wanted = getattr(drafter.hparams, "target_width", width)
    if wanted != width:
        raise LinkError(
            f"the drafter {spec.name!r} was made for a target of another width",
            where=where,
            wanted=wanted,
            got=width,
            fix="give the drafter that was made for this target",
        )
