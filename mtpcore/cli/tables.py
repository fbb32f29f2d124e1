"""Tables, for terminals and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["draw_table"]


def draw_table(rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Return rows as a table: the first is its head; columns but the first are set right.

    A table in Markdown is aligned, too, so that it can be read as it is.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [f"{row[0]:{widths[0]}}"]
        + [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        for row in rows
    ]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in lines)
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
