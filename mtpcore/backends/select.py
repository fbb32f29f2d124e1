"""Make a backend from its declaration; its module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

from mtpcore.backends.base import Backend
from mtpcore.boundary.arguments import offers, read
from mtpcore.declarations.backend import BackendSpec
from mtpcore.errors import BackendError, MtpcoreError, spell

__all__ = ["select_backend"]

_made: dict[tuple[str, str], Backend] = {}


def select_backend(backend: str | Backend, offered: Sequence[BackendSpec]) -> Backend:
    """Return the backend of this name, always the same object; or a backend object unchanged.

    ``cuda:1`` is that on the second device; the first one has number 0.

    Raises
    ------
    BackendError
        Unknown name or device, or the backend cannot run here (says what is missing).
    """
    if offers(backend, "store", "plan"):
        return cast(Backend, backend)
    wanted = ", ".join(spec.name for spec in offered)
    text: str = read(backend, str, "unknown backend", wanted=wanted, error=BackendError)
    name, colon, device = text.partition(":")
    spec = next((spec for spec in offered if spec.name == name), None)
    if spec is None:
        raise BackendError("unknown backend", wanted=wanted, got=spell(text))
    key = spec.source, text
    if key not in _made:
        kind = _import(spec)
        _made[key] = _on_device(kind, text, device) if colon else _checked(spec, kind())
    return _made[key]


def _import(spec: BackendSpec) -> Any:
    module, _, name = spec.source.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except MtpcoreError:
        raise
    except Exception as error:  # whatever a plugin's import raises
        raise BackendError(
            f"a backend cannot be imported: {type(error).__name__}: {spell(error, str)}",
            where=f"{spec.name!r} of plugin {spec.plugin!r}",
            wanted=spec.source,
        ) from error


def _checked(spec: BackendSpec, made: Any) -> Backend:
    if not offers(made, "store", "plan"):
        raise BackendError(
            "what a backend's class made is none",
            where=f"{spec.name!r} of plugin {spec.plugin!r}",
            wanted="a Backend: store, state_store, plan, ...",
            got=type(made).__name__,
        )
    return cast(Backend, made)


def _on_device(kind: Any, backend: str, device: str) -> Backend:
    if not hasattr(kind, "on_device"):
        name = backend.partition(":")[0]
        raise BackendError("a backend without devices to choose from", wanted=name, got=backend)
    if not (device.isascii() and device.isdecimal()):
        raise BackendError("a device has a number", wanted="0, 1, ...", got=spell(backend))
    return cast(Backend, kind.on_device(int(device)))
