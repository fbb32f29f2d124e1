"""The batch of a round, with drafts and prompts, and the comparison of drafts and choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.cross.sequence import Verdict
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output

__all__ = ["RoundBatch", "Verdicts", "draft_batch", "tree_rows", "match_drafts"]


class Verdicts(dict[int, Verdict]):
    """What the target says of the drafts, by sequence, and what the pass computed.

    Parameters
    ----------
    verdicts : mapping of int to Verdict
        By sequence.
    output : Output or None
        Of the whole batch: taps and logits of the pending tokens and the drafts, of rejected ones
        too; ``output.rows_of_seq[seq]`` are a sequence's rows. None where no row ran.
    """

    def __init__(self, verdicts: Mapping[int, Verdict], output: Output | None) -> None:
        super().__init__(verdicts)
        self.output = output


class RoundBatch:
    """Collects the rows of one round, drafts first.

    ``spans`` are the rows of each sequence's draft, its pending token first. ``branching`` are the
    sequences whose draft is no chain; with one of them every row of the batch names its parent.
    ``counts`` are the rows of each sequence.
    """

    def __init__(self) -> None:
        self.spans: dict[int, tuple[int, int]] = {}
        self.branching: set[int] = set()
        self.counts: dict[int, int] = {}
        self._tokens: list[int] = []
        self._seqs: list[int] = []
        self._pos: list[int] = []
        self._parent: list[int] = []
        self._wanted: list[bool] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add_draft(self, seq: int, n: int, pending: int, draft: Draft) -> None:
        """Add the pending token at place ``n`` and what may follow it."""
        root = len(self)
        is_tree = isinstance(draft, DraftTree) and not draft.is_chain
        ids = draft.tokens.tolist() if isinstance(draft, DraftTree) else draft
        self.spans[seq] = (root, root + 1 + len(ids))
        self._add(seq, n, [pending, *ids])
        self._wanted += [True] * (1 + len(ids))
        if is_tree:
            assert isinstance(draft, DraftTree)
            self.branching.add(seq)
            self._parent[root + 1 :] = (root + 1 + draft.parent).tolist()
            self._pos[root + 1 :] = (n + draft.depth).tolist()

    def add_prompt(
        self, seq: int, n: int, ids: Sequence[int], *, ends: bool, predicted: bool = False
    ) -> None:
        """Add a prompt's tokens from place ``n`` on; its last logits are wanted where it ends.

        All of its logits are, where it is ``predicted``.
        """
        self._add(seq, n, ids)
        self._wanted += [predicted] * (len(ids) - 1) + [ends or predicted]

    def _add(self, seq: int, n: int, ids: Sequence[int]) -> None:
        begin = len(self)
        self.counts[seq] = len(ids)
        self._tokens += ids
        self._seqs += [seq] * len(ids)
        self._pos += range(n, n + len(ids))
        self._parent += [-1, *range(begin, begin + len(ids) - 1)]

    def texts(self, seq: int, history: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return the tokens up to each row of a sequence's draft, which follows ``history``."""
        begin, end = self.spans[seq]
        texts: list[NDArray[np.int32]] = []
        for row in range(begin, end):
            above = history if row == begin else texts[self._parent[row] - begin]
            texts.append(np.append(above, np.int32(self._tokens[row])))
        return texts

    def batch(self) -> Batch:
        """Return the batch.

        Raises
        ------
        BatchError
            Ids that are no integers.
        """
        parent = self._parent if self.branching else None
        return Batch(
            self._tokens, seq=self._seqs, pos=self._pos, outputs=self._wanted, parent=parent
        )


def draft_batch(seq: int, n: int, pending: int, draft: Draft) -> Batch:
    """Return the rows of one sequence's draft alone."""
    rows = RoundBatch()
    rows.add_draft(seq, n, pending, draft)
    return rows.batch()


def match_drafts(
    draft: Draft,
    choose: Callable[[int, NDArray[np.int32]], int],
    history: NDArray[np.int32],
) -> Verdict:
    """Go from the pending token to the child that the target chooses, as long as there is one.

    Parameters
    ----------
    choose : callable
        ``choose(row, tokens)``: the target's choice after ``tokens``, from logits row 0 for the
        pending token and row 1 + i for node i; -1 where no token is left.
    history : int32[n + room for the draft]
        The tokens up to the pending one and room; the path is written there.
    """
    if not isinstance(draft, DraftTree):
        return _match_chain(draft, choose, history)
    children: dict[int, dict[int, int]] = {}
    pairs = zip(draft.parent.tolist(), draft.tokens.tolist(), strict=True)
    for node, (above, token) in enumerate(pairs):
        children.setdefault(above, {})[token] = node
    n = len(history) - len(draft)
    at = -1
    chosen: list[int] = []
    path: list[int] = []
    while True:
        chosen.append(choose(at + 1, history[: n + len(path)]))
        following = children.get(at, {})
        if chosen[-1] not in following:
            break
        at = following[chosen[-1]]
        history[n + len(path)] = chosen[-1]
        path.append(at)
    return _verdict(chosen, path, pending=int(history[n - 1]))


def _match_chain(
    draft: Sequence[int],
    choose: Callable[[int, NDArray[np.int32]], int],
    history: NDArray[np.int32],
) -> Verdict:
    """Go along a chain of drafts as far as the target chooses them."""
    n = len(history) - len(draft)
    chosen: list[int] = []
    for row, token in enumerate([*draft, None]):
        chosen.append(choose(row, history[: n + row]))
        if chosen[-1] != token:
            break
        history[n + row] = token
    return _verdict(chosen, range(len(chosen) - 1), pending=int(history[n - 1]))


def _verdict(chosen: Sequence[int], path: Sequence[int], *, pending: int) -> Verdict:
    """Return what was chosen: the drafts of a path, and after them a token, or -1."""
    return Verdict(
        accepted=len(path),
        next_token=chosen[-1],
        tokens=tuple(chosen if chosen[-1] >= 0 else chosen[:-1]),
        committed=(pending, *chosen[:-1]),
        path=tuple(path),
    )


def tree_rows(path: Sequence[int]) -> list[int]:
    """Return the rows of a path, counted in its draft's: the pending token's is row 0."""
    return [0, *(1 + node for node in path)]
