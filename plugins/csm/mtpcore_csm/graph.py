"""The graphs of CSM: Llama's layers in the backbone and in the depth decoder.

Schalkwyk et al., "Crossing the uncanny valley of conversational voice" (Sesame, 2025); the layers'
order is that of transformers' ``modeling_csm``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from mtpcore.plugin import (
    Fields,
    GraphBuilder,
    Hparams,
    Inputs,
    Outputs,
    Rope,
    Value,
    attention_block,
    convert,
    decoder,
    feed_forward_block,
)

Code = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]


class CsmHparams(Hparams, frozen=True, kw_only=True):
    """What CSM adds: codebooks, and a decoder of its own for them.

    Attributes
    ----------
    n_codebooks, n_codes : int
        Codes of a frame, and of each codebook.
    end_code : int
        A frame of these ends the text.
    depth : Hparams
        The depth decoder's.
    """

    n_codebooks: Annotated[int, msgspec.Meta(ge=2, le=1 << 10)] = msgspec.field(
        name="codebook_count"
    )
    n_codes: Annotated[int, msgspec.Meta(ge=2, le=1 << 24)] = msgspec.field(name="codebook_size")
    end_code: Code = msgspec.field(name="codebook_end", default=0)
    depth: Hparams | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read both models' metadata; the depth decoder's keys begin with ``{arch}.depth.``."""
        h = super().read(fields, tensors)
        within = Fields(fields.metadata, f"{fields.architecture}.depth", fields.file)
        depth = convert(within, Hparams)
        rope = Rope.read(within, depth.head_width, cls.rope_style)
        return msgspec.structs.replace(
            h, depth=msgspec.structs.replace(depth, n_layers=depth.n_blocks, rope=rope)
        )


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Hparams) -> Value:
    """Add attention and feed-forward of block n to the residual stream."""
    x = g.add(x, attention_block(g, x, positions, n, h, factors="rope_freqs.weight"))
    return g.add(x, feed_forward_block(g, x, n, h))


def backbone(g: GraphBuilder, inputs: Inputs, h: CsmHparams) -> Outputs:
    """Build the backbone: a row is a text token, a frame of codes, or both."""
    tokens = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    codes = g.embed_codes(inputs.codes(h.n_codebooks), "audio_embd.weight")
    return decoder(g, inputs, h, layer, g.add(tokens, codes))


def depth(g: GraphBuilder, inputs: Inputs, h: CsmHparams) -> Outputs:
    """Build the depth decoder: the backbone's row, then the codes of a frame before each one."""
    d = h.depth
    assert d is not None
    x = g.embed_by_position(
        inputs.tokens,
        inputs.positions,
        "depth.audio_embd.weight",
        h.n_codebooks,
        first=1,
        embeddings=True,
    )
    with g.within("depth."):
        x = g.matmul(x, "input.weight")
        for n in range(d.n_layers):
            x = layer(g, x, inputs.positions, n, d)
        hidden = g.tap("hidden", g.rms_norm(x, "output_norm.weight", d.norm_eps))
        rows = g.output_rows(hidden)
        return Outputs(
            logits=g.matmul_by_position(rows, inputs.positions, "output.weight", first=1)
        )
