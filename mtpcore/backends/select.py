"""Find a backend by name; a backend's module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from typing import Any, cast

from mtpcore.backends.base import Backend
from mtpcore.boundary.arguments import offers, read
from mtpcore.errors import BackendError, spell

__all__ = ["BACKENDS", "select_backend"]

BACKENDS = {
    "cpu": ("mtpcore.backends.cpu", "CpuBackend"),
    "reference": ("mtpcore.backends.reference", "ReferenceBackend"),
    "cuda": ("mtpcore.backends.cuda", "CudaBackend"),
}
_made: dict[str, Backend] = {}


def select_backend(backend: str | Backend) -> Backend:
    """Return the backend of this name, always the same object; or a backend object unchanged.

    ``cuda:1`` is that on the second device; the first one has number 0.

    Raises
    ------
    BackendError
        Unknown name or device, or the backend cannot run here (says what is missing).
    """
    if offers(backend, "store", "plan"):
        return cast(Backend, backend)
    wanted = ", ".join(BACKENDS)
    text: str = read(backend, str, "unknown backend", wanted=wanted, error=BackendError)
    name, colon, device = text.partition(":")
    if name not in BACKENDS:
        raise BackendError("unknown backend", wanted=wanted, got=spell(text))
    if text not in _made:
        module, made = BACKENDS[name]
        kind = getattr(importlib.import_module(module), made)
        _made[text] = cast(Backend, _on_device(kind, text, device) if colon else kind())
    return _made[text]


def _on_device(kind: Any, backend: str, device: str) -> Any:
    if not hasattr(kind, "on_device"):
        name = backend.partition(":")[0]
        raise BackendError("a backend without devices to choose from", wanted=name, got=backend)
    if not (device.isascii() and device.isdecimal()):
        raise BackendError("a device has a number", wanted="0, 1, ...", got=spell(backend))
    return kind.on_device(int(device))
