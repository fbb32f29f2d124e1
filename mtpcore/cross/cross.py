"""Cross: named contexts, links between them, and acts that touch all of them or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtpcore.acts.guards import Storey, act
from mtpcore.backends.base import Choices
from mtpcore.boundary.arguments import Length, Probability, read, read_below
from mtpcore.boundary.arrays import is_whole
from mtpcore.cross.by_sequence import (
    pairs_of,
    read_ids,
    read_processors,
    read_unfinished,
    setting_of,
)
from mtpcore.cross.roles import Roles
from mtpcore.cross.sequence import Verdict
from mtpcore.cross.verification import RoundRows, tree_rows, walk
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.drafting.drafters import DraftJob
from mtpcore.errors import BatchError, LinkError, spell
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.sampling import LogitsProcessor, Sampler, Sampling

__all__ = ["Acceptance", "Cross", "DraftSampler"]

logger = logging.getLogger("mtpcore")
DraftSampler = Literal["coupled", "argmax"]
Samplings = Sampling | Mapping[int, Sampling]
Acceptance = Callable[[int, int], bool]
"""Says whether draft number i (from 0) with this token id is accepted, whatever the target says."""
GREEDY = Sampling.greedy()


class Cross(Roles):
    """Contexts in named roles and the rows that pass between them.

    ``Cross(llm=a, draft=b)`` takes contexts and Proposers; the role ``llm`` is the target. A
    context belongs to one Cross. ``connect`` adds links; a drafter context's links stand in its
    plugin's declaration and are made at once. All acts touch all roles or none.

    One call at a time runs on a Cross, its contexts and its generators; another one meanwhile, of
    another thread or of something that the first calls back, is a BusyError and changes nothing.

    Raises
    ------
    LinkError
        Roles that do not fit together.
    """

    @act(Storey.CROSS)
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
        list of int or DraftTree, or dict of seq to them
            A tree where the drafter makes trees; it is at most ``k`` deep.

        Raises
        ------
        BatchError
            A sequence has nothing to continue from.
        """
        if type(p_min) is not float or not 0 <= p_min <= 1:  # each round asks this
            p_min = read(p_min, Probability, "p_min is a probability")
        several = isinstance(seq, Mapping)
        wanted = self._read_lengths(
            pairs_of(seq, "seq") if several else [(seq, 0 if k is None else k)]
        )
        with self.transaction(wanted):
            drafts = self.propose(wanted, sampling, draft_sampler, p_min)
        return drafts if several else next(iter(drafts.values()))

    def propose(
        self,
        wanted: Mapping[int, int],
        sampling: Samplings,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler],
        p_min: float,
    ) -> dict[int, Draft]:
        """Do what ``draft`` does, in an act that is under way."""
        jobs = []
        for one, n in wanted.items():
            state, settings = self._state(one), setting_of(sampling, one)
            self.choose(one, settings)
            n = min(n, max(self.llm.n_ctx - state.n - 1, 0), self.llm.longest_draft)
            if n and self.drafters and state.n_known < state.n:
                self._pause(one, state.n_known)
            elif n:
                sampler = self._sampler(one, settings, setting_of(draft_sampler, one))
                jobs.append(
                    DraftJob(one, state.history[: state.n + 1], state.n_prompt, n, sampler, p_min)
                )
        drafts: dict[int, Draft] = {one: [] for one in wanted}
        for name, drafter in self.drafters.items():
            open_jobs = {job.seq: job for job in jobs if not len(drafts[job.seq])}
            if open_jobs:
                for one, draft in drafter.draft(list(open_jobs.values())).items():
                    job = open_jobs[one]
                    if isinstance(draft, DraftTree):
                        drafts[one] = self._trust_tree(name, job, draft)
                    else:
                        drafts[one] = self._trust(name, one, draft, job.k)
        return drafts

    def _read_lengths(self, given: Iterable[tuple[Any, Any]]) -> dict[int, int]:
        """Return how much to draft for each sequence, checked."""
        wanted = {}
        for seq, n in given:
            if type(n) is not int or n < 0:  # each round asks this of each sequence
                what = "a draft's length is a number of tokens"
                n = read(n, Length, what, where=f"sequence {spell(seq)}")
            wanted[self.llm.check_seq(seq)] = n
        return wanted

    def choose(self, seq: int, sampling: Sampling, processor: LogitsProcessor | None = None) -> int:
        """Return the pending token, choosing it where the newest row has logits.

        Raises
        ------
        BatchError
            There are none.
        """
        token = self._states[seq].pending
        if token is None:
            token = self._pending(seq, sampling, processor)
        if token is None:
            raise BatchError(
                "nothing to continue from",
                where=f"sequence {seq}",
                fix="process() tokens with outputs='last' first",
            )
        return token

    def _trust(self, name: str, seq: int, ids: Sequence[Any], k: int) -> list[int]:
        """Cut a drafter's output at the first id that is none, and at the length asked for."""
        n_vocab = self.llm.model.hparams.n_vocab
        if len(ids) > k:
            self._warn(name, seq, f"more than {k} drafts; the others are dropped")
        good: list[int] = []
        for token in ids[:k]:
            if not is_whole(token) or not 0 <= token < n_vocab:
                self.invalid += 1
                self._warn(name, seq, f"{spell(token)} is no token; drafts end before it")
                break
            good.append(int(token))
        return good

    def _trust_tree(self, name: str, job: DraftJob, tree: DraftTree) -> DraftTree:
        """Cut ids that are none, with what follows them; then what is too deep or has no room."""
        n_vocab, depth = self.llm.model.hparams.n_vocab, tree.depth
        kept = np.zeros(len(tree), bool)
        for node, above in enumerate(tree.parent.tolist()):
            if above >= 0 and not kept[above]:
                continue
            token = int(tree.tokens[node])
            if depth[node] > job.k:
                self._warn(name, job.seq, f"more than {job.k} drafts in a row; the rest is dropped")
            elif not 0 <= token < n_vocab:
                self.invalid += 1
                self._warn(name, job.seq, f"{token} is no token; its branch of drafts is dropped")
            else:
                kept[node] = True
        llm = self.llm
        room = min(llm.n_ctx - len(job.history), llm.n_batch - 1, llm.longest_draft - 1)
        kept[np.flatnonzero(kept)[room:]] = False
        return tree.select(kept)

    def _pause(self, seq: int, place: int) -> None:
        """Count a sequence that no drafter can follow; warn of the first one."""
        if not self._paused:
            logger.warning(
                "sequence %d, position %d holds no token that a drafter could read; "
                "no drafts (said once, counted)",
                seq,
                place,
            )
        self._paused += 1

    @property
    def paused(self) -> int:
        """How often a sequence got no further draft: embedding rows, rows that are not finite."""
        return self._paused + sum(drafter.paused for drafter in self.drafters.values())

    def _warn(self, name: str, seq: int, what: str) -> None:
        """Warn of the first thing that a drafter does wrong."""
        if not self._warned:
            self._warned = True
            logger.warning("drafter %s, sequence %d: %s (said once)", name, seq, what)

    @act(Storey.CROSS)
    def verify(
        self,
        drafts: Mapping[int, Draft],
        sampling: Samplings = GREEDY,
        *,
        prefill: Mapping[int, Sequence[int]] | None = None,
        unfinished: Collection[int] = (),
        acceptance: Acceptance | None = None,
        processors: Mapping[int, LogitsProcessor] | None = None,
    ) -> dict[int, Verdict]:
        """Let the target choose at every drafted position, all sequences in one batch.

        Parameters
        ----------
        drafts : mapping of seq to token ids or DraftTree
            Drafts after each pending token; may be empty. Of a tree the target takes the child
            that it chooses, as long as there is one.
        sampling : Sampling, or mapping of seq to Sampling
            The target's settings. The verdict does not depend on the drafts.
        prefill : mapping of seq to token ids, optional
            Prompt tokens of other sequences that run in the same batch.
        unfinished : collection of seq
            Those of ``prefill`` whose prompt goes on in a later batch: nothing is chosen after
            them, and no logits are made.
        acceptance : callable, optional
            For measurements: decides in place of the target. The text is then meaningless.
        processors : mapping of seq to callable, optional
            Called with the tokens and the logits of each position that the target comes to, before
            it chooses there; each may change the logits in place. See ``LogitsProcessor``.

        Returns
        -------
        dict of seq to Verdict
            For the sequences of ``drafts``; each waits for ``accept``.

        Raises
        ------
        BatchError, CapacityError
            Ids that are no tokens, nothing pending, no room; nothing changed.
        """
        if acceptance is not None and not callable(acceptance):
            raise BatchError("acceptance is a callable", got=spell(acceptance))
        drafts = read_ids(drafts, "drafts")
        given = read_ids({} if prefill is None else prefill, "prefill")
        unfinished = read_unfinished(unfinished, given)
        watching = read_processors({} if processors is None else processors)
        with self.transaction({**drafts, **given}):
            return self.judge(drafts, sampling, given, unfinished, acceptance, watching)

    def judge(
        self,
        drafts: Mapping[int, Draft],
        sampling: Samplings,
        prefill: Mapping[int, Sequence[int]],
        unfinished: Collection[int],
        acceptance: Acceptance | None,
        processors: Mapping[int, LogitsProcessor],
    ) -> dict[int, Verdict]:
        """Do what ``verify`` does, in an act that is under way."""
        prefill = {seq: ids for seq, ids in prefill.items() if len(ids)}
        rows = RoundRows()
        for seq, draft in drafts.items():
            state = self._decided(seq)
            if seq in prefill:
                raise BatchError("both drafts and a prompt", where=f"sequence {seq}")
            if self.llm.memory:
                self.llm.memory.allow_rewind(len(draft))
            pending = self.choose(seq, setting_of(sampling, seq), processors.get(seq))
            rows.add_draft(seq, state.n, pending, draft)
        for seq, ids in prefill.items():
            rows.add_prompt(seq, self._decided(seq).n, ids, ends=seq not in unfinished)
        if not len(rows):
            return {}
        batch = rows.batch()
        self._round = rows
        output = self.llm.extend(batch, self._choices(rows, batch, sampling, processors))
        self._round = None
        begin = perf_counter()
        verdicts = {
            seq: self._walk(
                seq,
                batch,
                span,
                output,
                drafts[seq],
                setting_of(sampling, seq),
                acceptance,
                processors.get(seq),
            )
            for seq, span in rows.spans.items()
        }
        self.choose_seconds += perf_counter() - begin
        self._deliver_paths(rows, output, verdicts)
        for seq, verdict in verdicts.items():
            self._states[seq].undecided = verdict
        for seq, ids in prefill.items():
            self._diverge(self._states[seq], seq, int(ids[0]))
        if prefill:
            self._note(batch, output, {seq: output.rows[seq] for seq in prefill})
        return verdicts

    def _choices(
        self,
        rows: RoundRows,
        batch: Batch,
        sampling: Samplings,
        processors: Mapping[int, LogitsProcessor],
    ) -> Choices | None:
        """Return who chooses while logits are made; None where all of these are needed.

        Those of prompts are kept until somebody chooses, and those that a processor sees are made.
        """
        pos = batch.pos[batch.outputs]
        samplers: list[Sampler | None] = [None] * len(pos)
        for seq, (begin, end) in rows.spans.items():
            sampler = self._sampler(seq, setting_of(sampling, seq))
            if sampler.is_race and seq not in processors:
                samplers[begin:end] = [sampler] * (end - begin)
        if not any(samplers):
            return None
        return Choices(samplers=samplers, indices=(pos + 1).tolist())

    def _walk(
        self,
        seq: int,
        batch: Batch,
        span: tuple[int, int],
        output: Output,
        draft: Draft,
        sampling: Sampling,
        acceptance: Acceptance | None,
        processor: LogitsProcessor | None,
    ) -> Verdict:
        state, sampler = self._states[seq], self._sampler(seq, sampling)
        begin, end = span  # of rows, and of logits: those of drafts come first
        history = state.history[: state.n + end - begin]
        history[state.n] = batch.tokens[begin]  # beyond n it is nobody's until it is accepted

        def choose(row: int, tokens: NDArray[np.int32]) -> int:
            token = output.chosen_at(begin + row)
            if token is not None:
                return token
            logits = self._process_logits(processor, tokens, output.logits_at(begin + row))
            return sampler.choose(logits, tokens, state.n_prompt, len(tokens))

        return walk(draft, choose, history, acceptance and partial(self.guard.lend, acceptance))

    def _deliver_paths(
        self, rows: RoundRows, output: Output, verdicts: Mapping[int, Verdict]
    ) -> None:
        """Keep of each tree the path taken, of chains beside it all, and deliver the paths."""
        if not rows.branching:
            return
        paths = {seq: tree_rows(verdicts[seq].path) for seq in rows.branching}
        for seq, mine in output.rows.items():
            self.llm.follow(seq, paths.get(seq, range(len(mine))))
        self.links.post("llm", output, {seq: output.rows[seq][path] for seq, path in paths.items()})

    @act(Storey.CROSS)
    def accept(self, seq: int, n: int | None = None) -> None:
        """Commit the pending token and ``n`` drafts (default: all accepted); forget the rest.

        The token after them becomes the pending one.

        Raises
        ------
        LinkError
            Nothing was verified, or more drafts than were accepted.
        """
        self._state(seq)
        with self.transaction((seq,)):
            self.settle(seq, n)

    def settle(self, seq: int, n: int | None = None) -> None:
        """Do what ``accept`` does, in an act that is under way."""
        state = self._states[seq]
        verdict = state.undecided
        if verdict is None:
            raise LinkError(
                "nothing was verified", where=f"sequence {seq}", fix="call verify() first"
            )
        n = read_below(
            verdict.accepted if n is None else n,
            verdict.accepted + 1,
            "drafts the target did not accept",
            where=f"sequence {seq}",
            error=LinkError,
        )
        length = state.n + 1 + n
        self._rewind(seq, length)
        for context in self.contexts.values():
            if context.memory is not None:
                context.memory.commit(seq, min(length, context.lengths[seq]))
        state.undecided = None
        state.commit(length)
        state.set_pending(verdict.tokens[n])

    @act(Storey.CROSS)
    def digest(self, seq: int) -> dict[str, bytes]:
        """Return each role's digest of a sequence; drafters are settled first."""
        self._state(seq)
        with self.transaction((seq,)):
            return {name: context.digest_now(seq) for name, context in self.contexts.items()}
