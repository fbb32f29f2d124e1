"""All that a Cross knows of one sequence: its tokens, pending token and undecided draft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.boundary.arrays import is_integer
from mtpcore.declarations.draft_tree import Draft
from mtpcore.drafting.embedding_rows import NO_ROWS, EmbeddingRows, RowChunk
from mtpcore.errors import BatchError, LinkError, NoTokenError, spell
from mtpcore.gguf import Tokenizer
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner
from mtpcore.sampling import (
    Grammar,
    GrammarMatcher,
    LogitsProcessor,
    Sampling,
    check_sampling,
    fill_masks,
    process_logits,
    spell_breakers,
)

__all__ = ["SequenceState", "SequenceStates", "Verdict"]


_NO_TOKENS: NDArray[np.int32] = np.zeros(0, np.int32)
_OF_TOKENS = {
    "logit_bias": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry_multiplier": 0.0,
}
"""Settings that name tokens or count them, as they change nothing."""


class Verdict(msgspec.Struct, frozen=True):
    """What the target says of a draft.

    ``accepted`` drafts equal the target's choices; ``next_token`` is its choice after them;
    ``tokens`` are both together, in order. ``committed`` is what ``accept(seq)`` adds to the text:
    the token that was pending and the accepted drafts. ``path`` are the accepted drafts by their
    number in the draft: 0, 1, 2, ... of a chain, the nodes on the way of a tree.

    Where no token was left to choose after them, ``next_token`` is -1, and none of ``tokens``: a
    generator ends the text, and ``Cross.verify`` raises.
    """

    accepted: int
    next_token: int
    tokens: tuple[int, ...]
    committed: tuple[int, ...]
    path: tuple[int, ...]

    @property
    def is_stuck(self) -> bool:
        """Whether no token was left to choose after the accepted drafts."""
        return self.next_token < 0


class SequenceState:
    """History, pending token and undecided draft of one sequence.

    ``history`` int32[n_ctx + 1]: the tokens processed so far at their places (-1 for embedding
    rows and places that were filled before the Cross), ``n`` of them, then the pending token. The
    first ``n_known`` are tokens. ``n_prompt`` of them count as prompt for the penalties, and the
    others are the text, which a grammar is of. Where a shift dropped some of it, ``early``
    int32[n_early] is the text before place ``early_end``.
    ``last_logits`` is float32[n_vocab] of the newest row while no token was chosen from it.
    ``stream`` is the noise that a fork was given, None that of the settings. ``sampling`` are the
    settings with which its tokens were chosen or drafted last. ``rows`` are embedding rows that a
    drafter has not read yet. ``is_released`` says that an owner released the sequence with this
    text, and that it has not changed since; see ``Owners``.
    """

    __slots__ = (
        "early",
        "early_end",
        "history",
        "is_released",
        "last_logits",
        "matcher",
        "n",
        "n_known",
        "n_prompt",
        "pending",
        "rows",
        "samplers",
        "sampling",
        "stream",
        "undecided",
    )

    def __init__(self, n_ctx: int) -> None:
        self.samplers: dict[str, tuple[Sampling, Sampler]] = {}
        self.matcher: tuple[Grammar, GrammarMatcher] | None = None
        self.history: NDArray[np.int32] = np.zeros(n_ctx + 1, np.int32)
        self.clear()

    def clear(self) -> None:
        """Become an empty sequence."""
        self.n = self.n_known = self.n_prompt = 0
        self.forget_early()
        self.pending: int | None = None
        self.last_logits: NDArray[np.float32] | None = None
        self.undecided: Verdict | None = None
        self.sampling: Sampling | None = None
        self.rows: EmbeddingRows = NO_ROWS
        self.is_released = False
        self.set_stream(None)

    def save(self) -> Any:
        """Return what ``restore`` needs while the history only grows, or is shortened."""
        counts = self.n, self.n_known, self.n_prompt, self.early, self.early_end
        chosen = self.pending, self.last_logits, self.undecided
        return counts, chosen, self.stream, self.sampling, self.rows, self.is_released

    def restore(self, saved: Any) -> None:
        """Put back what ``save`` returned."""
        counts, (pending, last_logits, undecided), stream, self.sampling, self.rows, released = (
            saved
        )
        self.is_released = released
        self.n, self.n_known, self.n_prompt, self.early, self.early_end = counts
        if pending is not None:
            self.set_pending(pending)
        self.pending, self.last_logits, self.undecided = pending, last_logits, undecided
        self.set_stream(stream)

    def set_stream(self, stream: int | None) -> None:
        """Draw from this noise, or from that of the settings."""
        self.stream = stream
        self.samplers.clear()

    def append(self, place: int, tokens: NDArray[np.int32]) -> None:
        """Note tokens that the target processed at ``place``."""
        text = self.pending is not None and len(tokens) and int(tokens[0]) == self.pending
        self.history[self.n : place] = -1
        self.history[place : place + len(tokens)] = tokens
        self.n = place + len(tokens)
        if self.n_known == place:
            unknown = np.flatnonzero(tokens < 0)
            self.n_known = place + int(unknown[0]) if len(unknown) else self.n
        self.pending, self.last_logits, self.is_released = None, None, False
        if not text:
            self.n_prompt = self.n
            self.forget_early()

    def commit(self, n: int) -> None:
        """Note that the history up to place ``n`` was processed."""
        if self.n_known == self.n:
            self.n_known = n
        self.n, self.is_released = n, False

    def set_pending(self, token: int) -> None:
        """Note the token that was chosen and not processed."""
        if self.n < len(self.history):
            self.history[self.n] = token
        self.pending, self.last_logits = token, None

    def text(self, n: int) -> NDArray[np.int32]:
        """Return the tokens of the text before place ``n``, those too that shifts have dropped."""
        if not len(self.early):
            return self.history[self.n_prompt : n]
        return np.concatenate([self.early, self.history[self.early_end : n]])

    def forget_early(self) -> None:
        """Let the text be what follows the prompt in the history."""
        self.early, self.early_end = _NO_TOKENS, 0

    def rewind(self, n: int) -> None:
        """Forget tokens from place ``n`` on, and what was chosen after them."""
        if n < self.early_end:
            self.forget_early()
        self.n, self.n_known, self.n_prompt = n, min(self.n_known, n), min(self.n_prompt, n)
        self.pending = self.last_logits = self.undecided = None
        self.rows, self.is_released = self.rows.until(n), False

    def copy_from(self, other: SequenceState) -> None:
        """Become a copy of another sequence."""
        self.history[:] = other.history
        self.n, self.n_known, self.n_prompt = other.n, other.n_known, other.n_prompt
        self.early, self.early_end = other.early, other.early_end
        self.pending, self.last_logits, self.undecided = other.pending, other.last_logits, None
        self.sampling, self.rows, self.is_released = other.sampling, other.rows, False

    def sampler(
        self, sampling: Sampling, kind: str, scratch: Scratch, tokenizer: Tokenizer | None
    ) -> Sampler:
        """Return a sampler of these settings; the newest one of each kind is kept."""
        kept = self.samplers
        if kind not in kept or kept[kind][0] is not sampling:
            changed: dict[str, Any] = {} if self.stream is None else {"stream": self.stream}
            if kind == "argmax":
                changed["temperature"] = 0.0
            if kind == "codes":
                changed |= _OF_TOKENS
            settings = msgspec.structs.replace(sampling, **changed) if changed else sampling
            breakers = spell_breakers(settings, tokenizer)
            kept[kind] = sampling, Sampler(settings, scratch, breakers)
        return kept[kind][1]


def _piece(batch: Batch, place: int, indices: NDArray[np.intp]) -> RowChunk:
    """Return the rows of one sequence, as a drafter reads them; copies, which a caller may change.

    ``indices`` are an array, so each part is a copy.
    """
    return RowChunk(
        place,
        batch.tokens[indices],
        None if batch.embeddings is None else batch.embeddings[indices],
        batch.pos[indices] if batch.pos.ndim == 2 else None,
    )


class SequenceStates:
    """The states of a Cross's sequences; states[seq] is one of them.

    With ``keeps_rows`` they hold embedding rows until drafters have read them.

    Parameters
    ----------
    target : GraphRunner
        What its sequences hold already are places without tokens.
    """

    def __init__(self, target: GraphRunner) -> None:
        self._target, self.keeps_rows = target, False
        self._states = [SequenceState(target.n_ctx) for _ in range(target.n_seq_max)]
        codebooks = target.model.codebooks
        n_codes = codebooks.n_first if codebooks is not None else 0
        self._scratch = Scratch(max(target.model.hparams.n_vocab, n_codes))
        for state, length in zip(self._states, target.lengths, strict=True):
            state.append(length, np.zeros(0, np.int32))

    def __getitem__(self, seq: int) -> SequenceState:
        return self._states[seq]

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._states)

    def of(self, seqs: Iterable[int]) -> list[SequenceState]:
        """Return the states of those that are numbers of sequences."""
        return [
            self._states[seq] for seq in seqs if is_integer(seq) and 0 <= seq < len(self._states)
        ]

    def checked(self, seq: int) -> SequenceState:
        """Return the state of a sequence; raise BatchError where there is none of this number."""
        return self._states[self._target.sequences.check(seq)]

    def decided(self, seq: int) -> SequenceState:
        """Return the state of a sequence; raise LinkError where a draft of it is undecided."""
        state = self.checked(seq)
        if state.undecided:
            raise LinkError(
                "a draft is undecided",
                where=f"sequence {seq}",
                fix="call accept() or rollback() first",
            )
        return state

    def known(self, seq: int) -> NDArray[np.int32]:
        """Return the history up to the first place without a token."""
        state = self._states[seq]
        return state.history[: state.n_known]

    def sampler(self, seq: int, sampling: Sampling, kind: str = "coupled") -> Sampler:
        """Return a sequence's sampler; the newest one of each kind is kept.

        Raises
        ------
        LinkError, SamplingError
            No such kind, or no settings.
        """
        state = self._states[seq]
        if type(kind) is not str or kind not in ("coupled", "argmax"):
            raise LinkError("unknown draft sampler", wanted="coupled, argmax", got=spell(kind))
        kept = state.samplers.get(kind)
        if kept is not None and kept[0] is sampling:  # as in most rounds
            state.sampling = sampling
            return kept[1]
        state.sampling = check_sampling(sampling)
        return state.sampler(sampling, kind, self._scratch, self._tokenizer_for(sampling))

    def sampler_of_codes(self, seq: int, sampling: Sampling) -> Sampler:
        """Return a sequence's sampler of the codes of a frame after the first.

        Settings that speak of tokens are left to the first code: biases, and penalties for what
        came before, which was of other codebooks.
        """
        checked, scratch = check_sampling(sampling), self._scratch
        return self._states[seq].sampler(checked, "codes", scratch, None)

    def _tokenizer_for(self, sampling: Sampling) -> Tokenizer | None:
        """Return what spells the breakers of repetitions; it is read where there may be some."""
        model = self._target.model
        if not sampling.dry_multiplier > 0:
            return None
        return model.tokenizer if model.has_tokenizer else None

    def matcher(self, seq: int, grammar: Grammar) -> GrammarMatcher:
        """Return what says which tokens may follow in a sequence; the newest one is kept.

        Raises
        ------
        SamplingError
            The grammar cannot be used, or there is no vocabulary.
        """
        state = self._states[seq]
        if state.matcher is None or state.matcher[0] != grammar:
            state.matcher = grammar, self._target.model.grammars.matcher(grammar)
        return state.matcher[1]

    def masks(
        self, drafts: Mapping[int, Draft], grammars: Mapping[int, Grammar]
    ) -> dict[int, NDArray[np.uint32]]:
        """Return which tokens may follow the pending token, and each draft after it.

        Parameters
        ----------
        drafts : mapping of int to Draft
            By sequence.
        grammars : mapping of int to Grammar
            Those of the sequences that have one.

        Returns
        -------
        dict of int to uint32[1 + n_drafts, n_words]
            As ``fill_masks`` has them, for the sequences with a grammar.
        """
        asked = []
        for seq, grammar in grammars.items():
            state = self._states[seq]
            asked.append((self.matcher(seq, grammar), state.text(state.n + 1), drafts[seq]))
        return dict(zip(grammars, fill_masks(asked), strict=True))

    def pending(
        self,
        seq: int,
        sampling: Sampling | None = None,
        processor: LogitsProcessor | None = None,
    ) -> int | None:
        """Return the token that was chosen and not yet processed; see ``Cross.pending``."""
        state = self.checked(seq)
        if sampling is not None:
            check_sampling(sampling)
        if state.pending is None and sampling is not None and state.last_logits is not None:
            tokens = state.history[: state.n]
            logits = process_logits(processor, tokens, state.last_logits)
            mask = None
            if sampling.grammar is not None:
                matcher, text = self.matcher(seq, sampling.grammar), state.text(state.n)
                mask = fill_masks([(matcher, text, ())])[0][0]
            sampler = self.sampler(seq, sampling)
            token = sampler.choose(logits, tokens, state.n_prompt, state.n, mask=mask)
            state.set_pending(token)
        return state.pending

    def choose(self, seq: int, sampling: Sampling, processor: LogitsProcessor | None = None) -> int:
        """Return the pending token, choosing it where the newest row has logits.

        Raises
        ------
        BatchError
            No token was chosen, and there are no logits.
        NoTokenError
            There are, and no token is left to choose.
        """
        state = self._states[seq]
        token = state.pending
        if token is None:
            token = self.pending(seq, sampling, processor)
        if token is None:
            raise BatchError(
                "nothing to continue from",
                where=f"sequence {seq}",
                fix=f"process() what follows with outputs='last', or rollback() to {state.n - 1} "
                "and process() the last token again"
                if state.n
                else "process() tokens with outputs='last' first",
            )
        return token

    def try_choose(
        self, seq: int, sampling: Sampling, processor: LogitsProcessor | None = None
    ) -> int | None:
        """Choose as ``choose`` does; return None where no token is left."""
        try:
            return self.choose(seq, sampling, processor)
        except NoTokenError:
            return None

    def note(self, batch: Batch, output: Output, rows: Mapping[int, NDArray[np.intp]]) -> None:
        """Note the tokens of these rows, by sequence, which the target has processed.

        Rows that are more than a token, or none, are noted as -1: nobody can process them again.
        """
        tokens = batch.tokens
        if batch.codes is not None:
            tokens = np.where((batch.codes >= 0).any(axis=1), np.int32(-1), tokens)
        wanted = {int(row): i for i, row in enumerate(output.outputs)}
        for seq, indices in rows.items():
            state = self._states[seq]
            place = int(output.place[indices[0]])
            state.append(place, tokens[indices])
            if self.keeps_rows and (batch.embeddings is not None or batch.pos.ndim == 2):
                state.rows = state.rows.put(_piece(batch, place, indices))
            newest = wanted.get(int(indices[-1]))
            if newest is None:
                continue
            token = output.chosen_at(newest)
            if token is not None:
                state.set_pending(token)
            else:
                state.last_logits = output.logits_at(newest)
