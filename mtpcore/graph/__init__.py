"""Graphs: their types, the builder with which they are written, their rules, and drawings."""

from mtpcore.graph.adapting import (
    JOINT,
    adapt_products,
    adapted_products,
    adapted_tables,
    adapted_vectors,
)
from mtpcore.graph.builder import GraphBuilder
from mtpcore.graph.draw import to_dot, to_mermaid
from mtpcore.graph.exposing import ProductInput, delivered_products, expose_products
from mtpcore.graph.inputs import Inputs, Outputs
from mtpcore.graph.program import (
    OUTPUTS,
    SOURCES,
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
from mtpcore.graph.splitting import split_sources
from mtpcore.graph.types import GraphType

__all__ = [
    "JOINT",
    "OUTPUTS",
    "SOURCES",
    "TOKENS",
    "ConvLayer",
    "DeltaLayer",
    "GraphBuilder",
    "GraphType",
    "Inputs",
    "MemoryLayer",
    "Node",
    "Outputs",
    "ProductInput",
    "Program",
    "StateLayer",
    "Value",
    "Weight",
    "adapt_products",
    "adapted_products",
    "adapted_tables",
    "adapted_vectors",
    "delivered_products",
    "expose_products",
    "slice_output",
    "split_sources",
    "to_dot",
    "to_mermaid",
]
