"""The kernels' instruction set, and how they prefetch weights (``c/core/cpu.h``).

The environment variables ``MTPCORE_ISA`` (``base``, ``avx2``, ``avxvnni``, ``avx512``, ``amx``,
``neon`` or ``i8mm``) and ``MTPCORE_FETCH`` (``lines``, ``lines-l2``, ``pages``, ``none`` or
``auto``) are read when the library is loaded; unset, the best instruction set of the machine is
used, and the fastest way to prefetch, which is measured.
"""

__all__ = [
    "available_fetches",
    "available_isas",
    "check_environment",
    "fetch",
    "first_level_bytes",
    "isa",
    "use_fetch",
    "use_isa",
]

def isa() -> str:
    """Return the name of the instruction set in use."""

def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this machine runs, the plainest first."""

def use_isa(name: str) -> str:
    """Use another instruction set in the whole process; return the name of the previous one.

    For tests and measurements. Kernels ask for the set as they run, so nothing may run meanwhile,
    in another thread either: activations are laid out for the set that reads them. Between calls
    results do not depend on it; packed weights are the same for all sets.

    Raises
    ------
    BackendError
        The set is unknown or this machine cannot run it.
    """

def fetch() -> str:
    """Return how weights are prefetched.

    The next ``lines`` into the first-level cache, or further ahead into the second (``lines-l2``),
    eight ``pages`` in turn, ``none`` by instructions, or ``auto``: the fastest of these.
    """

def available_fetches() -> tuple[str, ...]:
    """Return the ways to prefetch weights, ``auto`` last."""

def use_fetch(name: str) -> str:
    """Prefetch weights in another way from the next call on; return the previous one.

    For tests and measurements: results do not depend on it.

    Raises
    ------
    BackendError
        There is no such way.
    """

def first_level_bytes() -> int:
    """Return the size of a core's first-level cache of data.

    What the processor says (x86-64), or 64 KiB (aarch64). Attention prefetches by it.
    """

def check_environment() -> None:
    """Raise BackendError where MTPCORE_ISA or MTPCORE_FETCH names what cannot be used here."""
