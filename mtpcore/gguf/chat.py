"""Chat templates: the Jinja program in a model file that writes a conversation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mtpcore.errors import MtpcoreError
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.renderer import Renderer
from mtpcore.gguf.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "read_chat_template"]

MAX_SOURCE = 1 << 20  # characters of a template


class ChatTemplate:
    """A chat template, checked to be well-formed.

    A template is a program by the author of the file. It is compiled and rendered in a process of
    its own, whose time and memory the operating system limits, whatever the template does. That
    process is started for the check, which takes about a tenth of a second, holds about 20 MB, and
    ends with this object.

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
        If the template is too long or malformed, or exceeds its bounds.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", file: str = "") -> None:
        self.source, self._bos, self._eos = source, bos, eos
        where = f"{file}: chat template" if file else "chat template"
        if len(source) > MAX_SOURCE:
            raise MtpcoreError(
                "the template is too long", where=where, wanted=MAX_SOURCE, got=len(source)
            )
        self._renderer = Renderer(source, where)
        self._renderer.check()

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
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
            **more,
        }
        return self._renderer.render(data, now or datetime.now())


def read_chat_template(
    metadata: Metadata, tokenizer: Tokenizer | None = None, file: str = ""
) -> ChatTemplate | None:
    """Make the chat template of a model file; None where it has none.

    Raises
    ------
    MtpcoreError
        If the template is too long or malformed, or exceeds its bounds.
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
