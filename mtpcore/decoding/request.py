"""Request: one text that is being generated."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import inf
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore.boundary.arguments import DraftLength, Flag, Length, Probability, one_of, read
from mtpcore.boundary.arrays import integers, is_integer
from mtpcore.boundary.copies import Uncopied
from mtpcore.cross import DraftSampler, DraftSettings
from mtpcore.cross.by_sequence import read_names
from mtpcore.decoding.forbidden import ForbiddenTokens
from mtpcore.decoding.logprobs import TokenLogprobs
from mtpcore.decoding.options import RequestOptions
from mtpcore.decoding.written_text import StopPlace, WrittenText
from mtpcore.errors import BatchError, spell
from mtpcore.gguf import Tokenizer
from mtpcore.runtime.adapters import Chosen
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import (
    LogitsProcessor,
    PureProcessor,
    Sampling,
    check_sampling,
    process_logits,
)

__all__ = [
    "NO_LIMIT",
    "FinishReason",
    "Progress",
    "Request",
    "WhenFull",
    "read_draft",
    "read_draft_sampler",
    "read_p_min",
    "read_when_full",
]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_DRAFT_SAMPLER = one_of("coupled", "argmax")

_WHEN_FULL = one_of("stop", "shift")

_KEEP = Annotated[Length | None, Meta(description=">= 0, or None")]
_LOGPROBS = Annotated[Length | None, Meta(description=">= 0, or None")]
NO_LIMIT: Final = 1 << 53
"""A ``max_tokens`` that no text reaches."""

_NO_TOKENS: frozenset[int] = frozenset()
FinishReason = Literal["stop", "length", "end", "no_token", "cancelled"]
WhenFull: TypeAlias = Literal["stop", "shift"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request stands after a round: what was there before, and these tokens.

    ``begin`` tokens were there before. ``text`` and ``cut`` are of all tokens, as are the counts.
    ``n_prefilled`` tokens of the prompt were processed, and ``prompt_logprobs`` are of all of them.
    """

    begin: int
    n_prefilled: int
    n_passes: int
    n_drafted: int
    tokens: list[int]
    drafted: list[bool]
    text_ends: list[int]
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]
    end_logprobs: TokenLogprobs | None
    text: WrittenText
    cut: StopPlace | None = None
    reason: FinishReason | None = None


