"""Guards: which act is running on contexts that belong together."""

from collections.abc import Callable, Mapping
from threading import Lock, RLock
from typing import Any, ParamSpec, TypeVar

__all__ = ["Guard", "holding", "perform", "perform_together"]

P = ParamSpec("P")
R = TypeVar("R")

class Guard:
    """Belongs to a context, or to a Cross and all of its contexts and generators.

    While an act runs no other one can: not from another thread, and not from what the act calls
    back, a signal handler or a ``__del__``.

    Attributes
    ----------
    thread : int
        Ident of the thread that took it last.
    turn : int
        How often it was taken.
    """

    thread: int
    turn: int

    def is_elsewhere(self, turn: int) -> bool:
        """Whether another thread is at the act that was the ``turn``-th one to take it."""

def holding(
    lock: Lock | RLock, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Call a function while holding a lock, and wait for that before.

    The lock is free afterwards, whatever raises, and at whichever bytecode. ``with`` cannot say so:
    a signal's exception comes up after a call, and from CPython 3.14 on the call that takes the
    lock is one of these.
    """

def perform(function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
    """Call a function as an act under the guard of its first argument, ``args[0].guard``.

    The guard is free afterwards, whatever raises, and at whichever bytecode.

    Raises
    ------
    BusyError
        Another act is running; nothing was called.
    """

def perform_together(
    guards: tuple[Guard, ...],
    function: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> R:
    """Call a function as an act under several guards; ``args[0]`` is whose act it is.

    Raises
    ------
    BusyError
        As ``perform``.
    """
