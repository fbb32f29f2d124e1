"""Prefix cache: requests begin after tokens that other texts of the same Cross begin with, too."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore.boundary.arguments import Length, read
from mtpcore.cross import Cross
from mtpcore.decoding.request import Request
from mtpcore.memory import PAGE

__all__ = ["PrefixCache", "PrefixCacheSize", "read_prefix_cache"]

PrefixCacheSize: TypeAlias = int | Literal["all"] | None

_FROM_END = 128, 512
"""Tokens that a pass leaves of a prompt, so that recurrent layers have a state before them."""

_BEFORE = 3
"""How many times as many tokens such a pass must have before it: a pass more costs little then."""

_SIZE = Annotated[Length | Literal["all"] | None, Meta(description=">= 0, 'all' or None")]


class PrefixCache:
    """Finds sequences for requests, and keeps the texts of finished ones.

    A request forks the sequence that has most in common with its prompt, whether that text is
    finished or still being written: both share the pages, and the states of recurrent layers. If
    nothing else would be lost, it goes on in that sequence itself. Finished texts stay only in
    sequences that no request needs: a request never waits for one.

    Parameters
    ----------
    cross : Cross
    size : int or "all" or None
        Bytes that finished texts may take in the memory of all roles, besides what running requests
        share with them; "all": as many as there is room for. None: requests share nothing.
    """

    def __init__(self, cross: Cross, size: PrefixCacheSize) -> None:
        self._size = sys.maxsize if size == "all" else size
        self._cross, self._owners, self._target = cross, cross.owners, cross.llm.runner

    @property
    def is_on(self) -> bool:
        """Whether requests share anything."""
        return self._most is not None

    @property
    def _most(self) -> int | None:
        """Bytes that finished texts may take; None: requests share nothing.

        They cannot where the target reads other rows, too: texts that begin alike differ in them.
        """
        cross = self._cross
        reads_rows = cross.speculation.encoder is not None or cross.links.inboxes("llm")
        return None if reads_rows else self._size

    def claim(self, request: Request) -> int | None:
        """Claim a sequence for a request, with what its prompt has in common with other texts.

        None: no sequence is free. Where an interrupt cuts it off, the next call goes on.
        """
        seq, prompt = self._owners.find(request), _PromptText(request)
        if seq is None:
            seq = self._choose(prompt)
            if seq is None:
                return None
            self._owners.claim(seq, request)
        most = max(self._common(prompt).values(), default=0)
        n = self._fill(seq, prompt)
        if most - n >= PAGE:  # no state is kept where the texts part: the next one finds it there
            request.stops.add(most)
        if self.is_on and self._cross.speculation.is_recurrent:
            request.stops.update(_stops_near_end(n, len(prompt.tokens)))
        request.begin_at(n)
        return seq

    def _choose(self, prompt: _PromptText) -> int | None:
        """Return the free sequence that a prompt takes.

        It is an empty one, or the one that was used longest ago. But what a prompt has most in
        common with goes on itself, where that loses fewer tokens.
        """
        free, lengths = self._free(), self._target.lengths
        if not free:
            return None
        seq = free[0]
        source, n = self._find(prompt, seq)
        if source in free and lengths[source] - n <= lengths[seq]:
            return source
        return seq

    def _free(self) -> list[int]:
        """Return the sequences that no request uses: empty ones, then those used longest ago."""
        lengths, last_used = self._target.lengths, self._owners.last_used
        return sorted(self._owners.free(), key=lambda seq: (lengths[seq] > 0, last_used(seq)))

    def _fill(self, seq: int, prompt: _PromptText) -> int:
        """Let a sequence hold as much of a prompt as others have, and nothing else; return it."""
        source, n = self._find(prompt, seq)
        cross, speculation = self._cross, self._cross.speculation
        if self._target.lengths[seq] and (source != seq or not n):
            with cross.transaction((seq,)):
                speculation.remove(seq)
        if not n:
            with cross.transaction((seq,)):
                self._target.sequences.adapt(seq, prompt.adapters)
            return 0
        with cross.transaction((source, seq)):
            if source != seq:
                speculation.fork(source, seq, None)
            speculation.rollback(seq, n)
            speculation.states[seq].set_stream(None)  # the other text may have been shifted
        self._owners.use(source)
        return n

    def _find(self, prompt: _PromptText, seq: int) -> tuple[int, int]:
        """Return the sequence that has most in common with a prompt, and how many tokens.

        Of equals it is ``seq``.
        """
        if not self.is_on:
            return seq, 0
        reachable, common = self._cross.speculation.reachable, self._common(prompt)
        source, most = seq, 0
        for s in sorted(common, key=lambda s: (common[s], s == seq), reverse=True):
            if common[s] <= most:
                break
            n = reachable(s, common[s])
            if n > most:
                source, most = s, n
        return source, most

    def is_coming(self, request: Request, running: Iterable[Request]) -> bool:
        """Say whether a running request is reading a page or more that this one would read, too.

        That one makes a stop where their prompts part: this one goes on from there, even where a
        sliding window or a recurrent layer would keep nothing of it a few tokens later.
        """
        if not self.is_on:
            return False
        prompt = _PromptText(request)
        found = self._find(prompt, -1)[1]
        for other in running:
            if other.adapters != prompt.adapters:
                continue
            n = _count_common(_PromptText(other).tokens, prompt.sharable)
            if found <= other.n_prefilled < n and n - other.n_cached >= PAGE:
                other.stops.add(n)
                return True
        return False

    def _common(self, prompt: _PromptText) -> dict[int, int]:
        """Return how many tokens each sequence has in common with a prompt, but for its last."""
        if not self.is_on:
            return {}
        known, adapters = self._cross.speculation.states.known, self._target.sequences.adapters
        return {
            seq: _count_common(known(seq), prompt.sharable)
            for seq in self._owners.known()
            if adapters.chosen(seq) == prompt.adapters
        }

    def trim(self) -> None:
        """Forget finished texts, those used longest ago first, until the others are few enough.

        Part of a commit: there is no transaction around it, and calling it twice is harmless.
        """
        most = self._most
        if most is None:
            return
        lengths, speculation = self._target.lengths, self._cross.speculation
        kept = self._free()
        while kept and not lengths[kept[0]]:
            speculation.remove(kept.pop(0))  # it may have been cut off
        while kept and speculation.bytes_of(kept) > most:
            speculation.remove(kept.pop(0))


def read_prefix_cache(size: object) -> PrefixCacheSize:
    """Return the size of a prefix cache; raise BatchError for anything else."""
    what = "prefix_cache is a number of bytes"
    return read(size, _SIZE, what, where="Generator")  # type: ignore[no-any-return]


def _stops_near_end(begin: int, end: int) -> list[int]:
    """Return where passes end so that states lie close to the end of a prompt.

    Prompts that begin with the same instructions part there: each has a short question of its own.
    """
    return [end - n for n in _FROM_END if end - n - begin >= _BEFORE * n]


class _PromptText:
    """The tokens of a prompt up to its first row that is none, as rows equal nothing.

    And the adapters of its text: rows of others differ. Those of its tokens are ``sharable`` that
    need not be processed again: all but the last, whose logits choose; none, where all logits are
    asked for.
    """

    def __init__(self, request: Request) -> None:
        self.tokens: NDArray[np.int32] = np.array(request.known, np.int32)
        self.sharable = self.tokens[: -1 if request.n_prompt_logprobs is None else 0]
        self.adapters = request.adapters


def _count_common(tokens: NDArray[np.int32], prompt: NDArray[np.int32]) -> int:
    """Return how many tokens both begin with."""
    n = min(len(tokens), len(prompt))
    differ = np.flatnonzero(tokens[:n] != prompt[:n])
    return int(differ[0]) if len(differ) else n
