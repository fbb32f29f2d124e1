"""The declaration of a backend: its name, and where its class is."""

from __future__ import annotations

import msgspec

__all__ = ["BackendSpec"]


class BackendSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a backend, which is imported when a context first asks for it.

    Attributes
    ----------
    name : str
        By which ``Context(backend=)`` and ``--backend`` find it; an identifier.
    source : str
        ``module:Class``. The class takes no arguments, implements ``Backend``, and raises a
        ``BackendError`` that says what is missing where it cannot run. If it has several devices,
        its class method ``on_device(number)`` makes the backend ``NAME:number``.
    plugin, version : str
        Filled in when the plugin is loaded.
    """

    name: str
    source: str
    plugin: str = ""
    version: str = ""
