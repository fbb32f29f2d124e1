"""A chart of what n rows cost in both engines."""

from __future__ import annotations

from pathlib import Path

from versus.results import Results

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    """Write a PNG: a panel for each file, milliseconds against rows; nothing to show, no file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows: dict[str, dict[int, tuple[float, float | None]]] = {}
    for found in results.cells:
        if found.cell.startswith("verify-"):
            n = int(found.cell.removeprefix("verify-"))
            rows.setdefault(found.file, {})[n] = found.seconds, found.their_seconds
    if not rows:
        return
    n_columns = min(3, len(rows))
    n_lines = -(-len(rows) // n_columns)
    figure, panels = plt.subplots(
        n_lines,
        n_columns,
        figsize=(4 * n_columns, 3 * n_lines),
        squeeze=False,
        layout="constrained",
    )
    for panel in panels.flat[len(rows) :]:
        panel.remove()
    for panel, (file, cells) in zip(panels.flat, sorted(rows.items()), strict=False):
        counts = sorted(cells)
        panel.plot(counts, [1e3 * cells[n][0] for n in counts], "o-", label="mtpcore")
        theirs = [(n, 1e3 * seconds) for n in counts if (seconds := cells[n][1]) is not None]
        if theirs:
            panel.plot(*zip(*theirs, strict=True), "s--", label="llama.cpp, its best")
        panel.set(title=file, xlabel="rows", xticks=counts, ylim=(0, None), ylabel="ms")
        panel.legend()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
