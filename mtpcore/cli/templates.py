"""Options of chat templates: another template than the file's, and its variables."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from mtpcore.cli.options import read_text, text_of
from mtpcore.cli.terminal import note
from mtpcore.errors import MtpcoreError
from mtpcore.gguf import read_chat_template
from mtpcore.gguf.response_template import ResponseTemplate
from mtpcore.lm import read_template_options, thinking_options
from mtpcore.runtime.model import Model

__all__ = [
    "add_response_options",
    "add_template_options",
    "has_template_options",
    "read_response_option",
    "take_response_template",
    "take_template",
    "template_options",
]

_NO_TEMPLATE = "none"
_SWITCH = {"on": True, "off": False, "auto": None}


def add_template_options(parser: argparse.ArgumentParser) -> None:
    """Add the template and its variables."""
    group = parser.add_argument_group("chat template")
    template = group.add_mutually_exclusive_group()
    template.add_argument(
        "--chat-template",
        type=_template,
        metavar="JINJA",
        help="the template, in place of the file's",
    )
    template.add_argument(
        "--chat-template-file",
        dest="chat_template",
        type=_template_of_file,
        metavar="FILE",
        help="the template in a file",
    )
    group.add_argument(
        "--chat-template-kwargs",
        dest="template_options",
        type=_variables,
        metavar="JSON",
        help="""further variables for it, as {"enable_thinking": false}""",
    )
    group.add_argument(
        "-rea",
        "--reasoning",
        choices=tuple(_SWITCH),
        help="whether the model thinks (the variable enable_thinking); auto (the default): as the "
        "template has it",
    )
    group.add_argument(
        "--reasoning-effort",
        type=_word,
        metavar="WORD",
        help="how much it thinks, in a word that the template knows, as low; none: not at all",
    )


_PARSING = (
    "how answers are parsed, in place of the file's response template; none: by the marks that the "
    "chat template shows"
)


def add_response_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, what: str = _PARSING
) -> None:
    """Add what says how answers are parsed."""
    template = parser.add_mutually_exclusive_group()
    template.add_argument(
        "--response-template",
        metavar="JSON",
        help=what,
    )
    template.add_argument(
        "--response-template-file",
        dest="response_template",
        type=_template_of_file,
        metavar="FILE",
        help="the response template in a file",
    )


def has_template_options(options: argparse.Namespace) -> bool:
    """Say whether something is said of the template."""
    names = ("chat_template", "template_options", "reasoning_effort")
    given = any(getattr(options, name, None) is not None for name in names)
    return given or getattr(options, "reasoning", None) in ("on", "off")


def take_template(options: argparse.Namespace, model: Model) -> None:
    """Give a model the template of the options, if there is one.

    Raises
    ------
    MtpcoreError
        The template is malformed.
    """
    if options.chat_template is not None:
        tokenizer = model.tokenizer if model.has_tokenizer else None
        metadata = {"tokenizer.chat_template": options.chat_template}
        model.chat_template = read_chat_template(metadata, tokenizer, "--chat-template")


def read_response_option(options: argparse.Namespace) -> ResponseTemplate | None:
    """Return the response template of the options; None: none is wanted.

    Raises
    ------
    ModelFileError
        It is malformed.
    """
    given = options.response_template
    return None if given == _NO_TEMPLATE else ResponseTemplate(given, "--response-template")


def take_response_template(options: argparse.Namespace, model: Model) -> None:
    """Give a model the response template of the options, if they say something of one.

    Raises
    ------
    MtpcoreError
        It is malformed, or for another chat template.
    """
    if options.response_template is None:
        return
    found = read_response_option(options)
    chat = model.chat_template
    if found is not None and (chat is None or not found.begins(chat)):
        raise MtpcoreError(
            "the response template is for another chat template",
            where="--response-template",
            wanted="prompts that end with its start_anchor",
            got="no chat template" if chat is None else "none of them does",
        )
    model.response_template = found


def template_options(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Return the variables of the options; a note names those that the template does not read.

    Raises
    ------
    MtpcoreError
        A variable has a name that is a conversation's own.
    """
    effort = options.reasoning_effort
    if options.reasoning == "on" and effort == "none":
        options.parser.error("--reasoning on, and an effort of none: give one of them")
    found = thinking_options(is_on=_SWITCH.get(options.reasoning), effort=effort)
    found |= read_template_options(options.template_options)
    if (template := model.chat_template) is not None:
        unread = [name for name in found if name not in template.source]
        if unread:
            note(f"the chat template does not read {', '.join(unread)}: that changes nothing")
    return found


def _template(text: str) -> str:
    if "{" not in text_of(text):
        raise argparse.ArgumentTypeError(
            f"wanted a template in Jinja, got {text!r}; there are none by name"
        )
    return text


def _template_of_file(path: str) -> str:
    return read_text(path)


def _variables(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        raise argparse.ArgumentTypeError(
            f"""wanted a JSON object, as {{"enable_thinking": false}}, got {text!r}"""
        ) from None


def _word(text: str) -> str:
    if not text_of(text).strip():
        raise argparse.ArgumentTypeError("wanted a word, such as low or none")
    return text
