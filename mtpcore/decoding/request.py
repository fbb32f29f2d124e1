"""One text in the making."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Literal

import msgspec

from mtpcore.batch import integers
from mtpcore.cross import DraftSampler
from mtpcore.errors import BatchError, SamplingError
from mtpcore.gguf import TextStream, Tokenizer
from mtpcore.sampling import Sampling

__all__ = ["FinishReason", "Progress", "Request", "check_draft"]

_NO_TOKENS: frozenset[int] = frozenset()
FinishReason = Literal["stop", "length", "end", "cancelled"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request stands after a round: what was there before, and these tokens.

    ``begin`` tokens were there before. ``text`` and ``cut`` are of all tokens; ``stream`` holds the
    bytes of an unfinished character. ``n_prefilled`` tokens of the prompt were processed.
    """

    begin: int
    n_prefilled: int
    tokens: list[int]
    drafted: list[bool]
    text: str
    stream: TextStream | None
    cut: int | None = None
    reason: FinishReason | None = None


class Request:
    """A prompt, its settings, and what was generated so far.

    ``tokens`` are the generated ids without the end-of-text token; ``text`` is their text, cut
    before a stop string. ``finish_reason``: ``end`` (end-of-text token), ``stop`` (stop string),
    ``length`` (``max_tokens`` or the context's end), ``cancelled``, or None while it runs. A
    ``resting`` one is left out of rounds.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        draft: int | Literal["auto"],
        max_tokens: int,
        stop: Sequence[str],
        ignore_eos: bool,
        draft_sampler: DraftSampler,
        p_min: float,
        tokenizer: Tokenizer | None,
    ) -> None:
        if isinstance(prompt, str):
            raise BatchError(
                "a prompt is a list of token ids",
                got="text",
                fix="encode it: model.tokenizer.encode(text)",
            )
        if not len(prompt):
            raise BatchError(
                "a prompt has at least one token", fix="begin with some text, or with a token id"
            )
        check_draft(draft)
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
            raise BatchError(
                "max_tokens is a number of tokens", wanted=">= 0", got=repr(max_tokens)
            )
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise BatchError(
                "stop is a sequence of texts, none of them empty",
                got=repr(stop),
                fix='stop=("\\n\\n",), or leave it out',
            )
        if stop and tokenizer is None:
            raise BatchError(
                "stop strings need a tokenizer, and the model file has none", fix="leave stop out"
            )
        if not isinstance(sampling, Sampling):
            raise SamplingError(
                "settings are a Sampling",
                got=repr(sampling),
                fix="make one: Sampling(temperature=0.8, seed=7)",
            )
        if draft_sampler not in ("coupled", "argmax"):
            raise BatchError(
                "unknown draft sampler", wanted="coupled, argmax", got=repr(draft_sampler)
            )
        if isinstance(p_min, bool) or not isinstance(p_min, (int, float)) or not 0 <= p_min <= 1:
            raise BatchError("p_min is a probability", wanted="0..1", got=repr(p_min))
        self.prompt = integers(prompt, "prompt").tolist()
        self.sampling, self.draft, self.max_tokens = sampling, draft, max_tokens
        self.stop, self.ignore_eos = tuple(stop), ignore_eos
        self.draft_sampler, self.p_min = draft_sampler, p_min
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.finish_reason: FinishReason | None = None
        self.seq: int | None = None
        self.n_prefilled = 0
        self.resting = False
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream() if tokenizer else None
        self._text = ""
        self._cut: int | None = None

    def __repr__(self) -> str:
        return (
            f"Request({len(self.prompt)} prompt tokens, {len(self.tokens)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )

    @property
    def done(self) -> bool:
        """Whether the request has finished."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The generated text; bytes of an unfinished character are held back until the end."""
        return self._text if self._cut is None else self._text[: self._cut]

    def settled_text(self) -> str:
        """Return the text that no later stop string can take back."""
        if self.done or not self.stop:
            return self.text
        held = max(
            (n for s in self.stop for n in range(1, len(s)) if self._text.endswith(s[:n])),
            default=0,
        )
        return self._text[: len(self._text) - held]

    def advance(
        self, tokens: Sequence[int], accepted: int, *, n_prompt: int = 0, is_full: bool = False
    ) -> Progress:
        """Return where these tokens bring the request, in order; nothing of it changes.

        End-of-text, stop strings, the budget and the end of the context are applied here and
        nowhere else.

        Parameters
        ----------
        tokens : sequence of int
            What the target chose.
        accepted : int
            The first ones had been drafted.
        n_prompt : int
            How many tokens of the prompt were processed.
        is_full : bool
            Whether the context has no room for anything after these tokens.
        """
        begin, ends = len(self.tokens), _NO_TOKENS
        if self._tokenizer is not None and not self.ignore_eos:
            ends = self._tokenizer.end_tokens
        text, stream = self._text, copy(self._stream)
        taken: list[int] = []
        cut: int | None = None
        reason: FinishReason | None = None
        for token in tokens:
            if token in ends:
                reason = "end"
                break
            taken.append(token)
            if stream is not None:
                text += stream.push(token)
            if self.stop and (found := [at for s in self.stop if (at := text.find(s)) >= 0]):
                reason, cut = "stop", min(found)
                break
            if begin + len(taken) >= self.max_tokens:
                reason = "length"
                break
        if reason is None and is_full:
            reason = "length"
        if reason is not None and cut is None and stream is not None:
            text += stream.flush()
        return Progress(
            begin=begin,
            n_prefilled=self.n_prefilled + n_prompt,
            tokens=taken,
            drafted=[i < accepted for i in range(len(taken))],
            text=text,
            stream=stream,
            cut=cut,
            reason=reason,
        )

    def finish(self, reason: FinishReason) -> Progress:
        """Return the request's end without a further token; nothing of it changes."""
        last = self.advance((), 0)
        flushed = "" if last.stream is None else last.stream.flush()
        return msgspec.structs.replace(last, text=last.text + flushed, reason=reason)

    def end(self, reason: FinishReason) -> None:
        """Finish without a further token."""
        if not self.done:
            self.take(self.finish(reason))

    def take(self, progress: Progress) -> None:
        """Be where a round brought the request; twice is once."""
        self.tokens[progress.begin :] = progress.tokens
        self.drafted[progress.begin :] = progress.drafted
        self._text, self._cut, self._stream = progress.text, progress.cut, progress.stream
        self.n_prefilled = progress.n_prefilled
        self.finish_reason = progress.reason


def check_draft(draft: object, *, auto: bool = True) -> None:
    """Refuse what is no draft length; ``auto`` says whether "auto" may stand for one.

    Raises
    ------
    BatchError
    """
    if auto and isinstance(draft, str) and draft == "auto":
        return
    if isinstance(draft, bool) or not isinstance(draft, int) or draft < 0:
        also = ", or 'auto'" if auto else ""
        raise BatchError(
            f"draft is a number of tokens{also}", wanted=f">= 0{also}", got=repr(draft)
        )
