"""Prompts: from options, and those that come with bench."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from contextlib import nullcontext

import msgspec

from mtpcore.boundary.paths import open_stream, take_path
from mtpcore.cli.options import PROMPTS
from mtpcore.cli.templates import has_template_options, template_options
from mtpcore.cli.terminal import note
from mtpcore.errors import MtpcoreError
from mtpcore.gguf import Tokenizer
from mtpcore.runtime.model import Model
from mtpcore.system.opening import is_silent

__all__ = ["BUILT_IN", "TokenizedPrompt", "encode", "read_prompt"]

_LONGEST = 16 << 20  # bytes of a prompt; no context holds as many tokens
_PATIENCE = 1.0  # seconds for which a silent pipe is nothing to speak of

BUILT_IN = {
    "code": "def read_config(path):\n    ",
    "story": "The old house at the end of the street had been empty for years, until one evening ",
    "extract": "Name: Ada; Year: 1843; Place: London\nName: Alan; Year: 1936; Place: Cambridge\n"
    "Name: Grace; Year: 1952; Place: Philadelphia\n\nList each name with its year and place.\n",
}
"""Short texts of kinds that drafters find easy and hard."""


class TokenizedPrompt(msgspec.Struct, frozen=True):
    """A prompt's tokens; the text that a terminal shows before what continues it."""

    tokens: list[int]
    text: str = ""
    is_chat: bool = False


def read_prompt(options: argparse.Namespace, model: Model) -> TokenizedPrompt:
    """Return the prompt, inside the model's chat template where there is one or it is asked for.

    Raises
    ------
    MtpcoreError
        A file that cannot be read, no tokenizer, no chat template.
    """
    is_chat, system = getattr(options, "chat", False), getattr(options, "system", None)
    is_asked = system is not None or has_template_options(options)
    if options.prompt_tokens is not None:
        if is_chat or is_asked:
            options.parser.error("a chat template is for a text, not for --prompt-tokens")
        return TokenizedPrompt(options.prompt_tokens)
    if is_asked and is_chat is False:
        what = "a system prompt is" if system is not None else "options of a template are"
        options.parser.error(f"--raw continues a text; {what} for a chat template")
    text = _join(options)
    if is_chat is None:
        is_chat = is_asked or "tokenizer.chat_template" in model.metadata
    if not is_chat:
        return TokenizedPrompt(encode(model, text), text if options.file is None else "")
    return TokenizedPrompt(_encode_chat(options, model, text, system), is_chat=True)


def _join(options: argparse.Namespace) -> str:
    """Return the text of the options, after what comes through a pipe."""
    if options.file is not None:
        return _read(options.file)
    piped = _read("-") if _is_piped() else ""
    if options.prompt is None and not piped:
        options.parser.error(f"give a prompt: {PROMPTS}")
    if options.prompt is None or not piped.strip():
        return piped if options.prompt is None else str(options.prompt)
    return f"{piped.rstrip()}\n\n{options.prompt}"


def _is_piped() -> bool:
    """Say whether standard input is a pipe or a file: not a terminal, nor nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) and is_silent(sys.stdin.fileno(), _PATIENCE):
        note("reading standard input until it ends; </dev/null if there is none to read")
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def encode(model: Model, text: str) -> list[int]:
    """Return a text's tokens."""
    return _tokenizer(model).encode(text)


def _encode_chat(
    options: argparse.Namespace, model: Model, text: str, system: str | None
) -> list[int]:
    """Return the tokens of a question inside the model's chat template."""
    tokenizer = _tokenizer(model)
    if model.chat_template is None:
        raise MtpcoreError(
            "the model has no chat template",
            where=str(model.path),
            fix="--chat-template-file gives it one; without --chat, --system and options of a "
            "template the text is continued as it is",
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    asked = model.chat_template.render(messages, **template_options(options, model))
    return tokenizer.encode(asked, add_special=False, parse_special=True)


def _tokenizer(model: Model) -> Tokenizer:
    if not model.has_tokenizer:
        raise MtpcoreError(
            "the file has no tokenizer that is supported",
            where=str(model.path),
            fix="give token ids: --prompt-tokens 1,2,3",
        )
    return model.tokenizer


def _read(name: str) -> str:
    fix = "-f FILE names a text in UTF-8, - is standard input; -p TEXT gives the text itself"
    with (
        nullcontext(sys.stdin.buffer) if name == "-" else open_stream(take_path(name), fix=fix) as f
    ):
        try:
            data = f.read(_LONGEST + 1)
            if len(data) <= _LONGEST:
                return data.decode()
            reason = f"more than {_LONGEST} bytes"
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
    raise MtpcoreError("cannot read the prompt", where=name, got=reason, fix=fix)
