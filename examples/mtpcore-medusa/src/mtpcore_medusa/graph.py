"""A head, and the numbers that it is built with."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from mtpcore.plugin import Count, Fields, GraphBuilder, Inputs, Outputs


class Hparams(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of Medusa heads; ``n_vocab`` are the target's tokens."""

    n_vocab: int
    width: int

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read the metadata; raise ModelFileError where a number is missing or impossible."""
        return cls(
            n_vocab=fields.require("{arch}.vocab_size", Count),
            width=fields.require("{arch}.embedding_length", Count),
        )


def head(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Add a layer's answer to the target's row; no token is read, drafted ones neither."""
    row = inputs["hidden"]
    x = g.matmul(row, "blk.{n}.medusa.weight", "blk.{n}.medusa.bias")
    x = g.add(row, g.activation(x, "silu"))
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.output.weight"))
