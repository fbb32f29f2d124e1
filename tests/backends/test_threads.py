"""The default of threads: the processors of the process, and what its control groups pay for."""

import os
from pathlib import Path

import pytest

from mtpcore._ext._plan import MAX_THREADS
from mtpcore.backends.threads import _granted, default_threads


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    use_processors(monkeypatch, 8)


def use_processors(monkeypatch, n):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(n)), raising=False)


def write_tree(root, groups, **files):
    """Write /proc/self/cgroup and the files below /sys/fs/cgroup."""
    texts = {"proc/self/cgroup": groups}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def v1(folder, quota, period="100000\n"):
    """Return the two files of a group."""
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


def test_without_control_groups_all_processors_are_used(tmp_path, monkeypatch):
    assert _granted(tmp_path) == 8
    use_processors(monkeypatch, 3)
    assert _granted(tmp_path) == 3
    use_processors(monkeypatch, MAX_THREADS + 1)
    assert _granted(tmp_path) == MAX_THREADS


def test_without_affinity_the_processors_of_the_machine_count(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, wanted in [(5, 5), (None, 1)]:
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert _granted(tmp_path) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("max 100000\n", 8), ("150000 100000\n", 1), ("300000 100000\n", 3), ("5000 100000\n", 1)],
)
def test_a_quota_is_rounded_down_to_whole_processors(text, wanted, tmp_path):
    assert _granted(write_tree(tmp_path, "0::/\n", **{"cpu.max": text})) == wanted


@pytest.mark.parametrize(("n", "wanted"), [(2, 2), (3, 3), (4, 3)])
def test_the_smaller_of_affinity_and_quota_counts(n, wanted, tmp_path, monkeypatch):
    use_processors(monkeypatch, n)
    root = write_tree(tmp_path, "0::/\n", **{"cpu.max": "300000 100000\n"})
    assert _granted(root) == wanted


@pytest.mark.parametrize(
    ("top", "middle", "own", "wanted"),
    [
        (None, "max", "400000", 4),
        (None, "200000", "400000", 2),
        (None, "600000", "400000", 4),
        ("300000", "max", "max", 3),
        ("300000", None, None, 3),  # a container that sees its path on the host
        (None, None, None, 8),
    ],
)
def test_the_tightest_of_nested_groups_counts(top, middle, own, wanted, tmp_path):
    at = {"cpu.max": top, "user.slice/cpu.max": middle, "user.slice/a:b/cpu.max": own}
    files = {name: f"{text} 100000\n" for name, text in at.items() if text}
    assert _granted(write_tree(tmp_path, "0::/user.slice/a:b\n", **files)) == wanted


def test_groups_beside_those_of_the_process_do_not_count(tmp_path):
    outside = {f"{name}/cpu.max": "100000 100000\n" for name in ("sub", "../outside")}
    outside |= v1("cpu/sub", "100000\n")
    for line in ("0::/", "0::/../outside", "1:memory:/sub", "2:cpuset:/sub", "7:name=a:/sub"):
        assert _granted(write_tree(tmp_path, line, **outside)) == 8


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(
    ("top", "own", "wanted"),
    [
        ("-1\n", "250000\n", 2),
        ("100000\n", "250000\n", 1),
        ("-1\n", "-1\n", 8),
        ("300000\n", None, 3),
    ],
)
def test_the_first_version_is_read_where_it_has_the_processors(mount, top, own, wanted, tmp_path):
    files = v1(mount, top) | (v1(f"{mount}/docker/a", own) if own else {})
    groups = "9:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n2:cpuset:/\n0::/\n"
    assert _granted(write_tree(tmp_path, groups, **files)) == wanted


def test_a_group_of_the_first_version_without_its_files_limits_nothing(tmp_path):
    root = write_tree(tmp_path, "4:cpu:/a\n", **v1("cpu/a", "200000\n"))
    assert _granted(root) == 2
    (root / "sys/fs/cgroup/cpu/a/cpu.cfs_period_us").unlink()
    assert _granted(root) == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100000",
        "a b",
        "1 2 3",
        "200000 0",
        "0 100000",
        "-100000 100000",
        "200000 -1",
        b"\xff\xfe 1",
        b"\0",
        "9" * 5000 + " 1",
    ],
)
def test_what_is_malformed_limits_nothing(text, tmp_path):
    assert _granted(write_tree(tmp_path, "0::/\n", **{"cpu.max": text})) == 8


@pytest.mark.parametrize("text", ["", ":", "0", "0:", "::", "no colons", b"0::/\xff\0", "4:cpu"])
def test_malformed_lines_of_groups_are_passed_over(text, tmp_path):
    line = text if isinstance(text, bytes) else text.encode()
    files = {"own/cpu.max": "200000 100000"}
    assert _granted(write_tree(tmp_path, line + b"\n0::/own\n", **files)) == 2


def test_files_that_cannot_be_read_limit_nothing(tmp_path):
    root = write_tree(tmp_path, "0::/\n")
    (root / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert _granted(root) == 8


def test_the_default_is_what_the_system_says():
    assert default_threads() == _granted(Path("/")) in range(1, MAX_THREADS + 1)
