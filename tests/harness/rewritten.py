"""The demo with other metadata, in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mtpcore
from mtpcore.gguf import MetadataValue, open_model_file, write_model_file

__all__ = ["write_demo"]

_DEMO = Path(mtpcore.__file__).parent / "data" / "demo.gguf"


def write_demo(path: Path, more: Mapping[str, MetadataValue]) -> Path:
    """Write the demo with further keys; its tensors are the same bytes."""
    with open_model_file(_DEMO) as file:
        metadata = {**file.metadata, **more}
        architecture = str(metadata.pop("general.architecture"))
        tensors = {
            name: tensor.raw() if tensor.type_name != "F32" else tensor.array()
            for name, tensor in file.tensors.items()
        }
        types = {name: tensor.type_name for name, tensor in file.tensors.items()}
        write_model_file(path, architecture, metadata, tensors, types)
    return path
