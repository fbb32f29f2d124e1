"""Graphs: their types, the builder that writes them, the rules they keep, and drawings of them."""

from mtpcore.graph.builder import GraphBuilder
from mtpcore.graph.draw import to_dot, to_mermaid
from mtpcore.graph.inputs import Inputs, Outputs
from mtpcore.graph.program import OUTPUTS, TOKENS, MemoryLayer, Node, Program, Value, Weight
from mtpcore.graph.slicing import slice_output
from mtpcore.graph.types import GraphType

__all__ = [
    "OUTPUTS",
    "TOKENS",
    "GraphBuilder",
    "GraphType",
    "Inputs",
    "MemoryLayer",
    "Node",
    "Outputs",
    "Program",
    "Value",
    "Weight",
    "slice_output",
    "to_dot",
    "to_mermaid",
]
