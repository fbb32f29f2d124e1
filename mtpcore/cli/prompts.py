"""Prompts: from options, and those that come with bench."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from mtpcore.boundary.paths import open_stream, take_path
from mtpcore.cli.options import PROMPTS
from mtpcore.errors import MtpcoreError
from mtpcore.runtime.model import Model

__all__ = ["BUILT_IN", "encode", "read_prompt"]

_LONGEST = 16 << 20  # bytes of a prompt; no context holds as many tokens

BUILT_IN = {
    "code": "def read_config(path):\n    ",
    "story": "The old house at the end of the street had been empty for years, until one evening ",
    "extract": "Name: Ada; Year: 1843; Place: London\nName: Alan; Year: 1936; Place: Cambridge\n"
    "Name: Grace; Year: 1952; Place: Philadelphia\n\nList each name with its year and place.\n",
}
"""Short texts of kinds that drafters find easy and hard."""


def read_prompt(options: argparse.Namespace, model: Model) -> list[int]:
    """Return the prompt's tokens.

    Raises
    ------
    MtpcoreError
        A file that cannot be read, no tokenizer, no chat template.
    """
    chat = getattr(options, "chat", False)
    if options.prompt_tokens is not None:
        if chat:
            options.parser.error("--chat writes a text around a text, not around --prompt-tokens")
        tokens: list[int] = options.prompt_tokens
        return tokens
    if options.prompt is None and options.file is None:
        options.parser.error(f"give a prompt: {PROMPTS}")
    text = options.prompt if options.prompt is not None else _read(options.file)
    return encode(model, text, chat=chat)


def encode(model: Model, text: str, *, chat: bool = False) -> list[int]:
    """Return a text's tokens, inside the model's chat template where that is wanted."""
    if model.tokenizer is None:
        raise MtpcoreError(
            "the file has no tokenizer that is supported",
            where=str(model.path),
            fix="give token ids: --prompt-tokens 1,2,3",
        )
    if not chat:
        return model.tokenizer.encode(text)
    if model.chat_template is None:
        raise MtpcoreError(
            "the model has no chat template", where=str(model.path), fix="leave --chat out"
        )
    asked = model.chat_template.render([{"role": "user", "content": text}])
    return model.tokenizer.encode(asked, add_special=False, parse_special=True)


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
