"""Find a backend by name; a backend's module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from typing import cast

from mtpcore.backends.base import Backend
from mtpcore.boundary.arguments import offers, read
from mtpcore.errors import BackendError, spell

__all__ = ["BACKENDS", "OFFERED", "select_backend"]

BACKENDS = {
    "cpu": ("mtpcore.backends.cpu", "CpuBackend"),
    "reference": ("mtpcore.backends.reference", "ReferenceBackend"),
    "cuda": ("mtpcore.backends.cuda", "CudaBackend"),
}
OFFERED = ("cpu", "reference")
"""Those that run models; ``cuda`` says what it lacks."""
_made: dict[str, Backend] = {}


def select_backend(backend: str | Backend) -> Backend:
    """Return the backend of this name, always the same object; or a backend object unchanged.

    Raises
    ------
    BackendError
        Unknown name, or the backend cannot run here (says what is missing).
    """
    if offers(backend, "store", "plan"):
        return cast(Backend, backend)
    backend = read(backend, str, "unknown backend", wanted=", ".join(OFFERED), error=BackendError)
    if backend not in BACKENDS:
        raise BackendError("unknown backend", wanted=", ".join(OFFERED), got=spell(backend))
    if backend not in _made:
        module, name = BACKENDS[backend]
        _made[backend] = cast(Backend, getattr(importlib.import_module(module), name)())
    return _made[backend]
