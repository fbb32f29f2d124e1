"""Draft trees in the pass that verifies them, which the device runs before the host knows them.

How many rows it has is known beforehand, and in which places they are stored: one for each draft,
after that of the pending token. Which rows follow which is found on the device (``follow.cu``), and
with that the position of each, what it sees, and which noise chooses after it. The host plans a
chain, in which a row at any depth of a tree sees no more than another does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mtpcore.backends.base import CheckedBatch, Verification
from mtpcore.backends.cuda.choice import DraftedParts
from mtpcore.backends.cuda.draft_order import can_walk, trees_of
from mtpcore.backends.cuda.launch.trees import TREE_ROW
from mtpcore.backends.cuda.runs import DevicePlan
from mtpcore.backends.schedule import Drafts, Schedule

__all__ = ["VerifiedTrees", "can_verify"]

_NONE = -1


def can_verify(plan: DevicePlan, batch: CheckedBatch) -> bool:
    """Say whether a device finds out how the rows of a batch follow each other."""
    return not plan.program.sees_ahead and (plan.walks is None or can_walk(batch))


class VerifiedTrees:
    """The rows of a verification of trees.

    Parameters
    ----------
    schedule : Schedule
    verification : Verification
        Its rows are those of the texts' drafts.

    Attributes
    ----------
    paths : dict of int to list of int
        Of each output the drafts that its text may go on with, for ``list_drafts``: as many as come
        before it in a chain. What stands there is none of them.
    batch : CheckedBatch
        A chain, as a tree.
    """

    def __init__(self, schedule: Schedule, verification: Verification) -> None:
        given, self._round, self._first = verification.batch, schedule.round, verification.first
        self._draft_at = {  # by row, with the row of the pending token
            first + i: (draft, first)
            for text, first in enumerate(verification.first)
            for i, draft in enumerate(schedule.round.verified.get(text, ()), start=1)
        }
        newest, above = dict[int, int](), list[int]()
        for row, seq in enumerate(given.seq.tolist()):
            above.append(newest.get(seq, _NONE))
            newest[seq] = row
        self.batch = replace(given, parent=np.array(above, np.int32))
        self._output_of = {row: output for output, row in enumerate(given.outputs.tolist())}
        self.paths = {
            self._output_of[row]: [len(schedule.round.drafts)] * (row - root)
            for row, (_, root) in self._draft_at.items()
            if row in self._output_of
        }

    def told(self, parts: DraftedParts, *, has_states: bool) -> dict[str, NDArray[Any]]:
        """Return what the rows bring besides the run, by the names of arrays.

        ``parts`` are those of the ``paths``; ``has_states`` says that states go on along trees.
        """
        table, choosers = [], self._choosers
        for row, (draft, root) in self._draft_at.items():
            output = self._output_of.get(row, _NONE)
            chooser, index = choosers.get(output, (_NONE, 0))
            of_root, room = index - (row - root), parts.get(output, (0, 0))
            table.append((row, draft, root, chooser, of_root, *room))
        told: dict[str, NDArray[Any]] = {"rows of trees": np.array(table, TREE_ROW)}
        return told | ({"trees": trees_of(self.batch)} if has_states else {})

    @property
    def _choosers(self) -> dict[int, tuple[int, int]]:
        """By output the number of who chooses from it, and the index of what is chosen."""
        wanted = self.batch.fused_sampling
        pairs = zip(wanted.samplers, wanted.indices, strict=True) if wanted else ()
        own = [(output, index) for output, (one, index) in enumerate(pairs) if one is not None]
        return {output: (number, index) for number, (output, index) in enumerate(own)}

    def found(self, drafted: Drafts) -> CheckedBatch:
        """Return the batch that was run, but for the tokens."""
        assert self.batch.parent is not None
        parent, positions = self.batch.parent.copy(), self.batch.positions.copy()
        wanted = self.batch.fused_sampling
        indices = [*wanted.indices] if wanted else []
        for text, first in enumerate(self._first):
            depths = [0]
            for i, above in enumerate(self._round.tree_of(text, drafted)[1], start=1):
                depths.append(depths[1 + above] + 1)
                parent[first + i] = first + 1 + above
                positions[first + i] += depths[i] - i
                if (output := self._output_of.get(first + i)) is not None and wanted:
                    indices[output] += depths[i] - i
        is_chain = np.array_equal(parent, self.batch.parent)
        return replace(
            self.batch,
            parent=None if is_chain else parent,
            positions=positions,
            fused_sampling=replace(wanted, indices=indices) if wanted else None,
        )
