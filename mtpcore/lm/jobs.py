"""Jobs: a request that a consumer waits for, and the finished pieces of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.decoding import Request, TokenLogprobs
from mtpcore.errors import BusyError
from mtpcore.gguf.answer_parser import ToolCall
from mtpcore.lm.answer_parsing import AnswerParsing, ParsedAnswer
from mtpcore.lm.completion import Completion, CompletionStats, Piece
from mtpcore.sampling import PureProcessor, read_answer

__all__ = ["Job"]


class _Settled(NamedTuple):
    """A piece, and how many tokens and characters of the text there are with it."""

    piece: Piece
    n_tokens: int
    n_characters: int


class Job:
    """A request and its consumer's view of it.

    The thread that runs rounds calls ``update``, and no other thread at the same time. The consumer
    reads in any thread: ``is_done`` first, then ``pieces``, which only grow.

    Parameters
    ----------
    request : Request
        Not queued yet.
    has_text : bool
        Whether tokens have a text: without a tokenizer each is an empty piece.
    parsing : AnswerParsing, optional
        Of an answer in a chat, how it is parsed.
    """

    def __init__(
        self, request: Request, has_text: bool, parsing: AnswerParsing | None = None
    ) -> None:
        self.request = request
        self.pieces: list[_Settled] = []
        self.is_queued = self.is_done = False
        self.error: Exception | None = None
        self.raised: Exception | None = None
        self._has_text, self._parsing = has_text, parsing
        self._processor = request.logits_processor
        if self._processor is not None:
            is_pure = isinstance(self._processor, PureProcessor)
            request.logits_processor = PureProcessor(self._process) if is_pure else self._process
        self._begin = self._end = perf_counter()

    def _process(self, tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> Any:
        """Call the consumer's processor, and note what it does wrong: that is for the consumer."""
        assert self._processor is not None
        try:
            return read_answer(self._processor(tokens, logits[:]), logits)
        except Exception as error:
            self.raised = error
            raise

    def update(self) -> None:
        """Take the text that has settled."""
        request = self.request
        if self.is_done or (request.seq is None and not request.done):
            return
        text, tokens, ends = request.settled_text(), request.tokens, request.text_ends
        _, first, begin = self.pieces[-1] if self.pieces else (None, 0, 0)
        for i in range(first, len(tokens)):
            end = ends[i]
            if end > len(text):
                break
            if end > begin or not self._has_text:
                self._add(text[begin:end], first, i + 1, end)
                first, begin = i + 1, end
        if request.done:
            if first < len(tokens) or begin < len(text):
                self._add(text[begin:], first, len(tokens), len(text))
            self._end = perf_counter()
            self.is_done = True

    def _add(self, text: str, first: int, last: int, end: int) -> None:
        request = self.request
        drafted = request.drafted[first:last]
        piece = Piece(
            text,
            tuple(request.tokens[first:last]),
            bool(drafted) and all(drafted),
            tuple(request.logprobs[first:last]),
        )
        self.pieces.append(_Settled(piece, last, end))

    def fail(self, error: Exception) -> None:
        """End with an error that is the consumer's."""
        self.error = error
        self.is_done = True

    def check(self) -> None:
        """Raise the error that the job ended with."""
        if self.error is not None:
            raise self.error

    @property
    def stats(self) -> CompletionStats:
        """Counts and times so far; while a round runs it may have counted some of them already."""
        request = self.request
        return CompletionStats(
            prompt_tokens=len(request.given),
            cached_tokens=request.n_cached,
            tokens=len(request.tokens),
            passes=request.n_passes,
            drafted=request.n_drafted,
            accepted=sum(request.drafted),
            seconds=(self._end if self.is_done else perf_counter()) - self._begin,
        )

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Those of the prompt's tokens that were read so far; None: they were not asked for."""
        request = self.request
        return None if request.n_prompt_logprobs is None else tuple(request.prompt_logprobs)

    def completion(self) -> Completion:
        """Return the text of a job that is done.

        Raises
        ------
        BusyError
            It is not.
        """
        self.check()
        request = self.request
        if not self.is_done or request.finish_reason is None:
            raise BusyError("the text is not finished", fix="read the stream to its end")
        answer = ParsedAnswer(request.text)
        if self._parsing is not None:
            answer = self._parsing.read_tokens(request.tokens, request.text, request.stopped_at)
        return Completion(
            text=request.text,
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=tuple(_with_ids(answer.tool_calls, [*request.given, *request.tokens])),
            tokens=tuple(request.tokens),
            finish_reason=request.finish_reason,
            stop=request.stopped_at,
            logprobs=None if request.n_logprobs is None else tuple(request.logprobs),
            prompt_logprobs=self.prompt_logprobs,
            end_logprobs=request.end_logprobs,
            sampling=request.sampling,
            stats=self.stats,
        )


def _with_ids(calls: Sequence[ToolCall], tokens: Sequence[int]) -> Iterator[ToolCall]:
    """Yield calls with ids of nine letters and digits, as some templates want them.

    They follow from the conversation, so that the same text has the same ids.
    """
    for i, call in enumerate(calls):
        digest = hashlib.sha256(repr((i, *tokens)).encode()).hexdigest()
        yield msgspec.structs.replace(call, id=digest[:9])
