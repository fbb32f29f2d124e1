"""Looking at the threads' frames cannot block the process, whatever a collection runs."""

import gc
import subprocess
import sys
import threading

from mtpcore.acts.stack_frames import newest_frames

PROGRAM = """
import gc, sys, threading, time
from mtpcore.acts.stack_frames import newest_frames

gc.callbacks.append(lambda phase, info: time.sleep(0.0005))
ended = threading.Event()

def look():
    while not ended.is_set():
        for n in 1, 2, 3, 4:  # so that a collection falls on each allocation of the call
            gc.set_threshold(n)
            newest_frames()

watcher = threading.Thread(target=look, daemon=True)
watcher.start()
for _ in range(30):
    other = threading.Thread(target=lambda: None)
    other.start()
    other.join()
ended.set()
watcher.join()
assert gc.isenabled()
"""


def test_threads_start_while_another_looks():
    """Without care the two wait for each other within a few turns (CPython 3.11)."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=30)


def test_the_frames_are_those_of_all_threads():
    begun, ended = threading.Event(), threading.Event()

    def wait():
        begun.set()
        ended.wait()

    other = threading.Thread(target=wait, daemon=True)
    other.start()
    begun.wait()
    frames = newest_frames()
    ended.set()
    other.join()
    assert frames[threading.get_ident()].f_back is sys._getframe()
    assert other.ident in frames


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        newest_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
