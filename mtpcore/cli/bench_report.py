"""What a benchmark found, as plain data and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from gguf import GGMLQuantizationType

from mtpcore._ext._cpu import fetch
from mtpcore._ext._fetch import recall
from mtpcore.cli.measure import Sample, Timings
from mtpcore.cli.picture import draw_bars
from mtpcore.cli.report import name_drafter
from mtpcore.cli.tables import draw_table
from mtpcore.cli.terminal import spell_bytes
from mtpcore.decoding import Stats

__all__ = [
    "BenchedText",
    "collect",
    "collect_fetches",
    "compare_drafter",
    "describe",
    "draw_speeds",
]


class BenchedText(msgspec.Struct, frozen=True):
    """One text as each arm wrote it: tokens/s, and the statistics of its runs."""

    name: str
    n_prompt: int
    speeds: dict[str, Sample]
    equal: bool
    runs: dict[str, list[Stats]]

    def speedup(self, arm: str = "drafted") -> float | None:
        """Return how many times as fast as plain an arm is; None where there is none."""
        if arm not in self.speeds:
            return None
        return self.speeds[arm].median / self.speeds["plain"].median


def collect(
    settings: dict[str, Any], texts: Sequence[BenchedText], costs: Timings, draft: int
) -> dict[str, Any]:
    """Return everything that ``mtpcore bench`` says; ``draft`` is the length that was measured."""
    one_row = costs.rows[1].median
    result: dict[str, Any] = {
        "settings": settings,
        "draft": draft,
        "texts": [
            {
                "name": text.name,
                "n_prompt": text.n_prompt,
                "tokens_per_second": msgspec.to_builtins(text.speeds),
                "speedup": text.speedup(),
                "auto_speedup": text.speedup("auto"),
                "equal": text.equal,
                **_acceptance(Stats.sum(text.runs.get("drafted", [])), draft),
                "auto_lengths": _lengths(Stats.sum(text.runs.get("auto", []))),
            }
            for text in texts
        ],
        "costs": {
            "depth": costs.depth,
            "prefill": {
                **msgspec.to_builtins(costs.prefill),
                "tokens_per_second": costs.depth / costs.prefill.median,
            },
            "rows": [_cost("rows", n, sample, one_row) for n, sample in costs.rows.items()],
            "trees": [_cost("trees", k, sample, one_row) for k, sample in costs.trees.items()],
            "drafts": [_cost("drafts", k, sample, one_row) for k, sample in costs.drafts.items()],
        },
    }
    if draft:
        drafted = Stats.sum(stats for text in texts for stats in text.runs["drafted"])
        result |= _acceptance(drafted, draft)
        rates = result["acceptance_per_position"]
        time = {arm: sum(1 / text.speeds[arm].median for text in texts) for arm in texts[0].speeds}
        proposed = result["proposed"]
        predicted = [costs.predict(rates, k, proposed) for k in range(1, draft + 1)]
        result |= {
            "tokens_per_pass": 1 + proposed * sum(rates),
            "speedup": time["plain"] / time["drafted"],
            "predicted": [{"draft": k, "speedup": x} for k, x in enumerate(predicted, 1)],
        }
        if "auto" in time:
            auto = Stats.sum(stats for text in texts for stats in text.runs["auto"])
            result["auto"] = {
                "speedup": time["plain"] / time["auto"],
                "lengths": _lengths(auto),
                "decisions": msgspec.to_builtins(auto.decisions[-20:]),
            }
    return result | {"verdict": _verdict(result, draft)}


def collect_fetches() -> dict[str, Any]:
    """Return how weights were prefetched, and where that was measured the speeds that decided."""
    return {
        "used": fetch(),
        "measured": [
            {
                "type": GGMLQuantizationType(type_).name,
                "rows": rows,
                "way": way,
                "gigabytes_per_second": speeds,
            }
            for (type_, rows), (way, speeds) in recall().items()
        ],
    }


def compare_drafter(result: dict[str, Any]) -> dict[str, Any]:
    """Return what there is to compare of a drafter's result."""
    named = ("speedup", "tokens_per_pass", "acceptance")
    return {
        "drafter": result["settings"]["drafter"],
        "draft": result["draft"],
        **{name: result.get(name) for name in named},
        "auto_speedup": result["auto"]["speedup"] if "auto" in result else None,
        "equal": all(text["equal"] for text in result["texts"]),
    }


def draw_speeds(result: dict[str, Any]) -> str:
    """Return a picture of the speeds in SVG."""
    settings = result["settings"]
    bars = [
        (name, Sample(*(speed[key] for key in ("median", "low", "high"))), is_drafted)
        for name, speed, is_drafted in _speeds(result)
    ]
    title = f"{Path(settings['model']).name}, {settings['backend']}, {settings['threads']} threads"
    return draw_bars(title, "tokens/s", bars)


