import json
import time

import pytest
from timing import Reader, Sample, Undone, alternate, choose
from versus.hold import Hold
from versus.results import Found, Ratio, Results
from versus.table import render

RUN = {"command": "x", "date": "today", "commit": "c", "load": 0.1, "steal": 0.0, "bandwidth": 2e10}


def results(*cells):
    made = Results({"cpu": "one"}, [RUN])
    for cell in cells:
        made.add(cell)
    return made


def rows(made):
    lines = [line.split(" | ") for line in render(made).splitlines() if line.startswith("| ")]
    return {(row[0].strip("| "), row[1]): row for row in lines[2:]}


def test_a_ratio_is_of_pairs_not_of_medians():
    ratio = Ratio.of([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError):
        Ratio.of([1.0], [1.0, 2.0])


def test_the_best_setting_of_the_other_engine_counts():
    found = Found("f", "decode", 64, [2.0] * 3, {"a": [9.0, 3.0, 3.0], "b": [4.0, 4.0, 4.0]})
    assert found.best == "a"
    assert found.ratio == Ratio(1.5, 1.5, 4.5)


def test_a_later_measurement_takes_the_place_of_an_earlier_one(tmp_path):
    made = results(Found("f", "decode", 64, [1.0]), Found("f", "verify-2", 2, [1.0]))
    made.runs.append(RUN)
    made.add(Found("f", "decode", 64, [2.0 / 3]))
    made.write(tmp_path / "r.json")
    read = Results.read(tmp_path / "r.json")
    assert [(one.cell, one.run) for one in read.cells] == [("verify-2", 0), ("decode", 1)]
    assert read.find("f", "decode").ours == [0.66667]
    assert len(json.loads((tmp_path / "r.json").read_text())["runs"]) == 2


def test_what_is_below_its_target_is_marked():
    made = results(
        Found("llama-1b-q8_0", "decode", 64, [1.0], {"a": [1.01]}, {"share": 0.95}),
        Found("llama-1b-q4_0", "decode", 64, [1.0], {"a": [0.99]}, {"share": 0.95}),
        Found("llama-1b-q6_k", "decode", 64, [1.0], {"a": [1.01]}, {"share": 0.91}),
        Found("llama-1b-q8_0", "verify-1", 1, [1.0], {"a": [1.0]}),
        Found("llama-1b-q8_0", "verify-4", 4, [1.2], {"a": [3.0]}),
        Found("demo", "decode", 64, [64 * 0.14e-3], {"a": [64 * 0.2e-3]}),
        Found("llama-1b-q8_0", "accuracy", 24, [1e-3], {"a": [1.1e-3]}),
    )
    marked = {key for key, row in rows(made).items() if row[-1].strip(" |") == "✗"}
    assert marked == {
        ("llama-1b-q4_0", "decode"),
        ("llama-1b-q6_k", "decode"),
        ("llama-1b-q8_0", "verify-4"),
    }


@pytest.mark.parametrize("cell", ["speculation", "speculation-32768"])
@pytest.mark.parametrize(
    ("file", "by_costs", "by_bytes", "gain", "missed"),
    [
        ("mimo-1b-q8_0", 1.6, 9.0, 1.71, False),
        ("mimo-1b-q8_0", 2.0, 9.0, 1.89, True),
        ("glm-moe-1b-q8_0", 9.0, 2.0, 1.16, False),
        ("glm-moe-1b-q8_0", 9.0, 1.2, 1.09, False),
        ("glm-moe-1b-q8_0", 9.0, 1.2, 1.07, True),
    ],
)
def test_what_drafting_must_gain_depends_on_what_it_costs(
    cell, file, by_costs, by_bytes, gain, missed
):
    more = {"by_costs": by_costs, "by_bytes": by_bytes}
    found = Found(file, cell, 34, [1.0], {"plain": [gain]}, more)
    row = rows(results(found))[file, cell]
    assert (row[-1].strip(" |") == "✗") == missed


def test_calls_take_turns_and_warm_turns_do_not_count():
    order = []
    first, second = alternate([lambda: order.append(1), lambda: order.append(2)], 2, 1, rest=0)
    assert order == [1, 2] * 3
    assert len(first) == len(second) == 2


def test_what_puts_things_back_is_not_timed():
    order = []
    turn = Undone(lambda: order.append("run"), lambda: time.sleep(0.2) or order.append("back"))
    (sample,) = alternate([turn], 2, 1, rest=0)
    assert order == ["run", "back"] * 3
    assert max(sample) < 0.1


@pytest.mark.parametrize(("isa", "is_missed"), [("avx2", False), ("avx512", True)])
def test_desktops_have_targets_of_their_own(isa, is_missed):
    one, four = (
        Found("llama-1b-q4_k_m", f"verify-{n}", n, [seconds], {"fa on": [2.3]})
        for n, seconds in ((1, 1.0), (4, 1.45))
    )
    made = results(one, four)
    made.machine["isa"] = isa
    row = rows(made)[four.file, "verify-4"]
    assert row[6] == ("1.50" if isa == "avx2" else "2.10")
    assert ("✗" in row[-1]) == is_missed


def test_a_long_text_is_decoded_at_least_as_fast():
    made = results(Found("llama-1b-q4_k_m", "depth-8192", 16, [1.0], {"fa on": [0.9]}))
    assert "✗" in rows(made)["llama-1b-q4_k_m", "depth-8192"][-1]


def test_a_hybrid_has_targets_of_its_own():
    more = {"share": 0.7, "recurrence": 0.2, "checkpoint_mib": 19.3, "log_row_mib": 0.7}
    decode = Found("qwen35-2b-q4_0", "decode", 64, [1.0], {"fa on": [1.1]}, more)
    one, four = (
        Found("qwen35-2b-q4_0", f"verify-{n}", n, [seconds], {"fa on": [2.0]})
        for n, seconds in ((1, 1.0), (4, 1.15))
    )
    found = rows(results(decode, one, four))
    said = "share 0.7 recurrence 0.2 checkpoint_mib 19.3 log_row_mib 0.7"
    assert said in found[decode.file, "decode"]
    assert found[decode.file, "decode"][-1].strip(" |") == ""
    assert found[decode.file, "verify-4"][-1].strip(" |") == "✗"  # 1.74 times as fast


def test_the_setting_with_the_best_time_is_chosen(monkeypatch):
    times = iter([3.0, 2.0, 1.5, 2.5])
    monkeypatch.setattr("timing.once", lambda run: next(times))
    monkeypatch.setattr("timing.time.sleep", lambda seconds: None)
    assert choose({"a": int, "b": int}, 2) == "a"
    assert Sample([3.0, 1.0, 2.0]).median == 2.0


@pytest.mark.parametrize(("one", "eight", "pages"), [(1.0, 2.0, 1), (2.0, 1.0, 8)])
def test_memory_is_read_in_the_faster_way(monkeypatch, one, eight, pages):
    monkeypatch.setattr("timing.once", lambda read: {1: one, 8: eight}[read.pages])
    monkeypatch.setattr("timing.time.sleep", lambda seconds: None)
    monkeypatch.setattr("timing.SAMPLE_BYTES", 1 << 16)
    assert Reader.fastest(2, 1 << 16).pages == pages


def test_a_held_command_runs_until_it_is_released(tmp_path):
    log = tmp_path / "log"
    script = tmp_path / "alone"
    script.write_text(f"#!/bin/sh\necho begin >> {log}\ncat\necho end >> {log}\n")
    script.chmod(0o755)
    hold = Hold(str(script), seconds=60)
    for _ in range(2):
        with hold:
            assert log.read_text() == "begin\n"
    hold.release()
    assert log.read_text() == "begin\nend\n"
    with pytest.raises(RuntimeError, match="ended at once"), Hold("true"):
        pass
