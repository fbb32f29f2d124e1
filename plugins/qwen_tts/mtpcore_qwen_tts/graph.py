"""The graphs of Qwen3-TTS: Qwen3's layers in the talker and in the code predictor.

"Qwen3-TTS Technical Report" (2026), arXiv 2601.15621; the order is that of the package qwen-tts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from mtpcore.plugin import (
    CodebookHparams,
    Fields,
    GraphBuilder,
    Inputs,
    Outputs,
    decoder,
    dense_layer,
    depth_decoder,
)


class TalkerHparams(CodebookHparams, frozen=True, kw_only=True):
    """What the talker adds.

    Attributes
    ----------
    pad_token : int
        The token that stands beside speech where there is no text.
    """

    pad_token: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)] = msgspec.field(
        name="text_padding_token_id"
    )

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> TalkerHparams:
        """Read a model's metadata; the three axes of its positions agree in every row."""
        h = super().read(fields, tensors)
        one = msgspec.structs.replace(h.rope, axes=(0,) * len(h.rope.axes))
        return msgspec.structs.replace(h, rope=one)


def talker(g: GraphBuilder, inputs: Inputs, h: TalkerHparams) -> Outputs:
    """Build the talker: a row is text and speech, a voice's row is added where one is given."""
    text = g.embed(inputs.tokens, "token_embd.weight", absent=h.pad_token)
    speech = g.embed_codes(inputs.codes(h.n_codebooks), "audio_embd.weight", n_first=h.n_first)
    x = g.add(g.add(speech, text), g.embedding_rows(h.width))
    return decoder(g, inputs, h, dense_layer, x)


def code_predictor(g: GraphBuilder, inputs: Inputs, h: TalkerHparams) -> Outputs:
    """Build the code predictor."""
    return depth_decoder(g, inputs, h, dense_layer)
