"""Locks that a forked child finds free."""

import gc
from threading import Lock
from weakref import getweakrefs

from mtpcore.boundary import forks
from mtpcore.boundary.forks import give_lock


class Owner:
    pass


def test_no_python_runs_where_an_owner_ends():
    """A Ctrl-C in the callback of a weak reference would be lost."""
    owner = Owner()
    give_lock(owner, "lock", Lock)
    assert [one.__callback__ for one in getweakrefs(owner)] == [None]


def test_owners_that_ended_are_forgotten():
    first, others = Owner(), [Owner() for _ in range(20)]
    for owner in others:
        give_lock(owner, "lock", Lock)
    n = len(forks._given)
    del owner, others
    gc.collect()
    give_lock(first, "lock", Lock)
    assert len(forks._given) <= n + 1 - 20


def test_a_child_gets_locks_of_its_own():
    owner = Owner()
    give_lock(owner, "lock", Lock)
    held = owner.lock
    with held:
        forks._renew()
        assert owner.lock is not held
        assert owner.lock.acquire(blocking=False)
