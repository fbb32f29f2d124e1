"""Results as a Markdown table, each cell beside what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from versus.results import Found, Ratio, Results
from versus.targets import least_ratio, own_figure

__all__ = ["render"]

COLUMNS = ("file", "cell", "mtpcore", "llama.cpp", "its setting", "ratio", "asked", "by itself", "")
ORDER = ("decode", "verify", "prefill", "speculation", "load", "load mapped", "accuracy")


def render(results: Results) -> str:
    """Return machine, table and runs."""
    lines = ["# mtpcore beside llama.cpp", ""]
    lines += [
        "Written by `python benchmarks/vs_llama_cpp.py`. Medians of turns, ratios of pairs with",
        "the least and the largest; above one mtpcore is faster. llama.cpp runs at its best",
        "setting of each cell. Share: of the speed at which the same threads read memory.",
        "Accuracy: RMS error of logits over their deviation, in float64, medians of seven texts.",
        "A `✗` marks what is below what is asked for.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in results.machine.items()]
    lines += [
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
    ]
    cells = sorted(results.cells, key=_place)
    lines += ["| " + " | ".join(_row(results, found)) + " |" for found in cells]
    lines += ["", "Runs:", ""]
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


def _place(found: Found) -> tuple[str, int, int]:
    kind, _, n = found.cell.partition("-")
    return found.file, ORDER.index(kind), int(n or 0)


def _row(results: Results, found: Found) -> Iterator[str]:
    least = least_ratio(found.file, found.cell)
    figures = dict(_figures(results, found))
    wanted = own_figure(found.file, found.cell)
    missed = bool(least and found.ratio and found.ratio.median < least)
    said = [f"{name} {value:.3g}" for name, value in figures.items()]
    if wanted:
        name, bound = wanted
        more = name in ("share", "gmacs")
        said.append(f"(asked: {'>=' if more else '<='} {bound:g} {name})")
        missed |= figures[name] < bound if more else figures[name] > bound
    if found.cell == "speculation":
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
    """Yield what a cell says by itself."""
    if found.cell.startswith("verify-") and (one := results.find(found.file, "verify-1")):
        yield "cost", Ratio.of(found.ours, one.ours).median
        if found.best and one.best:
            yield "its cost", Ratio.of(found.theirs[found.best], one.theirs[one.best]).median
    if found.cell.startswith("load"):
        yield "seconds", found.seconds
    if found.file == "demo" and found.cell == "decode":
        yield "ms", 1e3 * found.seconds / found.n_tokens
    for name in ("share", "gmacs", "length", "by_costs", "by_bytes", "touch", "at_hand"):
        if name in found.more:
            yield name, found.more[name]


def _speculation_bound(found: Found) -> float:
    """Return the least gain: of the costs measured, or where experts wake by the bytes read."""
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
    per_token = seconds if found.cell == "speculation" else seconds / found.n_tokens
    return f"{1 / per_token:.1f} t/s"
