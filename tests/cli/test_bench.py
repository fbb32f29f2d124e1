"""``mtpcore bench``: what it prints, and the arithmetic after its verdict."""

import json
import re

import pytest

from mtpcore._ext import _cpu, _fetch
from mtpcore.cli.bench_report import BenchedText, collect
from mtpcore.cli.measure import ROWS, Sample, Timings, take_turns
from mtpcore.decoding import Stats

QUICK = ("-n", 12, "-r", 1)


def same(seconds):
    return Sample(seconds, seconds, seconds)


def costs(row=0.5, draft=0.25):
    """A pass costs one second and ``row`` for each further row."""
    return Timings(
        depth=100,
        prefill=same(2.0),
        rows={n: same(1 + row * (n - 1)) for n in ROWS},
        drafts={k: same(draft * k) for k in (1, 2, 3)},
    )


def text(plain, drafted, steps=10, accepted=(8, 5, 2)):
    stats = Stats(verify_steps=steps, accepted_per_position=list(accepted))
    speeds = {"plain": same(plain), "drafted": same(drafted)}
    return BenchedText("code", 3, speeds, True, {"drafted": [stats, stats]})


def test_prediction_is_tokens_over_costs():
    rates = [0.8, 0.5, 0.2]
    assert costs().predict(rates, 1) == pytest.approx(1.8 / (1.5 + 0.25))
    assert costs().predict(rates, 3) == pytest.approx(2.5 / (2.5 + 0.75))
    between = Timings(1, same(1.0), {4: same(4.0), 1: same(1.0), 6: same(8.0)}, {4: same(0.0)})
    between = Timings(1, same(1.0), dict(sorted(between.rows.items())), between.drafts)
    assert between.predict([0.0] * 4, 4) == pytest.approx(1 / 6)


def test_a_tree_is_predicted_by_what_verifying_it_costs():
    tree = Timings(1, same(1.0), {1: same(1.0), 4: same(4.0)}, {3: same(0.5)}, {3: same(6.0)})
    assert tree.predict([0.8, 0.5, 0.2], 3) == pytest.approx(2.5 / 6.5)


def test_a_tree_is_measured_and_named(command, glm):
    code, out, _ = command("bench", glm, "--draft-tree", "2,3,5", "-p", "def f(x):", *QUICK, "-v")
    assert code == 0
    assert "glm_nextn, tree 2,3,5, draft 2" in out
    assert "verify tree 2" in out
    assert "texts equal" in out
    found = json.loads(
        command("bench", glm, "--draft-tree", "2,3,5", "-p", "x", *QUICK, "--json")[1]
    )
    assert [one["trees"] for one in found["costs"]["trees"]] == [1, 2]
    assert len(found["acceptance_per_position"]) == 2


def test_the_verdict_names_a_better_length():
    found = collect({}, [text(10.0, 12.0), text(20.0, 18.0)], costs(row=0.1), 3)
    assert found["acceptance_per_position"] == [0.8, 0.5, 0.2]
    assert found["tokens_per_pass"] == 2.5
    assert found["speedup"] == pytest.approx((1 / 10 + 1 / 20) / (1 / 12 + 1 / 18))
    speeds = [one["speedup"] for one in found["predicted"]]
    assert speeds == pytest.approx([1.8 / 1.35, 2.3 / 1.7, 2.5 / 2.05])
    assert "--draft 2 should be best, at 1.35" in found["verdict"]


