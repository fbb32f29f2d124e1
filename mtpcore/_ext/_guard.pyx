"""Guards: which act is running on contexts that belong together.

A guard is taken and left around the call in compiled code: there is no bytecode in between, at
which a signal, a tracer or another thread could come in. Whatever the act raises, and wherever, the
guard is afterwards what it was before.
"""

import threading

from mtpcore.errors import BusyError

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef int FREE = 1 << 20  # above every storey
cdef int LENT = 0  # below every storey


cdef class Guard:
    cdef int storey  # of the innermost act that is running
    cdef unsigned long thread  # which runs it
    cdef object kind, function  # of the outermost one, for messages

    def __cinit__(self):
        self.storey = FREE

    def lend(self, function, *args):
        cdef int before = self.storey
        if before == FREE or self.thread != PyThread_get_thread_ident():
            return function(*args)
        self.storey = LENT
        try:
            return function(*args)
        finally:
            self.storey = before


def perform(function, int storey, tuple args not None, dict kwargs not None):
    if not args:
        return function(**kwargs)  # raises: it lacks its first argument
    return run(<Guard?> args[0].guard, function, storey, args, kwargs)


def perform_together(tuple guards not None, function, int storey, tuple args not None,
                     dict kwargs not None):
    return run_together(guards, 0, function, storey, args, kwargs)


cdef int take(Guard guard, kind, function, int storey) except -1:
    """Take a guard for an act; return the storey to leave it at."""
    cdef unsigned long here = PyThread_get_thread_ident()
    cdef int before = guard.storey
    if storey >= before or (before != FREE and guard.thread != here):
        raise busy(guard, kind, function, here)
    guard.storey, guard.thread = storey, here
    if before == FREE:
        guard.kind, guard.function = kind, function
    return before


cdef object run(Guard guard, function, int storey, tuple args, dict kwargs):
    cdef int before = take(guard, type(args[0]), function, storey)
    try:
        return function(*args, **kwargs)
    finally:
        guard.storey = before


cdef object run_together(tuple guards, Py_ssize_t i, function, int storey, tuple args,
                         dict kwargs):
    """Take the guards from the i-th on, one in the other."""
    cdef Guard guard
    cdef int before
    if i == len(guards):
        return function(*args, **kwargs)
    guard = <Guard?> guards[i]
    before = take(guard, type(args[0]), function, storey)
    try:
        return run_together(guards, i + 1, function, storey, args, kwargs)
    finally:
        guard.storey = before


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