def _speeds(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, float], bool]]:
    """Yield what was measured, in tokens/s: its name, its values, and whether drafts made it."""
    depth, prefill = result["costs"]["depth"], result["costs"]["prefill"]
    speed = {"median": "median", "low": "high", "high": "low"}
    yield f"pp{depth}", {name: depth / prefill[other] for name, other in speed.items()}, False
    for text in result["texts"]:
        for arm, speed in text["tokens_per_second"].items():
            yield _name_arm(result, text, arm), speed, arm != "plain"
    for name, speed in result.get("shapes", {}).items():
        yield name, speed, False


def _name_arm(result: dict[str, Any], text: dict[str, Any], arm: str) -> str:
    tail = {"plain": "", "drafted": f", draft {result['draft']}", "auto": ", auto"}[arm]
    return f"tg{result['predict']} {text['name']}{tail}"


def _acceptance(stats: Stats, draft: int) -> dict[str, Any]:
    """Return the acceptance rate, and by position for each of ``draft`` drafts.

    ``proposed`` is how many of the drafts that were asked for there were: n-gram lookup often finds
    nothing.
    """
    rates = stats.acceptance_per_position
    missing = draft - len(rates) if stats.verify_steps else 0
    return {
        "proposed": stats.verify_steps / stats.asked if stats.asked else 1.0,
        "acceptance": stats.acceptance,
        "acceptance_per_position": rates + [0.0] * missing,
    }


def _lengths(stats: Stats) -> dict[str, int]:
    """Return in how many passes each length was drafted."""
    return {str(k): stats.lengths[k] for k in sorted(stats.lengths)}


def _cost(what: str, n: int, sample: Sample, one_row: float) -> dict[str, Any]:
    return {what: n, **msgspec.to_builtins(sample), "ratio": sample.median / one_row}


def _verdict(result: dict[str, Any], draft: int) -> str:
    if not draft:
        return "there is nothing to compare: no drafter fits, or --draft is 0"
    speedup, predicted = result["speedup"], result["predicted"]
    best = max(predicted, key=lambda prediction: prediction["speedup"])
    said = (
        f"drafting {draft} is {speedup:.2f} times as fast as plain decoding "
        f"({predicted[-1]['speedup']:.2f} by the costs of passes and drafts alone)"
    )
    if "auto" in result:
        said += f"; auto is {result['auto']['speedup']:.2f} times as fast"
    if best["speedup"] > 1 and best["draft"] != draft:
        said += f"; --draft {best['draft']} should be best, at {best['speedup']:.2f}"
    elif best["speedup"] <= 1 and speedup <= 1:
        costs = result["costs"]
        passes = {cost["rows"] - 1: cost for cost in costs["rows"]}
        passes |= {cost["trees"]: cost for cost in costs["trees"]}
        rows = passes[draft]["ratio"]
        drafts = result["costs"]["drafts"][-1]["ratio"]
        said += (
            f"; no length pays: {draft} drafts cost {drafts:.2f} and verifying them {rows:.2f} "
            f"of a pass, for {result['tokens_per_pass']:.2f} tokens"
        )
    return said


def describe(result: dict[str, Any], *, verbose: bool = False) -> str:
    """Return what was found, for people: a table and a verdict.

    ``verbose`` adds what passes and drafts cost, what ``auto`` made of it, and how weights were
    prefetched.
    """
    settings = result["settings"]
    drafter = f"{name_drafter(settings)}, draft {result['draft']}"
    drafter += " and auto" if "auto" in result else ""
    drafter = drafter if settings["drafter"] else "none"
    lines = [
        f"model {settings['model']}; drafter {drafter}",
        f"{settings['backend']}, {settings['threads']} threads, {settings['kv_dtype']}, "
        f"guarantee {settings['guarantee']}; medians (least .. largest)",
    ]
    if result.get("synthetic_length") is not None and result["draft"]:
        lines.append(f"acceptance is simulated: {result['synthetic_length']:g} tokens a pass")
    lines += ["", *_table(result), ""]
    if result["draft"]:
        different = [text["name"] for text in result["texts"] if not text["equal"]]
        lines.append(
            f"TEXTS DIFFER with drafts: {', '.join(different)}"
            if different
            else "texts equal with drafts and without"
        )
    if "drafters" in result:
        lines += ["", *_drafters(result["drafters"]), ""]
    if verbose:
        lines += [*_details(result), ""]
    if "seconds" in result:
        lines.append(_resources(result))
    return "\n".join([*lines, f"verdict: {result['verdict']}"])