class Request(Uncopied):
    """A prompt, its settings, and what was generated so far.

    ``seq`` is its sequence in the generator's Cross; None before it runs and when it has ended.

    Parameters
    ----------
    prompt : sequence of int or Prompt
        Token ids, one or more, or tokens and embedding rows.
    options : RequestOptions
        All of those that ``Generator.add`` takes, which makes requests.
    tokenizer : Tokenizer or None
        The model's.
    start_token : int, optional
        The token with which a text begins, where an encoder reads the prompt.
    adapters : tuple of (int, float)
        Numbers and scales of the target's adapters that the text has.

    Attributes
    ----------
    given : list of int
        The prompt; -1 for rows that are no tokens.
    prompt : list of int
        What the target reads of it: all, or ``start_token`` where an encoder reads the prompt.
    source : list of int
        What the encoder reads; empty where there is none.
    rows : Prompt or None
        The prompt, where it has rows that are no tokens.
    tokens : list of int
        The generated ids, without the end-of-text token or a stop token.
    drafted : list of bool
        Whether each token was an accepted draft.
    text_ends : list of int
        How many characters the text had after each token.
    logprobs : list of TokenLogprobs
        How likely each token was, where that was asked for.
    end_logprobs : TokenLogprobs or None
        How likely the end-of-text or stop token was with which the text ended, if it did so.
    prompt_logprobs : list of TokenLogprobs
        How likely each token of the prompt was after those before it, from the second one on, where
        that was asked for.
    finish_reason : str or None
        ``end`` (end-of-text token), ``stop`` (stop string or token), ``length`` (``max_tokens`` or
        the context's end), ``no_token`` (no token was left to choose: settings or the logits
        processor forbid all, or no logit is a number) or ``cancelled``; None while it runs.
    n_cached, n_prefilled : int
        Tokens of the prompt that were in the KV cache already, and that are there now.
    n_passes, n_drafted : int
        Runs of the target after the prompt, and the drafts that it verified in them.
    n_shifts, n_dropped : int
        How often the context was full and was shifted, and the tokens that were dropped.
    stops : set of int
        Places in the prompt at which a pass ends, so that other texts can go on from there.
    is_queued : bool
        Whether a generator works on it, or has done so; no other one does.
    resting : bool
        Whether rounds leave it out, because its reader was interrupted.
    is_left : bool
        Whether its reader is gone: the next round cancels it.

    Raises
    ------
    BatchError, SamplingError
        Invalid options.
    """

    _because = "its generator works on it"
    _instead = "add the prompt again, or copy what you need of it: request.tokens"

    def __init__(
        self,
        prompt: Sequence[int] | Prompt,
        options: RequestOptions,
        *,
        tokenizer: Tokenizer | None,
        start_token: int | None = None,
        adapters: Chosen = (),
    ) -> None:
        self.rows: Prompt | None = None
        if isinstance(prompt, Prompt) and not prompt.is_text:
            self.rows = prompt
        self.given: list[int] = (
            prompt.tokens.tolist() if isinstance(prompt, Prompt) else _read_prompt(prompt)
        )
        self.prompt, self.source = self.given, list[int]()
        if start_token is not None:
            self.source, self.prompt = self.given, [start_token]
        self.draft = read_draft(options["draft"])
        max_tokens = options["max_tokens"]
        self.max_tokens: int = read(max_tokens, Length, "max_tokens is a number of tokens")
        self.min_tokens: int = read(
            options["min_tokens"], Length, "min_tokens is a number of tokens"
        )
        if self.min_tokens > self.max_tokens:
            raise BatchError(
                "the shortest text is longer than the longest",
                where="min_tokens",
                wanted=f"at most max_tokens, {self.max_tokens}",
                got=self.min_tokens,
            )
        self.stop = _read_strings(options["stop"], "stop")
        banned = _read_strings(options["banned_strings"], "banned_strings")
        for name, strings in (("stop", self.stop), ("banned_strings", banned)):
            if strings and tokenizer is None:
                raise BatchError(
                    "strings need a tokenizer, and the model file has none",
                    where=name,
                    fix=f"leave {name} out",
                )
        self.stop_token_ids = _read_stop_tokens(options["stop_token_ids"])
        self.special: bool = read(options["special"], Flag, "special is yes or no")
        self.sampling = check_sampling(options["sampling"])
        if tokenizer is not None and tokenizer.suppressed:
            self.sampling = _forbid(tokenizer.suppressed, self.sampling)
        self.ignore_eos: bool = read(options["ignore_eos"], Flag, "ignore_eos is yes or no")
        self.drafters = read_names(options["drafters"])
        self.draft_sampler = read_draft_sampler(options["draft_sampler"])
        self.p_min = read_p_min(options["p_min"])
        self.when_full = read_when_full(options["when_full"])
        self.n_keep: int | None = read(options["n_keep"], _KEEP, "n_keep is a number of tokens")
        self.adapters = adapters
        logprobs, processor = options["logprobs"], options["logits_processor"]
        self.n_logprobs: int | None = read(logprobs, _LOGPROBS, "logprobs is a number of tokens")
        self.n_prompt_logprobs: int | None = read(
            options["prompt_logprobs"], _LOGPROBS, "prompt_logprobs is a number of tokens"
        )
        if self.n_prompt_logprobs is not None and (self.source or self.rows is not None):
            raise BatchError(
                "the prompt is no text that the model continues, so it predicts nothing of it",
                where="prompt_logprobs",
                got="a prompt that an encoder reads" if self.source else "rows that are no tokens",
                fix="leave prompt_logprobs out",
            )
        if processor is not None and not callable(processor):
            raise BatchError(
                "a logits processor is a callable",
                wanted="processor(tokens, logits)",
                got=spell(processor),
            )
        self.logits_processor = processor
        self._tokenizer = tokenizer
        ends = self._ends | self.stop_token_ids
        self._forbidden = ForbiddenTokens(
            ends, self.min_tokens, banned, tokenizer, special=self.special
        )
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.text_ends: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.end_logprobs: TokenLogprobs | None = None
        self.finish_reason: FinishReason | None = None
        self.seq: int | None = None
        self.n_cached = self.n_prefilled = self.n_passes = self.n_drafted = 0
        self.n_dropped = self.n_shifts = 0
        self.stops: set[int] = set()
        self.is_queued = self.resting = self.is_left = False
        self._written = WrittenText(
            tokenizer, self.stop, special=self.special, start=bool(self.source)
        )
        self._cut: StopPlace | None = None

    def __repr__(self) -> str:
        return (
            f"Request({len(self.given)} prompt tokens, {len(self.tokens)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )

    @property
    def done(self) -> bool:
        """Whether the request has finished."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The generated text; bytes of an unfinished character are held back until the end."""
        return self._written.text[: self._cut.place if self._cut is not None else None]

    @property
    def stopped_at(self) -> str | None:
        """The stop string before which the text ended; None where it ended otherwise, or runs."""
        return None if self._cut is None else self._cut.stop

    @property
    def processor(self) -> LogitsProcessor | None:
        """What changes logits from now on: the caller's processor, and after it what is forbidden.

        It is pure if the caller's is.
        """
        own = self.logits_processor
        if self._forbidden.is_over(len(self.tokens)):
            return own
        is_pure = own is None or isinstance(own, PureProcessor)
        return PureProcessor(self._process) if is_pure else self._process

    @property
    def draft_settings(self) -> DraftSettings:
        """How drafts are chosen from now on."""
        return DraftSettings(self.sampling, self.draft_sampler, self.p_min, self.processor)

    def _process(self, tokens: I32, logits: F32) -> F32:
        logits = process_logits(self.logits_processor, tokens, logits)
        text = [*self.tokens, *tokens[self.n_held :].tolist()]  # which goes on with drafts
        forbidden = self._forbidden.after(text)
        logits[forbidden[forbidden < len(logits)]] = -inf
        return logits

    @property
    def _ends(self) -> frozenset[int]:
        """The tokens that end any text."""
        if self._tokenizer is None or self.ignore_eos:
            return _NO_TOKENS
        return self._tokenizer.end_tokens

    def token_text(self, token: int) -> str:
        """Return what a token writes; empty without a tokenizer, and where it does not know it."""
        tokenizer = self._tokenizer
        if tokenizer is None or token >= tokenizer.n_vocab:
            return ""
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    @property
    def n_held(self) -> int:
        """How many tokens of prompt and text were not dropped, read or not."""
        return len(self.prompt) + len(self.tokens) - self.n_dropped

    @property
    def known(self) -> list[int]:
        """The prompt's tokens up to its first row that is none."""
        return self.prompt[: self.prompt.index(-1)] if self.rows is not None else self.prompt

    def chunk(self, begin: int, end: int, *, whole: bool) -> list[int] | Prompt:
        """Return rows ``begin`` to ``end`` of the prompt: tokens, if all of them are tokens.

        Where pictures stay ``whole``, the part ends before or after one.
        """
        tokens = self.prompt[begin:end]
        if self.rows is None or -1 not in tokens:
            return tokens
        end = min(end, len(self.prompt))
        if whole and (after := int(self.rows.until[end - 1])) > end:
            inside = self.rows.until[begin:end] == after
            end = begin + int(inside.argmax()) if not inside[0] else after
        return self.rows.part(begin, end)

    def settled_text(self) -> str:
        """Return the text that no later stop string can take back."""
        return self.text if self.done else self._written.text[: self._written.n_settled]

    def begin_at(self, n: int) -> None:
        """Begin after ``n`` tokens of the prompt, which are in the KV cache already."""
        self.n_cached = self.n_prefilled = n

    def note_shift(self, n_dropped: int, n_shifts: int) -> None:
        """Note that the context was shifted; these are the counts of all times."""
        self.n_dropped, self.n_shifts = n_dropped, n_shifts

    def advance(
        self,
        tokens: Sequence[int],
        accepted: int,
        *,
        n_prompt: int = 0,
        n_drafted: int | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
        is_full: bool = False,
        is_stuck: bool = False,
    ) -> Progress:
        """Return where these tokens bring the request, in order; nothing of it changes.

        End-of-text, stop strings and tokens, the budget and the end of the context are applied here
        and nowhere else.

        Parameters
        ----------
        tokens : sequence of int
            What the target chose.
        accepted : int
            The first ones had been drafted.
        n_prompt : int
            How many tokens of the prompt were processed.
        n_drafted : int, optional
            How many drafts were verified in the pass that chose the tokens; None: it read a prompt.
        logprobs : sequence of TokenLogprobs
            Those of the tokens, where they were asked for.
        prompt_logprobs : sequence of TokenLogprobs
            Those of the prompt's tokens that follow the ones that were processed.
        is_full : bool
            Whether the context has no room for anything after these tokens.
        is_stuck : bool
            Whether no token was left to choose after them.
        """
        begin, ends = len(self.tokens), self._ends
        n_prefilled = self.n_prefilled + n_prompt
        text = copy(self._written)
        taken: list[int] = []
        text_ends: list[int] = []
        cut: StopPlace | None = None
        reason: FinishReason | None = None
        end: TokenLogprobs | None = None
        for i, token in enumerate(tokens):
            if token in ends:
                reason = "end"
            elif token in self.stop_token_ids:
                reason = "stop"
            if reason is not None:
                end = logprobs[i] if i < len(logprobs) else None
                break
            taken.append(token)
            cut = text.push(token)
            if begin + len(taken) < self.min_tokens:
                cut = None
            text_ends.append(len(text.text))
            if cut is not None:
                reason = "stop"
                break
            if begin + len(taken) >= self.max_tokens:
                reason = "length"
                break
        if reason is None and not self.max_tokens and n_prefilled == len(self.prompt):
            reason = "length"
        if reason is None and is_stuck:
            reason = "no_token"
        if reason is None and is_full and self.when_full == "stop":
            reason = "length"
        if reason is not None and cut is None:
            text.flush()
        return Progress(
            begin=begin,
            n_prefilled=n_prefilled,
            n_passes=self.n_passes + (n_drafted is not None),
            n_drafted=self.n_drafted + (n_drafted or 0),
            tokens=taken,
            drafted=[i < accepted for i in range(len(taken))],
            text_ends=text_ends,
            logprobs=list(logprobs[: len(taken)]),
            prompt_logprobs=[*self.prompt_logprobs, *prompt_logprobs]
            if prompt_logprobs
            else self.prompt_logprobs,
            end_logprobs=end,
            text=text,
            cut=cut,
            reason=reason,
        )

    def finish(self, reason: FinishReason) -> Progress:
        """Return the request's end for a ``reason``, without a token; nothing of it changes."""
        last = self.advance((), 0)
        last.text.flush()  # a copy
        return msgspec.structs.replace(last, reason=reason)

    def end(self, reason: FinishReason) -> None:
        """Finish for a ``reason``, without a further token."""
        if not self.done:
            self.take(self.finish(reason))

    def take(self, progress: Progress) -> None:
        """Apply the ``progress`` of a round; applying it twice makes no difference."""
        self.tokens[progress.begin :] = progress.tokens
        self.drafted[progress.begin :] = progress.drafted
        self.text_ends[progress.begin :] = progress.text_ends
        self.logprobs[progress.begin :] = progress.logprobs
        self.prompt_logprobs, self.end_logprobs = progress.prompt_logprobs, progress.end_logprobs
        self._written, self._cut = progress.text, progress.cut
        self.n_prefilled = progress.n_prefilled
        self.n_passes, self.n_drafted = progress.n_passes, progress.n_drafted
        self.finish_reason = progress.reason


def _forbid(tokens: Sequence[int], sampling: Sampling) -> Sampling:
    """Return settings that never choose these tokens, but for those that have a bias there."""
    biases = {**dict.fromkeys(tokens, -inf), **(sampling.logit_bias or {})}
    return msgspec.structs.replace(sampling, logit_bias=biases)


def _read_prompt(prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        raise BatchError(
            "a prompt is a list of token ids",
            got="text",
            fix="encode it: model.tokenizer.encode(text)",
        )
    ids = integers(prompt, "prompt")
    if ids.ndim != 1:
        raise BatchError("a prompt is a list of token ids", got=f"shape {ids.shape}")
    if not len(ids):
        raise BatchError(
            "a prompt has at least one token", fix="begin with some text, or with a token id"
        )
    tokens: list[int] = ids.tolist()
    return tokens


def _read_strings(strings: Any, name: str) -> tuple[str, ...]:
    return read(  # type: ignore[no-any-return]
        (strings,) if isinstance(strings, str) else strings,
        tuple[Annotated[str, Meta(min_length=1)], ...],
        f"{name} is a text or a sequence of texts, none of them empty",
        wanted="a text, or a sequence of texts",
        fix=f'{name}="\\n\\n", or leave it out',
    )


def _read_stop_tokens(ids: Any) -> frozenset[int]:
    array = integers([ids] if is_integer(ids) else ids, "stop_token_ids")
    if array.ndim != 1:
        raise BatchError(
            "stop_token_ids is a token id or a list of them", got=f"shape {array.shape}"
        )
    return frozenset(array.tolist())


def read_draft(draft: object) -> int | Literal["auto"]:
    """Return a draft length or "auto"; raise BatchError for anything else."""
    return read(draft, DraftLength, "draft is a number of tokens, or 'auto'")  # type: ignore[no-any-return]


def read_draft_sampler(kind: object) -> DraftSampler:
    """Return how drafts are chosen; raise BatchError for any other name."""
    return read(kind, _DRAFT_SAMPLER, "unknown draft sampler")  # type: ignore[no-any-return]


def read_p_min(p_min: object) -> float:
    """Return a draft's least probability; raise BatchError for anything else."""
    return read(p_min, Probability, "p_min is a probability")  # type: ignore[no-any-return]


def read_when_full(way: object) -> WhenFull:
    """Return what happens when the context is full; raise BatchError for anything else."""
    return read(way, _WHEN_FULL, "unknown when_full")  # type: ignore[no-any-return]
