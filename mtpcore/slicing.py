"""A part of a graph's logits: its program, and the weights that this needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import WeightSource
from mtpcore.gguf import Tensor, TensorRows
from mtpcore.graph import Program, slice_output

if TYPE_CHECKING:
    from mtpcore.model import Model

__all__ = ["slice_logits"]


class _Source:
    """A model's weights and some rows of them; implements ``WeightSource``."""

    def __init__(self, model: Model, rows: dict[str, TensorRows]) -> None:
        self.tensors: Mapping[str, Tensor] = {**model.tensors, **rows}
        self.packed, self.repack = model.packed, model.repack


def slice_logits(
    program: Program, model: Model, rows: NDArray[np.int32]
) -> tuple[Program, WeightSource]:
    """Return a program that makes only some logits, and where it finds its weights.

    Each of these logits has the bits that the whole program gives it.

    Parameters
    ----------
    program : Program
        One of the model's, with logits.
    model : Model
    rows : int32[n]
        Which logits, ascending.

    Raises
    ------
    GraphError
        As ``slice_output``.
    """
    suffix = f"[{hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()}]"
    sliced, cut = slice_output(program, "logits", len(rows), suffix)
    made = {name + suffix: TensorRows(name + suffix, model.tensors[name], rows) for name in cut}
    return sliced, _Source(model, made)
