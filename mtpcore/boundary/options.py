"""Options that several functions take by name: a ``TypedDict`` has them, with its defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ForwardRef, TypeVar

__all__ = ["find_unknown", "show_options"]

F = TypeVar("F", bound=Callable[..., Any])


def show_options(kind: type, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """Return a decorator by which the signature of a function shows the options that it takes.

    Type checkers and editors read them from ``**options: Unpack[kind]``. ``help``, notebooks and
    Sphinx ask ``inspect.signature``, which would show nothing but ``**options``.

    Parameters
    ----------
    kind : type
        The TypedDict.
    defaults : mapping of str to object
        What each option is where it is left out.
    """
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint,
        )
        for name, hint in kind.__annotations__.items()
    ]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *shown])
        return function

    return decorate


def find_unknown(given: Iterable[str], known: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that is unknown and the nearest known one; None where there is none."""
    names = list(known)
    for name in given:
        if name not in names:
            return name, get_close_matches(name, names, 1, cutoff=0.0)[0]
    return None
