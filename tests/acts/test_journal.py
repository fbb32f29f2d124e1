"""Acts that were cut off are settled once, whichever threads come upon them."""

import sys
import threading
from contextlib import contextmanager

from mtpcore.acts import journal as journals
from mtpcore.acts.guards import Guard, act
from mtpcore.acts.journal import Journal


class Slow:
    """Something whose restoring waits until it is told to go on, the first time."""

    def __init__(self):
        self.value = 0
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def save(self):
        return self.value

    def restore(self, saved):
        if not self.is_asked.is_set():
            self.is_asked.set()
            assert self.may_go_on.wait(20)
        self.value = saved


def test_no_act_begins_while_another_thread_settles_the_one_before():
    journal, thing = Journal(Guard()), Slow()

    def cut_off():
        journal.transaction([thing]).__enter__()  # as if its end were never reached
        thing.value = 1

    cut_off()
    reader = threading.Thread(target=journal.settle)
    reader.start()
    assert thing.is_asked.wait(20)
    begun = threading.Event()

    def begin():
        with journal.transaction([thing]):
            begun.set()
            thing.value = 2

    writer = threading.Thread(target=begin)
    writer.start()
    assert not begun.wait(0.2)
    thing.may_go_on.set()
    reader.join()
    writer.join()
    assert thing.value == 2


class Acting:
    """Whatever it does is an act."""

    def __init__(self):
        self.guard = Guard()
        self.journal = Journal(self.guard)
        self.value = 0

    def save(self):
        return self.value

    def restore(self, saved):
        self.value = saved

    @act
    def set(self, value, begun, may_end):
        with self.journal.transaction([self]):
            self.before, self.value = self.value, value
            begun.set()
            assert may_end.wait(20)

    @act
    def be_cut_off(self, value):
        self.journal.transaction([self]).__enter__()  # as if its end were never reached
        self.value = value


@contextmanager
def acting(thing, value):
    """While another thread is at an act."""
    begun, may_end = threading.Event(), threading.Event()
    writer = threading.Thread(target=thing.set, args=(value, begun, may_end))
    writer.start()
    try:
        assert begun.wait(20)
        yield
    finally:
        may_end.set()
        writer.join()


def test_an_act_of_another_thread_is_left_alone_until_it_is_cut_off():
    thing = Acting()
    with acting(thing, 1):
        thing.journal.settle()
        assert thing.value == 1
    assert thing.value == 1

    cut_off = threading.Thread(target=thing.be_cut_off, args=(2,))
    cut_off.start()
    cut_off.join()
    assert thing.value == 2
    thing.journal.settle()
    assert thing.value == 1


def test_an_act_that_was_cut_off_is_settled_while_its_thread_lives_on():
    """Also by the next act, which has the guard meanwhile."""
    thing, is_cut_off, may_end = Acting(), threading.Event(), threading.Event()

    def live_on():
        thing.be_cut_off(1)
        is_cut_off.set()
        assert may_end.wait(20)

    living = threading.Thread(target=live_on)
    living.start()
    assert is_cut_off.wait(20)
    with acting(thing, 2):
        assert thing.before == 0
    assert thing.value == 2
    thing.be_cut_off(3)
    thing.journal.settle()
    assert thing.value == 2
    may_end.set()
    living.join()


def test_no_frame_of_another_thread_is_followed(monkeypatch):
    """It may go as soon as garbage is collected, and CPython 3.11 follows freed memory then."""
    monkeypatch.setattr(journals, "newest_frames", lambda: dict.fromkeys(sys._current_frames()))
    thing = Acting()
    with acting(thing, 1):
        thing.journal.settle()
        assert thing.value == 1
