"""A model's weights and further ones that are made of them, or come from another file."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from mtpcore.gguf import Tensor

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["FurtherWeights"]


class FurtherWeights:
    """The tensors of a model, and others by name; implements ``WeightSource``.

    ``packed`` are the packed weights of both; default: the model's, with which they stay.
    """

    def __init__(
        self,
        model: Model,
        further: Mapping[str, Tensor],
        packed: MutableMapping[Any, Any] | None = None,
    ) -> None:
        self.tensors: Mapping[str, Tensor] = {**model.tensors, **further}
        self.packed = model.packed if packed is None else packed
        self.repack = model.repack
