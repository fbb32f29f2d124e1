"""All that an author of plugins imports: declarations, graph verbs and shared blocks."""

from __future__ import annotations

from mtpcore.gguf.metadata import Fields, convert
from mtpcore.graph import GraphBuilder, GraphType, Inputs, Outputs, Value
from mtpcore.hookspecs import hookimpl
from mtpcore.models.blocks import OUTPUT_TIE, attention_block, moe, swiglu, trunk_outputs, turn
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.rope import Rope
from mtpcore.proposer import Proposer
from mtpcore.spec import (
    Block,
    Checkpoint,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    Key,
    KVPolicy,
    Link,
    ModelSpec,
    Rename,
    Tap,
    Tie,
    Tree,
    VocabularyMap,
    first_of,
)

__all__ = [
    "OUTPUT_TIE",
    "Block",
    "Checkpoint",
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
    "Key",
    "Link",
    "ModelSpec",
    "Outputs",
    "Proposer",
    "Rename",
    "Rope",
    "Tap",
    "Tie",
    "Tree",
    "Value",
    "VocabularyMap",
    "attention_block",
    "convert",
    "first_of",
    "hookimpl",
    "moe",
    "swiglu",
    "trunk_outputs",
    "turn",
]
