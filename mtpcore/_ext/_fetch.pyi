"""How weights are prefetched, chosen by measuring (``c/matmul/fetch_choice.h``).

The rule is stated there. Speeds are in GB/s, by the name of the way.
"""

from collections.abc import Mapping

__all__ = [
    "Choice",
    "PASSES",
    "ROWS",
    "SOON",
    "TRIALS",
    "TYPES",
    "WAYS",
    "forget",
    "recall",
    "remember",
]

WAYS: tuple[str, ...]
"""The ways that are compared."""

ROWS: tuple[str, ...]
"""The classes of numbers of rows that have a choice each."""

TRIALS: int
"""In how many passes of a trial each way is used."""

SOON: int
"""Passes from the beginning of the first trial to that of the second; then twice as many each."""

PASSES: int
"""The most passes from the beginning of a trial to that of the next one."""

TYPES: int
"""Above the numbers of all weight types."""

def recall() -> dict[tuple[int, str], tuple[str, dict[str, float]]]:
    """Return the fastest way, and the speed of each, by weight type and class of rows."""

def remember(type: int, rows: str, speeds: Mapping[str, float]) -> None:
    """Let later plans begin with the fastest of these ways.

    Raises
    ------
    BackendError
        There is no such weight type or class of rows.
    KeyError, TypeError
        A way has no speed.
    """

def forget() -> None:
    """Forget everything, for tests."""

class Choice:
    """The rule alone, for tests: a choice that is told speeds instead of measuring them.

    Parameters
    ----------
    type : int
        Weight type.
    rows : str
        One of `ROWS`.

    Raises
    ------
    BackendError
        There is no such weight type or class of rows.
    """

    def __init__(self, type: int, rows: str) -> None: ...
    @property
    def way(self) -> str:
        """How the next pass prefetches."""
    @property
    def is_trial(self) -> bool:
        """Whether the next pass is timed."""
    def end_pass(self, speed: float, fetch: str = ...) -> tuple[str, dict[str, float]] | None:
        """End a pass of this speed; the next one prefetches as ``fetch`` says (default: auto).

        Returns
        -------
        tuple or None
            The way that is kept and the known speeds, where a trial ended.

        Raises
        ------
        BackendError
            There is no such way.
        """
