"""Exceptions at chosen places of the package's own lines, and by real signals.

A place is the number of a line event, or of an instruction's, in the Python code of ``mtpcore``.
"""

import dis
import random
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import mtpcore

PACKAGE = str(Path(mtpcore.__file__).parent)


RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


def _returns(frame):
    """Say whether a frame is about to return: Python raises no interrupt between that and its
    caller's next instruction."""
    return frame.f_code.co_code[frame.f_lasti] in RETURNS


class Raiser:
    """Counts the places that are passed, and raises KeyboardInterrupt at some of them.

    ``places`` are counted each from the one before, so that the second one lies in what the first
    one caused. ``seen`` are the places before the first one by file and line, in their order.
    """

    def __init__(self, *places, by_instruction=False):
        self.left, self.seen = list(places), []
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
        return self._local

    def _local(self, frame, event, arg):
        if event == self.event and not (event == "opcode" and _returns(frame)):
            where = (frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
            if not self.raised:
                self.seen.append(where)
            if self.left:
                self.left[0] -= 1
                if self.left[0] < 0:
                    del self.left[0]
                    self.raised.append(where)
                    raise KeyboardInterrupt
        return self._local


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


class Alarms:
    """Real signals at random moments while code of the package runs; they raise there."""

    def __init__(self, seed, most_seconds):
        self.random, self.most_seconds, self.n_raised = random.Random(seed), most_seconds, 0
        self._is_silent = False

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._raise)
        self._next()
        return self

    def __exit__(self, *error):
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
