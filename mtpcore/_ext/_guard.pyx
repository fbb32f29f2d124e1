"""Guards: which act is running on contexts that belong together.

A guard is taken and left around the call in compiled code: there is no bytecode in between, at
which a signal, a tracer or another thread could come in. Whatever the act raises, and wherever, the
guard is afterwards what it was before. The same holds for a lock of ``threading``.
"""

import threading

from mtpcore.errors import BusyError

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()


cdef class Guard:
    cdef bint taken
    cdef readonly unsigned long thread  # which took it
    cdef readonly unsigned long turn  # how often it was taken
    cdef object kind, function  # the act that is running, for messages

    def is_elsewhere(self, unsigned long turn):
        return self.taken and self.turn == turn and self.thread != PyThread_get_thread_ident()


def holding(lock, function, /, *args, **kwargs):
    lock.acquire()
    try:
        return function(*args, **kwargs)
    finally:
        lock.release()


def perform(function, tuple args not None, dict kwargs not None):
    cdef Guard guard
    if not args:
        return function(**kwargs)  # raises: it lacks its first argument
    guard = <Guard?> args[0].guard
    take(guard, type(args[0]), function)
    try:
        return function(*args, **kwargs)
    finally:
        guard.taken = False


def perform_together(tuple guards not None, function, tuple args not None, dict kwargs not None):
    return run_together(guards, 0, function, args, kwargs)


cdef int take(Guard guard, kind, function) except -1:
    if guard.taken:
        raise busy(guard, kind, function, PyThread_get_thread_ident())
    guard.taken, guard.thread = True, PyThread_get_thread_ident()
    guard.turn += 1
    guard.kind, guard.function = kind, function
    return 0


cdef object run_together(tuple guards, Py_ssize_t i, function, tuple args, dict kwargs):
    """Take the guards from the i-th on, one in the other."""
    cdef Guard guard
    if i == len(guards):
        return function(*args, **kwargs)
    guard = <Guard?> guards[i]
    take(guard, type(args[0]), function)
    try:
        return run_together(guards, i + 1, function, args, kwargs)
    finally:
        guard.taken = False


cdef object busy(Guard guard, kind, function, unsigned long here):
    """Return the error that names both calls and their threads."""
    running, called = spelled(guard.kind, guard.function), spelled(kind, function)
    names = {one.ident: repr(one.name) for one in threading.enumerate()}
    mine = repr(threading.current_thread().name)
    if guard.thread == here:
        return BusyError(
            f"{running} is running in thread {mine}; {called} was called in the middle of it",
            fix="let it end first: what it calls back, a signal handler or a __del__ may note what "
            "is to be done, and do it afterwards")
    if guard.thread in names:
        return BusyError(
            f"{running} is running in thread {names[guard.thread]}; "
            f"{called} was called from thread {mine}",
            fix="make one call at a time on a context, or on a Cross and all that belongs to it; "
            "contexts of their own may run at the same time")
    return BusyError(
        f"{running} was running in a thread that is not known here, as after a fork; "
        f"{called} was called from thread {mine}",
        fix="make new contexts in a process that was forked meanwhile")


cdef str spelled(kind, function):
    """Return a call as it is written: ``Context.process()``, ``Cross()`` or ``link()``."""
    name = function.__name__
    if name == "__init__":
        return f"{kind.__name__}()"
    if "." not in function.__qualname__:
        return f"{name.lstrip('_')}()"
    return f"{kind.__name__}.{name}()"
