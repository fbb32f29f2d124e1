"""Acts: calls that change a context or a Cross, one at a time.

Contexts of one model may run in several threads at once. On a context, or on a Cross with all of
its contexts and generators, one act runs at a time: they share a guard, and another act, of
another thread or of the same one (a callback, a signal handler, a ``__del__``), is refused before
it changes anything. An act may be made of others as long as these stand on lower storeys.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mtpcore._ext._guard import Guard, perform, perform_together

__all__ = ["Guard", "Storey", "act", "act_of_all", "perform_together"]

P = ParamSpec("P")
R = TypeVar("R")


class Storey(IntEnum):
    """What an act is made of: of acts of lower storeys, or of none.

    Attributes
    ----------
    ROWS
        Forgets or copies rows of one context.
    PASS
        Runs rows through a context; where they are delivered, others may forget some.
    CONTEXT
        What a caller does with one context, or with one sequence's pending token.
    CROSS
        Touches all roles.
    GENERATOR
        A round and all else that is made of several acts of a Cross.
    """

    ROWS = 1
    PASS = 2
    CONTEXT = 3
    CROSS = 4
    GENERATOR = 5


def act(storey: Storey) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function run under the guard of its first argument, its attribute ``guard``.

    Raises
    ------
    BusyError
        By the function: another act is running that it is no part of.
    """
    number = int(storey)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            return perform(function, number, args, kwargs)

        return guarded

    return decorate


def act_of_all(initialise: Callable[P, None]) -> Callable[P, None]:
    """Let an ``__init__`` run under the guards of all contexts among its keywords.

    Raises
    ------
    BusyError
        By the ``__init__``: an act is running on one of them.
    """

    @wraps(initialise)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        found: list[Any] = [getattr(one, "guard", None) for one in kwargs.values()]
        guards = tuple(dict.fromkeys(one for one in found if isinstance(one, Guard)))
        perform_together(guards, initialise, Storey.CROSS, args, kwargs)

    return guarded
