"""Links: which role reads which role's taps, and the inboxes in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import F32
from mtpcore.backends.finite import find_not_finite
from mtpcore.boundary.arguments import read, read_below
from mtpcore.boundary.arrays import RowsLike, rows_of
from mtpcore.declarations.spec import DrafterSpec, Feed, Link, Tap
from mtpcore.errors import BatchError, GraphError, LinkError, spell
from mtpcore.graph import Program
from mtpcore.links.inbox import Inbox
from mtpcore.links.sources import InboxSource, ZeroSource
from mtpcore.links.whole import WholeSequences
from mtpcore.runtime.admission import SlotSource
from mtpcore.runtime.arrival import bring
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner, Tapped

__all__ = ["Links", "role_of"]

Slot = tuple[str, str]
_ANOTHER_TARGET = "link the target that the drafter was made for"


class Links:
    """The links of a Cross; rows are addressed by (sequence, place), never by batch row.

    Nothing is asked of the contexts' graphs before ``apply``: links that do not fit together leave
    them as they are.
    """

    def __init__(self, runners: Mapping[str, GraphRunner]) -> None:
        self._runners = runners
        self._tapped: dict[str, Tapped] = {}
        self._sources: dict[Slot, SlotSource] = {}
        self._joined: dict[Slot, list[Link]] = {}
        self._readers: dict[str, frozenset[str]] = {}
        self._inboxes: dict[Slot, Inbox] = {}
        self._whole: dict[Slot, WholeSequences] = {}
        self._n_delivered: Counter[Slot] = Counter()

    def __iter__(self) -> Iterator[Link]:
        return (link for joined in self._joined.values() for link in joined)

    @property
    def boxes(self) -> Iterable[Inbox]:
        """Every inbox; what whole sequences become is the reader's own."""
        return self._inboxes.values()

    def inboxes(self, role: str) -> dict[str, Inbox]:
        """Return a role's inboxes by slot."""
        return {slot: box for (dst, slot), box in self._inboxes.items() if dst == role}

    def connect(self, link: Link) -> None:
        """Add a link; several to one slot are joined along the last axis, in order.

        Raises
        ------
        LinkError
            Unknown roles, slots or widths, or the source holds tokens whose rows were not kept.
        GraphError
            The source's graph does not offer the tap.
        """
        where = f"{link.src}.{link.tap} -> {link.dst}.{link.slot}"
        for role in (link.src, link.dst):
            if role not in self._runners:
                raise LinkError(
                    "no such role", where=where, wanted=", ".join(self._runners), got=role
                )
        src, dst = self._runners[link.src], self._runners[link.dst]
        if link.slot not in dst.program.inputs:
            raise LinkError("no such slot", where=where, wanted=", ".join(dst.program.inputs))
        tapped = self._tapped.get(link.src) or src.with_taps(())
        if _spelling(link.tap) not in tapped.program.outputs:
            tapped = src.with_taps((*tapped.taps, Tap.parse(link.tap)))
        key = (link.dst, link.slot)
        joined = [*self._joined.get(key, []), link]
        kinds = {(other.src, other.pairing, other.missing) for other in joined}
        if len(kinds) > 1:
            raise LinkError(
                "links that join in a slot have one source, one pairing and one kind of gaps",
                where=where,
            )
        have = sum(_width(tapped.program, other) for other in joined)
        want = int(dst.program.values[dst.program.inputs[link.slot]].shape[1])
        if have > want:
            raise LinkError("rows are wider than the slot", where=where, wanted=want, got=have)
        is_whole = link.pairing == "whole-sequence"
        if is_whole != (link.slot == dst.program.whole_slot):
            raise LinkError(
                "a slot is read as its graph declares it",
                where=where,
                wanted="one row for each token" if is_whole else "whole-sequence",
                got=link.pairing,
            )
        src.check_taps(tapped)
        self._tapped[link.src], self._joined[key] = tapped, joined
        self._readers.clear()
        if is_whole:
            self._whole[key] = WholeSequences(f"{link.dst}.{link.slot}", link.slot, dst)
        elif key not in self._inboxes:
            n_seq = max(src.n_seq_max, dst.n_seq_max)
            self._inboxes[key] = Inbox(
                f"{link.dst}.{link.slot}",
                want,
                n_seq,
                dst.backend.row_buffer,
                has_gaps=link.missing == "zeros",
            )
            self._sources[key] = InboxSource(self._inboxes[key], link.pairing)

    def collect(self, role: str, drafter: DrafterSpec) -> dict[str, Inbox]:
        """Let the target's rows wait for a drafter without a graph; return its inboxes by slot.

        Raises
        ------
        LinkError, GraphError
            The target's graph does not offer a tap, or it holds tokens whose rows were not kept.
        """
        src = self._runners["llm"]
        owner = f"drafter {drafter.full_name}"
        for feed in drafter.feeds:
            links = [
                Link(src="llm", tap=tap, dst=role, slot=feed.slot, pairing=feed.pairing)
                for tap in feed.taps
            ]
            try:
                tapped = self._tapped.get("llm") or src.with_taps(())
                tapped = src.with_taps((*tapped.taps, *(Tap.parse(tap) for tap in feed.taps)))
                src.check_taps(tapped)
            except (GraphError, LinkError) as error:
                raise error.at(owner, fix=_ANOTHER_TARGET) from None
            self._tapped["llm"] = tapped
            key, width = (role, feed.slot), sum(_width(tapped.program, link) for link in links)
            make = src.backend.row_buffer
            self._joined[key] = links
            self._inboxes[key] = Inbox(f"{role}.{feed.slot}", width, src.n_seq_max, make)
        self._readers.clear()
        return self.inboxes(role)

    def apply(self) -> None:
        """Let the contexts hand out and read what the links ask for."""
        for role, tapped in self._tapped.items():
            self._runners[role].set_taps(tapped)
        for (role, slot), source in self._sources.items():
            self._runners[role].sources[slot] = source

    def declare(self, role: str, first: str = "") -> None:
        """Make the links that a drafter's declaration asks for.

        Parameters
        ----------
        role : str
        first : str, optional
            The role of the drafter's first head, where it has several. The links of its further
            graphs come with that one.

        Raises
        ------
        LinkError, GraphError
            As ``connect``, or the taps of a feed together are narrower than its slot.
        """
        runner = self._runners[role]
        drafter = runner.drafter
        assert drafter is not None
        first, from_target = first or role, drafter.heads.hidden_from == "target"
        back = runner.head if from_target else 0
        owner = f"drafter {drafter.full_name}"
        for feed in drafter.feeds:
            src, dst = (role_of(graph, first, drafter) for graph in (feed.src, feed.graph))
            if src == first:  # a drafter hands over what it makes itself
                continue
            if not feed.graph:
                dst = role
                if runner.head and not from_target and runner.memory is None:
                    continue  # a head without a memory reads what the one before makes
            elif runner.head:
                continue
            if not feed.taps:
                assert isinstance(feed.width, int)
                self._sources[dst, feed.slot] = ZeroSource(feed.width)
                continue
            self._declare_feed(feed, src, dst, owner)
            box = self._inboxes[dst, feed.slot]
            self._sources[dst, feed.slot] = InboxSource(box, feed.pairing, back)

    def declare_target(self) -> None:
        """Make the links from further graphs of the target's declaration, where they have a role.

        Raises
        ------
        LinkError, GraphError
            As ``declare``.
        """
        target = self._runners["llm"]
        spec = target.model.spec
        for feed in spec.feeds if spec is not None and target.drafter is None else ():
            source = self._runners.get(feed.src)
            if feed.graph or source is None or source.model is not target.model:
                continue
            if source.drafter is None and source.graph_type.name == feed.src:
                owner = spec.full_name if spec else ""
                self._declare_feed(feed, feed.src, "llm", owner)

    def _declare_feed(self, feed: Feed, src: str, dst: str, owner: str) -> None:
        """Make the links of a feed, which fill its slot."""
        for tap in feed.taps:
            link = Link(
                src=src,
                tap=tap,
                dst=dst,
                slot=feed.slot,
                pairing=feed.pairing,
                missing=feed.missing,
            )
            try:
                self.connect(link)
            except (GraphError, LinkError) as error:
                raise error.at(owner, fix=_ANOTHER_TARGET) from None
        program = self._tapped[src].program
        have = sum(_width(program, link) for link in self._joined[dst, feed.slot])
        reader = self._runners[dst].program
        want = int(reader.values[reader.inputs[feed.slot]].shape[1])
        if have != want:
            raise LinkError(
                "rows are narrower than the slot",
                where=f"{owner}: {src} -> {dst}.{feed.slot}",
                wanted=want,
                got=have,
                fix=_ANOTHER_TARGET,
            )

    def post(self, role: str, output: Output, rows: Mapping[int, NDArray[np.intp]]) -> None:
        """Deliver rows that ``role`` has made: of each sequence some that continue it."""
        posts, not_finite = [], dict[tuple[str, ...], list[int]]()
        for key, joined in self._joined.items():
            if joined[0].src != role or not rows:
                continue
            names = tuple(_spelling(link.tap) for link in joined)
            taps = [output.as_computed(name) for name in names]
            if names not in not_finite:  # of all sequences, and for all heads, at once
                not_finite[names] = find_not_finite(taps)
            found = not_finite[names]
            for seq, indices in rows.items():
                begin, end = int(indices[0]), int(indices[-1]) + 1
                which = slice(begin, end) if end - begin == len(indices) else indices
                parts = [tap[which] for tap in taps]
                bad = np.flatnonzero(np.isin(indices, found)).tolist() if found else []
                posts.append((key, seq, int(output.place[begin]), parts, bad))
        for key, seq, place, parts, bad in posts:
            self._deliver(key, seq, place, parts, bad)

    def _deliver(
        self, key: Slot, seq: int, place: int, parts: Sequence[F32], bad: Sequence[int]
    ) -> None:
        """Give rows to what takes those of a slot."""
        receiver = self._whole[key] if key in self._whole else self._inboxes[key]
        receiver.put(seq, place, *parts, bad=bad)
        self._n_delivered[key] += len(parts[0])

    def n_delivered(self, link: Link) -> int:
        """Return how many rows a link has brought, those of acts that were undone included."""
        return self._n_delivered[link.dst, link.slot]

    def feed(
        self, role: str, tap: str | Sequence[str], seq: int, place: int, rows: RowsLike
    ) -> None:
        """Deliver rows from outside as if ``role`` had made them; see ``Cross.feed``."""
        hidden = rows_of(rows, "fed rows")
        role = read(role, str, "a role is a name", wanted="a text")
        one_or_more: str | list[str] = read(tap, str | list[str], "no taps", wanted="their names")
        taps = [one_or_more] if isinstance(one_or_more, str) else one_or_more
        where = f"{role}.{', '.join(taps)}, sequence {seq}, place {spell(place)}"
        refusal = "fed rows are finite and have two axes"
        if hidden.ndim != 2:
            raise BatchError(refusal, where=where, got=hidden.shape)
        n_ctx = self._runners[role].n_ctx if role in self._runners else 0
        end = n_ctx - len(hidden) + 1
        place = read_below(place, end, "fed rows lie outside the context", where=where)
        keys = [
            key
            for key, joined in self._joined.items()
            if [(link.src, link.tap) for link in joined] == [(role, name) for name in taps]
        ]
        if not keys:
            raise LinkError(
                "nothing reads this tap alone",
                where=where,
                got=", ".join(f"{link.src}.{link.tap}" for link in self) or "no links",
            )
        fed = [bring(hidden, self._runners[role].backend) for role, _ in keys]
        for key, (brought, bad) in zip(keys, fed, strict=True):
            if bad:
                raise BatchError(refusal, where=where, got=f"row {bad[0]} is not finite")
            self._deliver(key, seq, place, (brought,), bad)

    def readers(self, role: str) -> frozenset[str]:
        """Return the roles that read what ``role`` makes, also through others."""
        if role not in self._readers:
            self._readers[role] = frozenset(self._find_readers(role))
        return self._readers[role]

    def _find_readers(self, role: str) -> set[str]:
        readers: set[str] = set()
        fresh = {role}
        while fresh:
            readers |= fresh
            fresh = {link.dst for link in self if link.src in readers} - readers
        return readers - {role}

    def rewind(self, seq: int, n: int) -> None:
        """Forget the rows that the target and its readers made from place ``n`` on."""
        sources = {"llm", *self.readers("llm")}
        for key, box in self._inboxes.items():
            if self._joined[key][0].src in sources:
                box.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Copy a sequence's waiting rows."""
        for box in self._inboxes.values():
            box.fork(seq, new)

    def remove(self, seq: int) -> None:
        """Forget a sequence's waiting rows."""
        for box in self._inboxes.values():
            box.remove(seq)


def _width(program: Program, link: Link) -> int:
    """Return the width of the rows that a link brings from a program."""
    return int(program.shape(_spelling(link.tap))[1])


@cache
def _spelling(tap: str) -> str:
    """Return a tap as outputs name it."""
    return str(Tap.parse(tap))


def role_of(graph: str, role: str, drafter: DrafterSpec) -> str:
    """Return the role that a feed's ``src`` or ``graph`` means, for the drafter in ``role``."""
    if graph == "target":
        return "llm"
    return role if graph in ("", "draft") else f"{role}_{graph}"
