"""What a drafter's graph has read of the target's text, and has yet to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import Feed
from mtpcore.drafting.drafters import DraftJob
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows
from mtpcore.drafting.upstream import UpstreamGraphs, finite_places
from mtpcore.runtime.runner import GraphRunner

__all__ = ["Entries"]

I32 = NDArray[np.int32]
_FEW = 64
"""Tokens up to which lists are faster than arrays: those of a round, not those of a prompt."""


class Entries:
    """Entries of a text, by place, in the memory of a graph.

    Entry p is token p with the hidden rows that the pairing gives it; a draft model reads tokens
    alone. A graph without a memory holds no entries: it reads the newest one anew.

    Parameters
    ----------
    runner : GraphRunner
    feeds : sequence of Feed
        Of this graph.
    upstream : UpstreamGraphs
        The drafter's further graphs, some of which may feed it.
    ahead : int
        How many places further on the tokens are that it reads the target's rows with.
    is_fed : bool
        Whether a further graph makes the entries; of the pending token there is none then.
    keeps_pending : bool
        Whether the pending token's entry stays when a round ends, where there is one.

    Attributes
    ----------
    first : int
        The first place that has an entry.
    remembers : bool
        Whether there is a memory.
    """

    def __init__(
        self,
        runner: GraphRunner,
        feeds: Sequence[Feed],
        upstream: UpstreamGraphs,
        *,
        ahead: int = 0,
        is_fed: bool = False,
        keeps_pending: bool = True,
    ) -> None:
        self.runner, self._feeds, self._upstream = runner, feeds, upstream
        self._ahead, self._is_fed = ahead, is_fed
        self._keeps_pending = keeps_pending and not is_fed
        self.first = (1 + ahead) * any(feed.pairing == "next-token" for feed in feeds)
        self.remembers = runner.memory is not None
        self._reads_tokens = runner.program.n_embeddings > 0
        self._n_vocab = runner.model.hparams.n_vocab

    def missing(self, seq: int, n: int) -> range:
        """Return the places, of n, whose entries are yet to be made; without memory the last."""
        begin = self.runner.lengths[seq] if self.remembers else n - 1
        return range(max(begin, self.first), n)

    def readable(
        self, seq: int, places: range, history: I32, rows: EmbeddingRows = NO_ROWS
    ) -> range:
        """Return the places before the first one with a token or a row that is not read.

        That is a token that a draft model does not have, or a row that is missing or not finite.
        """
        if not places:
            return places
        text = history[places.start : places.stop]
        # Mostly a token or two: lists are faster then.
        low, high = _ends(text.tolist()) if len(text) < _FEW else (text.min(), text.max())
        if low < 0:
            places = range(places.start, rows.reach(history, places))
        if high >= self._n_vocab and self._reads_tokens:
            unknown = np.flatnonzero(history[places.start : places.stop] >= self._n_vocab)
            places = range(places.start, places.start + int(next(iter(unknown), len(places))))
        for feed in self._feeds:
            end = self._upstream.reach(feed, seq)
            if end is not None:
                end += (feed.pairing == "next-token") + self._ahead
                places = range(places.start, max(places.start, min(places.stop, end)))
        return finite_places(self.runner, self._feeds, seq, places)

    def read(self, seq: int, places: range, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Make the entries of these places."""
        for batch in rows.batches(seq, history, places):
            self.runner.process(batch)

    def begin(self, job: DraftJob) -> int | None:
        """Let a text be read up to the pending token, whose entry is made anew for its logits.

        Returns the first place that cannot be read, if there is one.
        """
        n = len(job.history)
        self.rewind(job.seq, n - 1)
        missing = self.missing(job.seq, n)
        if self._is_fed:
            return None if len(missing) <= 1 else missing.start
        readable = self.readable(job.seq, missing, job.history, job.rows)
        return None if readable == missing else readable.stop

    def catch_up(self, job: DraftJob, most: int) -> range:
        """Read rows that are no tokens, and of a text that lacks more than ``most`` what it lacks.

        But for the pending token, which is read with the drafts. Returns what is missing still.
        """
        missing = self.missing(job.seq, len(job.history))
        end = job.rows.end if len(missing) <= most else missing.stop - 1
        if end <= missing.start:
            return missing
        self.read(job.seq, range(missing.start, end), job.history, job.rows)
        return range(end, missing.stop)

    def settle(self, seq: int, history: I32, rows: EmbeddingRows = NO_ROWS) -> None:
        """Hold exactly the entries of these tokens, as far as they can be read.

        The pending token's entry, which a draft may have left, is as true as the others, but
        nobody has committed to that token yet.
        """
        self.rewind(seq, len(history))
        self._upstream.fill({seq: history})
        if self.remembers and not self._is_fed:
            places = self.readable(seq, self.missing(seq, len(history)), history, rows)
            self.read(seq, places, history, rows)

    def end(self, job: DraftJob) -> None:
        """Forget what drafts left, of the text only what is yet to be made."""
        self.rewind(job.seq, len(job.history) - (not self._keeps_pending))

    def rewind(self, seq: int, n: int) -> None:
        """Hold no more than ``n`` entries; nothing where there is no memory."""
        n = n if self.remembers else 0
        if self.runner.lengths[seq] > n:
            self.runner.sequences.rewind(seq, n)


def _ends(tokens: list[int]) -> tuple[int, int]:
    return min(tokens, default=0), max(tokens, default=0)
