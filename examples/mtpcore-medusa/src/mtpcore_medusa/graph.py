"""A head, and the numbers that it is built with."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from mtpcore.plugin import Count, Depth, Fields, GraphBuilder, Inputs, Outputs


class Hparams(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of Medusa heads.

    ``n_vocab`` are the target's tokens; ``n_residual`` are the residual blocks of each head.
    """

    n_vocab: int
    width: int
    n_residual: int

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read the metadata; raise ModelFileError where a number is missing, or tensors differ."""
        h = cls(
            n_vocab=fields.require("{arch}.vocab_size", Count),
            width=fields.require("{arch}.embedding_length", Count),
            n_residual=fields.get("{arch}.residual_block_count", Depth, 1),
        )
        check_outputs(fields, tensors)
        check_shapes(fields, tensors, h)
        return h


def check_outputs(fields: Fields, tensors: Mapping[str, Any]) -> None:
    """Raise where a head would borrow the output matrix that others have of their own."""
    n_heads = fields.require("{arch}.block_count", Depth)
    own = [n for n in range(n_heads) if f"blk.{n}.output.weight" in tensors]
    if 0 < len(own) < n_heads:
        raise fields.error(
            "{arch}.block_count",
            "some heads have an output matrix of their own, others have none",
            wanted=f"{n_heads} of them, or none",
            got=f"those of heads {', '.join(map(str, own))}",
        )


def check_shapes(fields: Fields, tensors: Mapping[str, Any], h: Hparams) -> None:
    """Raise where a tensor does not fit the target, as that of another one."""
    n_drafted = tensors["d2t"].shape[0] if "d2t" in tensors else h.n_vocab
    wanted: tuple[int, ...]
    for name, tensor in tensors.items():
        if name.endswith("output.weight"):
            wanted = (n_drafted, h.width)
        elif ".medusa." in name:
            wanted = (h.width, h.width) if name.endswith(".weight") else (h.width,)
        else:
            continue
        if tuple(tensor.shape) != wanted:
            raise fields.error(
                "{arch}.embedding_length",
                f"{name} does not fit the target's width and vocabulary",
                wanted=list(wanted),
                got=list(tensor.shape),
            )


def head(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Add each block's answer to the target's row; no token is read, drafted ones neither."""
    x = inputs["hidden"]
    for b in range(h.n_residual):
        block = f"blk.{{n}}.medusa.{b}"
        y = g.matmul(x, f"{block}.weight", f"{block}.bias")
        x = g.add(x, g.activation(y, "silu"))
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.output.weight"))
