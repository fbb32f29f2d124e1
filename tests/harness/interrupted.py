"""Exceptions at chosen places of the package's own lines, and by real signals.

A place is the number of a line event, or of an instruction's, in the Python code of ``mtpcore``.
"""

import dis
import gc
import random
import signal
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import mtpcore

PACKAGE = str(Path(mtpcore.__file__).parent)


RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


@cache
def _returns(code):
    """Return where a function is about to return: Python raises no interrupt between that and its
    caller's next instruction."""
    return {one.offset for one in dis.get_instructions(code) if one.opcode in RETURNS}


def _named(code, line):
    return code.co_filename.removeprefix(PACKAGE), line


class Raiser:
    """Counts the places that are passed, and raises KeyboardInterrupt at some of them.

    ``places`` are counted each from the one before, so that the second one lies in what the first
    one caused. ``n_seen`` is the number of those before the first one.
    """

    def __init__(self, *places, by_instruction=False):
        self.left, self.n_seen, self._seen = list(places), 0, defaultdict(list)
        self.event = "opcode" if by_instruction else "line"
        self.raised = []

    def __enter__(self):
        self._rearm()
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _rearm(self):
        sys.settrace(self._trace)

    def _trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        frame.f_trace_lines = self.event == "line"
        return self._local

    def _local(self, frame, event, arg):
        if event == "line" or (event == "opcode" and frame.f_lasti not in _returns(frame.f_code)):
            if not self.raised:
                self._seen[frame.f_code, frame.f_lineno].append(self.n_seen)
                self.n_seen += 1
            if self.left:
                self.left[0] -= 1
                if self.left[0] < 0:
                    del self.left[0]
                    self.raised.append(_named(frame.f_code, frame.f_lineno))
                    raise KeyboardInterrupt
        return self._local

    def seen(self):
        """Return the places before the first one by file and line."""
        found = defaultdict(list)
        for (code, line), places in self._seen.items():
            found[_named(code, line)] += places
        return found


@contextmanager
def recovering(raiser):
    """Let a raiser see what an act does after it raised: a tracer that raises is taken away."""
    journal = sys.modules.get("mtpcore.acts.journal")
    if journal is None:
        yield
        return
    leave = journal.Transaction.__exit__

    def leave_traced(act, kind, error, trace):
        if kind is not None and raiser.left:
            raiser._rearm()
        return leave(act, kind, error, trace)

    journal.Transaction.__exit__ = leave_traced
    try:
        yield
    finally:
        journal.Transaction.__exit__ = leave


@contextmanager
def raising_alarms():
    """Let SIGALRM raise wherever it comes.

    The collector of garbage rests: hypothesis has it call Python, out of which nothing comes.
    """

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


class Alarms:
    """Real signals at random moments while code of the package runs; they raise there."""

    def __init__(self, seed, most_seconds):
        self.random, self.most_seconds, self.n_raised = random.Random(seed), most_seconds, 0
        self._is_silent = self._is_over = False

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._raise)
        self._next()
        return self

    def __exit__(self, *error):
        self._is_over = True  # a signal that has come and is handled after this sends no other
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _next(self):
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, self.most_seconds))

    @contextmanager
    def silenced(self):
        """Let code of the package run undisturbed, for it is a test's own."""
        self._is_silent = True
        yield
        self._is_silent = False

    def _raise(self, number, frame):
        if self._is_over:
            return
        self._next()
        is_inside = False
        while frame is not None and not self._is_silent:
            # Nothing can come out of a destructor, or of hypothesis's hook of the collector.
            if "hypothesis" in frame.f_code.co_filename or frame.f_code.co_name == "__del__":
                return
            is_inside = is_inside or frame.f_code.co_filename.startswith(PACKAGE)
            frame = frame.f_back
        if is_inside:
            self.n_raised += 1
            raise KeyboardInterrupt


def finish(generator, patience=2000):
    """Step until all is done; return whether it is, after so many rounds."""
    for _ in range(patience):
        if not generator.active:
            return True
        generator.step()
    return not generator.active
