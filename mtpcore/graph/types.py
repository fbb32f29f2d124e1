"""Names of graphs: public, and open to plugins.

Encode and decode are both ``process``; a graph type only says which graph of a model a context
runs.
"""

from __future__ import annotations

from typing import ClassVar

from mtpcore.errors import GraphError, spell

__all__ = ["GraphType"]


class GraphType:
    """The name of a kind of graph; equal names are the same object.

    ``GraphType("llm")`` returns a known type and raises ``GraphError`` for an unknown one;
    ``GraphType.register("fusion")`` adds one.
    """

    LLM: ClassVar[GraphType]
    DRAFT: ClassVar[GraphType]
    ENCODER: ClassVar[GraphType]
    DECODER: ClassVar[GraphType]

    _known: ClassVar[dict[str, GraphType]] = {}
    name: str

    def __new__(cls, name: str | GraphType) -> GraphType:
        """Return the graph type called ``name``."""
        if isinstance(name, GraphType):
            return name
        if not isinstance(name, str) or name not in cls._known:
            raise GraphError(
                "unknown graph type", where=spell(name), wanted=", ".join(sorted(cls._known))
            )
        return cls._known[name]

    @classmethod
    def register(cls, name: str) -> GraphType:
        """Return the graph type called ``name``, adding it where it is new."""
        if not isinstance(name, str) or not name.isidentifier():
            raise GraphError("a graph type is named by an identifier", got=spell(name))
        if name not in cls._known:
            graph_type = object.__new__(cls)
            graph_type.name = name
            cls._known[name] = graph_type
        return cls._known[name]

    def __repr__(self) -> str:
        return f"GraphType({self.name!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return GraphType.register, (self.name,)


GraphType.LLM = GraphType.register("llm")
GraphType.DRAFT = GraphType.register("draft")
GraphType.ENCODER = GraphType.register("encoder")
GraphType.DECODER = GraphType.register("decoder")
