"""The backends that come with mtpcore, declared through the same hook as any plugin's."""

from __future__ import annotations

from mtpcore.declarations.backend import BackendSpec
from mtpcore.discovery.hookspecs import hookimpl

__all__ = ["mtpcore_backends"]


@hookimpl
def mtpcore_backends() -> list[BackendSpec]:
    """Offer the backends that come with mtpcore."""
    return [
        BackendSpec(name="cpu", source="mtpcore.backends.cpu:CpuBackend"),
        BackendSpec(name="reference", source="mtpcore.backends.reference:ReferenceBackend"),
        BackendSpec(name="cuda", source="mtpcore.backends.cuda:CudaBackend"),
    ]
