"""The CPU backend: programs lowered to plans that run without the GIL on its own thread pool."""

from mtpcore.backends.cpu.backend import CpuBackend, CpuPlan
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.threads import default_threads

__all__ = ["CpuBackend", "CpuPlan", "CpuStore", "default_threads"]
