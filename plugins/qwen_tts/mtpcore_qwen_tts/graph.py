"""The graphs of Qwen3-TTS: Qwen3's layers in the talker and in the code predictor.

"Qwen3-TTS Technical Report" (2026), arXiv 2601.15621; the order is that of the package qwen-tts.
"""

from typing import Annotated

import msgspec

from mtpcore.plugin import (
    CodebookHparams,
    Count,
    GraphBuilder,
    Inputs,
    Outputs,
    decoder,
    dense_layer,
    depth_decoder,
)


class TalkerHparams(CodebookHparams, frozen=True, kw_only=True):
    """What the talker adds: text of a width of its own.

    Attributes
    ----------
    text_width : int
        Width of text embeddings, before they are projected.
    pad_token : int
        The token that stands beside speech where there is no text.
    """

    text_width: Count = msgspec.field(name="text_embedding_length")
    pad_token: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)] = msgspec.field(
        name="text_padding_token_id"
    )

    @property
    def table_width(self) -> int:
        """Width of the embedding table."""
        return self.text_width


def talker(g: GraphBuilder, inputs: Inputs, h: TalkerHparams) -> Outputs:
    """Build the talker: a row is text and speech, a voice's row is added where one is given."""
    text = g.embed(inputs.tokens, "token_embd.weight", absent=h.pad_token)
    text = g.activation(g.matmul(text, "text_proj.up.weight", "text_proj.up.bias"), "silu")
    text = g.matmul(text, "text_proj.down.weight", "text_proj.down.bias")
    speech = g.embed_codes(inputs.codes(h.n_codebooks), "audio_embd.weight", n_first=h.n_first)
    x = g.add(g.add(speech, text), g.embedding_rows(h.width))
    return decoder(g, inputs, h, dense_layer, x)


def code_predictor(g: GraphBuilder, inputs: Inputs, h: TalkerHparams) -> Outputs:
    """Build the code predictor."""
    return depth_decoder(g, inputs, h, dense_layer)
