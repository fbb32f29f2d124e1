"""Completions and pieces: generated text with its tokens and statistics."""

from __future__ import annotations

import msgspec

from mtpcore.decoding import FinishReason, TokenLogprobs
from mtpcore.errors import spell
from mtpcore.gguf.answer_parser import ToolCall
from mtpcore.sampling import Sampling

__all__ = ["Completion", "CompletionStats", "Piece"]

_SHOWN = 60  # characters of a text


class Piece(str):
    """A piece of a text, one character or more: a ``str`` with its tokens as an attribute.

    The last piece of a text may be empty, if only tokens without text are left.

    Attributes
    ----------
    tokens : tuple of int
        The piece's tokens: mostly one, several if they make up one character.
    drafted : bool
        Whether all of them were accepted drafts.
    logprobs : tuple of TokenLogprobs
        One for each token, where they were asked for; otherwise empty.
    """

    tokens: tuple[int, ...]
    drafted: bool
    logprobs: tuple[TokenLogprobs, ...]

    def __new__(
        cls,
        text: str,
        tokens: tuple[int, ...] = (),
        drafted: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> Piece:
        """Make a piece of text."""
        piece = super().__new__(cls, text)
        piece.tokens, piece.drafted, piece.logprobs = tokens, drafted, logprobs
        return piece


class CompletionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of one text.

    Attributes
    ----------
    prompt_tokens : int
        Tokens of the prompt.
    cached_tokens : int
        Those of them that were in the KV cache already, and were not processed again.
    tokens : int
        Tokens of the text.
    passes : int
        Runs of the model after the prompt; without drafts one for each token but the first.
    drafted, accepted : int
        Drafts that were verified, and those that became part of the text.
    seconds : float
        From the call to the end of the text, waiting for other texts included.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    passes: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def acceptance(self) -> float:
        """Accepted drafts over drafted ones; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A text that a model wrote; ``str(completion)`` is the text.

    Attributes
    ----------
    text : str
        Cut before a stop string.
    content : str
        Of an answer in a chat what it says, without reasoning and calls; of another text all of it.
    reasoning : str
        Of an answer in a chat the reasoning, without its marks.
    tool_calls : tuple of ToolCall
        Of an answer in a chat with tools the calls, in their order.
    tokens : tuple of int
        Its token ids, without the token that ended it.
    finish_reason : str
        ``end`` (the model ended the text), ``stop`` (a stop string or token), ``length``
        (``max_tokens``, or the context is full) or ``no_token`` (no token was left to choose:
        settings or the logits processor forbid all).
    stop : str or None
        The stop string before which the text ended, where it was one.
    logprobs : tuple of TokenLogprobs, or None
        One for each token, where they were asked for.
    prompt_logprobs : tuple of TokenLogprobs, or None
        One for each token of the prompt but the first, where they were asked for.
    end_logprobs : TokenLogprobs or None
        Where ``logprobs`` were asked for: that of the end-of-text or stop token which ended the
        text, if one did.
    sampling : Sampling
        The settings, with the seed that was drawn: they write the same text again.
    stats : CompletionStats
        What it took.
    """

    text: str
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    end_logprobs: TokenLogprobs | None = None
    sampling: Sampling
    stats: CompletionStats

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message, with which a conversation goes on."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = spell(self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}...")
        return f"Completion({text}, {len(self.tokens)} tokens, {self.finish_reason})"
