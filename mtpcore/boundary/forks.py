"""Locks that are free in a forked child, even if another thread held them in the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["give_lock"]

_given: WeakKeyDictionary[object, tuple[str, Callable[[], object]]] = WeakKeyDictionary()


def give_lock(owner: object, name: str, make: Callable[[], object]) -> None:
    """Set an object's attribute to a lock, and to another one in a forked child.

    Only the thread that forked goes on there; what others had locked would stay so for ever.
    """
    setattr(owner, name, make())
    _given[owner] = name, make


def _renew() -> None:
    for owner, (name, make) in list(_given.items()):
        setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)
