"""Chat templates: the Jinja programs in a model file that write a conversation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from mtpcore.boundary.arguments import read
from mtpcore.boundary.copies import Uncopied
from mtpcore.errors import MtpcoreError, spell
from mtpcore.gguf.conversation import Reading
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.renderer import Renderer
from mtpcore.gguf.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "read_chat_template"]

MAX_SOURCE = 1 << 20  # characters of a template
_KEY = "tokenizer.chat_template"
_SECONDS = Annotated[float, Meta(gt=0, le=86400, description="a number in (0, 86400]")] | None
_MEMORY = Annotated[int, Meta(ge=1 << 20, le=1 << 40, description="1 MB to 1 TB, in bytes")] | None


class ChatTemplate(Uncopied):
    """A chat template, checked to be well-formed.

    A template is a program by the author of the file. It is compiled and rendered in a process of
    its own, whose time and memory the operating system limits, whatever the template does. That
    process is started for the check, which takes about a tenth of a second, holds about 20 MB, and
    ends with this object. A rendering may take a second of computing, more for a long conversation,
    and 64 MB; set ``max_seconds`` and ``max_memory`` where you trust a template that needs more.

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
    tool_use : str, optional
        The template for conversations with tools; it is compiled when there is one.
    max_seconds : float, optional
        Of computing, for compiling and for each rendering; default: 1, and for a rendering 0.02
        more for each message and tool, and 1 for each megabyte of them.
    max_memory : int, optional
        Bytes that compiling and a rendering may take; default: 64 MB, and for a rendering eight
        times the conversation as JSON.

    Attributes
    ----------
    source : str
    reads_tools : bool
        Whether it, or the one for tools, speaks of tools at all.

    Raises
    ------
    MtpcoreError
        If the template is too long or malformed, or exceeds its bounds.
    """

    _instead = "make one of the text: ChatTemplate(template.source)"

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        file: str = "",
        tool_use: str | None = None,
        max_seconds: float | None = None,
        max_memory: int | None = None,
    ) -> None:
        self.source = source
        self._fixed = {
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": bos,
            "eos_token": eos,
        }
        self._where = f"{file}: chat template" if file else "chat template"
        self.reads_tools = tool_use is not None or "tools" in source
        self._renderer, self._reading = self._prepare(source, self._where)
        self._for_tools = (
            None if tool_use is None else self._prepare(tool_use, f"{self._where} tool_use")
        )
        self.max_seconds, self.max_memory = max_seconds, max_memory
        self._renderer.check()

    def _prepare(self, source: str, where: str) -> tuple[Renderer, Reading]:
        if len(source) > MAX_SOURCE:
            raise MtpcoreError(
                "the template is too long", where=where, wanted=MAX_SOURCE, got=len(source)
            )
        renderer, fixed = Renderer(source, where), self._fixed

        def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
            return renderer.render(fixed | {"messages": messages, "tools": tools}, datetime.now())

        return renderer, Reading(render, source)

    @property
    def max_seconds(self) -> float | None:
        """Seconds of computing that each rendering may take; None: our limit."""
        return self._renderer.max_seconds

    @max_seconds.setter
    def max_seconds(self, value: float | None) -> None:
        seconds = read(value, _SECONDS, "a limit of time", where="max_seconds", error=MtpcoreError)
        for renderer in self._renderers():
            renderer.max_seconds = seconds

    @property
    def max_memory(self) -> int | None:
        """Bytes of memory that each rendering may take; None: our limit."""
        return self._renderer.max_memory

    @max_memory.setter
    def max_memory(self, value: int | None) -> None:
        n_bytes = read(value, _MEMORY, "a limit of memory", where="max_memory", error=MtpcoreError)
        for renderer in self._renderers():
            renderer.max_memory = n_bytes

    def _renderers(self) -> list[Renderer]:
        return [self._renderer, *([self._for_tools[0]] if self._for_tools else [])]

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **more: Any,
    ) -> str:
        """Write a conversation as the text that the model was trained on.

        Messages are those of the OpenAI API; each template gets them in the form that it reads.
        Arguments of calls may be objects or JSON text, content a text, a list of parts or None;
        what a developer says is the system's where the template knows no developer.

        Encode the text with ``parse_special=True, add_special=False``.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``; what JSON can say.
        add_generation_prompt : bool
            Whether the text goes on to where the answer begins.
        continue_final_message : bool
            Whether the text ends within the last message, which the model is to continue.
        tools : sequence of mappings, optional
            For the file's template for tools, where it has one.
        now : datetime, optional
            What ``strftime_now`` tells; default: the clock.
        **more
            Further variables for the template; what JSON can say. Two names are refused:
            ``strftime_now`` (give ``now``), and ``self``, which is Jinja's own.

        Raises
        ------
        MtpcoreError
            If the template refuses the conversation, fails, or exceeds its bounds.
        """
        if taken := sorted({"strftime_now", "self"} & more.keys()):
            raise MtpcoreError(
                "these are no options of a template",
                where=self._where,
                got=", ".join(taken),
                fix="give the time as now=" if "strftime_now" in taken else "",
            )
        said, offered = self._read(messages, "messages"), self._read(tools, "tools")
        renderer, reading = self._renderer, self._reading
        if offered and self._for_tools is not None:
            renderer, reading = self._for_tools
        if continue_final_message:
            said, add_generation_prompt = _mark_end(said, self._where), False
        variables = self._fixed | {
            "messages": None if said is None else reading.adapt(said, tools=bool(offered)),
            "tools": offered,
            "add_generation_prompt": add_generation_prompt,
        }
        text = renderer.render(variables | more, now or datetime.now())
        if not continue_final_message:
            return text
        begin, found, _ = text.rpartition(_END)
        if not found:
            raise MtpcoreError(
                "the template leaves the last message out, so it cannot be continued",
                where=self._where,
            )
        return begin

    def _read(self, given: Any, name: str) -> list[Any] | None:
        """Return a caller's sequence as a list, and mappings in it as dictionaries."""
        try:
            if given is None:
                return None
            if isinstance(given, (str, bytes, Mapping)):
                raise TypeError("one, and no list")
            return [dict(one) if isinstance(one, Mapping) else one for one in given]
        except MemoryError:
            raise
        except Exception as error:  # no sequence, and whatever a caller's own raises
            raise MtpcoreError(
                f"{name} are a list of mappings", where=self._where, got=spell(given)
            ) from error


