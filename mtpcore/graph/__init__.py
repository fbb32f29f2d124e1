"""Graphs: their types, the builder with which they are written, their rules, and drawings."""

from mtpcore.graph.builder import GraphBuilder
from mtpcore.graph.draw import to_dot, to_mermaid
from mtpcore.graph.inputs import Inputs, Outputs
from mtpcore.graph.program import (
    OUTPUTS,
    TOKENS,
    ConvLayer,
    DeltaLayer,
    MemoryLayer,
    Node,
    Program,
    StateLayer,
    Value,
    Weight,
)
from mtpcore.graph.slicing import slice_output
from mtpcore.graph.types import GraphType

__all__ = [
    "OUTPUTS",
    "TOKENS",
    "ConvLayer",
    "DeltaLayer",
    "GraphBuilder",
    "GraphType",
    "Inputs",
    "MemoryLayer",
    "Node",
    "Outputs",
    "Program",
    "StateLayer",
    "Value",
    "Weight",
    "slice_output",
    "to_dot",
    "to_mermaid",
]
