"""The kernels' instruction set, and how they prefetch weights (``c/core/cpu.h``).

The environment variables ``MTPCORE_ISA`` (``base``, ``avx2``, ``avxvnni`` or ``avx512``) and
``MTPCORE_FETCH`` (``lines`` or ``pages``) are read when the library is loaded; unset, what suits
the machine is used.
"""

__all__ = [
    "available_fetches",
    "available_isas",
    "check_environment",
    "fetch",
    "isa",
    "use_fetch",
    "use_isa",
]

def isa() -> str:
    """Return the name of the instruction set in use."""

def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this machine runs, the plainest first."""

def use_isa(name: str) -> str:
    """Use another instruction set from the next call on; return the previous one.

    For tests and measurements: results do not depend on it.

    Raises
    ------
    BackendError
        The set is unknown or this machine cannot run it.
    """

def fetch() -> str:
    """Return how weights are asked for ahead: the next ``lines``, or eight ``pages`` in turn."""

def available_fetches() -> tuple[str, ...]:
    """Return the ways to ask for weights ahead."""

def use_fetch(name: str) -> str:
    """Ask for weights in another way from the next call on; return the previous one.

    For tests and measurements: results do not depend on it.

    Raises
    ------
    BackendError
        There is no such way.
    """

def check_environment() -> None:
    """Raise BackendError where MTPCORE_ISA or MTPCORE_FETCH names what cannot be used here."""
