"""Links between contexts: who reads whose rows, and the inboxes in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.batch import numbers
from mtpcore.context import Context, RowSource
from mtpcore.cross.inbox import Inbox
from mtpcore.errors import BatchError, LinkError
from mtpcore.output import Output
from mtpcore.spec import DrafterSpec, Link, Tap

__all__ = ["Links", "role_of"]

Slot = tuple[str, str]


class Links:
    """The links of a Cross; rows are addressed by (sequence, position), never by batch row."""

    def __init__(self, contexts: Mapping[str, Context]) -> None:
        self._contexts = contexts
        self._joined: dict[Slot, list[Link]] = {}
        self._inboxes: dict[Slot, Inbox] = {}

    def __iter__(self) -> Iterator[Link]:
        return (one for joined in self._joined.values() for one in joined)

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
            if role not in self._contexts:
                raise LinkError(
                    "no such role", where=where, wanted=", ".join(self._contexts), got=role
                )
        src, dst = self._contexts[link.src], self._contexts[link.dst]
        if link.slot not in dst.program.inputs:
            raise LinkError("no such slot", where=where, wanted=", ".join(dst.program.inputs))
        tap = Tap.parse(link.tap)
        made = src.program
        if str(tap) not in made.outputs:
            made = src.model.program(src.graph_type, taps=[tap], drafter=src.drafter)
        key = (link.dst, link.slot)
        joined = [*self._joined.get(key, []), link]
        if any(one.src != link.src or one.pairing != link.pairing for one in joined):
            raise LinkError(
                "links that join in a slot have one source and one pairing", where=where
            )
        have = int(made.shape(str(tap))[1]) + sum(self._width(one) for one in joined[:-1])
        want = int(dst.program.values[dst.program.inputs[link.slot]].shape[1])
        if have > want:
            raise LinkError("rows are wider than the slot", where=where, wanted=want, got=have)
        if str(tap) not in src.program.outputs:
            src.add_taps([tap])
        self._joined[key] = joined
        if key not in self._inboxes:
            n_seq = max(src.n_seq_max, dst.n_seq_max)
            self._inboxes[key] = Inbox(f"{link.dst}.{link.slot}", want, n_seq)
            dst.sources[link.slot] = source(self._inboxes[key], link.pairing, "none")

    def declare(self, role: str) -> None:
        """Make the links that a drafter's declaration asks for.

        Raises
        ------
        LinkError
            As ``connect``, or the taps of a feed together are narrower than its slot.
        """
        context = self._contexts[role]
        drafter = context.drafter
        assert drafter is not None
        back = context.head if drafter.heads.hidden_from == "target" else 0
        for feed in drafter.feeds:
            src, dst = (role_of(graph, role, drafter) for graph in (feed.src, feed.graph))
            for tap in feed.taps:
                self.connect(Link(src=src, tap=tap, dst=dst, slot=feed.slot, pairing=feed.pairing))
            box = self._inboxes[dst, feed.slot]
            have = sum(self._width(one) for one in self._joined[dst, feed.slot])
            if have != box.width:
                raise LinkError(
                    "rows are narrower than the slot",
                    where=f"{src} -> {box.name}",
                    wanted=box.width,
                    got=have,
                )
            self._contexts[dst].sources[feed.slot] = source(box, feed.pairing, feed.first, back)

    def _width(self, link: Link) -> int:
        return int(self._contexts[link.src].program.shape(str(Tap.parse(link.tap)))[1])

    def post(self, role: str, output: Output, rows: Mapping[int, NDArray[np.intp]]) -> None:
        """Deliver rows that ``role`` has made: of each sequence some that continue it."""
        posts = []
        for key, joined in self._joined.items():
            if joined[0].src != role:
                continue
            taps = [output.tap(str(Tap.parse(one.tap))) for one in joined]
            made = taps[0] if len(taps) == 1 else np.concatenate(taps, axis=1)
            for seq, mine in rows.items():
                posts.append((self._inboxes[key], seq, int(output.pos[mine[0]]), made[mine]))
        for box, seq, pos, found in posts:
            box.put(seq, pos, found)

    def feed(self, role: str, tap: str | Sequence[str], seq: int, pos: int, rows: Any) -> None:
        """Deliver rows from outside as if ``role`` had made them; see ``Cross.feed``."""
        found = numbers(rows, "fed rows")
        taps = [tap] if isinstance(tap, str) else list(tap)
        where = f"{role}.{', '.join(taps)}, sequence {seq}, position {pos}"
        if found.ndim != 2 or not np.isfinite(found).all():
            raise BatchError("fed rows are finite and have two axes", where=where, got=found.shape)
        n_ctx = self._contexts[role].n_ctx if role in self._contexts else 0
        whole = isinstance(pos, (int, np.integer)) and not isinstance(pos, bool)
        if not whole or not 0 <= pos <= n_ctx - len(found):
            raise BatchError(
                "fed rows lie outside the context",
                where=where,
                wanted=f"a position in 0..{n_ctx - len(found)}",
                got=repr(pos),
            )
        boxes = [
            self._inboxes[key]
            for key, joined in self._joined.items()
            if [(one.src, one.tap) for one in joined] == [(role, one) for one in taps]
        ]
        if not boxes:
            raise LinkError(
                "nothing reads this tap alone",
                where=where,
                got=", ".join(f"{one.src}.{one.tap}" for one in self) or "no links",
            )
        for box in boxes:
            box.put(seq, int(pos), found)

    def readers(self, role: str) -> set[str]:
        """Return the roles that read what ``role`` makes, also through others."""
        found: set[str] = set()
        fresh = {role}
        while fresh:
            found |= fresh
            fresh = {one.dst for one in self if one.src in found} - found
        return found - {role}

    def rewind(self, seq: int, n: int) -> None:
        """Forget the rows that the target and its readers made from place ``n`` on."""
        made = {"llm", *self.readers("llm")}
        for key, box in self._inboxes.items():
            if self._joined[key][0].src in made:
                box.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Copy a sequence's waiting rows."""
        for box in self._inboxes.values():
            box.fork(seq, new)

    def remove(self, seq: int) -> None:
        """Forget a sequence's waiting rows."""
        for box in self._inboxes.values():
            box.remove(seq)


def role_of(graph: str, role: str, drafter: DrafterSpec) -> str:
    """Return the role that a feed's ``src`` or ``graph`` means, for the drafter in ``role``."""
    if graph == "target":
        return "llm"
    return role if graph in ("", drafter.graph_type) else f"{role}_{graph}"


def source(box: Inbox, pairing: str, first: str, back: int = 0) -> RowSource:
    """Return what gives a slot its rows: from the inbox, shifted as the pairing says.

    ``back`` is by how many rows more.
    """
    shift = int(pairing == "next-token") + back

    def rows(seq: NDArray[np.int32], place: NDArray[np.int32]) -> NDArray[np.float32]:
        found = np.empty((len(seq), box.width), np.float32)
        for one in dict.fromkeys(seq.tolist()):
            mine = np.flatnonzero(seq == one)
            begin, end = int(place[mine[0]]) - shift, int(place[mine[-1]]) + 1 - shift
            if begin < 0 and first == "zeros":
                found[mine[:-begin]] = 0.0
                mine, begin = mine[-begin:], 0
            found[mine] = box.get(one, begin, max(begin, end))
        return found

    return rows
