"""Any number of bytes goes through a few buffers, and none is filled before it was copied."""

import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpcore.backends.cuda.ring import Ring


def fill(device, ring, sizes):
    """Send arrays of these sizes one behind the other; return what arrived, and what was sent."""
    parts = [np.random.default_rng(i).integers(0, 256, n, np.uint8) for i, n in enumerate(sizes)]
    wanted = np.concatenate([np.zeros(0, np.uint8), *parts])
    target, at = device.empty((len(wanted),), np.uint8), 0
    for part in parts:
        ring.send(part, target, at)
        at += part.nbytes
        part[:] = 0  # its owner may go on with it
    device.wait(device.mark())
    return device.download(target, len(wanted)), wanted


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 16), st.integers(1, 4))
def test_what_arrives_is_what_was_sent(emulated, sizes, n_bytes, n_buffers):
    arrived, wanted = fill(emulated, Ring(emulated, n_bytes, n_buffers), sizes)
    assert arrived.tobytes() == wanted.tobytes()


def test_on_every_device(device):
    arrived, wanted = fill(device, Ring(device, 1 << 16), [100_000, 3, 250_000])
    assert arrived.tobytes() == wanted.tobytes()


def test_no_more_than_the_ring_is_held(emulated, monkeypatch):
    pinned, pin = [], emulated.pin
    monkeypatch.setattr(emulated, "pin", lambda n: (pinned.append(n), pin(n))[1])
    fill(emulated, Ring(emulated, 8, 3), [5])
    assert pinned == [8]
    fill(emulated, Ring(emulated, 8, 3), [1000, 7])
    assert pinned == [8] * 4


def test_a_buffer_that_is_filled_too_early_shows(emulated, monkeypatch):
    """What a ring that does not wait would do: the emulated device copies late."""
    ring, wait = Ring(emulated, 8, 3), emulated.wait
    monkeypatch.setattr(emulated, "wait", lambda mark: None)
    target = emulated.empty((40,), np.uint8)
    ring.send(np.arange(40, dtype=np.uint8), target, 0)
    wait(emulated.mark())
    assert emulated.download(target, 40).tolist() != list(range(40))


def test_several_threads_send_through_one_ring(emulated):
    ring, parts = (
        Ring(emulated, 64, 2),
        np.random.default_rng(0).integers(0, 256, (8, 999), np.uint8),
    )
    target = emulated.empty(parts.shape, np.uint8)

    def send(i):
        for begin in range(0, 999, 37):
            ring.send(parts[i, begin : begin + 37], target, i * 999 + begin)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emulated.wait(emulated.mark())
    assert emulated.download(target, len(parts)).tobytes() == parts.tobytes()


def test_launches_do_not_wait_for_what_was_sent(emulated):
    """A plan that would not wait before it runs reads noise here."""
    ring, target = Ring(emulated), emulated.empty((3,), np.float32)
    ring.send(np.ones(3, np.float32), target, 0)
    assert np.isnan(emulated.download(target, 3)).all()
    emulated.wait(emulated.mark())
    assert emulated.download(target, 3).tolist() == [1, 1, 1]
