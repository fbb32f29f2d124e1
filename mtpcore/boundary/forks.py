"""Locks that are free in a forked child, even if another thread held them in the parent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from weakref import ref

from mtpcore.system.forks import after_forks

__all__ = ["give_lock"]

_given: dict[int, tuple[ref[object], str, Callable[[], object]]] = {}
"""No dictionary with weak keys: it runs Python where an owner ends, and a Ctrl-C there is lost."""

_numbers = count()


def give_lock(owner: object, name: str, make: Callable[[], object]) -> None:
    """Set an object's attribute to a lock, and to another one in a forked child.

    Only the thread that forked goes on there; what others had locked would stay so for ever.
    """
    setattr(owner, name, make())
    _given[next(_numbers)] = ref(owner), name, make
    for number in [number for number, (one, *_) in list(_given.items()) if one() is None]:
        _given.pop(number, None)  # another thread may have been here


def _renew() -> None:
    for one, name, make in list(_given.values()):
        owner = one()
        if owner is not None:
            setattr(owner, name, make())


after_forks(_renew)