def _table(result: dict[str, Any]) -> list[str]:
    """Return the speeds, tests named as in llama.cpp: pp for a prompt, tg for a text."""
    texts = {
        _name_arm(result, text, arm): (text, arm)
        for text in result["texts"]
        for arm in text["tokens_per_second"]
    }
    rows = [("test", "tokens/s", "speed-up", "accepted")]
    for name, speed, _ in _speeds(result):
        text, arm = texts.get(name, ({}, "plain"))
        ratio = text.get("auto_speedup" if arm == "auto" else "speedup")
        rows.append(
            (
                name,
                _range([speed["median"], speed["low"], speed["high"]]),
                "" if arm == "plain" else f"{ratio:.2f} x",
                f"{text['acceptance']:.2f}" if arm == "drafted" else "",
            )
        )
    return draw_table(rows, markdown=True).split("\n")


def _drafters(drafters: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table of drafters side by side."""
    rows: list[Sequence[str]] = [
        ("drafter", "speed-up", "auto", "tokens a pass", "accepted", "texts")
    ]
    for one in drafters:
        numbers = (one[name] for name in ("tokens_per_pass", "acceptance"))
        speeds = (one[name] for name in ("speedup", "auto_speedup"))
        rows.append(
            (
                f"{one['drafter'] or 'none'}, draft {one['draft']}",
                *("" if x is None else f"{x:.2f} x" for x in speeds),
                *("" if x is None else f"{x:.2f}" for x in numbers),
                "equal" if one["equal"] else "DIFFER",
            )
        )
    return draw_table(rows, markdown=True).split("\n")


def _resources(result: dict[str, Any]) -> str:
    seconds, peak = result["seconds"], result.get("peak_bytes")
    said = f"loaded in {seconds['load']:.2f} s, planned and packed in {seconds['pack']:.2f} s"
    return said + (f"; {spell_bytes(peak)} of memory at most" if peak else "")


def _range(speeds: Sequence[float]) -> str:
    return "{:,.1f} ({:,.1f} .. {:,.1f})".format(*speeds)


def _details(result: dict[str, Any]) -> list[str]:
    lines = [""]
    for text in result["texts"]:
        if "drafted" in text["tokens_per_second"]:
            rates = " ".join(f"{rate:.2f}" for rate in text["acceptance_per_position"])
            line = f"{text['name']:8} acceptance rate {text['acceptance']:.2f}, by position {rates}"
            if text["proposed"] < 1:
                line += f", drafts in {text['proposed']:.2f} of passes"
            if text["auto_lengths"]:
                line += f"; with auto passes by drafts {_spell(text)}"
            lines.append(line)
    lines += ["", *_costs(result["costs"])]
    if "predicted" in result:
        lengths = ", ".join(
            f"{prediction['draft']}: {prediction['speedup']:.2f}"
            for prediction in result["predicted"]
        )
        lines += ["", f"predicted speed by draft length  {lengths}"]
    if "auto" in result:
        lines += _auto(result["auto"])
    if "fetch" in result:
        lines += _fetches(result["fetch"])
    return lines


def _spell(text: dict[str, Any]) -> str:
    return " ".join(f"{k}: {n}" for k, n in text["auto_lengths"].items())


def _auto(auto: dict[str, Any]) -> list[str]:
    """Return what auto measured while it wrote, and what it made of it lastly."""

    def spelled(seconds: dict[str, float]) -> str:
        return ", ".join(f"{n}: {1e3 * one:.3f}" for n, one in seconds.items()) or "none"

    lines = [f"auto priced rounds by rows (ms)  {spelled(auto.get('pass_seconds', {}))}"]
    for role, learnt in auto.get("drafters", {}).items():
        lines[0] += f"; drafts of {role} by length  {spelled(learnt['draft_seconds'])}"
    lines += [f"auto, round {c['round']}: {c['reason']}" for c in auto["decisions"][-3:]]
    return lines


def _costs(costs: dict[str, Any]) -> list[str]:
    lines = [
        f"prefill {costs['depth']} tokens  {_ms(costs['prefill'])}  "
        f"{costs['prefill']['tokens_per_second']:.0f} tokens/s"
    ]
    for what, verb in (("rows", "verify"), ("trees", "verify tree"), ("drafts", "draft")):
        lines += [
            f"{verb + ' ' + str(cost[what]):18}  {_ms(cost)}  {cost['ratio']:.2f} of one row"
            for cost in costs[what]
        ]
    return lines


def _fetches(fetches: dict[str, Any]) -> list[str]:
    if fetches["used"] != "auto":
        return [f"prefetch {fetches['used']}, as MTPCORE_FETCH says"]
    lines = []
    for one in fetches["measured"]:
        speeds = ", ".join(f"{way} {x:.1f}" for way, x in one["gigabytes_per_second"].items())
        what = f"prefetch {one['type']}, rows {one['rows']}"
        lines.append(f"{what:26}  {one['way']:8} (GB/s: {speeds})")
    return lines


def _ms(sample: dict[str, Any]) -> str:
    median, low, high = (1e3 * sample[key] for key in ("median", "low", "high"))
    return f"{median:9.3f} ms ({low:.3f} .. {high:.3f})"
