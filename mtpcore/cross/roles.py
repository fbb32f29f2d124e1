"""Roles and sequences of a Cross: who is linked with whom, and acts that touch all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.acts.guards import Guard, Storey, act, act_of_all
from mtpcore.acts.journal import Journal, Saved, Transaction
from mtpcore.boundary.arguments import offers, read_below
from mtpcore.boundary.arrays import is_whole
from mtpcore.cross.owners import Owners
from mtpcore.cross.sequence import SequenceState
from mtpcore.cross.verification import RoundRows
from mtpcore.declarations.checks import check_struct
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, Link
from mtpcore.drafting.chain import GraphDrafter
from mtpcore.drafting.drafters import Drafter, ProposerDrafter
from mtpcore.drafting.feeders import Feeders, find_feeders
from mtpcore.drafting.heads import HeadDrafter, find_heads, head_role, n_heads
from mtpcore.drafting.trees import TreeDrafter
from mtpcore.errors import BatchError, CapacityError, LinkError, spell
from mtpcore.links.links import Links
from mtpcore.runtime.admission import check_rewind
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context, Watcher
from mtpcore.runtime.output import Output
from mtpcore.sampling import LogitsProcessor, Sampling, check_sampling

__all__ = ["Roles"]


class Roles:
    """Contexts in named roles, their links, and acts on sequences that touch all roles or none."""

    @act_of_all
    def __init__(self, **roles: Context | Proposer) -> None:
        self.guard = Guard()
        if not isinstance(roles.get("llm"), Context):
            raise LinkError("a Cross has a context in the role llm", got=", ".join(roles))
        contexts = {n: r for n, r in roles.items() if isinstance(r, Context)}
        for name, context in contexts.items():
            if context.owner is not None:
                raise LinkError("context belongs to another Cross", where=name)
        if len({id(c) for c in contexts.values()}) != len(contexts):
            raise LinkError("one context in two roles", got=", ".join(contexts))
        self.contexts: dict[str, Context] = contexts
        self.llm = contexts["llm"]
        for name, context in contexts.items():
            if context.n_seq_max < self.llm.n_seq_max:
                raise LinkError(
                    "a role holds every sequence of the target",
                    where=name,
                    wanted=f"n_seq_max {self.llm.n_seq_max}",
                    got=f"n_seq_max {context.n_seq_max}",
                )
        self.links = Links(contexts)
        self.invalid = 0
        self.choose_seconds = 0.0
        self._states = [SequenceState(self.llm.n_ctx) for _ in range(self.llm.n_seq_max)]
        self._scratch = Scratch(self.llm.model.hparams.n_vocab)
        self.journal, self.owners = Journal(), Owners(self.llm)
        self._round: RoundRows | None = None  # which is being verified
        self._warned = False
        self._paused = 0
        for seq, state in enumerate(self._states):
            state.append(self.llm.length(seq), np.zeros(0, np.int32))
        self.drafters: dict[str, Drafter] = {}
        before = [(c, c.taps, dict(c.sources), c.before_digest) for c in contexts.values()]
        try:
            self._add_drafters(roles)
        except BaseException:
            for one, taps, sources, before_digest in before:
                one.sources, one.before_digest = sources, before_digest
                if one.taps != taps:
                    one.set_taps(taps)
            raise
        for name, context in contexts.items():
            context.owner, context.journal, context.transaction = (
                self,
                self.journal,
                self.transaction,
            )
            context.deliver = self._deliverer(name)
        for context in contexts.values():
            context.guard = self.guard

    def __repr__(self) -> str:
        roles = ", ".join([*self.contexts, *(n for n in self.drafters if n not in self.contexts)])
        return f"{type(self).__name__}({roles})"

    # Links

    def _add_drafters(self, roles: Mapping[str, Context | Proposer]) -> None:
        for name, role in roles.items():  # their order is the order in which they are asked
            if isinstance(role, Context):
                drafter = role.drafter
                if name == "llm" or not drafter or role.graph_type.name != drafter.graph_type:
                    continue
                if n_heads(drafter) > 1:
                    self._add_heads(name, role)
                else:
                    self._add_drafter(name, role)
            elif offers(role, "propose"):
                self.drafters[name] = ProposerDrafter(role, self.guard)
            else:
                raise LinkError(
                    "a role is a Context or a Proposer", where=name, got=type(role).__name__
                )

    def _add_drafter(self, name: str, context: Context) -> None:
        assert context.drafter is not None
        feeding = find_feeders(name, self.contexts)
        self._check_drafter({name: context, **feeding}, context.drafter)
        self.links.declare(name)
        inboxes = {role: self.links.inboxes(role) for role in feeding}
        feeders = Feeders(name, context.drafter, feeding, inboxes)
        shape, tree = context.drafter.shape, context.drafter.tree
        kind = TreeDrafter if shape == "tree" and tree else GraphDrafter
        drafter = kind(name, context, feeders)
        context.before_digest = lambda seq: drafter.settle(seq, self._known(seq))
        for one in feeding.values():
            one.before_digest = lambda seq: feeders.fill({seq: self._known(seq)})
        self.drafters[name] = drafter

    def _add_heads(self, name: str, context: Context) -> None:
        if context.head:  # it comes with the first head
            find_heads(name.removesuffix(head_role("", context.head)), self.contexts)
            return
        assert context.drafter is not None
        heads = find_heads(name, self.contexts)
        self._check_drafter(heads, context.drafter)
        drafter = self.drafters[name] = HeadDrafter(name, list(heads.values()))
        for i, (role, one) in enumerate(heads.items()):
            self.links.declare(role)
            one.before_digest = lambda seq, i=i: drafter.settle(i, seq, self._known(seq))

    def _check_drafter(self, contexts: Mapping[str, Context], spec: DrafterSpec) -> None:
        """Refuse contexts of a drafter that are too small or cannot take its drafts back."""
        for role, one in contexts.items():
            if one.n_ctx < self.llm.n_ctx:
                raise LinkError(
                    "the drafter's context is smaller than the target's",
                    where=role,
                    wanted=f"n_ctx {self.llm.n_ctx}",
                    got=f"n_ctx {one.n_ctx}",
                )
        for one in (self.llm, *contexts.values()):
            if one.memory is not None:
                one.memory.allow_rewind(spec.limit + 1)

    @act(Storey.CROSS)
    def connect(self, link: Link) -> None:
        """Let the rows of a tap of one role feed a slot of another; see ``Links.connect``."""
        if not isinstance(link, Link):
            raise LinkError("connect() takes a Link", got=spell(link))
        check_struct(link, "Link", LinkError)
        self.links.connect(link)

    # Acts

    def transaction(self, seqs: Iterable[int], *things: Saved) -> Transaction:
        """Return an act that may change these sequences in every role, and further things."""
        states = [
            self._states[seq] for seq in seqs if is_whole(seq) and 0 <= seq < len(self._states)
        ]
        return self.journal.transaction(
            [self, *self.contexts.values(), *self.links.boxes, *states, *things]
        )

    def save(self) -> Any:
        """Return what is counted, for ``restore``."""
        paused = [drafter.paused for drafter in self.drafters.values()]
        return self.invalid, self.choose_seconds, self._paused, paused

    def restore(self, saved: Any) -> None:
        """Count what was counted then; no round is under way."""
        self._round = None
        self.invalid, self.choose_seconds, self._paused, paused = saved
        for drafter, n in zip(self.drafters.values(), paused, strict=True):
            drafter.paused = n

    def _deliverer(self, role: str) -> Watcher:
        def deliver(batch: Batch, output: Output) -> None:
            target, told = role == "llm", output.rows
            if target and self._round is not None:  # of a tree the path taken is delivered later
                branching = self._round.branching
                told = {seq: mine for seq, mine in told.items() if seq not in branching}
                self.links.post(role, output, told)
                return
            if batch.parent is not None:
                raise LinkError(
                    "a linked context decides a draft tree at once",
                    where=role,
                    fix="give the tree to verify() of its Cross, or use a context of its own",
                )
            if target:
                for seq, mine in told.items():
                    self._diverge(self._decided(seq), seq, int(batch.tokens[mine[0]]))
            self.links.post(role, output, told)
            if target:
                self._note(batch, output, told)

        return deliver

    def _diverge(self, state: SequenceState, seq: int, token: int) -> None:
        """Forget what drafters made of the pending token where another one takes its place."""
        if token != state.pending:
            for drafter in self.drafters.values():
                drafter.rewind(seq, state.n)

    def _note(self, batch: Batch, output: Output, rows: Mapping[int, NDArray[np.intp]]) -> None:
        wanted = {int(row): i for i, row in enumerate(output.outputs)}
        for seq, mine in rows.items():
            state = self._states[seq]
            state.append(int(output.pos[mine[0]]), batch.tokens[mine])
            newest = wanted.get(int(mine[-1]))
            if newest is None:
                continue
            token = output.chosen_at(newest)
            if token is not None:
                state.set_pending(token)
            else:
                state.last_logits = output.logits_at(newest)

    @act(Storey.CROSS)
    def feed(self, role: str, tap: str | Sequence[str], seq: int, pos: int, rows: Any) -> None:
        """Deliver rows from an outside engine as if ``role`` had made them.

        Parameters
        ----------
        tap : str or sequence of str
            The tap, or those that are joined in one slot, in their order.
        rows : array_like or DLPack, shape (n, width)
            Hidden rows of positions ``pos``, ``pos + 1``, ...

        Raises
        ------
        LinkError, BatchError
            Nothing reads this tap, or the rows do not fit or are not finite.
        """
        self._state(seq)
        with self.transaction((seq,)):
            self.links.feed(role, tap, seq, pos, rows)

    # Sequences

    def _state(self, seq: int) -> SequenceState:
        return self._states[self.llm.check_seq(seq)]

    def _decided(self, seq: int) -> SequenceState:
        state = self._state(seq)
        if state.undecided:
            raise LinkError(
                "a draft is undecided",
                where=f"sequence {seq}",
                fix="call accept() or rollback() first",
            )
        return state

    def _history(self, seq: int) -> NDArray[np.int32]:
        state = self._states[seq]
        return state.history[: state.n]

    def _known(self, seq: int) -> NDArray[np.int32]:
        """Return the history up to the first place without a token."""
        state = self._states[seq]
        return state.history[: state.n_known]

    def tokens(self, seq: int) -> list[int]:
        """Return the tokens that the target has processed."""
        self._state(seq)
        self.journal.settle()
        return [int(t) for t in self._history(seq)]

    @act(Storey.CONTEXT)
    def pending(
        self,
        seq: int,
        sampling: Sampling | None = None,
        processor: LogitsProcessor | None = None,
    ) -> int | None:
        """Return the token that was chosen and not yet processed.

        Where none was chosen and the newest row has logits, it is chosen now, by ``sampling``
        (None: only look). ``processor`` may change the logits before, see ``LogitsProcessor``.
        """
        self.journal.settle()
        if processor is not None and not callable(processor):
            raise BatchError("a logits processor is a callable", got=spell(processor))
        return self._pending(seq, sampling, processor)

    def _pending(
        self,
        seq: int,
        sampling: Sampling | None = None,
        processor: LogitsProcessor | None = None,
    ) -> int | None:
        """Do what ``pending`` does, in an act that is under way."""
        state = self._state(seq)
        if sampling is not None:
            check_sampling(sampling)
        if state.pending is None and sampling is not None and state.last_logits is not None:
            tokens = self._history(seq)
            logits = self._process_logits(processor, tokens, state.last_logits)
            token = self._sampler(seq, sampling).choose(logits, tokens, state.n_prompt, state.n)
            state.set_pending(token)
        return state.pending

    def _process_logits(
        self,
        processor: LogitsProcessor | None,
        tokens: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return one row of logits as a processor leaves it; what it gets are copies."""
        if processor is None:
            return logits
        changed = logits.copy()
        self.guard.lend(processor, tokens.copy(), changed[:])  # of a view it may change the shape
        return changed

    @act(Storey.CROSS)
    def rollback(self, seq: int, pos: int) -> None:
        """Forget everything from position ``pos`` on, in every role.

        Roles that the target reads (an encoder) keep their rows: they are no consequence of what
        is taken back, and the target needs them again.

        Raises
        ------
        BatchError, CapacityError
            No such place, or a role with a sliding window keeps too little; nothing changed.
        """
        state = self._state(seq)
        pos = read_below(
            pos, state.n + 1, "rolls back to a place that is not there", where=f"sequence {seq}"
        )
        with self.transaction((seq,)):
            self._rewind(seq, pos)
            state.rewind(self.llm.lengths[seq])

    def _rewind(self, seq: int, n: int) -> None:
        """Take every role back to ``n`` tokens; the one place where rewinding happens."""
        follow = {"llm", *self.drafters, *self.links.readers("llm")}
        longer = [
            (name, context)
            for name, context in self.contexts.items()
            if context.lengths[seq] > n and name in follow
        ]
        for name, context in longer:
            self._check_rewind(name, context, seq, n)
        for name, context in longer:
            if name not in self.drafters:
                context.forget(seq, n)
        for drafter in self.drafters.values():
            drafter.rewind(seq, n)
        self.links.rewind(seq, n)

    def _check_rewind(self, name: str, context: Context, seq: int, n: int) -> None:
        try:
            check_rewind(context, seq, n)
        except CapacityError as error:
            raise CapacityError(
                error.what,
                where=f"role {name}, {error.where}",
                wanted=error.wanted,
                got=error.got,
                fix=error.fix,
            ) from None

    def _others(self) -> list[tuple[str, Context]]:
        """Return the roles that are neither the target nor drafters, by name."""
        known = {"llm", *self.drafters}
        return [(name, one) for name, one in self.contexts.items() if name not in known]

    @act(Storey.CROSS)
    def fork(self, seq: int, new: int, *, stream: int | None = None) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is, in every role.

        Parameters
        ----------
        stream : int, optional
            Which noise ``new`` draws from until it is removed, whatever the stream of the settings
            it is given: its tokens are those of a request with this stream. A token that is
            pending was chosen before and stays. Default: as ``seq`` does.

        Raises
        ------
        BatchError, LinkError
            No such sequence, one that is not empty, or a draft that is undecided.
        SamplingError
            No number of a stream.
        """
        self._state(seq), self._state(new)
        with self.transaction((seq, new)):
            self._fork(seq, new, stream)

    def _fork(self, seq: int, new: int, stream: int | None) -> None:
        state, other = self._decided(seq), self._states[new]
        stream = state.stream if stream is None else Sampling(seed=0, stream=stream).stream
        if other.n or seq == new:
            raise BatchError(
                "a fork goes to an empty sequence", where=f"sequence {new}", fix="remove it first"
            )
        for drafter in self.drafters.values():
            drafter.remove(new)
        self.llm.copy(seq, new)
        for drafter in self.drafters.values():
            drafter.fork(seq, new)
        for _, context in self._others():
            context.forget(new, 0)
            context.copy(seq, new)
        self.links.fork(seq, new)
        other.copy_from(state)
        other.set_stream(stream)

    @act(Storey.CROSS)
    def remove(self, seq: int) -> None:
        """Forget a whole sequence, in every role."""
        self._state(seq)
        with self.transaction((seq,)):
            self.clear(seq)

    def clear(self, seq: int) -> None:
        """Do what ``remove`` does, in an act that is under way; twice is once."""
        state = self._states[seq]
        self.llm.forget(seq, 0)
        for drafter in self.drafters.values():
            drafter.remove(seq)
        for _, context in self._others():
            context.forget(seq, 0)
        self.links.remove(seq)
        state.clear()

    def _sampler(self, seq: int, sampling: Sampling, kind: str = "coupled") -> Sampler:
        """Return a sequence's sampler; the newest one of each kind is kept."""
        if type(kind) is not str or kind not in ("coupled", "argmax"):
            raise LinkError("unknown draft sampler", wanted="coupled, argmax", got=spell(kind))
        check_sampling(sampling)
        return self._states[seq].sampler(sampling, kind, self._scratch)
