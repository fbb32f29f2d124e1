"""Writing a fitted head as a model file, and reading one to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_VERSION
from numpy.typing import NDArray

from mtpcore.boundary.atomic import replacing
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.discovery.sidecars import check_draft_model
from mtpcore.drafting.fingerprint import fingerprint
from mtpcore.errors import ModelFileError
from mtpcore.fitting.shape import F32, Shape
from mtpcore.gguf.writer import write_model_file
from mtpcore.runtime.model import Model

__all__ = ["Head", "read_head", "write_head"]

I64 = NDArray[np.int64]


class Head(NamedTuple):
    """Weights by the names of the file, and int64[n], the token of each output row."""

    weights: dict[str, F32]
    vocabulary: I64


_BLOCK = 32
"""Values of a block of eight-bit weights."""


def write_head(
    path: Path,
    target: Model,
    spec: DrafterSpec,
    shape: Shape,
    weights: Mapping[str, F32],
    vocabulary: I64,
    depth: int,
    description: str,
    known: Registry,
) -> None:
    """Write a head, once it is known to draft for its target.

    Matrices are stored in Q8_0 where their rows are whole blocks, else in F16.

    Parameters
    ----------
    weights : mapping
        By the names of the file.
    vocabulary : int64[n]
        The token of each row of ``output.weight``.
    depth : int
        Drafts in a row that it learned.
    description : str
        How it was made, for ``general.description``.

    Raises
    ------
    ModelFileError, GraphError, LinkError
        It cannot be written, or does not fit; what was there still is.
    """
    tokenizer = {k: v for k, v in target.metadata.items() if k.startswith("tokenizer.ggml.")}
    name = str(target.metadata.get("general.name", target.path.stem))
    about = {
        "general.type": "model",
        "general.name": f"{name} {spec.name} head",
        "general.description": description,
        "general.quantization_version": GGML_QUANT_VERSION,
    }
    types = {
        tensor: "F32" if values.ndim < 2 else "F16" if values.shape[-1] % _BLOCK else "Q8_0"
        for tensor, values in weights.items()
    }
    with replacing(path) as part:
        write_model_file(
            part,
            shape.ARCHITECTURE,
            {**about, **shape.metadata(target, depth), **tokenizer},
            {**weights, spec.vocabulary: vocabulary},
            types,
        )
        with load_model(part, sidecars=False, plugins=known) as head:
            check_draft_model(target, head)


def read_head(
    path: Path, target: Model, spec: DrafterSpec, shape: Shape, depth: int, known: Registry
) -> Head:
    """Read a head that a fit is to begin with, in which it learns ``depth`` drafts in a row.

    Raises
    ------
    ModelFileError
        It cannot be read, or is no head of this shape for this target.
    """
    wanted = {"general.architecture": shape.ARCHITECTURE, **shape.metadata(target, depth)}
    with load_model(path, sidecars=False, plugins=known) as head:
        found = {key: head.metadata.get(key) for key in wanted}
        wanted["tokenizer"], found["tokenizer"] = fingerprint(target), fingerprint(head)
        for key, value in wanted.items():
            if not _equals(found[key], value):
                raise ModelFileError(
                    "the head is not of the shape that would be fitted, or of another model",
                    where=f"{path}: {key}",
                    wanted=value,
                    got=found[key],
                    fix="leave it out, and fit a head from the beginning",
                )
        tensors = dict(head.tensors)
        vocabulary = tensors.pop(spec.vocabulary).array(np.int64).copy()
        return Head({name: one.array().copy() for name, one in tensors.items()}, vocabulary)


def _equals(found: Any, wanted: Any) -> bool:
    """Compare values as a file stores them."""
    kind = np.float32 if isinstance(wanted, float) else None
    return found is not None and np.array_equal(np.asarray(found, kind), np.asarray(wanted, kind))
