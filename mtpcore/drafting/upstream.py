"""Graphs between target and drafter: they compute the drafter's rows from the target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import DrafterSpec, Feed
from mtpcore.drafting.batch_rows import BatchRows
from mtpcore.errors import LinkError
from mtpcore.links.inbox import Inbox
from mtpcore.links.links import role_of
from mtpcore.runtime.runner import GraphRunner

__all__ = [
    "UpstreamGraphs",
    "find_graph",
    "find_heads",
    "find_upstream",
    "finite_places",
    "head_role",
    "n_heads",
    "order_graphs",
]

I32 = NDArray[np.int32]


class UpstreamGraphs:
    """A drafter's further graphs.

    They run lazily, for the places that they lack, before the graph that drafts: row p of each is
    made of rows p of what it reads and, where it reads tokens, of token p.

    Parameters
    ----------
    role : str
        The drafter's.
    spec : DrafterSpec
    runners : mapping of str to GraphRunner
        The further graphs by role, each after those that it reads.
    inboxes : mapping of str to (mapping of str to Inbox)
        The inboxes of their slots; what was read is given up.
    """

    def __init__(
        self,
        role: str,
        spec: DrafterSpec,
        runners: Mapping[str, GraphRunner],
        inboxes: Mapping[str, Mapping[str, Inbox]],
    ) -> None:
        self.runners = runners
        self._spec, self._inboxes = spec, inboxes
        self._sources = {
            feed.src: runners.get(role_of(feed.src, role, spec)) for feed in spec.feeds
        }

    def reach(self, feed: Feed, seq: int) -> int | None:
        """Return before which place a feed has rows of a sequence; None: as far as the target."""
        source = self._sources[feed.src]
        return source.lengths[seq] if source else None

    def fill(self, texts: Mapping[int, I32]) -> None:
        """Make the rows of every place of these sequences, by seq their tokens int32[n].

        Rows end before the first place at which something read is not finite.
        """
        for role, runner in self.runners.items():
            feeds = [f for f in self._spec.feeds if f.graph == runner.graph_type.name]
            rows = BatchRows(runner)
            for seq, text in texts.items():
                reaches = [self.reach(feed, seq) for feed in feeds]
                end = min([len(text), *(n for n in reaches if n is not None)])
                places = finite_places(runner, feeds, seq, range(runner.lengths[seq], end))
                tokens = text[places.start : places.stop].tolist()
                rows.add(seq, tokens, places, [False] * len(places))
            if len(rows):
                runner.process(rows.batch())
            for seq in texts:
                for box in self._inboxes[role].values():
                    box.release(seq, runner.lengths[seq])


def find_upstream(role: str, runners: Mapping[str, GraphRunner]) -> dict[str, GraphRunner]:
    """Return the runners of the further graphs of the drafter in ``role``, in running order.

    Raises
    ------
    LinkError
        One is missing or runs another graph; or as ``order_graphs``.
    """
    runner = runners[role]
    spec = runner.drafter
    assert spec is not None
    return dict(find_graph(graph, role, runners) for graph in order_graphs(spec))


def find_graph(
    graph: str, role: str, runners: Mapping[str, GraphRunner], head: int = 0
) -> tuple[str, GraphRunner]:
    """Return the role of a graph of the drafter in ``role``, or of a later head, and its runner.

    Raises
    ------
    LinkError
        It is missing, runs another graph, or stores its rows elsewhere.
    """
    runner = runners[role]
    spec = runner.drafter
    assert spec is not None
    name = head_role(role, head) if head else role_of(graph, role, spec)
    candidate = runners.get(name)
    host = runner if spec.block and spec.block.entries == graph else None
    if (
        candidate is None
        or (candidate.graph_type.name, candidate.head) != (graph, head)
        or candidate.drafter != spec
        or candidate.model is not runner.model
        or candidate.host is not host
    ):
        what, given = f"graph {graph!r}", f"graph_type={graph!r}, drafter={spec.name!r}"
        if head:
            what, given = f"head {head}", f"{given}, head={head}"
        shared = f", host={role}" if host else ""
        raise LinkError(
            f"a {what.split()[0]} of the drafter has no context",
            where=f"role {role}, drafter {spec.name!r}",
            wanted=f"its {what} in the role {name}{shared}",
            got=", ".join(runners) if candidate is None else repr(candidate),
            fix=f"{name}=Context(model, {given}{shared}), or let link() make the contexts",
        )
    return name, candidate


def find_heads(role: str, runners: Mapping[str, GraphRunner]) -> dict[str, GraphRunner]:
    """Return the graphs of the heads of the drafter in ``role``, by role in their order.

    Raises
    ------
    LinkError
        One is missing, or runs another graph.
    """
    runner = runners[role]
    assert runner.drafter is not None
    graph, later = runner.graph_type.name, range(1, n_heads(runner.drafter))
    return {role: runner} | dict(find_graph(graph, role, runners, head) for head in later)


def head_role(role: str, head: int) -> str:
    """Return the role of a head of the drafter in ``role``."""
    return f"{role}_head{head}" if head else role


def n_heads(spec: DrafterSpec) -> int:
    """Return how many heads have contexts of their own."""
    assert isinstance(spec.heads.count, int)
    return spec.heads.count if spec.heads.order == "each-step" else 1


def order_graphs(spec: DrafterSpec) -> list[str]:
    """Return a drafter's graphs that run before the one that drafts, each after those it reads.

    Raises
    ------
    LinkError
        A graph cannot run before the one that drafts: it reads that one, itself through others,
        or the row before a token's; or nothing reads it.
    """
    block = spec.block
    feeds = {
        name: [f for f in spec.feeds if f.graph == name]
        for name, _ in spec.graphs
        if block is None or name != block.post_head
    }
    order: list[str] = []
    while ready := [
        name
        for name, mine in feeds.items()
        if name not in order and {f.src for f in mine} <= {"target", *order}
    ]:
        order += ready
    read = {feed.src for feed in spec.feeds} | {block.entries if block else ""}
    for name, mine in feeds.items():
        later = any(f.pairing == "next-token" or f.recycle for f in mine)
        if later or name not in order or name not in read:
            raise LinkError(
                "a further graph that cannot run before the one that drafts",
                where=f"{spec.name}: graph {name!r}",
                wanted="same-token feeds from the target or from such graphs, and a reader",
                got=", ".join(f"{f.src} -> {f.slot} ({f.pairing})" for f in mine) or "no feeds",
            )
    return order


def finite_places(runner: GraphRunner, feeds: Sequence[Feed], seq: int, places: range) -> range:
    """Return the places before the first one for which a row to be read is not finite."""
    if not places:
        return places
    ends = [runner.sources[feed.slot].finite_until(seq, places) for feed in feeds]
    return range(places.start, min(ends, default=places.stop))
