"""Rounds: passes that follow each other on the device, started together.

``drafts.py`` says which stages a round has, and what is launched for each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.draft_order import KeptRows
from mtpcore.backends.cuda.launch.passes import spread
from mtpcore.backends.cuda.launch.step import Launch, start
from mtpcore.backends.cuda.runs import DevicePlan, PlannedRun, Shape
from mtpcore.backends.cuda.staging import Part

__all__ = ["EVERY_TOKEN", "DeviceStage", "Rounds"]

EVERY_TOKEN = int(np.iinfo(np.int32).max)
"""In place of the number of tokens that have embeddings, where every token may be drafted."""


NO_RUN = PlannedRun(Shape(0, 0, (), (), 0, None), [])


class DeviceStage(NamedTuple):
    """A step of a round, or what verifies it, and what goes on between it and others.

    ===============  ============================================================================
    ``run``          the pass, or what it brings to choose only
    ``brought``      what it brings from the host by the round's array, besides its run
    ``n``            how many drafts it chooses, at most ``n_depths`` of one text; 0: it verifies,
                     or makes rows for others
    ``entry``        where it is noted among drafts whether it could choose any
    ``n_tokens``     below which tokens let rows live, and drafts be the best of others
    ``n_readable``   below which tokens are written to rows
    ``runs``         whether it runs a pass; if not, it chooses from that of the stage before
    ``is_whole``     whether all of its rows count as run where one does
    ``is_anew``      whether its drafts were chosen before
    ``fed``          its slots, and which kept rows feed them
    ``kept``         which rows it keeps, ``n_kept`` from ``first_kept`` on
    ``may_end``      whether the next stage runs only if a draft goes on; if it ``is_repeated``,
    ``is_repeated``  only if one is another than before
    ===============  ============================================================================
    """

    plan: DevicePlan
    brought: dict[str, NDArray[Any]]
    run: PlannedRun = NO_RUN
    n: int = 0
    n_depths: int = 1
    entry: int = 0
    n_tokens: int = EVERY_TOKEN
    n_readable: int = EVERY_TOKEN
    runs: bool = True
    is_whole: bool = True
    is_anew: bool = False
    fed: tuple[tuple[str, KeptRows], ...] = ()
    kept: tuple[KeptRows, ...] = ()
    first_kept: int = 0
    n_kept: int = 0
    may_end: bool = False
    is_repeated: bool = False

    @property
    def joins(self) -> bool:
        """Whether it goes on choosing the drafts that the stage before it began to repeat."""
        return self.is_repeated and not self.runs

    @property
    def settings(self) -> Hashable:
        """What its launches depend on, besides its run and the arrays of the round."""
        return self[3:]

    @property
    def n_filled(self) -> int:
        """How many of its rows get something."""
        return len(self.brought.get("fills", ()))


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
        stages: Sequence[DeviceStage],
        launches: Callable[[DeviceStage, bool, Any], Iterator[Launch]],
    ) -> None:
        """Start stages; ``launches`` are those of a stage, after what it is brought.

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

        def launches_of(
            joined: Sequence[tuple[DeviceStage, int]], following: Any
        ) -> Iterator[Launch]:
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


def _key_of(stage: DeviceStage) -> Hashable:
    """Return what the launches of a stage depend on; it keeps the plan that they are of."""
    lengths = tuple((name, len(values)) for name, values in stage.brought.items())
    return stage.plan, stage.run.shape, lengths, stage.settings


def _joined(stages: Iterable[tuple[DeviceStage, int]]) -> list[list[tuple[DeviceStage, int]]]:
    """Return stages, each beside its table, together with those that join them."""
    groups = list[list[tuple[DeviceStage, int]]]()
    for stage, table in stages:
        if not stage.joins:
            groups.append([])
        groups[-1].append((stage, table))
    return groups
