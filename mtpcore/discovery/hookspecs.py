"""The hooks that mtpcore calls once in each plugin, when plugins are loaded.

A hook exists only where a plugin uses it. Nothing is asked again later: what a hook returned is
plain data from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from mtpcore.declarations.backend import BackendSpec
from mtpcore.declarations.spec import DrafterSpec, ModelSpec, Unsupported

__all__ = [
    "hookimpl",
    "mtpcore_backends",
    "mtpcore_drafters",
    "mtpcore_models",
    "mtpcore_unsupported",
]

_hookspec = pluggy.HookspecMarker("mtpcore")
hookimpl = pluggy.HookimplMarker("mtpcore")


@_hookspec
def mtpcore_models() -> Sequence[ModelSpec]:  # type: ignore[empty-body]
    """Return the trunks that the plugin declares."""


@_hookspec
def mtpcore_drafters() -> Sequence[DrafterSpec]:  # type: ignore[empty-body]
    """Return the drafters that the plugin declares."""


@_hookspec
def mtpcore_backends() -> Sequence[BackendSpec]:  # type: ignore[empty-body]
    """Return the backends that the plugin declares."""


@_hookspec
def mtpcore_unsupported() -> Sequence[Unsupported]:  # type: ignore[empty-body]
    """Return architectures that the plugin knows and does not run."""
