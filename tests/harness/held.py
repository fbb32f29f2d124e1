"""An act that has begun in a thread of its own, and waits at its first line."""

import sys
from threading import Event, Thread

PATIENCE = 60  # seconds


class Held:
    """Begins a call in a thread; ``with`` its body, the act that the call makes is running.

    ``raised`` is what the call raised once the body is done.
    """

    def __init__(self, act, call, name="A"):
        self._code, self._call = act.__wrapped__.__code__, call
        self._inside, self._go, self.raised = Event(), Event(), None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def _run(self):
        sys.settrace(self._trace)
        try:
            self._call()
        except Exception as error:
            self.raised = error
        finally:
            sys.settrace(None)
            self._inside.set()

    def _trace(self, frame, event, argument):
        if frame.f_code is self._code and not self._inside.is_set():
            self._inside.set()
            assert self._go.wait(PATIENCE)

    def __enter__(self):
        self._thread.start()
        assert self._inside.wait(PATIENCE)
        assert self._thread.is_alive(), f"the act did not begin: {self.raised!r}"
        return self

    def __exit__(self, *_):
        self._go.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
