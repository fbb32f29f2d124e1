"""GGUF files that are no models, and say so: adapters, importance matrices, encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtpcore.errors import ModelFileError

__all__ = ["kind_of", "refuse_other_kinds"]

_KINDS = {
    "adapter": (
        "an adapter, which changes a model's weights and is no model",
        "give the model's file, and this one as --lora, or as --mtp-path where it drafts",
    ),
    "imatrix": (
        "an importance matrix, by which a model is quantised",
        "give the model's file; quantize takes this one as --imatrix",
    ),
    "mmproj": (
        "an encoder of images or sound, which stands beside a model's file",
        "give the model's file; rows of an encoder are given as embeddings",
    ),
    "controlvector": (
        "a control vector, which is added to a model's rows and is no model",
        "give the model's file",
    ),
}
"""What they are, and what to do."""


def kind_of(metadata: Mapping[str, Any]) -> str | None:
    """Return what a file is that is no model, by ``general.type`` or architecture; else None.

    Importance matrices have no architecture, control vectors no type.
    """
    said = (str(metadata.get(f"general.{name}")) for name in ("type", "architecture"))
    return next((kind for kind in said if kind in _KINDS), None)


def refuse_other_kinds(metadata: Mapping[str, Any], where: str) -> None:
    """Raise ModelFileError where a file says that it is no model."""
    if kind := kind_of(metadata):
        what, fix = _KINDS[kind]
        raise ModelFileError(f"the file is {what}", where=where, fix=fix)
