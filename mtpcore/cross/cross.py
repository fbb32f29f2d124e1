"""Cross: named contexts, links between them, and acts that touch all of them or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.batch import Batch, integers
from mtpcore.context import Context, Watcher
from mtpcore.cross.drafters import Drafter, DraftJob, GraphDrafter, ProposerDrafter
from mtpcore.cross.links import Links
from mtpcore.cross.sequence import SequenceState, Verdict
from mtpcore.errors import BatchError, LinkError
from mtpcore.output import Output
from mtpcore.proposer import Proposer
from mtpcore.sampling import Sampling
from mtpcore.spec import Link

__all__ = ["Cross"]

logger = logging.getLogger("mtpcore")
DraftSampler = Literal["coupled", "argmax"]
Samplings = Sampling | Mapping[int, Sampling]
GREEDY = Sampling.greedy()


class Cross:
    """Contexts in named roles and the rows that pass between them.

    ``Cross(llm=a, draft=b)`` takes contexts and Proposers; the role ``llm`` is the target. A
    context belongs to one Cross. ``connect`` adds links; a drafter context's links stand in its
    plugin's declaration and are made at once.

    Raises
    ------
    LinkError
        Roles that do not fit together.
    """

    def __init__(self, **roles: Context | Proposer) -> None:
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
        self.links = Links(contexts)
        self.invalid = 0
        self._states = [SequenceState(self.llm.n_ctx) for _ in range(self.llm.n_seq_max)]
        self._scratch = Scratch(self.llm.model.hparams.n_vocab)
        self._verifying = False
        self._warned = False
        self.drafters: dict[str, Drafter] = {}
        for name, context in contexts.items():
            if name != "llm" and context.drafter is not None:
                self._add_drafter(name, context)
        for name, role in roles.items():
            if not isinstance(role, Context):
                if not callable(getattr(role, "propose", None)):
                    raise LinkError(
                        "a role is a Context or a Proposer", where=name, got=type(role).__name__
                    )
                self.drafters[name] = ProposerDrafter(role)
        for name, context in contexts.items():
            context.owner = self
            context.deliver = self._deliverer(name)

    # Links

    def _add_drafter(self, name: str, context: Context) -> None:
        assert context.drafter is not None
        if context.n_seq_max < self.llm.n_seq_max or context.n_ctx < self.llm.n_ctx:
            raise LinkError(
                "the drafter's context is smaller than the target's",
                where=name,
                wanted=f"n_ctx {self.llm.n_ctx}, n_seq_max {self.llm.n_seq_max}",
                got=f"n_ctx {context.n_ctx}, n_seq_max {context.n_seq_max}",
            )
        self.links.declare(name)
        for one in (self.llm, context):
            if one.memory is not None:
                one.memory.allow_rewind(context.drafter.limit + 1)
        drafter = GraphDrafter(name, context)
        context.before_digest = lambda seq: drafter.settle(seq, self._history(seq))
        self.drafters[name] = drafter

    def connect(self, link: Link) -> None:
        """Let the rows of a tap of one role feed a slot of another; see ``Links.connect``."""
        self.links.connect(link)

    def _deliverer(self, role: str) -> Watcher:
        def deliver(batch: Batch, output: Output) -> None:
            groups = [(int(s), np.flatnonzero(output.seq == s)) for s in np.unique(output.seq)]
            target = role == "llm"
            if target and not self._verifying:
                for seq, _ in groups:
                    self._decided(seq)
            self.links.post(role, output)
            if target and not self._verifying:
                self._note(batch, output, groups)

        return deliver

    def _note(
        self, batch: Batch, output: Output, groups: list[tuple[int, NDArray[np.intp]]]
    ) -> None:
        wanted = {int(row): i for i, row in enumerate(output.outputs)}
        for seq, mine in groups:
            state = self._states[seq]
            state.append(int(output.pos[mine[0]]), batch.tokens[mine])
            if int(mine[-1]) in wanted:
                state.last_logits = output.logits[wanted[int(mine[-1])]]

    def feed(self, role: str, tap: str, seq: int, pos: int, rows: Any) -> None:
        """Deliver rows from an outside engine as if ``role`` had made them.

        Parameters
        ----------
        rows : array_like or DLPack, shape (n, width)
            Hidden rows of positions ``pos``, ``pos + 1``, ...

        Raises
        ------
        LinkError, BatchError
            Nothing is linked to this tap, or the rows do not fit or are not finite.
        """
        self._state(seq)
        self.links.feed(role, tap, seq, pos, rows)

    # Sequences

    def _state(self, seq: int) -> SequenceState:
        self.llm.check_seq(seq)
        return self._states[seq]

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

    def tokens(self, seq: int) -> list[int]:
        """Return the tokens that the target has processed."""
        self._state(seq)
        return [int(t) for t in self._history(seq)]

    def pending(self, seq: int, sampling: Sampling | None = None) -> int | None:
        """Return the token that was chosen and not yet processed.

        Where none was chosen and the newest row has logits, it is chosen now, by ``sampling``
        (None: only look).
        """
        state = self._state(seq)
        if state.pending is None and sampling is not None and state.last_logits is not None:
            token = self._sampler(seq, sampling).choose(
                state.last_logits, self._history(seq), state.n_prompt, state.n
            )
            state.set_pending(token)
        return state.pending

    def rollback(self, seq: int, pos: int) -> None:
        """Forget everything from position ``pos`` on, in every role."""
        state = self._state(seq)
        if (
            isinstance(pos, bool)
            or not isinstance(pos, (int, np.integer))
            or not 0 <= pos <= state.n
        ):
            raise BatchError(
                "rolls back to a place that is not there",
                where=f"sequence {seq}",
                wanted=f"0..{state.n}",
                got=pos,
            )
        self._rewind(seq, int(pos))
        state.rewind(int(pos))

    def _rewind(self, seq: int, n: int) -> None:
        """Take every role back to ``n`` tokens; the one place where rewinding happens."""
        self.llm.forget(seq, min(n, self.llm.length(seq)))
        for drafter in self.drafters.values():
            drafter.rewind(seq, n)
        self.links.rewind(seq, n)

    def fork(self, seq: int, new: int) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is, in every role."""
        state, other = self._state(seq), self._state(new)
        self._decided(seq)
        if other.n or seq == new:
            raise BatchError(
                "a fork goes to an empty sequence", where=f"sequence {new}", fix="remove it first"
            )
        for drafter in self.drafters.values():
            drafter.remove(new)
        self.llm.copy(seq, new)
        for drafter in self.drafters.values():
            drafter.fork(seq, new)
        self.links.fork(seq, new)
        other.copy_from(state)

    def remove(self, seq: int) -> None:
        """Forget a whole sequence, in every role."""
        state = self._state(seq)
        self.llm.forget(seq, 0)
        for drafter in self.drafters.values():
            drafter.remove(seq)
        self.links.remove(seq)
        state.clear()

    # Draft and verify

    def _sampler(self, seq: int, sampling: Sampling, kind: str = "coupled") -> Sampler:
        """Return a sequence's sampler; the newest one of each kind is kept."""
        if kind not in ("coupled", "argmax"):
            raise LinkError("unknown draft sampler", wanted="coupled, argmax", got=repr(kind))
        kept = self._states[seq].samplers
        if kind not in kept or kept[kind][0] is not sampling:
            settings = sampling
            if kind == "argmax":
                settings = msgspec.structs.replace(sampling, temperature=0.0)
            kept[kind] = sampling, Sampler(settings, self._scratch)
        return kept[kind][1]

    def draft(
        self,
        seq: int | Mapping[int, int],
        k: int | None = None,
        sampling: Samplings = GREEDY,
        *,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler] = "coupled",
        p_min: float = 0.0,
    ) -> Any:
        """Draft up to ``k`` tokens after the pending one.

        Parameters
        ----------
        seq : int, or mapping of seq to k
            One sequence, or several that draft together.
        sampling : Sampling, or mapping of seq to Sampling
            The target's settings; the drafter shares their noise ("coupled") or takes its own
            most probable token ("argmax").
        p_min : float
            A draft less probable than this ends the drafts.

        Returns
        -------
        list of int, or dict of seq to list of int

        Raises
        ------
        BatchError
            A sequence has nothing to continue from.
        """
        wanted = dict(seq) if isinstance(seq, Mapping) else {seq: 0 if k is None else k}
        jobs = []
        for one, n in wanted.items():
            state, settings = self._state(one), _of(sampling, one)
            if n < 0:
                raise BatchError("draft length", where=f"sequence {one}", wanted=">= 0", got=n)
            if self.pending(one, settings) is None:
                raise BatchError(
                    "nothing to continue from",
                    where=f"sequence {one}",
                    fix="process() tokens with outputs='last' first",
                )
            n = min(n, max(self.llm.n_ctx - state.n - 1, 0))
            if n and not state.off:
                sampler = self._sampler(one, settings, _of(draft_sampler, one))
                jobs.append(
                    DraftJob(one, state.history[: state.n + 1], state.n_prompt, n, sampler, p_min)
                )
        drafts: dict[int, list[int]] = {one: [] for one in wanted}
        for name, drafter in self.drafters.items():
            open_jobs = [job for job in jobs if not drafts[job.seq]]
            if open_jobs:
                lengths = {job.seq: job.k for job in open_jobs}
                for one, ids in drafter.draft(open_jobs).items():
                    drafts[one] = self._trust(name, one, ids, lengths[one])
        return drafts if isinstance(seq, Mapping) else drafts[seq]

    def _trust(self, name: str, seq: int, ids: Sequence[Any], k: int) -> list[int]:
        """Cut a drafter's output at the first id that is none, and at the length asked for."""
        n_vocab = self.llm.model.hparams.n_vocab
        good: list[int] = []
        for token in ids:
            whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if not whole or not 0 <= token < n_vocab:
                self.invalid += 1
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "drafter %s: %r is no token; drafts end before it "
                        "(sequence %d; further ones are counted)",
                        name,
                        token,
                        seq,
                    )
                break
            good.append(int(token))
        return good[:k]

    def verify(
        self,
        drafts: Mapping[int, Sequence[int]],
        sampling: Samplings = GREEDY,
        *,
        prefill: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, Verdict]:
        """Let the target choose at every drafted position, all sequences in one batch.

        Parameters
        ----------
        drafts : mapping of seq to token ids
            Drafts after each pending token; may be empty.
        sampling : Sampling, or mapping of seq to Sampling
            The target's settings. The verdict does not depend on the drafts.
        prefill : mapping of seq to token ids, optional
            Prompt tokens of other sequences that run in the same batch.

        Returns
        -------
        dict of seq to Verdict
            For the sequences of ``drafts``; each waits for ``accept``.

        Raises
        ------
        BatchError, CapacityError
            Ids that are no tokens, nothing pending, no room; nothing changed.
        """
        prefill = prefill or {}
        batches, spans, row = [], {}, 0
        for seq, ids in drafts.items():
            state = self._state(seq)
            if state.undecided or seq in prefill:
                raise LinkError(
                    "a draft is undecided",
                    where=f"sequence {seq}",
                    fix="call accept() or rollback() first",
                )
            pending = self.pending(seq, _of(sampling, seq))
            if pending is None:
                raise BatchError(
                    "nothing to continue from",
                    where=f"sequence {seq}",
                    fix="process() tokens with outputs='last' first",
                )
            tokens = integers([pending, *ids], "drafts")
            batches.append(Batch(tokens, seq=seq, pos=state.n, outputs="all"))
            spans[seq] = (row, tokens)
            row += len(tokens)
        for seq, ids in prefill.items():
            if self._state(seq).undecided:
                raise LinkError("a draft is undecided", where=f"sequence {seq}")
            batches.append(Batch.of(ids, seq=seq, pos=self._states[seq].n, outputs="last"))
        if not batches:
            return {}
        before = {seq: self._states[seq].n for seq in (*drafts, *prefill)}
        self._verifying = True
        try:
            batch = Batch.join(batches)
            output = self.llm.process(batch)
            verdicts = {
                seq: self._judge(
                    seq, tokens, output.logits[at : at + len(tokens)], _of(sampling, seq)
                )
                for seq, (at, tokens) in spans.items()
            }
        except BaseException:
            for seq, n in before.items():
                if self.llm.length(seq) > n:
                    self._rewind(seq, n)
            raise
        finally:
            self._verifying = False
        for seq, verdict in verdicts.items():
            state, tokens = self._states[seq], spans[seq][1]
            state.history[state.n : state.n + len(tokens)] = tokens
            state.undecided = verdict
        groups = [(seq, np.flatnonzero(output.seq == seq)) for seq in prefill]
        self._note(batch, output, groups)
        return verdicts

    def _judge(
        self, seq: int, tokens: NDArray[np.int32], logits: NDArray[np.float32], sampling: Sampling
    ) -> Verdict:
        state, sampler = self._states[seq], self._sampler(seq, sampling)
        history = np.concatenate([self._history(seq), tokens])
        chosen: list[int] = []
        for i in range(len(tokens)):
            n = state.n + 1 + i
            chosen.append(sampler.choose(logits[i], history[:n], state.n_prompt, n))
            if i + 1 < len(tokens) and chosen[-1] != tokens[i + 1]:
                break
        return Verdict(len(chosen) - 1, chosen[-1], tuple(chosen))

    def accept(self, seq: int, n: int | None = None) -> None:
        """Commit the pending token and ``n`` drafts (default: all accepted); forget the rest.

        The token after them becomes the pending one.

        Raises
        ------
        LinkError
            Nothing was verified, or more drafts than were accepted.
        """
        state = self._state(seq)
        verdict = state.undecided
        if verdict is None:
            raise LinkError(
                "nothing was verified", where=f"sequence {seq}", fix="call verify() first"
            )
        n = verdict.accepted if n is None else n
        if not 0 <= n <= verdict.accepted:
            raise LinkError(
                "drafts the target did not accept",
                where=f"sequence {seq}",
                wanted=f"0..{verdict.accepted}",
                got=n,
            )
        length = state.n + 1 + n
        self._rewind(seq, length)
        for context in self.contexts.values():
            if context.memory is not None:
                context.memory.commit(seq, min(length, context.length(seq)))
        state.undecided = None
        state.n = length
        state.set_pending(verdict.tokens[n])

    def digest(self, seq: int) -> dict[str, bytes]:
        """Return each role's digest of a sequence; drafters are settled first."""
        return {name: context.digest(seq) for name, context in self.contexts.items()}


def _of(value: Any, seq: int) -> Any:
    return value[seq] if isinstance(value, Mapping) else value
