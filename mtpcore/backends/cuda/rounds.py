"""Rounds: passes that follow each other on the device, started together.

``drafts.py`` says which passes a round has, and what is launched for each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import spread
from mtpcore.backends.cuda.launch.step import Launch, start
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun
from mtpcore.backends.cuda.staging import Part
from mtpcore.backends.schedule import n_embeddings

__all__ = ["EVERY_TOKEN", "RoundStage", "Rounds", "n_tokens_of", "without_drafts"]

EVERY_TOKEN = int(np.iinfo(np.int32).max)
"""In place of the number of tokens that have embeddings, where every token may be drafted."""


class RoundStage(Protocol):
    """What rounds are made of."""

    @property
    def plan(self) -> DevicePlan:
        """Of the pass."""

    @property
    def run(self) -> PlannedRun:
        """The pass."""

    @property
    def brought(self) -> dict[str, NDArray[Any]]:
        """What it brings from the host by the round's array, besides its run."""

    @property
    def n(self) -> int:
        """How many drafts it makes; 0 where it verifies."""

    @property
    def may_end(self) -> bool:
        """Whether the next one runs only if this one lets it."""

    @property
    def joins(self) -> bool:
        """Whether it runs where the one before it does, and together they let the next one."""

    @property
    def settings(self) -> Hashable:
        """What its launches depend on, besides its run and the arrays of the round."""


_Stage = TypeVar("_Stage", bound=RoundStage)


class Rounds:
    """Starts rounds, and holds the arrays in which their passes leave each other rows.

    Parameters
    ----------
    plan : DevicePlan
        Of the first pass.

    Attributes
    ----------
    arrays : dict of str to DeviceArray
        By name; ``room`` makes them.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._device, self._staging, self._graphs = plan.device, plan.staging, plan.graphs
        self._kind = type(plan)
        self.arrays: dict[str, DeviceArray] = {}
        self._n_made = 0  # arrays, of which some have gone

    def is_here(self, plan: object) -> TypeGuard[DevicePlan]:
        """Whether a plan is on the same device."""
        return isinstance(plan, self._kind) and plan.device is self._device

    def room(self, name: str, n: int, dtype: DTypeLike, *width: int) -> DeviceArray:
        """Return an array of n rows, or more: it stays where it is as long as it has room."""
        held = self.arrays.get(name)
        if held is None or held.shape[0] < n or held.shape[1:] != width:
            most = 1 << max(n - 1, 0).bit_length()
            self._n_made += 1  # first: cut off in between, no graph is taken for another's
            self.arrays[name] = self._device.empty((most, *width), dtype)
        return self.arrays[name]

    def start(
        self,
        shape: Hashable,
        stages: Sequence[_Stage],
        launches: Callable[[_Stage, bool, Any], Iterator[Launch]],
    ) -> None:
        """Start stages; ``launches`` are those of a stage behind what it is brought.

        They depend on nothing but ``shape`` and the stage. ``launches`` is told whether it is the
        last one that drafts, and the condition of the following one, if that may be left out.
        """
        verifies = not stages[-1].n
        for stage in stages:
            for name, values in stage.brought.items():
                self.room(name, len(values), values.dtype)
        parts = [
            [
                *stage.run.parts,
                *(Part(values, self.arrays[name]) for name, values in stage.brought.items()),
            ]
            for stage in stages
        ]
        tables = self._staging.send(parts)
        key = (
            *(shape, tuple(map(_key_of, stages)), tuple(tables)),
            *(self._n_made, self._staging.array.shape),
        )

        def launches_of(joined: Sequence[tuple[_Stage, int]], following: Any) -> Iterator[Launch]:
            for stage, table in joined:
                n_parts = len(stage.run.parts) + len(stage.brought)
                yield spread(self._staging.array, table, n_parts)
                is_last_draft = stage is stages[-2 if verifies else -1]
                yield from launches(stage, is_last_draft, following)

        def work(is_recorded: bool) -> None:
            condition = None  # of these stages, set by those before
            for joined in _joined(zip(stages, tables, strict=True)):
                following, (last, _) = None, joined[-1]
                if is_recorded and last.may_end and last is not stages[-1]:
                    following = self._device.condition()
                started = launches_of(joined, following)
                if condition is None:
                    start(self._device, started)
                else:
                    self._device.when(condition, partial(start, self._device, started))
                condition = following

        self._graphs.start(key, work)


def _key_of(stage: RoundStage) -> Hashable:
    """Return what the launches of a stage depend on; it keeps the plan that they are of."""
    lengths = tuple((name, len(values)) for name, values in stage.brought.items())
    return stage.plan, stage.run.shape, lengths, stage.settings


def _joined(stages: Iterable[tuple[_Stage, int]]) -> list[list[tuple[_Stage, int]]]:
    """Return stages, each beside its table, together with those that join them."""
    groups = list[list[tuple[_Stage, int]]]()
    for stage, table in stages:
        if not stage.joins:
            groups.append([])
        groups[-1].append((stage, table))
    return groups


def n_tokens_of(stages: Sequence[RoundStage]) -> int:
    """Return how many tokens have an embedding in every pass."""
    tables = [n_embeddings(stage.plan.program) for stage in stages]
    return min(filter(None, tables), default=EVERY_TOKEN)


def without_drafts(batch: CheckedBatch, lengths: Mapping[int, int]) -> CheckedBatch:
    """Return a batch whose texts end before their drafts, which are any tokens there.

    ``lengths`` say of outputs how many drafts there are in their texts.
    """
    wanted = batch.fused_sampling
    if wanted is None or not wanted.texts:
        return batch
    texts = [*wanted.texts]
    for output, n in lengths.items():
        texts[output] = texts[output][: max(len(texts[output]) - n, 0)]
    wanted = msgspec.structs.replace(wanted, texts=texts)
    return msgspec.structs.replace(batch, fused_sampling=wanted)
