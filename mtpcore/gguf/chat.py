"""Chat templates: the Jinja program in a model file that writes a conversation as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from jinja2 import Template, TemplateError

from mtpcore.errors import MtpcoreError
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.sandbox import MAX_TEXT, compile_template
from mtpcore.gguf.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "read_chat_template"]

MAX_SOURCE = 1 << 20  # characters of a template

T = TypeVar("T")


class ChatTemplate:
    """A chat template, checked to be well-formed.

    Templates may call ``raise_exception(message)`` and ``strftime_now(format)`` and write
    ``bos_token`` and ``eos_token``, as those made for Hugging Face's tokenizers do.

    Parameters
    ----------
    source : str
        The Jinja text.
    bos, eos : str
        Texts of these tokens.
    file : str
        For errors.

    Raises
    ------
    MtpcoreError
        If the template is too long or malformed.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", file: str = "") -> None:
        self.source, self._bos, self._eos = source, bos, eos
        self._where = f"{file}: chat template" if file else "chat template"
        if len(source) > MAX_SOURCE:
            raise MtpcoreError(
                "the template is too long", where=self._where, wanted=MAX_SOURCE, got=len(source)
            )
        self._guarded(lambda: compile_template(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **more: Any,
    ) -> str:
        """Write a conversation as the text that the model was trained on.

        Encode the text with ``parse_special=True, add_special=False``.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``; what JSON can say.
        add_generation_prompt : bool
            Whether the text goes on to where the answer begins.
        tools : sequence of mappings, optional
        now : datetime, optional
            What ``strftime_now`` tells; default: the clock.
        **more
            Further variables for the template; what JSON can say.

        Raises
        ------
        MtpcoreError
            If the template refuses the conversation, fails, or exceeds its bounds.
        """
        data = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
            **more,
        }
        functions: dict[str, Any] = {
            "raise_exception": _refuse,
            "strftime_now": lambda form: (now or datetime.now()).strftime(str(form)[:200]),
        }
        # Through JSON: any other object would offer its methods to the template.
        plain: dict[str, Any] = self._guarded(lambda: json.loads(json.dumps(data)))
        return self._guarded(lambda: _collect(compile_template(self.source), plain | functions))

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # whatever the foreign program runs into
            raise MtpcoreError(
                "the template failed", where=self._where, got=f"{type(error).__name__}: {error}"
            ) from error


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


def _collect(template: Template, variables: dict[str, Any]) -> str:
    parts, length = [], 0
    for part in template.generate(variables):
        parts.append(part)
        length += len(part)
        if length > MAX_TEXT:
            raise TemplateError(f"a text longer than {MAX_TEXT} characters")
    return "".join(parts)


def read_chat_template(
    metadata: Metadata, tokenizer: Tokenizer | None = None, file: str = ""
) -> ChatTemplate | None:
    """Make the chat template of a model file; None where it has none.

    Raises
    ------
    MtpcoreError
        If the template is too long or malformed.
    """
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    ids = (tokenizer.bos, tokenizer.eos) if tokenizer else (None, None)
    bos, eos = (
        tokenizer.decode([token], special=True) if tokenizer and token is not None else ""
        for token in ids
    )
    return ChatTemplate(source, bos=bos, eos=eos, file=file)
