"""Whether all threads or one run a plan, chosen by measuring (``c/core/pace.h``).

The rule is stated there.
"""

__all__ = ["Paces"]

class Paces:
    """The rule alone, for tests: it is told paces instead of measuring them."""

    def next_is_shared(self) -> bool:
        """Whether all threads do the next run."""
    def end_run(self, pace: float) -> None:
        """Note how long the next run took, for each nanosecond that it was estimated to take.

        Raises
        ------
        BackendError
            It is not above 0.
        """
