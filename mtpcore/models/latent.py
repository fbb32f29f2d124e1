"""MiniCPM3: a dense decoder with latent attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.minicpm import MINICPM3 as CHECKPOINT
from mtpcore.models.mla import Mla, mla_attention
from mtpcore.models.variants import Variant, VariantHparams, build, layer, variant_spec

__all__ = ["MINICPM3", "LatentHparams"]


class LatentHparams(VariantHparams, frozen=True, kw_only=True):
    """What latent attention adds."""

    mla: Mla = Mla()

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a family's metadata; see ``Hparams.read``.

        Files of llama.cpp's converter do not say how wide a head's values are: heads divide a row.
        """
        h = super().read_variant(variant, fields, tensors)
        key = "{arch}.attention.value_length"
        width = fields.get(key, Count, h.width // h.n_heads)
        return msgspec.structs.replace(h, mla=Mla.read(fields.replace({key: width})))


def _latent(g: GraphBuilder, a: Value, positions: Value, n: int, h: LatentHparams) -> Value:
    return mla_attention(g, a, positions, n, h, h.mla)


_build = partial(build, layer=partial(layer, mixer=_latent))

MINICPM3 = variant_spec(
    "minicpm3",
    Variant(
        embedding_scale=lambda h: 12.0,
        residual_scale=lambda h: 1.4 / math.sqrt(h.n_layers),
        logit_scale=lambda h: 256 / h.width,
    ),
    hparams=LatentHparams,
    build=_build,
    checkpoint=CHECKPOINT,
)
