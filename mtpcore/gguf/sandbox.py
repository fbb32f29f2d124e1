"""The program that renders a chat template, in a process whose work and memory are limited.

``renderer.py`` runs this file by its path, in an interpreter that knows the standard library and
Jinja alone. Jinja's own sandbox keeps a template from Python's internals. It does not keep it from
taking all time and memory, and no rule about single operations does: loops, texts that double,
sorting, long numbers and the folding of constants are all ways to it. The operating system counts
whatever happens here.

Arguments are the characters of the longest text (see ``renderer.py``), then folders where Jinja is.
The connection and the limits are those of ``mtpcore/system/children.py``. A message is its length,
the seconds and the bytes of memory that its answer may take, eight bytes each, then its bytes. This
side says "ready"; then the template comes, and then, as JSON, what each rendering takes. The answer
is its length, then "text" and a text, or "fail" and why; at a limit this process ends.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from contextlib import suppress
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

sys.path += sys.argv[2:]
if TYPE_CHECKING:
    from mtpcore.system import children
else:
    spec = spec_from_file_location("children", Path(__file__).parents[1] / "system/children.py")
    children = module_from_spec(spec)
    spec.loader.exec_module(children)

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

HEAD = struct.Struct("!QdQ")
LENGTH = struct.Struct("!Q")
MAX_REASON = 1000  # characters
BYTES_PER_BYTE = 8  # of memory for each of the variables: as JSON, as objects, as parts, as a text
WARM_UP = r"""{{ '\n' | tojson }}{{ lipsum(n=1) | pprint | urlize | striptags | wordwrap }}
{{ raise_exception('') }}"""
"""Uses what Jinja imports late, for no file can be opened later on."""


class Generation(Extension):
    """Accepts the tag by which some templates mark what the assistant said."""

    tags = {"generation"}  # noqa: RUF012, as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read what is between the tags; what it sets is not seen after it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in which nothing can be changed but lists, which some templates queue ids in.

    Those that a template is given are copies.
    """

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        queues = isinstance(obj, list) and attr in ("append", "pop")
        return queues or super().is_safe_attribute(obj, attr, value)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return Jinja as chat templates expect it: as Hugging Face's transformers set it up."""
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
    )
    environment.filters["tojson"] = write_json
    environment.globals["raise_exception"] = refuse
    return environment


def write_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: Unicode as it is, nothing escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def refuse(message: object) -> NoReturn:
    """End the rendering: the template's own way to refuse a conversation."""
    raise TemplateError(str(message))


class SandboxRenderer:
    """Takes a template and then the variables of each rendering; gives what is to be answered."""

    def __init__(self, max_text: int) -> None:
        self._environment = make_environment()
        self._max_text = max_text
        self._template: Template | None = None

    def answer(self, message: bytes) -> bytes:
        """Answer a message.

        Raises
        ------
        MemoryError
            Nothing can be said of the memory that is left then: the process had better end.
        """
        try:
            return b"text" + self._render(message).encode("utf-8", "surrogatepass")
        except MemoryError:
            raise
        except Exception as error:  # whatever the foreign program runs into
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            return b"fail" + reason.encode("utf-8", "surrogatepass")

    def _render(self, message: bytes) -> str:
        if self._template is None:
            source = message.decode("utf-8", "surrogatepass")
            self._template = self._environment.from_string(source)
            return ""
        given = json.loads(message)
        strftime_now = datetime.fromisoformat(given["now"]).strftime
        text = self._template.render(given["variables"] | {"strftime_now": strftime_now})
        if len(text) > self._max_text + len(message):
            raise TemplateError(f"a text of {len(text)} characters")
        return text


def main(max_text: int) -> None:
    """Answer until the other side goes away."""
    with suppress(TemplateError):
        make_environment().from_string(WARM_UP).render()
    renderer = SandboxRenderer(max_text)
    connection = children.take_connection()
    children.prepare()
    in_use = children.memory_in_use()
    children.limit_files()
    incoming = connection.makefile("rb")
    connection.sendall(b"ready")
    while len(head := incoming.read(HEAD.size)) == HEAD.size:
        n, seconds, n_bytes = HEAD.unpack(head)
        message = incoming.read(n)
        children.limit_work(seconds, in_use + n_bytes + BYTES_PER_BYTE * n)
        answer = renderer.answer(message)
        children.stop_limiting()
        connection.sendall(LENGTH.pack(len(answer)) + answer)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except MemoryError:
        os._exit(children.OUT_OF_MEMORY)
