"""Launches that come again are one call, and what decides them is in their key."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES
from harness.fixtures import model_file

from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda import graphs as keeping
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.graphs import Graphs
from mtpcore.backends.cuda.visible import Tables
from mtpcore.sampling import Sampling
from mtpcore.testing import Subject, Texts, check_texts

HYBRID = Subject("qwen35moe", str(model_file("qwen35moe-17")), drafter="qwen_mtp")


class Notes:
    """What a device and work were asked for."""

    def __init__(self):
        self.taken = []
        self.device = SimpleNamespace(record=self.record, replay=self.taken.append)

    def record(self, work):
        work()
        return "graph"

    def work(self, is_recorded):
        self.taken.append("recorded" if is_recorded else "launched")


def test_what_comes_again_is_recorded_and_then_replayed():
    notes = Notes()
    graphs = Graphs(notes.device)
    for _ in range(4):
        graphs.start("key", notes.work)
    graphs.start("other", notes.work)
    assert notes.taken == ["launched", "recorded", *["graph"] * 3, "launched"]


def test_those_that_were_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(keeping, "_MOST", 2)
    notes = Notes()
    graphs = Graphs(notes.device)
    for key in "aabbac":  # b goes
        graphs.start(key, notes.work)
    notes.taken.clear()
    for key in "ab":
        graphs.start(key, notes.work)
    assert notes.taken == ["graph", "launched"]


def test_work_that_fails_is_no_graph():
    notes = Notes()
    graphs = Graphs(notes.device)

    def fail(is_recorded):
        raise RuntimeError

    for _ in range(3):
        with pytest.raises(RuntimeError):
            graphs.start("key", fail)
    graphs.start("key", notes.work)
    with pytest.raises(RuntimeError):
        graphs.start("key", fail)
    graphs.start("key", notes.work)
    assert notes.taken == ["launched", "recorded", "graph"]


@pytest.mark.parametrize("family", [*FAMILIES, HYBRID], ids=str)
def test_launches_are_always_the_same_for_a_key(emulated, family, monkeypatch):
    """Those of whole texts, with drafts: each time they are made anew and compared."""
    known, n_again = {}, []

    def start(graphs, key, work):
        made = emulated.record(lambda: work(True))
        name = id(graphs), key
        n_again.append(name in known)
        assert described(made) == known.setdefault(name, described(made))
        emulated.replay(made)

    monkeypatch.setattr(Graphs, "start", start)
    on_device = msgspec.structs.replace(family, backend=CudaBackend(emulated))
    sampling = Sampling(temperature=0.9, seed=3)
    check_texts(on_device, Texts(k=2, sampling=sampling, n_texts=2, n_tokens=6, n_batch=64))
    assert sum(n_again) > len(n_again) / 4


def test_tables_of_another_shape_are_another_array(emulated):
    """A graph of the array before does not fit, even if the shape comes back."""
    tables, numbers = Tables(emulated), []
    for n in (2, 2, 3, 2):
        tables.take(SimpleNamespace(tables=np.full((n, 4), n, np.int32)))
        numbers.append(tables.n_made)
        assert emulated.download(tables.array, n).tolist() == [[n] * 4] * n
    assert numbers == [1, 1, 2, 3]


def described(recorded):
    """Return what was recorded in values that can be compared; a condition is one like another."""
    return [
        (
            getattr(work, "__name__", str(work)),
            *(each for argument in arguments for each in told(argument)),
        )
        for work, arguments in recorded
    ]


def told(argument):
    if isinstance(argument, DeviceArray):
        return [argument.memory.ctypes.data]
    if hasattr(argument, "value"):
        return ["condition"]
    if isinstance(argument, list):
        return described(argument)
    if isinstance(argument, tuple):
        return [each for one in argument for each in told(one)]
    return [argument]
