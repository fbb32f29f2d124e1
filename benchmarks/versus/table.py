"""Results as a Markdown table, each cell beside its target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from versus.results import Found, Ratio, Results
from versus.targets import least_ratio, own_figure

__all__ = ["render"]

COLUMNS = (
    "file",
    "cell",
    "mtpcore",
    "llama.cpp",
    "llama.cpp's setting",
    "ratio",
    "target",
    "further figures",
    "",
)
LEGEND = """\
Written by `python benchmarks/vs_llama_cpp.py`, which runs both programs in turn on the same files.
Times are medians. The ratio is llama.cpp's time over mtpcore's, so above 1 mtpcore is faster: the
median of the pairs of turns, with the smallest and the largest. llama.cpp runs at its best setting
of each cell. A `✗` marks a figure that misses its target.

Files are generated: random weights in the shapes of published models. Hybrids have fewer tokens:
the vocabulary of qwen35-0.8b and 2b is a quarter of the published one, so that each token and each
draft reads a quarter of that output matrix; those named 248k have all of it. qwen35moe-1b has a
fifth of the layers of 35B-A3B, an eighth of its experts and an eighth of its vocabulary.

| cell | what is measured |
| --- | --- |
| decode | 64 tokens after 512 (with `--llama-bench`: 32) |
| verify-n | n tokens of one sequence after 512; all logits, with `--llama-bench` the last |
| prefill | 512 tokens |
| depth-d, depth-d-rows-n | 16 tokens, or a batch of n, after d |
| sequences-n | 32 tokens of each of n sequences at once, after 64 |
| speculation | three drafts in a round, which counts as 2.8 tokens; ratio: our speed-up by drafts |
| speculation-n | the same, where tokens are drafted from a draft vocabulary of n |
| load, load mapped | imported library to first token: weights packed after it, or never |
| accuracy | RMS error of logits over their deviation, against float64; median of seven texts |

| further figure | meaning |
| --- | --- |
| share | speed of reading weights over the speed at which the same threads read memory |
| ms | of one token |
| recurrence | share of a token that convolutions and delta rules take: two runs, with and without |
| checkpoint_mib, log_row_mib | a state of all layers, and a row of its log; a slot has 1 and 17 |
| cost, llama.cpp cost | time of n tokens over the time of one |
| gmacs | 10^9 multiply-accumulates a second |
| length | tokens a round at the simulated acceptance; times are divided by 2.8 instead |
| by_costs | the speed-up that the measured costs of passes and drafts allow |
| by_bytes | the speed-up that the bytes read allow |
| llama.cpp gain | llama.cpp's speed-up by its own MTP drafts, at the same simulated acceptance |
| touch | seconds in which the threads write one byte to each page of as much new memory |
| packed | seconds to the first token and until all weights are packed |
| at_hand | the same where free memory is found, which a process has just released |

Measured on:"""
RUNS = "Runs: date, commit, system load, CPU time that the host took, memory bandwidth, command."
FURTHER = (
    *("share", "recurrence", "checkpoint_mib", "log_row_mib", "gmacs"),
    *("length", "by_costs", "by_bytes", "llama.cpp gain", "packed", "touch", "at_hand"),
)
ORDER = (
    *("decode", "verify", "prefill", "depth", "sequences"),
    *("speculation", "load", "load mapped", "accuracy"),
)


def render(results: Results) -> str:
    """Return machine, table and runs."""
    lines = ["# mtpcore beside llama.cpp", ""]
    lines += [LEGEND, ""]
    lines += [f"- {name}: {value}" for name, value in results.machine.items()]
    lines += [
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
    ]
    cells = sorted(results.cells, key=_place)
    lines += ["| " + " | ".join(_row(results, found)) + " |" for found in cells]
    lines += ["", RUNS, ""]
    used = {found.run for found in results.cells}
    for number in sorted(used):
        run = results.runs[number]
        lines.append(
            f"- {run['date']}, {run['commit']}, load {run['load']:.1f}, steal "
            f"{100 * run['steal']:.1f} %, {run['bandwidth'] / 1e9:.1f} GB/s"
            f"{_pages(run)}: `{run['command']}`"
        )
    return "\n".join(lines) + "\n"


def _pages(run: dict[str, Any]) -> str:
    """Return how memory was read for the bound."""
    return f" from {run['pages']} pages at once" if run.get("pages", 1) > 1 else ""


def _place(found: Found) -> tuple[str, int, list[int]]:
    kind, *numbers = found.cell.replace("-rows-", "-").split("-")
    return found.file, ORDER.index(kind), [int(n) for n in numbers]


def _row(results: Results, found: Found) -> Iterator[str]:
    isa = str(results.machine.get("isa", ""))
    least = least_ratio(found.file, found.cell, isa)
    figures = dict(_figures(results, found))
    wanted = own_figure(found.file, found.cell, isa)
    if wanted and wanted[0] not in figures:  # not measured in this way
        wanted = None
    missed = bool(least and found.ratio and found.ratio.median < least)
    said = [f"{name} {value:.3g}" for name, value in figures.items()]
    if wanted:
        name, bound = wanted
        more = name in ("share", "gmacs")
        said.append(f"(target: {'>=' if more else '<='} {bound:g} {name})")
        missed |= figures[name] < bound if more else figures[name] > bound
    if found.cell.startswith("speculation"):
        least = _speculation_bound(found)
        missed = found.ratio is not None and found.ratio.median < least
    yield found.file
    yield found.cell
    yield _say(found, found.seconds)
    yield _say(found, found.their_seconds) if found.their_seconds else "-"
    yield found.best or "-"
    yield str(found.ratio or "-")
    yield f"{least:.2f}" if least else "-"
    yield " ".join(said)
    yield "✗" if missed else ""


def _figures(results: Results, found: Found) -> Iterator[tuple[str, float]]:
    """Yield a cell's further figures."""
    if found.cell.startswith("verify-") and (one := results.find(found.file, "verify-1")):
        yield "cost", Ratio.of(found.ours, one.ours).median
        if found.best and one.best:
            yield "llama.cpp cost", Ratio.of(found.theirs[found.best], one.theirs[one.best]).median
    if found.cell.startswith("load"):
        yield "seconds", found.seconds
    if found.file == "demo" and found.cell == "decode":
        yield "ms", 1e3 * found.seconds / found.n_tokens
    for name in FURTHER:
        if name in found.more:
            yield name, found.more[name]


def _speculation_bound(found: Found) -> float:
    """Return the least speed-up: by the measured costs, or for a mixture by the bytes read."""
    if "moe" in found.file:
        return min(1.15, 0.9 * found.more["by_bytes"])
    return max(1.7, 0.95 * found.more["by_costs"])


def _say(found: Found, seconds: float) -> str:
    if found.cell == "accuracy":
        return f"{seconds:.2e}"
    if found.cell.startswith("load"):
        return f"{seconds:.2f} s"
    if found.cell.startswith("verify"):
        return f"{1e3 * seconds:.2f} ms"
    per_token = seconds if found.cell.startswith("speculation") else seconds / found.n_tokens
    return f"{1 / per_token:.1f} t/s"
