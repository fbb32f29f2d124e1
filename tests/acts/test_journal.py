"""Acts that were cut off are settled once, whichever threads come upon them."""

import threading

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
    journal, thing = Journal(), Slow()

    def cut_off():
        journal.transaction([thing]).__enter__()  # as if its end were never reached
        thing.value = 1

    cut_off()
    reader = threading.Thread(target=journal.settle)
    reader.start()
    assert thing.is_asked.wait(20)
    begun = threading.Event()

    def act():
        with journal.transaction([thing]):
            begun.set()
            thing.value = 2

    writer = threading.Thread(target=act)
    writer.start()
    assert not begun.wait(0.2)
    thing.may_go_on.set()
    reader.join()
    writer.join()
    assert thing.value == 2
