"""Lines about a machine: of files that say one thing or another, and of this one."""

import os
from pathlib import Path

import pytest

from mtpcore._ext._cpu import available_isas, isa
from mtpcore.backends.threads import default_threads
from mtpcore.cli import machine


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def find(name, root, **more):
    return next((one for one in machine.examine(root, **more) if one.name == name), None)


@pytest.mark.parametrize(
    ("there", "used", "named", "kind", "advice"),
    [
        (("base", "avx2", "avx512"), "avx512", None, "x86_64", ""),
        (("base", "avx2", "avx512"), "avx512", "avx512", "x86_64", ""),
        (("base", "avx2", "avx512"), "avx2", "avx2", "x86_64", "MTPCORE_ISA=avx2 holds back"),
        (("base", "avx2", "avx512"), "avx2", None, "x86_64", ""),
        (("base", "avx2"), "avx2", None, "x86_64", "a processor with avx512 computes more"),
        (("base", "neon"), "neon", None, "aarch64", "a processor with i8mm computes more"),
        (("base", "neon", "i8mm"), "i8mm", None, "aarch64", ""),
        (("base",), "base", None, "riscv64", ""),
    ],
)
def test_instruction_sets(there, used, named, kind, advice):
    found = machine._instructions(there, used, named, kind)
    assert found.said == f"{used}, of {', '.join(there)}"
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


@pytest.mark.parametrize(
    ("cores", "granted", "said", "advice"),
    [
        ([0, 1], 2, "2 of 2 processors", ""),
        ([0, 0, 1, 1], 4, "4 of 4 processors, of 2 cores", "try -t 2"),
        ([0, 1, 2, 3], 2, "2 of 4 processors", "affinity or a CPU quota"),
    ],
)
def test_threads(tmp_path, cores, granted, said, advice):
    for i, core in enumerate(cores):
        write(tmp_path, f"sys/devices/system/cpu/cpu{i}/topology/core_id", f"{core}\n")
        write(tmp_path, f"sys/devices/system/cpu/cpu{i}/topology/physical_package_id", "0\n")
    found = machine._threads(tmp_path, granted)
    assert found.said == said
    assert advice in found.advice


def test_memory(tmp_path):
    lines = "MemTotal: 1000000 kB\nMemAvailable: 600000 kB\nSwapTotal: 500000 kB\nSwapFree: {} kB\n"
    write(tmp_path, "proc/meminfo", lines.format(500000))
    found = find("memory", tmp_path, measures=False)
    assert found.said == "614.4 MB of 1.0 GB free"
    assert found.advice == ""
    write(tmp_path, "proc/meminfo", lines.format(400000))
    assert "102.4 MB are swapped out" in find("memory", tmp_path, measures=False).advice


@pytest.mark.parametrize(
    ("after", "busy", "stolen", "advice"),
    [
        ("100 0 0 1100 0 0 0 0", 0.0, 0.0, ""),
        ("500 0 100 600 0 0 0 0", 0.5, 0.0, "stop what else runs"),
        ("100 0 0 1000 50 0 0 50 9 9", 0.0, 0.05, "the host gives processors to other guests"),
        ("100 0 0 100", None, None, ""),
    ],
)
def test_neighbours(tmp_path, after, busy, stolen, advice):
    write(tmp_path, "proc/stat", "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 1 2 3\n")
    found = machine._neighbours(
        tmp_path, lambda seconds: write(tmp_path, "proc/stat", f"cpu  {after}\n")
    )
    assert found.values == (
        {"busy": pytest.approx(busy), "stolen": pytest.approx(stolen)}
        if busy is not None
        else {"busy": None, "stolen": None}
    )
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)


@pytest.mark.parametrize(
    ("text", "said", "advice"),
    [
        ("always [madvise] never\n", "where they are asked for (madvise)", ""),
        ("always madvise [never]\n", "never", "as root: echo madvise > /sys/kernel/mm/"),
    ],
)
def test_huge_pages(tmp_path, text, said, advice):
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", text)
    found = machine._huge_pages(tmp_path)
    assert found.said == said
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(
    ("governor", "pstate", "advice"),
    [("performance", "", ""), ("powersave", "", "cpupower"), ("powersave", "active", "")],
)
def test_clock_rates(tmp_path, governor, pstate, advice):
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", f"{governor}\n")
    write(tmp_path, "sys/devices/system/cpu/intel_pstate/status", f"{pstate}\n")
    found = machine._governor(tmp_path)
    assert found.said == governor
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


def test_memory_nodes_and_gpus(tmp_path):
    for i in range(2):
        (tmp_path / f"sys/devices/system/node/node{i}").mkdir(parents=True)
    assert "numactl" in machine._nodes(tmp_path).advice
    write(
        tmp_path, "proc/driver/nvidia/gpus/0000:01/information", "Model: \t NVIDIA H200\nIRQ: 1\n"
    )
    found = machine._gpus(tmp_path, False)
    assert found.said == "NVIDIA H200"
    assert found.advice.endswith('pip install "mtpcore[cuda]"')
    assert machine._gpus(tmp_path, True).advice == "--backend cuda computes on it"


def test_a_machine_that_says_nothing(tmp_path):
    """Lines that depend on files that are not there are left out, or say that they do not know."""
    found = {one.name: one for one in machine.examine(tmp_path, measures=False)}
    assert [*found] == ["processor", "instruction set", "threads", "memory", "GPU"]
    assert found["memory"].said == "not known"
    assert found["GPU"].said == "none that CUDA knows"


def test_all_of_the_memory_is_read(monkeypatch):
    read = []

    class Maximum:
        reduce = staticmethod(lambda part: read.append(part.nbytes))

    monkeypatch.setattr(machine.np, "maximum", Maximum)
    speeds = machine._read_all(1001, 3)
    assert len(speeds) == machine._ROUNDS
    assert sum(read) == 1001 * machine._ROUNDS
    assert min(speeds) > 0


def test_this_machine(monkeypatch):
    monkeypatch.setattr(machine, "_WATCHED", 0.05)
    monkeypatch.setattr(machine, "_MOST", 64 << 20)
    found = {one.name: one for one in machine.examine()}
    assert len(found) <= 10
    assert found["threads"].values["granted"] == default_threads()
    assert found["instruction set"].values == {"used": isa(), "best": available_isas()[-1]}
    assert found["memory speed"].values["bytes_per_second"] > 0
    if Path("/proc/meminfo").exists():
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert found["memory"].values["total"] == pages
    if Path("/proc/stat").exists():
        assert 0 <= found["neighbours"].values["busy"] <= 1
