"""Tokens that are chosen where their logits are; nothing but the tokens comes home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import F32, FusedSampling
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.passes import Odds, weigh
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import (
    ADJUSTED,
    ADJUSTMENT,
    CHOOSER,
    CUT,
    N_DIGITS,
    TALLY,
    WINNER,
    Adjustments,
    Cuts,
    Drafted,
    adjust,
    adjusted_row,
    adjustments_of,
    choose,
    choosers_of,
    cut,
    cuts_of,
    find_tops,
    logits_by_token,
    n_parts,
    settle,
)
from mtpcore.backends.cuda.launch.trees import RANKED, merge_ranks, rank
from mtpcore.backends.cuda.staging import Part
from mtpcore.errors import BatchError, SamplingError

__all__ = ["NO_DRAFTS", "Choice", "Choosing", "DraftedParts", "list_drafts"]

I32 = NDArray[np.int32]

DraftedParts = Mapping[int, tuple[int, int]]
"""Of each output the drafts that its text goes on with: the first of a list, and how many."""

NO_DRAFTS: DraftedParts = {}
_NONE = (0, 0)


class Choosing(NamedTuple):
    """What decides the launches of a choice: n samplers, and what they ask for.

    ``rooms`` are the lengths of arrays that move where they are outgrown. Where ``n_ranks`` are
    above 0, so many tokens are ranked, and none is chosen.
    """

    n: int
    n_adjusted: int
    rooms: tuple[int, ...]
    has_cuts: bool
    has_names: bool
    has_odds: bool
    n_ranks: int = 0


class Choice:
    """Who chooses a token from which of a plan's rows of logits.

    Parameters
    ----------
    device : Device
        Where the logits are.
    logits : DeviceArray
        float32[n_batch, n_logits], the rows of all outputs.

    Attributes
    ----------
    logits : DeviceArray
    ids : DeviceArray
        int32[n_batch], the tokens that were chosen, of all outputs with samplers in their order.
    odds : Odds
        How probable they are, where that was asked for.
    rankings : DeviceArray
        Of type ``RANKED``, where that was asked for: so many tokens of each sampler's output.
    """

    def __init__(self, device: Device, logits: DeviceArray) -> None:
        n_batch, n_logits = logits.shape
        self._device, self.logits = device, logits
        self._choosers = device.empty((n_batch,), CHOOSER)
        self._winners = device.empty((n_batch, n_parts(n_logits)), WINNER)
        self.ids = device.empty((n_batch,), np.int32)
        self._cuts = Cuts(
            device.empty((n_batch,), CUT),
            device.empty((n_batch,), np.int32),
            device.empty((n_batch, N_DIGITS), TALLY),
        )
        self.odds = Odds(
            self._choosers,
            device.empty((n_batch,), np.int32),
            self._cuts.tops,
            device.empty((n_batch,), np.uint64),
        )
        self._adjusted = device.empty((n_batch,), ADJUSTED)
        self._adjustments = device.empty((1,), ADJUSTMENT)  # these grow: powers of two
        self._by_token = device.empty((1,), np.int32)
        self._candidates, self.rankings = device.empty((1,), WINNER), device.empty((1,), RANKED)
        self._token_ids = device.empty((n_logits,), np.int32)
        self._named: tuple[I32, I32] | None = None  # what _token_ids and _by_token hold

    def check(self, wanted: FusedSampling, n_outputs: int) -> None:
        """Raise BatchError or SamplingError where samplers do not fit outputs and logits."""
        given = [len(wanted.samplers), len(wanted.indices)]
        if wanted.texts:
            given += [len(wanted.texts), len(wanted.n_prompt)]
        if {*given} != {n_outputs}:
            where = "fused_sampling"
            raise BatchError("one choice an output", where=where, wanted=n_outputs, got=given)
        for i, (sampler, index) in enumerate(zip(wanted.samplers, wanted.indices, strict=True)):
            if sampler is None:
                continue
            sampler.check(self.logits.shape[1], index, wanted.token_ids)
            if wanted.texts and not 0 <= wanted.n_prompt[i] <= len(wanted.texts[i]):
                raise SamplingError(
                    "the prompt is not a part of the text",
                    where=f"output {i}",
                    wanted=f"n_prompt from 0 to {len(wanted.texts[i])}",
                    got=wanted.n_prompt[i],
                )
            if sampler.sampling.is_for_hosts:
                raise SamplingError(
                    "only a host chooses by these settings",
                    where=f"output {i}",
                    wanted="bias, penalties of the whole text, top_k, top_p, min_p, temperature",
                    fix="give None as its sampler, and choose from Output.logits",
                )
            if not (wanted.texts or sampler.is_gumbel_max):
                raise SamplingError("a choice needs the text before it", where=f"output {i}")

    def take(
        self,
        wanted: FusedSampling,
        *,
        has_odds: bool = False,
        n_ranks: int = 0,
        drafted: DraftedParts = NO_DRAFTS,
    ) -> tuple[Choosing, list[Part]]:
        """Return what decides the launches of a choice, and what they go by, to be held.

        ``has_odds`` asks how probable the chosen tokens are, ``n_ranks`` for so many tokens in
        place of the chosen one; ``drafted`` are parts of the list of drafts that ``launches`` is
        given.
        """
        who = _who(wanted)
        parts = [Part(choosers_of(who), self._choosers)]
        by_token = self._name(wanted.token_ids)
        n_adjusted, more = self._adjust(wanted, who, by_token, drafted)
        parts += more
        cuts = cuts_of(sampler for sampler, *_ in who)
        has_cuts = bool((cuts["is_open"] | (cuts["min_p"] > 0)).any())
        if has_cuts:
            zeros = np.zeros((len(who), N_DIGITS), TALLY)  # what was cut off left others there
            parts += [Part(cuts, self._cuts.cuts), Part(zeros, self._cuts.tallies)]
        if has_odds or n_ranks:
            parts.append(Part(np.zeros(len(who), np.uint64), self.odds.totals))
        n_ranked = n_ranks * len(who)
        self.rankings = self._room(self.rankings, n_ranked)
        self._candidates = self._room(self._candidates, n_ranked * self._winners.shape[1])
        shape = Choosing(
            n=len(who),
            n_adjusted=n_adjusted,
            rooms=tuple(
                array.shape[0]
                for array in (self._adjustments, self._by_token, self._candidates, self.rankings)
            ),
            has_cuts=has_cuts,
            has_names=by_token is not None,
            has_odds=has_odds or n_ranks > 0,
            n_ranks=n_ranks,
        )
        return shape, parts if who else []

    def launches(self, shape: Choosing, drafted: Drafted | None = None) -> Iterator[Launch]:
        """Yield what lets samplers choose that ``take`` was told of, and are held."""
        logits, choosers, winners, n = self.logits, self._choosers, self._winners, shape.n
        if not n:
            return
        yield from self._prepare(shape, drafted)
        names, cuts = self._names(shape), self._cuts if shape.has_cuts else None
        if shape.n_ranks:
            candidates, n_ranks = self._candidates, shape.n_ranks
            yield weigh(logits, self.odds, n)
            yield rank(logits, names, self.odds, cuts, candidates, n, n_ranks)
            yield merge_ranks(logits, names, self.odds, candidates, self.rankings, n, n_ranks)
            return
        yield from choose(logits, choosers, names, winners, self.ids, n, cuts)
        if shape.has_odds:
            yield settle(winners, self.odds.rows, n)
            yield weigh(logits, self.odds, n)

    def _prepare(self, shape: Choosing, drafted: Drafted | None) -> Iterator[Launch]:
        """Yield what changes logits, and finds their largest ones and the cuts."""
        logits, choosers, winners, n = self.logits, self._choosers, self._winners, shape.n
        by_token = self._by_token if shape.has_names else None
        adjustments = Adjustments(self._adjusted, self._adjustments, by_token)
        yield from adjust(logits, adjustments, shape.n_adjusted, drafted)
        if shape.has_cuts or shape.has_odds:
            yield from find_tops(logits, choosers, winners, self._cuts.tops, n)
        if shape.has_cuts:
            yield from cut(logits, choosers, self._cuts, winners, n)

    def _names(self, shape: Choosing) -> DeviceArray | None:
        """Return the token of each logit, where that is not its index."""
        return self._token_ids if shape.has_names else None

    def result(self, wanted: FusedSampling) -> tuple[I32, F32]:
        """Wait for the token of each output, -1 where it has no sampler, and the logits of these.

        A token is ``NO_TOKEN`` where none was left to choose.

        Returns
        -------
        chosen : int32[n_outputs]
        logits : float32[n_without, n_logits]
        """
        who = _who(wanted)
        chosen = np.full(len(wanted.samplers), -1, np.int32)
        if who:
            chosen[[row for *_, row in who]] = self._device.download(self.ids, len(who))
        return chosen, self._rows(np.flatnonzero(chosen == -1))

    def _adjust(
        self,
        wanted: FusedSampling,
        who: list[tuple[Sampler, int, int]],
        by_token: I32 | None,
        drafted: DraftedParts,
    ) -> tuple[int, list[Part]]:
        """Return how many rows are adjusted, and what they go by."""
        n_logits, n_tokens = self.logits.shape[1], 0
        rows: list[tuple[float | int, ...]] = []
        tokens: list[NDArray[np.void]] = []
        for sampler, _, row in who if wanted.texts else ():
            text, n_prompt = wanted.texts[row], wanted.n_prompt[row]
            own = adjustments_of(sampler, text, n_prompt, n_logits, by_token)
            drafts = drafted.get(row, _NONE) if sampler.sampling.has_penalties else _NONE
            if len(own) or drafts[1]:
                rows.append(adjusted_row(sampler, row, (n_tokens, len(own)), drafts))
                tokens.append(own)
                n_tokens += len(own)
        if not rows:
            return 0, []
        n = 1 << (n_tokens - 1).bit_length() if n_tokens else 0  # else every token changes graphs
        tokens.append(np.zeros(n - n_tokens, ADJUSTMENT))
        self._adjustments = self._room(self._adjustments, n)
        parts = [
            Part(np.array(rows, ADJUSTED), self._adjusted),
            Part(np.concatenate(tokens), self._adjustments),
        ]
        return len(rows), parts

    def _room(self, array: DeviceArray, n: int) -> DeviceArray:
        """Return the array, or a new one that has room for n."""
        has_room = n <= array.shape[0]
        return array if has_room else self._device.empty((1 << n.bit_length(),), array.dtype)

    def _name(self, token_ids: I32 | None) -> I32 | None:
        """Let the device know the tokens of logits, mostly those of the run before.

        Returns
        -------
        int32[n] or None
            The logit of each token, where tokens are given.
        """
        if token_ids is None:
            return None
        if self._named is None or (self._named[0] != token_ids).any():
            self._named, by_token = None, logits_by_token(token_ids)
            self._by_token = self._room(self._by_token, len(by_token))
            n_more = self._by_token.shape[0] - len(by_token)
            self._device.upload(token_ids, self._token_ids)
            self._device.upload(np.pad(by_token, (0, n_more), constant_values=-1), self._by_token)
            self._named = token_ids.copy(), by_token
        return self._named[1]

    def _rows(self, rows: NDArray[np.intp]) -> F32:
        """Return these rows of logits, neighbours in one go."""
        n_logits = self.logits.shape[1]
        logits = np.empty((len(rows), n_logits), np.float32)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1):
            if len(part):
                at, n_bytes = 4 * n_logits * int(rows[part[0]]), 4 * n_logits * len(part)
                values = np.frombuffer(self._device.read(self.logits, at, n_bytes), np.float32)
                logits[part] = values.reshape(len(part), n_logits)
        return logits


def list_drafts(paths: Mapping[int, Sequence[int]]) -> tuple[I32, DraftedParts]:
    """Return a list of the drafts that texts of outputs go on with, and their parts."""
    numbers: list[int] = []
    parts = dict[int, tuple[int, int]]()
    for output, path in paths.items():
        parts[output] = len(numbers), len(path)
        numbers += path
    return np.array(numbers, np.int32), parts


def _who(wanted: FusedSampling) -> list[tuple[Sampler, int, int]]:
    """Return the samplers that there are, with the index of each one's token and its output."""
    pairs = zip(wanted.samplers, wanted.indices, strict=True)
    return [(one, index, row) for row, (one, index) in enumerate(pairs) if one is not None]