@pytest.mark.parametrize("every", [1, 3, 10])
def test_a_drafter_that_often_proposes_nothing_is_priced_as_it_ran(every):
    """On a machine of these prices the prediction is what was measured, of this length too."""
    prices, stats, seconds = costs(row=0.1, draft=0.01), Stats(), 0.0
    for i in range(120):
        n = 0 if i % every else 3
        accepted = min(n, i // every % 4)
        if n:
            stats.count(n, n, accepted)
        stats.tokens += accepted + 1
        seconds += prices.rows[n + 1].median + prices.drafts[3].median
    stats.passes, stats.asked = 122, 120
    plain, drafted = 1 / prices.rows[1].median, stats.tokens / seconds
    arms = {"plain": same(plain), "drafted": same(drafted)}
    found = collect({}, [BenchedText("code", 3, arms, True, {"drafted": [stats]})], prices, 3)
    assert found["predicted"][-1]["speedup"] == pytest.approx(found["speedup"])
    assert found["tokens_per_pass"] == pytest.approx(stats.tokens / 120)
    assert found["proposed"] == pytest.approx(1 / every)


def test_the_verdict_says_why_nothing_pays():
    found = collect({}, [text(10.0, 5.0)], costs(row=1.0), 3)
    assert "0.50 times as fast" in found["verdict"]
    assert "3 drafts cost 0.75 and verifying them 4.00 of a pass, for 2.50" in found["verdict"]


def test_a_faster_text_is_not_said_to_lose():
    found = collect({}, [text(10.0, 15.0)], costs(row=1.0), 3)
    assert "1.50 times as fast" in found["verdict"]
    assert "no length pays" not in found["verdict"]


def test_measurements_take_turns_and_warm_up():
    order = []

    def run(name, values):
        def measure():
            order.append(name)
            return values.pop(0)

        return measure

    found = take_turns([run("a", [9, 1, 3, 2]), run("b", [9, 5, 5, 5])], 3, lambda: None)
    assert order == ["a", "b"] * 4
    assert found == [Sample(2, 1, 3), Sample(5, 5, 5)]


def test_everything_is_there_for_people(command, glm):
    code, out, err = command("bench", glm, *QUICK, "--draft", 2)
    assert (code, err) == (0, "")
    table = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")]
    assert [row[0].strip() for row in table] == [
        "test", "-" * 21, "pp256", "tg12 code", "tg12 code, draft 2", "tg12 story",
        "tg12 story, draft 2", "tg12 extract", "tg12 extract, draft 2",
    ]  # fmt: skip
    for row, rated in zip(table[2:], [False, False, *[True, False] * 3], strict=False):
        assert re.fullmatch(r" +[\d,]+\.\d \([\d,]+\.\d \.\. [\d,]+\.\d\) ", row[1])
        assert bool(row[2].strip()) == bool(row[3].strip()) == rated
    assert "texts equal" in out
    assert not re.search("DIFFER|verify 1|prefetch", out)
    assert out.splitlines()[-1].startswith("verdict: drafting 2 is ")
    out = command("bench", glm, *QUICK, "--draft", 2, "-v")[1]
    for said in ("prefill 256", "draft 2 ", *(f"verify {n} " for n in ROWS)):
        assert said in out


def test_everything_is_there_for_programs(command, glm):
    code, out, _ = command("bench", glm, *QUICK, "--draft", 4, "-p", "def f(x):", "--json")
    found = json.loads(out)
    assert code == 0
    assert [one["rows"] for one in found["costs"]["rows"]] == sorted({*ROWS, 5})
    assert [one["drafts"] for one in found["costs"]["drafts"]] == [1, 2, 3, 4]
    assert found["costs"]["rows"][0]["ratio"] == 1
    assert len(found["acceptance_per_position"]) == 4
    assert found["texts"][0]["equal"]
    assert found["settings"]["draft"] == 4


@pytest.fixture
def measured():
    """What the process remembers of prefetching is one measurement; and as before afterwards."""
    before, fetch = _fetch.recall(), _cpu.use_fetch("auto")
    _fetch.forget()
    _fetch.remember(14, "2-4", {"lines": 24.0, "lines-l2": 30.0, "pages": 22.5, "none": 31.25})
    yield
    _fetch.forget()
    for key, (_, speeds) in before.items():
        _fetch.remember(*key, speeds)
    _cpu.use_fetch(fetch)


def test_how_weights_were_prefetched_and_from_which_speeds(command, headless, measured):
    out = command("bench", headless, "-p", "x", *QUICK, "-v")[1]
    assert "prefetch Q6_K, rows 2-4     none     (GB/s: lines 24.0, lines-l2 30.0, pages" in out
    found = json.loads(command("bench", headless, "-p", "x", *QUICK, "--json")[1])
    speeds = {"lines": 24.0, "lines-l2": 30.0, "pages": 22.5, "none": 31.25}
    assert found["fetch"] == {
        "used": "auto",
        "measured": [
            {"type": "Q6_K", "rows": "2-4", "way": "none", "gigabytes_per_second": speeds}
        ],
    }
    _cpu.use_fetch("pages")
    out = command("bench", headless, "-p", "x", *QUICK, "-v")[1]
    assert "prefetch pages, as MTPCORE_FETCH says" in out


def test_the_acceptance_rate_is_that_of_run(command, glm):
    """And the same in the lines for people, by position and all together."""
    words = (glm, "def f(x):", "-n", 40, "--draft", 3, "--temp", 0)
    found = json.loads(command("bench", *words, "-r", 1, "--json")[1])
    stats = json.loads(command("run", *words, "--ignore-eos", "--json")[1])["stats"]
    for name in ("acceptance", "acceptance_per_position"):
        assert found[name] == found["texts"][0][name] == stats[name]
    out = command("bench", *words, "-r", 1, "-v")[1]
    assert f"acceptance rate {stats['acceptance']:.2f}, by position " in out


def test_simulated_acceptance_is_what_was_asked_for(command, glm):
    arguments = ("-p", "x", "-n", 120, "-r", 1, "--draft", 3, "--synthetic-length", 2.5)
    code, out, _ = command("bench", glm, *arguments, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["tokens_per_pass"] == pytest.approx(2.5, abs=0.3)
    assert found["synthetic_length"] == 2.5
    out = command("bench", glm, *QUICK, "-p", "x", "--draft", 2, "--synthetic-length", 2)[1]
    assert "acceptance is simulated: 2 tokens a pass" in out
    assert "texts equal" in out
    code, _, err = command("bench", glm, "--draft", 2, "--synthetic-length", 4)
    assert code == 2
    assert "--synthetic-length" in err
    assert "wanted 1..3" in err


def test_simulated_acceptance_of_a_tree(command, glm):
    """The first branch is right as far as the simulation says, whatever a tree holds beside it."""
    arguments = ("-p", "x", "-n", 120, "-r", 1, "--draft-tree", "3,2,6", "--synthetic-length", 2.5)
    code, out, _ = command("bench", glm, *arguments, "--draft", 3, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["tokens_per_pass"] == pytest.approx(2.5, abs=0.3)
    assert len(found["acceptance_per_position"]) == 3


@pytest.mark.parametrize("tree", [(), ("--draft-tree", "3,2,5")])
def test_auto_is_compared_with_the_drafters_default_length(command, glm, tree):
    """Its picks, its prices and its reasons, for people and for programs."""
    arguments = ("bench", glm, "-p", "def f(x):", "-n", 60, "-r", 1, *tree)
    code, out, _ = command(*arguments, "-v")
    assert code == 0
    for said in ("draft 3 and auto", "tg60 prompt, auto", "auto priced rounds by rows (ms)  1: "):
        assert said in out
    assert re.search(r"passes by drafts (\d: \d+ ?)+\n", out)
    assert re.search(r"auto, round \d+: (off|drafting \d): .* costs \d", out)
    assert re.search(r"; auto is \d+\.\d\d times as fast", out.splitlines()[-1])
    found = json.loads(command(*arguments, "--json")[1])
    assert found["settings"]["draft"] == "auto"
    assert found["draft"] == 3
    assert found["texts"][0]["equal"]
    assert sum(found["auto"]["lengths"].values()) > 10
    assert len(found["auto"]["pass_seconds"]) > 1
    (learnt,) = found["auto"]["drafters"].values()
    prices = learnt["draft_seconds"]  # of which lengths: the machine's speed decides
    assert prices
    assert min(prices.values()) > 0
    assert found["auto"]["decisions"][-1]["reason"]
    fixed = json.loads(command(*arguments, "--draft", 2, "--json")[1])
    assert "auto" not in fixed


def test_a_model_without_a_head(command, headless):
    """Lookup drafts there; nothing does where nothing is asked for."""
    code, out, err = command("bench", headless, *QUICK, "-p", "x")
    assert (code, "lookup drafts" in err) == (0, False)  # the table says it
    assert "drafter lookup, draft 2 and auto" in out
    asked = ("--draft", 0, "--synthetic-length", 2)
    code, out, err = command("bench", headless, *QUICK, "-p", "x", *asked, "-v")
    assert (code, "no drafter whose drafts" in err) == (0, True)
    for said in (", draft", "simulated", "texts equal"):
        assert said not in out
    assert "verify 8 " in out
    assert "nothing to compare" in out


def test_shapes_drafters_and_a_picture(command, glm, tmp_path):
    asked = ("bench", glm, "-p", "def", *QUICK, "--prompts", "8,16,8", "--depths", "4",
             "--sequences", "1,3", "--drafters", "glm_nextn, lookup")  # fmt: skip
    picture = tmp_path / "speeds.svg"
    code, out, _ = command(*asked, "--picture", picture)
    assert code == 0
    for name in ("pp8", "pp16", "tg @ d4", "tg x 1", "tg x 3"):
        assert f"| {name} " in out
        assert f">{name}</text>" in picture.read_text()
    assert re.search(r"^\| glm_nextn, draft \d+ .*\| equal \|$", out, re.MULTILINE)
    assert re.search(r"^\| lookup, draft \d+ .*\| equal \|$", out, re.MULTILINE)
    assert re.search(r"loaded in [\d.]+ s, planned and packed in [\d.]+ s; .* at most", out)
    found = json.loads(command(*asked, "--json")[1])
    assert [*found["shapes"]] == ["pp8", "pp16", "tg @ d4", "tg x 1", "tg x 3"]
    assert [one["drafter"] for one in found["drafters"]] == ["glm_nextn", "lookup"]
    assert found["drafters"][0]["speedup"] == found["speedup"]
    assert found["peak_bytes"] > 1 << 24
    assert {*found["seconds"]} == {"load", "pack"}
    assert found["settings"]["drafter"] == "glm_nextn"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prompts", "8,x"), "wanted a whole number >= 1, got 'x'"),
        (("--sequences", "0"), "wanted a whole number >= 1, got '0'"),
        (("--drafter", "lookup", "--drafters", "lookup"), "give --drafter NAME, or several"),
    ],
)
def test_shapes_that_are_none(command, glm, words, said):
    code, _, err = command("bench", glm, *words)
    assert code == 2
    assert said in err
