"""What a model wrote in a chat, parsed: reasoning, what it says, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mtpcore.gguf import Tokenizer
from mtpcore.gguf.answer_format import AnswerFormat
from mtpcore.gguf.answer_parser import AnswerParser, AnswerPart, ToolCall
from mtpcore.gguf.response_template import ResponseTemplate
from mtpcore.gguf.template_parser import TemplateAnswerParser
from mtpcore.runtime.model import Model

__all__ = ["AnswerParsing", "ParsedAnswer"]

_TAIL = 64
"""Tokens of the end of a prompt, which may open the reasoning."""


class ParsedAnswer(NamedTuple):
    """An answer in its parts."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[AnswerPart]) -> ParsedAnswer:
        """Put the pieces of each part together."""
        said, thought = (
            "".join(part.text for part in parts if part.kind == kind)
            for kind in ("content", "reasoning")
        )
        return cls(said, thought, tuple(part.call for part in parts if part.call is not None))


class AnswerParsing:
    """How the answers to one conversation are parsed.

    Parameters
    ----------
    tokenizer : Tokenizer
        The model's.
    form : AnswerFormat or ResponseTemplate
    prompt : str
        The end of the conversation as the model reads it; for a template what follows the start of
        the answer.
    tools : sequence of mappings
        Those that may be called.
    shows_marks : bool
        Whether marks are control tokens, which texts show only if they are asked to.
    most_calls : int, optional
        Calls of one answer that are read; what follows them is left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: AnswerFormat | ResponseTemplate,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        shows_marks: bool = False,
        most_calls: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._form, self._prompt, self.tools = form, prompt, tools
        self._most_calls = most_calls
        self.options: dict[str, Any] = {"special": True} if shows_marks else {}
        """Options that texts need to be parsed as they come."""

    @classmethod
    def of(
        cls,
        model: Model,
        prompt: Sequence[int],
        tools: Iterable[Any] = (),
        *,
        is_raw: bool = False,
        most_calls: int | None = None,
    ) -> AnswerParsing:
        """Find how answers to a conversation are to be parsed.

        Parameters
        ----------
        model : Model
            With a tokenizer.
        prompt : sequence of int
            The conversation's tokens.
        tools : iterable of mappings
            Those that may be called, as OpenAI's API has them.
        is_raw : bool
            All of an answer is content.
        most_calls : int, optional
            Calls of one answer that are read.
        """
        tokenizer = model.tokenizer
        if is_raw:
            return cls(tokenizer, AnswerFormat())
        tools = [tool for tool in tools if isinstance(tool, Mapping)]
        if (template := model.response_template) is not None:
            begun = _begun(template, tokenizer, prompt)
            return cls(tokenizer, template, begun, tools, True, most_calls)
        form = model.answer_format
        tail = tokenizer.decode(prompt[-_TAIL:], special=True)
        marks = [*(form.reasoning or ()), form.content]
        if form.calls is not None and tools:
            marks += [form.calls.begin, form.calls.open]
        shows_marks = any(text in mark for text in tokenizer.special_texts for mark in marks)
        return cls(tokenizer, form, tail, tools, shows_marks, most_calls)

    def parser(self) -> AnswerParser | TemplateAnswerParser:
        """Return what parses one answer."""
        if isinstance(self._form, ResponseTemplate):
            return TemplateAnswerParser(self._form, self._prompt, self.tools, self._most_calls)
        return AnswerParser(self._form, self._prompt, self.tools, self._most_calls)

    def count(self, text: str) -> int:
        """Return how many tokens a part has."""
        return len(self.tokenizer.encode(text, add_special=False)) if text else 0

    def read(self, text: str) -> list[AnswerPart]:
        """Parse a whole answer, with its marks."""
        parser = self.parser()
        return [*parser.feed(text), *parser.finish()]

    def read_tokens(self, tokens: Sequence[int], text: str, stop: str | None) -> ParsedAnswer:
        """Parse a whole answer.

        Parameters
        ----------
        tokens : sequence of int
        text : str
            Theirs, which need not show control tokens.
        stop : str, optional
            The text before which it was cut.
        """
        if self.options:
            stream = self.tokenizer.stream(special=True)
            text = "".join(map(stream.push, tokens)) + stream.flush()
            before, found, _ = text.rpartition(stop) if stop else ("", "", "")
            text = before if found else text
        return ParsedAnswer.of(self.read(text))


def _begun(template: ResponseTemplate, tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Return what a prompt has of the answer; where that starts is near the prompt's end."""
    n_tokens = _TAIL
    while True:
        found = template.after_start(tokenizer.decode(prompt[-n_tokens:], special=True))
        if found is not None or n_tokens >= len(prompt):
            return found or ""
        n_tokens *= 8
