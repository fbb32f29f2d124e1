"""Drafting with several heads: each drafts one step and has a memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import Choices
from mtpcore.batch import Batch
from mtpcore.context import Context
from mtpcore.cross.drafters import DraftJob, followed_memory, spell_differences, warn_not_finite
from mtpcore.cross.feeders import sound_places
from mtpcore.cross.vocabulary import read_vocabulary
from mtpcore.errors import LinkError
from mtpcore.spec import DrafterSpec, Heads

__all__ = ["HeadDrafter", "find_heads", "head_role", "n_heads"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class HeadDrafter:
    """Head t makes draft t, from all accepted entries and the rows drafted so far.

    Each head's memory holds the entries of the accepted tokens, made of the target's rows. To draft
    it reads what it lacks of them, the pending token and the drafts so far; row j of these is fed
    with what head j - 1 made in this round, or with the target's rows, as the declaration says.
    Afterwards every head goes back to the accepted entries. (llama.cpp chains heads so; SGLang
    feeds the target's rows.)

    The further heads are roles of their own that read the target: what the Cross does to those it
    does to them, and to the first head through this object.

    Raises
    ------
    LinkError
        The declaration asks for what this loop cannot do.
    """

    def __init__(self, name: str, contexts: Sequence[Context]) -> None:
        spec = contexts[0].drafter
        assert spec is not None
        self.name, self.contexts, self.spec = name, tuple(contexts), spec
        self._check()
        self._fed_by_target = spec.heads.hidden_from == "target"
        self._ids = read_vocabulary(contexts[0])
        self._later = any(f.pairing == "next-token" and f.first == "none" for f in spec.feeds)
        self.paused = 0

    def _check(self) -> None:
        """Refuse what this loop cannot follow."""
        if self.spec.shape == "tree":
            raise LinkError(
                "a drafter with a head for each step drafts chains, no trees",
                where=f"drafter {self.spec.name!r} of plugin {self.spec.plugin!r}",
                fix="leave tree= (--draft-tree) out",
            )
        heads = Heads(
            count=len(self.contexts),
            order="each-step",
            rereads=self.spec.heads.rereads,
            hidden_from=self.spec.heads.hidden_from,
        )
        kv = followed_memory(self.spec.kv, self.contexts[0].program, per_head=True)
        wanted = DrafterSpec(name=self.spec.name, fit=self.spec.fit, heads=heads, kv=kv)
        names = ["shape", "kv", "heads", "block", "tree", "vocabulary", "positions", "graphs"]
        names.append("first_embedding")
        if heads.hidden_from == "previous" and not heads.rereads:
            heads = msgspec.structs.replace(heads, rereads=True)
            wanted = msgspec.structs.replace(wanted, heads=heads)
        possible, got = spell_differences(self.spec, wanted, names)
        if got:
            raise LinkError(
                "this loop over heads cannot do what the declaration asks for",
                where=f"drafter {self.spec.name!r} of plugin {self.spec.plugin!r}",
                wanted=possible,
                got=got,
                fix="declare what it can do, or draft with a Proposer",
            )

    def _first(self, head: int) -> int:
        """Return the place of a head's first entry."""
        return self._later * (1 + head * self._fed_by_target)

    def _lacking(self, head: int, seq: int, n: int) -> range:
        """Return the places of accepted entries that a head lacks."""
        return range(self.contexts[head].length(seq) or self._first(head), n)

    def settle(self, head: int, seq: int, history: I32) -> None:
        """Let a head hold exactly the entries of the tokens that the target has processed."""
        context = self.contexts[head]
        places = self._lacking(head, seq, len(history))
        places = sound_places(context, self.spec.feeds, seq, places)
        if places:
            tokens = history[places.start : places.stop]
            context.process(Batch(tokens, seq=seq, pos=places.start, outputs="none"))

    def draft(self, jobs: list[DraftJob]) -> dict[int, list[int]]:
        """Draft up to one token a head for each job; sequences leave the loop one by one.

        A sequence with a non-finite hidden row gets no further drafts.
        """
        drafts: dict[int, list[int]] = {job.seq: [] for job in jobs}
        made: dict[int, dict[str, list[F32]]] = {job.seq: {} for job in jobs}
        going = [job for job in jobs if job.k > 0]
        for head in range(min(len(self.contexts), self.spec.limit)):
            going = [job for job in going if self._is_sound(head, job)]
            if not going:
                break
            going = self._step(head, going, drafts, made)
        return drafts

    def _is_sound(self, head: int, job: DraftJob) -> bool:
        n = len(job.history) - 1
        places = self._lacking(head, job.seq, n + 1 + head * self._fed_by_target)
        if not places:
            return False  # the text is shorter than what the head looks back
        sound = sound_places(self.contexts[head], self.spec.feeds, job.seq, places)
        if sound != places:
            self._pause(job.seq, sound.stop)
        return sound == places

    def _pause(self, seq: int, place: int) -> None:
        """Count a sequence that gets no further draft; warn of the first one."""
        if not self.paused:
            warn_not_finite(self.name, seq, place)
        self.paused += 1

    def _step(
        self,
        head: int,
        jobs: list[DraftJob],
        drafts: Mapping[int, list[int]],
        made: Mapping[int, dict[str, list[F32]]],
    ) -> list[DraftJob]:
        """Let a head add a draft to each sequence; return the jobs that go on."""
        context = self.contexts[head]
        batch = self._batch(head, jobs, drafts, made)
        try:
            output = context.process(batch, self._choices(jobs, drafts))
        finally:
            for job in jobs:
                n = len(job.history) - 1
                if context.length(job.seq) > n:
                    context.forget(job.seq, n)
        going = []
        for at, job in enumerate(jobs):  # in whose order the outputs come
            newest = int(output.rows[job.seq][-1])
            text = np.concatenate([job.history, np.asarray(drafts[job.seq], np.int32)])
            if output.chosen is not None:
                token, probability = int(output.chosen[at]), 1.0
            else:
                token, probability = job.sampler.choose_with_probability(
                    output.logits[at], text, job.n_prompt, len(text), self._ids
                )
            if probability < job.p_min:
                continue
            drafts[job.seq].append(token)
            if head + 1 == min(job.k, self.spec.limit):
                continue
            fed = {f.slot: output.tap(f.recycle)[newest] for f in self.spec.feeds if f.recycle}
            if self._fed_by_target or all(np.isfinite(row).all() for row in fed.values()):
                going.append(job)
            else:
                self._pause(job.seq, len(text))
            for slot, row in fed.items():
                made[job.seq].setdefault(slot, []).append(row)
        return going

    def _choices(self, jobs: list[DraftJob], drafts: Mapping[int, list[int]]) -> Choices | None:
        """Return who chooses while logits are made; None where these are needed."""
        if any(job.p_min > 0 or not job.sampler.is_race for job in jobs):
            return None
        return Choices(
            samplers=[job.sampler for job in jobs],
            indices=[len(job.history) + len(drafts[job.seq]) for job in jobs],
            token_ids=self._ids,
        )

    def _batch(
        self,
        head: int,
        jobs: list[DraftJob],
        drafts: Mapping[int, list[int]],
        made: Mapping[int, dict[str, list[F32]]],
    ) -> Batch:
        """Return the rows that a head reads: accepted entries it lacks, pending token, drafts."""
        context = self.contexts[head]
        tokens: list[int] = []
        seqs: list[int] = []
        places: list[int] = []
        slots: dict[str, list[F32]] = {feed.slot: [] for feed in self.spec.feeds}
        for job in jobs:
            n = len(job.history) - 1
            lacking = self._lacking(head, job.seq, n)
            text = [*job.history.tolist(), *drafts[job.seq]]
            at = range(lacking.start, len(text))
            tokens += text[at.start :]
            seqs += [job.seq] * len(at)
            places += at
            known = at if self._fed_by_target else range(at.start, n + 1)
            for feed in self.spec.feeds:
                where = np.asarray(known, np.int32)
                rows = context.sources[feed.slot](np.full(len(where), job.seq, np.int32), where)
                slots[feed.slot].append(rows)
                if not self._fed_by_target:
                    slots[feed.slot] += [row[None] for row in made[job.seq].get(feed.slot, ())]
        return Batch(
            tokens,
            seq=seqs,
            pos=places,
            outputs="last",
            slots={slot: np.concatenate(rows) for slot, rows in slots.items()},
        )

    def rewind(self, seq: int, n: int) -> None:
        """Forget the first head's entries from place ``n`` on."""
        context = self.contexts[0]
        if context.length(seq) > n:
            context.forget(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` be a copy of ``seq`` in the first head."""
        self.contexts[0].copy(seq, new)

    def remove(self, seq: int) -> None:
        """Forget a sequence in the first head."""
        self.contexts[0].forget(seq, 0)


def head_role(role: str, head: int) -> str:
    """Return the role of a head of the drafter in ``role``."""
    return f"{role}_head{head}" if head else role


def find_heads(role: str, contexts: Mapping[str, Context]) -> dict[str, Context]:
    """Return the contexts of the heads of the drafter in ``role``, by role in their order.

    Raises
    ------
    LinkError
        One is missing, or runs another graph.
    """
    context = contexts[role]
    spec = context.drafter
    assert spec is not None
    found = {role: context}
    for head in range(1, n_heads(spec)):
        name = head_role(role, head)
        one = contexts.get(name)
        if (
            one is None
            or one.head != head
            or one.drafter != spec
            or one.graph_type != context.graph_type
            or one.model is not context.model
        ):
            raise LinkError(
                "a head of the drafter has no context",
                where=f"role {role}, drafter {spec.name!r}",
                wanted=f"head {head} in the role {name}",
                got=", ".join(contexts) if one is None else repr(one),
                fix=f"{name}=Context(model, graph_type={spec.graph_type!r}, "
                f"drafter={spec.name!r}, head={head}), or let link() make the contexts",
            )
        found[name] = one
    return found


def n_heads(spec: DrafterSpec) -> int:
    """Return how many heads have contexts of their own."""
    assert isinstance(spec.heads.count, int)
    return spec.heads.count if spec.kv.per_head else 1
