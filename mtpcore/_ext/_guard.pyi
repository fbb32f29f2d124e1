"""Guards: which act is running on contexts that belong together."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["Guard", "perform", "perform_together"]

R = TypeVar("R")

class Guard:
    """Belongs to a context, or to a Cross and all of its contexts and generators.

    It notes the thread of the act that is running, and the storey: of the acts that are called
    meanwhile only those of the same thread, and of lower storeys, are parts of it.
    """

    def lend(self, function: Callable[..., R], *args: Any) -> R:
        """Call what somebody else wrote in the middle of an act: it can make no act of its own."""

def perform(
    function: Callable[..., R], storey: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> R:
    """Call a function as an act under the guard of its first argument, ``args[0].guard``.

    The guard is afterwards what it was before, whatever raises, and at whichever bytecode.

    Raises
    ------
    BusyError
        Another act is running that this one is no part of; nothing was called.
    """

def perform_together(
    guards: tuple[Guard, ...],
    function: Callable[..., R],
    storey: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> R:
    """Call a function as an act under several guards; ``args[0]`` is whose act it is.

    Raises
    ------
    BusyError
        As ``perform``.
    """
