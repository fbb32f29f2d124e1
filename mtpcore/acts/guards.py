"""Guards, which let one act run at a time on contexts that belong together.

Contexts of one model may run in several threads at once. On a context, or on a Cross with all of
its contexts and generators, one act runs at a time: they share a guard, and another act, of
another thread or of the same one (a callback, a signal handler, a ``__del__``), is refused before
it changes anything. What an act is made of are the verbs of a ``GraphRunner`` or a ``Speculation``,
which are no acts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mtpcore._ext._guard import Guard, holding, perform, perform_together

__all__ = ["Guard", "act", "act_of_all", "exclusive", "holding"]

P = ParamSpec("P")
R = TypeVar("R")


def act(function: Callable[P, R]) -> Callable[P, R]:
    """Let a method run under the guard of its object, the attribute ``guard``.

    Raises
    ------
    BusyError
        By the method: an act is running.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        return perform(function, args, kwargs)

    return guarded


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """Let one thread at a time run a method: it holds its object's ``lock``."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        return holding(args[0].lock, function, *args, **kwargs)  # type: ignore[attr-defined]

    return alone


def act_of_all(initialise: Callable[P, None]) -> Callable[P, None]:
    """Let an ``__init__`` run under the guards of all contexts among its keywords.

    Raises
    ------
    BusyError
        By the ``__init__``: an act is running on one of them.
    """

    @wraps(initialise)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        guards = tuple(dict.fromkeys(g for holder in kwargs.values() if (g := _guard_of(holder))))
        perform_together(guards, initialise, args, kwargs)

    return guarded


def _guard_of(value: object) -> Guard | None:
    """Return the guard of what has one."""
    try:
        guard = getattr(value, "guard", None)
    except MemoryError:
        raise
    except Exception:  # whatever a caller's object raises
        return None
    return guard if isinstance(guard, Guard) else None
