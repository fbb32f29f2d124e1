"""All that an author of plugins imports: declarations, graph verbs and shared blocks."""

from __future__ import annotations

import pluggy

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, GraphType, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, attention_block, moe, swiglu, trunk_outputs, turn
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.rope import Rope
from mtpcore.spec import (
    Block,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    KVPolicy,
    Link,
    ModelSpec,
    Tap,
    Tie,
    VocabularyMap,
    first_of,
)

__all__ = [
    "OUTPUT_TIE",
    "Block",
    "DrafterSpec",
    "Experts",
    "Feed",
    "Fields",
    "Fit",
    "GraphBuilder",
    "GraphType",
    "Heads",
    "Hparams",
    "Inputs",
    "KVPolicy",
    "Link",
    "ModelSpec",
    "Outputs",
    "Rope",
    "Tap",
    "Tie",
    "Value",
    "VocabularyMap",
    "attention_block",
    "first_of",
    "hookimpl",
    "moe",
    "swiglu",
    "trunk_outputs",
    "turn",
]

hookimpl = pluggy.HookimplMarker("mtpcore")
