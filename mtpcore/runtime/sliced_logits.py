"""Computing only some of a graph's logits: the program for it, and the weights it needs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import WeightSource
from mtpcore.errors import GraphError
from mtpcore.gguf import TensorRows
from mtpcore.graph import Program, slice_output
from mtpcore.runtime.further_weights import FurtherWeights

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["slice_logits"]


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
        There are no such logits; or as ``slice_output``.
    """
    _check(program, rows)
    suffix = f"[{hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()}]"
    sliced, cut = slice_output(program, "logits", len(rows), suffix)
    parts = {name + suffix: TensorRows(name + suffix, model.tensors[name], rows) for name in cut}
    return sliced, FurtherWeights(model, parts)


def _check(program: Program, rows: NDArray[np.int32]) -> None:
    n_logits = int(program.shape("logits")[1]) if "logits" in program.outputs else 0
    inside = rows.ndim == 1 and len(rows) and rows[0] >= 0 and rows[-1] < n_logits
    if not inside or (rows[1:] <= rows[:-1]).any():
        raise GraphError(
            "a part of the logits is not among them",
            where=f"{program.name}: logit_rows",
            wanted=f"ascending numbers in 0..{n_logits - 1}" if n_logits else "a graph with logits",
            got=f"{rows.shape} of {rows.min()}..{rows.max()}" if rows.size else "none",
        )