_END = "<|the-end-of-what-is-continued|>"


def _mark_end(messages: list[Any] | None, where: str) -> list[Any]:
    """Return messages with a mark after the text of the last one."""
    *before, last = messages or [None]
    content = last.get("content") if isinstance(last, Mapping) else None
    if not isinstance(content, str):
        raise MtpcoreError(
            "only a text can be continued",
            where=where,
            wanted="a last message whose content is a text",
            got=spell(last),
        )
    return [*before, {**last, "content": content + _END}]


def read_chat_template(
    metadata: Metadata, tokenizer: Tokenizer | None = None, file: str = ""
) -> ChatTemplate | None:
    """Make the chat template of a model file; None where it has none.

    A file may have several by name; ``tool_use`` is the one for conversations with tools.

    Raises
    ------
    MtpcoreError
        If the template is too long or malformed, or exceeds its bounds.
    """
    source, for_tools = metadata.get(_KEY), metadata.get(f"{_KEY}.tool_use")
    if not isinstance(source, str):
        return None
    ids = (tokenizer.bos, tokenizer.eos) if tokenizer else (None, None)
    bos, eos = (
        tokenizer.decode([token], special=True) if tokenizer and token is not None else ""
        for token in ids
    )
    tool_use = for_tools if isinstance(for_tools, str) else None
    return ChatTemplate(source, bos=bos, eos=eos, file=file, tool_use=tool_use)
