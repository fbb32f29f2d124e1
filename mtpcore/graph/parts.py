"""How a table that several codebooks share is cut: a part for each, the first perhaps larger."""

from __future__ import annotations

__all__ = ["part_sizes"]


def part_sizes(n_rows: int, n_parts: int, n_first: int) -> tuple[int, int]:
    """Return the rows of the first part and of each other one; (0, 0) where none fit.

    Parameters
    ----------
    n_rows, n_parts : int
        Of the table.
    n_first : int
        Rows of the first part; 0: all parts are equal.
    """
    if n_parts < 1 or n_first < 0 or n_first > n_rows:
        return 0, 0
    if not n_first or n_parts == 1:
        n_each = n_rows // n_parts
        fits = n_rows == n_each * n_parts and n_first in (0, n_each)
        return (n_each, n_each) if fits else (0, 0)
    n_each, left = divmod(n_rows - n_first, n_parts - 1)
    return (n_first, n_each) if n_each and not left else (0, 0)
