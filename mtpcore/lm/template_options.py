"""Variables of chat templates: what callers give by name, and how much a model is to think."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from mtpcore.boundary.arguments import read
from mtpcore.errors import MtpcoreError, spell

__all__ = ["read_template_options", "thinking_options"]

OF_TEMPLATES = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "now")
)
"""What a conversation says itself."""
_EFFORT = Annotated[str, Meta(min_length=1, description="a word, such as 'low', or 'none'")] | None


def read_template_options(given: Any, effort: Any = None) -> dict[str, Any]:
    """Return variables for a template by name.

    Parameters
    ----------
    given : mapping or None
    effort : str, optional
        As ``thinking_options`` takes it; what is given by name comes first.

    Raises
    ------
    MtpcoreError
        No mapping, names that are none or that the conversation has itself, or no word.
    """
    try:
        options = {} if given is None else dict(given)
    except MemoryError:
        raise
    except Exception as error:  # no mapping, and whatever a caller's mapping raises
        raise MtpcoreError("template options have names", where="chat", got=spell(given)) from error
    if not all(isinstance(name, str) for name in options):
        raise MtpcoreError("template options have names", where="chat", got=spell(given))
    if taken := OF_TEMPLATES & options.keys():
        raise MtpcoreError(
            "these are no options of a template", where="chat", got=", ".join(sorted(taken))
        )
    effort = read(effort, _EFFORT, "reasoning_effort is a word", where="chat", error=MtpcoreError)
    return thinking_options(effort=effort) | options


def thinking_options(*, is_on: bool | None = None, effort: str | None = None) -> dict[str, Any]:
    """Return the variables by which templates are told whether to think, and how much.

    Parameters
    ----------
    is_on : bool, optional
        Default: what the template does by itself.
    effort : str, optional
        A word of the model's; ``none``: it does not think.
    """
    if effort == "none":
        is_on, effort = False, None
    options = {"enable_thinking": is_on, "reasoning_effort": effort}
    return {name: value for name, value in options.items() if value is not None}
