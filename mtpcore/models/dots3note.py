"""dots.note 3: latent attention with a window, or with an indexer that chooses tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.declarations.spec import (
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    SHARED_EXPERT_SCALES,
    ModelSpec,
)
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, ROUTER_TYPE, feed_forward_block
from mtpcore.models.checkpoints.dots3note import DOTS3_NOTE as CHECKPOINT
from mtpcore.models.checkpoints.dots3note import DOTS3_NOTE_NEXTN
from mtpcore.models.decoder import decoder, trunk_fit
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.indexer import UNREAD_INDEXER, limit_to_chosen
from mtpcore.models.layer_kinds import windowed_blocks
from mtpcore.models.mla import Mla, mla_block
from mtpcore.models.nextn import nextn_head, nextn_spec
from mtpcore.models.rope import Rope, Style

__all__ = ["DOTS3_NOTE", "DOTS3_NOTE_HEAD", "Dots3NoteHparams", "build", "head"]

_HEADS = "{arch}.attention.head_count"


class Dots3NoteHparams(Hparams, frozen=True, kw_only=True):
    """What dots.note 3 adds: how each block attends, an indexer's choice, and experts."""

    rope_style: ClassVar[Style] = "pairs"

    top_k: Count = msgspec.field(name="attention.indexer.top_k")
    kinds: tuple[Mla, ...] = ()
    experts: Experts | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata; blocks may differ in their number of heads."""
        n_heads = fields.per_layer(_HEADS, fields.require("{arch}.block_count", Depth), Count)
        h = super().read(fields.replace({_HEADS: n_heads[0]}), tensors)
        near, full = _near(fields, h), Mla.read(fields)
        pattern = windowed_blocks(fields, h.n_blocks, heads=True)
        kinds = [
            msgspec.structs.replace(near if is_near else full, n_heads=n)
            for is_near, n in zip(pattern, n_heads, strict=True)
        ]
        return msgspec.structs.replace(h, kinds=tuple(kinds))

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read how experts are routed."""
        return {"experts": Experts.read(fields, gate="sigmoid")}


def _near(fields: Fields, h: Hparams) -> Mla:
    """Return how blocks with a window attend; the rotation has a base of its own."""
    prefix = "{arch}.attention."
    fields.dismiss(prefix + "key_length_swa", prefix + "value_length_swa")
    key_width = fields.require(prefix + "key_length_mla_swa", Count)
    return Mla(
        rank=fields.require(prefix + "kv_lora_rank_swa", Count),
        key_width=key_width,
        value_width=fields.require(prefix + "value_length_mla_swa", Count),
        scale=key_width**-0.5,
        rope=Rope.read(fields, h.head_width, h.rope_style, "freq_base_swa"),
        window=fields.require(prefix + "sliding_window", Count),
    )


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Dots3NoteHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.add(x, mla_block(g, x, positions, n, h, h.kinds[n]))
    return g.add(x, feed_forward_block(g, x, n, h, h.experts))


def build(g: GraphBuilder, inputs: Inputs, h: Dots3NoteHparams) -> Outputs:
    """Build the trunk."""
    limit_to_chosen(g, h.top_k)
    return decoder(g, inputs, h, layer)


def head(g: GraphBuilder, inputs: Inputs, h: Dots3NoteHparams) -> Outputs:
    """Build the NextN head, a layer with a window: token p meets the trunk's hidden row p - 1."""
    return nextn_head(g, inputs, h, layer)


DOTS3_NOTE = ModelSpec(
    name="dots3note",
    fit=trunk_fit("dots3note"),
    hparams=Dots3NoteHparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    scaled=(
        "blk.{n}.attn_output",
        *FEED_FORWARD_SCALES,
        *EXPERT_SCALES,
        *SHARED_EXPERT_SCALES,
    ),
    unread=UNREAD_INDEXER,
    checkpoint=CHECKPOINT,
)
DOTS3_NOTE_HEAD = nextn_spec(
    "dots3note", head, source="SGLang's Dot3NoteModelNextN", checkpoint=DOTS3_NOTE_NEXTN
)
