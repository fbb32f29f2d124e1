"""GraphType: names of graphs, those of mtpcore and those of plugins.

Encode and decode are both ``process``; a graph type only says which graph of a model a context
runs.
"""

from __future__ import annotations

from typing import ClassVar

from mtpcore.errors import GraphError, spell

__all__ = ["GraphType"]


class GraphType:
    """The name of a kind of graph: ``llm``, ``draft``, or a name that a plugin gives its own graph.

    Equal names are equal types. ``Model.program`` refuses a graph that the model does not have.

    Parameters
    ----------
    name : str or GraphType
        An identifier.

    Raises
    ------
    GraphError
        Something else.
    """

    LLM: ClassVar[GraphType]
    DRAFT: ClassVar[GraphType]
    ENCODER: ClassVar[GraphType]
    DECODER: ClassVar[GraphType]

    __slots__ = ("_name",)

    def __init__(self, name: str | GraphType) -> None:
        if isinstance(name, GraphType):
            name = name.name
        if not isinstance(name, str) or not str.isidentifier(name):
            raise GraphError("a graph type is named by an identifier", got=spell(name))
        self._name = name

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return self._name == other._name if isinstance(other, GraphType) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"GraphType({self._name!r})"


GraphType.LLM = GraphType("llm")
GraphType.DRAFT = GraphType("draft")
GraphType.ENCODER = GraphType("encoder")
GraphType.DECODER = GraphType("decoder")
