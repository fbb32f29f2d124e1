"""Plans compare the ways to prefetch weights, and keep the fastest; no bit depends on it."""

import fcntl
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import mtpcore
from mtpcore._ext import _cpu, _fetch
from mtpcore._ext._fetch import ROWS, TRIALS, WAYS
from mtpcore.backends.cpu import backend, fetch_cache

SPEEDS = {"lines": 20.0, "lines-l2": 28.0, "pages": 31.5, "none": 30.0}
OTHER = {"lines": 33.0, "lines-l2": 28.0, "pages": 31.5, "none": 30.0}
TRIAL = TRIALS * len(WAYS)
Q8_0 = 8


@pytest.fixture(autouse=True)
def _as_if_new(tmp_path, monkeypatch):
    """Remember nothing, and keep the cache in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _cpu.use_fetch("auto")
    _fetch.forget()
    fetch_cache.load()
    yield
    _fetch.forget()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mtpcore" / "prefetch.json"


@pytest.fixture
def measure_small_plans(monkeypatch):
    """Let ways be compared in plans that a cache could hold, too."""
    monkeypatch.setattr(backend, "WORTH_PREFETCHING", 0)


def decode(n_rows=1, passes=TRIAL + 1, threads=2):
    """Return the logits of so many passes of ``n_rows`` tokens each."""
    with mtpcore.load_model("demo") as model:
        context = mtpcore.Context(model, 512, threads=threads)
        return np.concatenate(
            [
                context.process(
                    mtpcore.Batch.of([7] * n_rows, pos=n_rows * i, outputs="all")
                ).logits
                for i in range(passes)
            ]
        )


@pytest.mark.parametrize(("n_rows", "rows"), [(1, "1"), (3, "2-4"), (8, "5-8"), (9, "9-16")])
def test_a_plan_compares_the_ways_and_remembers_the_result(n_rows, rows, measure_small_plans):
    decode(n_rows, TRIAL)
    assert _fetch.recall() == {}
    decode(n_rows, TRIAL + 1)
    found = _fetch.recall()
    assert found
    assert {key[1] for key in found} == {rows}
    for way, speeds in found.values():
        assert 1.02 * speeds[way] >= max(speeds.values())
        assert min(speeds.values()) > 0


def test_passes_that_compare_ways_are_not_warm(measure_small_plans):
    """Of each class of rows the first ones; those of many rows compare nothing."""
    with mtpcore.load_model("demo") as model:
        context, warm = mtpcore.Context(model, 1024, threads=2), {}
        for _ in range(2 * TRIAL + 2):
            for n_rows in (1, 3, 17):
                context.remove(0)
                context.process(mtpcore.Batch.of([7] * n_rows, outputs="all"))
                warm.setdefault(n_rows, []).append(context.runner.is_warm)
    assert warm[1] == warm[3] == [False] * TRIAL + [True] * (TRIAL + 2)
    assert warm[17] == [True] * (2 * TRIAL + 2)


def test_many_rows_are_not_measured(measure_small_plans):
    decode(17)
    assert _fetch.recall() == {}


def test_small_plans_are_not_measured():
    decode()
    assert _fetch.recall() == {}


def test_a_way_that_is_asked_for_is_not_measured(measure_small_plans):
    _cpu.use_fetch("none")
    decode()
    assert _fetch.recall() == {}


def test_bits_do_not_depend_on_trials(measure_small_plans, share_small_plans):
    results = []
    for fetch in _cpu.available_fetches():
        _cpu.use_fetch(fetch)
        results += [decode(threads=threads) for threads in (1, 2)]
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


def test_a_later_process_begins_with_what_was_measured(file):
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()
    _fetch.forget()
    fetch_cache.load()
    assert _fetch.recall() == {(Q8_0, "1"): ("pages", SPEEDS)}


def test_nothing_is_written_where_nothing_is_new(file):
    fetch_cache.save()
    assert not file.exists()
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()
    file.unlink()
    fetch_cache.save()
    assert not file.exists()


def test_measurements_of_others_are_kept(file):
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()
    ((processor, own),) = json.loads(file.read_text()).items()
    file.write_text(json.dumps({"another": own, processor: own}))
    _fetch.forget()
    fetch_cache.load()
    _fetch.remember(Q8_0, "2-4", OTHER)
    fetch_cache.save()
    found = json.loads(file.read_text())
    assert found["another"] == own
    assert [one["rows"] for one in found[processor]] == ["1", "2-4"]


def measurement(**changes):
    return {"type": Q8_0, "rows": "1", "speeds": SPEEDS, "time": time.time()} | changes


FOREIGN = [
    "",
    "{",
    "[]",
    '{"x": 1}',
    "\0" * 100,
    '"' + "x" * (2 << 20) + '"',
    measurement(type=-1),
    measurement(type=_fetch.TYPES),
    measurement(type=1 << 70),
    measurement(type="Q8_0"),
    measurement(rows="3"),
    measurement(speeds={}),
    measurement(speeds={"lines": 1.0}),
    measurement(speeds=SPEEDS | {"books": 1.0}),
    measurement(speeds=SPEEDS | {"none": -1.0}),
    measurement(speeds=SPEEDS | {"none": "fast"}),
    measurement(time=0),
    measurement(time=time.time() + 1e6),
    {},
]


@pytest.mark.parametrize("content", FOREIGN, ids=range(len(FOREIGN)))
def test_a_damaged_foreign_or_old_file_is_as_good_as_none(content, file):
    if isinstance(content, dict):
        content = json.dumps({fetch_cache._processor(): [content]})
    file.parent.mkdir()
    file.write_text(content)
    fetch_cache.load()
    assert _fetch.recall() == {}
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()
    _fetch.forget()
    fetch_cache.load()
    assert _fetch.recall() == {(Q8_0, "1"): ("pages", SPEEDS)}


def test_a_pipe_is_no_cache(file):
    file.parent.mkdir()
    os.mkfifo(file)
    fetch_cache.load()
    assert _fetch.recall() == {}
    _fetch.remember(Q8_0, "1", SPEEDS)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # without one, writing would never end
    try:
        fetch_cache.save()
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "mtpcore").write_text("a file where the folder should be")
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()
    fetch_cache.load()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    _fetch.remember(Q8_0, "2-4", SPEEDS)
    fetch_cache.save()
    assert set(_fetch.recall()) == {(Q8_0, "1"), (Q8_0, "2-4")}


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(fetch_cache.cache_folder.__globals__["Path"], "home", no_home)
    fetch_cache.load()
    _fetch.remember(Q8_0, "1", SPEEDS)
    fetch_cache.save()


def test_what_another_process_is_writing_is_left_to_it(file):
    _fetch.remember(Q8_0, "1", SPEEDS)
    file.parent.mkdir()
    folder = os.open(file.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    fetch_cache.save()
    assert not file.exists()
    os.close(folder)
    fetch_cache.save()
    assert file.exists()


SAVE_OFTEN = f"""
import sys
from mtpcore._ext import _fetch
from mtpcore.backends.cpu import fetch_cache

fetch_cache.load()
for i in range(100):
    speeds = {{way: speed + i for way, speed in {SPEEDS}.items()}}
    _fetch.remember({Q8_0}, sys.argv[1], speeds)
    fetch_cache.save()
    assert fetch_cache._read()  # whole at any time
"""


def test_two_processes_may_save_at_once(file):
    _fetch.remember(Q8_0, "5-8", SPEEDS)
    fetch_cache.save()
    processes = [subprocess.Popen([sys.executable, "-c", SAVE_OFTEN, rows]) for rows in ROWS[:2]]
    assert [process.wait(120) for process in processes] == [0, 0]
    (found,) = json.loads(file.read_text()).values()
    assert "5-8" in {one["rows"] for one in found}
    assert list(file.parent.iterdir()) == [file]
