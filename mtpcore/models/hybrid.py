"""What hybrids share: layers without attention, whose states are convolutions or recurrences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import msgspec

from mtpcore.boundary.sizes import Depth
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.hparams import Hparams

__all__ = ["HybridHparams", "check_kernels", "count_heads_once", "times_scale"]

_Heads = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class HybridHparams(Hparams, frozen=True, kw_only=True):
    """Hyper-parameters of hybrids: heads are those of the layers that attend.

    Which layers these are is said by the tensors that they have.
    """

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata; see ``Hparams.read`` and ``count_heads_once``."""
        return super().read(count_heads_once(fields), tensors)


def count_heads_once(fields: Fields) -> Fields:
    """Return metadata with one number of heads, and of key heads, where files have one a block.

    There it is 0 for blocks without attention, which are told by their tensors.

    Raises
    ------
    ModelFileError
        Layers of attention have different numbers of them.
    """
    fields.dismiss("{arch}.attention.recurrent_layers")
    n_blocks = fields.require("{arch}.block_count", Depth)
    known = {}
    for key in ("{arch}.attention.head_count", "{arch}.attention.head_count_kv"):
        counts = fields.per_layer(key, n_blocks, _Heads, 0)
        found = {*counts} - {0}
        if len(found) > 1:
            raise fields.error(key, "layers of attention differ", wanted="one number", got=counts)
        if found:
            known[key] = found.pop()
    return fields.replace(known)


def check_kernels(
    fields: Fields,
    tensors: Mapping[str, Tensor],
    weight: str,
    key: str,
    what: str = "the convolution",
) -> None:
    """Check that convolutions are as long as the metadata say.

    Parameters
    ----------
    weight : str
        Name of a block's convolution, [channels, kernel], without ``blk.{n}.``.
    key : str
        The metadata key of their length.
    what : str
        What the weight holds of each channel, if it is no convolution.

    Raises
    ------
    ModelFileError
        One is of another length.
    """
    kernel = fields.require(key, int)
    for n in range(fields.require("{arch}.block_count", Depth)):
        found = tensors.get(f"blk.{n}.{weight}")
        if found is not None and found.shape[-1] != kernel:
            raise fields.error(
                key,
                f"{what} of block {n} is of another length",
                wanted=found.shape[-1],
                got=kernel,
            )


def times_scale(g: GraphBuilder, y: Value, matrix: str) -> Value:
    """Multiply a product by the scale beside its matrix, if it does not count as it is.

    For layers in which it counts, of families in whose other layers it does not beside a matrix of
    the same name. ``matrix`` is named without ``.weight``.
    """
    scale = f"{matrix}.scale"
    is_idle = g.has(scale) and g.scale_of(f"{matrix}.weight") is None
    return g.scale_by(y, scale) if is_idle else y
