"""Rounds in C: their checks, for all backends, and the loop of ``c/plan/draft.h``."""

from typing import Any

__all__ = ["check", "run"]

def check(schedule: Any) -> None:
    """Raise BatchError where a schedule does not fit itself or the programs of its stages."""

def run(schedule: Any) -> tuple[list[int], list[int], list[bool]]:
    """Run a schedule without the GIL, and return what its ``Drafts`` have.

    Its plans are those of the CPU backend, each with one memory.

    Raises
    ------
    BatchError, SamplingError
        Something is out of range, does not fit, or a place is not reserved; nothing was run.
    BackendError
        Another thread is running one of the plans; or they differ in threads or logits.
    """
