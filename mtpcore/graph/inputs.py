"""Inputs and outputs of a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from mtpcore.errors import GraphError
from mtpcore.graph.program import SOURCES, TOKENS, Value

__all__ = ["Inputs", "Outputs"]


class Inputs:
    """Inputs of a graph.

    ``tokens`` i32[n_tokens], ``positions`` i32[n_tokens, axes]; ``inputs["hidden"]`` is the slot
    of that name, f32[n_tokens, width], or of whole sequences f32[n_sources, width]. ``codes(n)``
    are n codes a row, -1 where there is none.

    Parameters
    ----------
    add : callable
        Adds an input of a name, shape and type, once.
    slots : mapping of str to int
        Declared slots and their widths.
    axes : int
        Of a position.
    whole : collection of str
        Slots that are fed whole sequences.
    """

    def __init__(
        self,
        add: Callable[..., Value],
        slots: Mapping[str, int],
        axes: int,
        whole: Collection[str] = (),
    ) -> None:
        self._add, self._slots, self._whole = add, slots, whole
        self.tokens = add("tokens", (TOKENS,), "i32")
        self.positions = add("positions", (TOKENS, axes), "i32")

    def codes(self, n: int) -> Value:
        """Return the codes of each row, i32[n_tokens, n]: one of each of n codebooks."""
        return self._add("codes", (TOKENS, n), "i32")

    def __getitem__(self, slot: str) -> Value:
        """Return the slot's rows; raise GraphError where it was not declared."""
        if slot not in self._slots:
            raise GraphError(
                "reads a slot that is not declared",
                where=f"slot {slot!r}",
                wanted=", ".join(self._slots) or "a feed in the declaration",
            )
        rows = SOURCES if slot in self._whole else TOKENS
        return self._add(slot, (rows, self._slots[slot]))


class Outputs:
    """Outputs of a graph: ``logits`` and named rows (taps, recycled states)."""

    def __init__(self, logits: Value | None = None, **rows: Value) -> None:
        self.logits, self.rows = logits, rows
