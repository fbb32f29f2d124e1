"""Draft, verify, accept: what a Cross does with its graphs, links and drafters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.acts.journal import Saved
from mtpcore.backends.base import FusedSampling, Verification
from mtpcore.boundary.arguments import read_below
from mtpcore.cross.ahead import VerificationAhead
from mtpcore.cross.by_sequence import Samplings, setting_of
from mtpcore.cross.codebooks import CodebookDecoder
from mtpcore.cross.draft_checker import DraftChecker
from mtpcore.cross.encoder import Encoder
from mtpcore.cross.sequence import SequenceState, SequenceStates, Verdict
from mtpcore.cross.verification import RoundBatch, Verdicts, match_drafts, tree_rows
from mtpcore.declarations.draft_tree import Draft, cut_draft
from mtpcore.declarations.proposer import Proposal
from mtpcore.drafting.drafters import NO_TEXT, Drafter, DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS
from mtpcore.drafting.grammar import FORCED, draft_forced
from mtpcore.drafting.proposers import ProposerDrafter
from mtpcore.errors import BatchError, CapacityError, LinkError, NoTokenError, spell
from mtpcore.links.links import Links
from mtpcore.runtime.batch import Batch, Wanted
from mtpcore.runtime.output import Output
from mtpcore.runtime.prompt import Prompt
from mtpcore.runtime.runner import Deliver, GraphRunner
from mtpcore.sampling import (
    DraftProcessor,
    Grammar,
    LogitsProcessor,
    PureProcessor,
    Sampling,
    check_sampling,
    process_logits,
)

__all__ = [
    "DraftPlan",
    "DraftSampler",
    "DraftSettings",
    "KeepDrafts",
    "Overwritten",
    "RoundDrafts",
    "Speculation",
]

DraftSampler = Literal["coupled", "argmax"]
DraftPlan = Mapping[str, int]
"""Who is asked for drafts, by role and in this order, and for how many tokens."""
KeepDrafts = Callable[[str, Mapping[int, Proposal]], Mapping[int, int]]
"""``keep(role, proposals)``: how deep the drafts of a role are to be verified, by sequence."""


NO_SAMPLINGS: Mapping[int, Sampling] = {}


class DraftSettings(NamedTuple):
    """How drafts of a sequence are chosen.

    Attributes
    ----------
    sampling : Sampling
        Of the target's choices.
    draft_sampler : {"coupled", "argmax"}
    p_min : float
        A draft less probable than this ends the drafts.
    processor : LogitsProcessor or None
        A pure one changes the drafters' logits, too.
    """

    sampling: Sampling
    draft_sampler: DraftSampler = "coupled"
    p_min: float = 0.0
    processor: LogitsProcessor | None = None


class RoundDrafts(NamedTuple):
    """Drafts by sequence, with the role that made each one and how sure it was, where it says so.

    And the seconds that each role took.
    """

    drafts: dict[int, Draft]
    makers: dict[int, str]
    confidences: dict[int, float]
    seconds: dict[str, float]


class Speculation:
    """Graphs in roles, the links between them, and what drafts for the target, the role ``llm``.

    It has the methods of a ``Cross`` without their safety: nothing here refuses a second caller, or
    undoes what an exception leaves half done. A Cross does both, and calls these methods within its
    acts; so does a round of a generator.

    Parameters
    ----------
    runners : mapping of str to GraphRunner
        By role.
    links : Links
    drafters : mapping of str to Drafter
        By role, in the order in which they are asked.
    codes : CodebookDecoder, optional
        What chooses the codes of a target that writes frames.
    encoder : Encoder, optional
        What reads prompts, where it is not the target.
    """

    def __init__(
        self,
        runners: Mapping[str, GraphRunner],
        links: Links,
        drafters: Mapping[str, Drafter],
        *,
        codes: CodebookDecoder | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.runners, self.links, self.drafters = runners, links, drafters
        self.codes, self.encoder = codes, encoder
        self.target = runners["llm"]
        self.names = {role: _name_of(role, drafter) for role, drafter in drafters.items()}
        self.names[FORCED] = FORCED
        specs = {role: drafter.spec for role, drafter in drafters.items()}
        self._limits = {role: spec.limit for role, spec in specs.items() if spec is not None}
        self.states, self.checker = SequenceStates(self.target), DraftChecker(self.target)
        self.states.keeps_rows = any(drafter.reads_rows for drafter in drafters.values())
        self.choose_seconds = 0.0
        self._drafter_of = {
            id(runner): drafter
            for drafter in drafters.values()
            for runner in drafter.runners.values()
        }
        # A drafter takes care of its own graphs; these are left to rewind, fork and remove here.
        self._others = {
            name: runner for name, runner in runners.items() if id(runner) not in self._drafter_of
        }
        self._round: RoundBatch | None = None  # which is being verified
        self._ahead: VerificationAhead | None = None  # what was run together with the drafts
        links.apply()
        for name, runner in runners.items():
            runner.deliver = self._deliverer(name)

    # What acts may change

    def saved(self, seqs: Collection[int]) -> Iterator[Saved]:
        """Yield what an act on these sequences may change."""
        yield self
        yield from (one.sequences for one in self.runners.values() if one.host is None)
        yield from self.links.boxes
        yield from self.states.of(seqs)

    def save(self) -> Any:
        """Return what is counted, for ``restore``."""
        paused = [drafter.paused for drafter in self.drafters.values()]
        return self.checker.invalid, self.checker.paused, self.choose_seconds, paused

    def restore(self, saved: Any) -> None:
        """Count what was counted then; no round is under way."""
        self._round = self._ahead = None
        self.checker.invalid, self.checker.paused, self.choose_seconds, paused = saved
        for drafter, n in zip(self.drafters.values(), paused, strict=True):
            drafter.paused = n

    # Drafting

    def plan_drafts(self, k: int, names: Iterable[str] | None = None) -> DraftPlan:
        """Return a plan that asks these drafters, by name or role, for ``k`` tokens; None: all.

        Raises
        ------
        LinkError
            No such drafter.
        """
        if names is None:
            return dict.fromkeys(self.drafters, k)
        plan = {}
        for name in names:
            role = next((r for r, known in self.names.items() if name in (r, known)), None)
            if role is None:
                raise LinkError(
                    "the Cross has no such drafter",
                    wanted=", ".join(self.names[r] for r in self.drafters)
                    or "none: it decodes without drafts",
                    got=spell(name),
                    fix='name it in link(llm, [...]), as in link(llm, ["lookup", "auto"])',
                )
            plan[role] = k
        return plan

    def draft(
        self,
        wanted: Mapping[int, DraftPlan],
        settings: Callable[[int], DraftSettings],
        *,
        verified: Mapping[int, Sampling] = NO_SAMPLINGS,
        keep: KeepDrafts | None = None,
    ) -> RoundDrafts:
        """Draft for each sequence, by the first drafter in its plan that proposes anything.

        Sequences that ask the same drafter at the same turn draft together. ``settings`` are those
        of a sequence, which proposers do without until they propose something. ``verified`` are the
        sequences, in order, that the next call will ``verify`` with nothing else in its pass, and
        their settings: then a backend may run that pass as a part of the schedule. ``keep`` says
        how deep drafts are to be verified; where that is 0 the next drafter is asked.
        """
        drafted = RoundDrafts({seq: [] for seq in wanted}, {}, {}, {})
        turns = self._plan_turns(wanted, settings)
        verify = self._verify_after(turns, wanted, verified) if verified else None
        for turn in turns:
            for role, asked in turn.items():
                if drafted.makers:
                    asked = {seq: k for seq, k in asked.items() if seq not in drafted.makers}
                if asked:
                    self._ask(role, asked, settings, drafted, verify, keep)
        if self.states.keeps_rows:
            for seq in wanted:
                self._release(seq)
        return drafted

    def _plan_turns(
        self, wanted: Mapping[int, DraftPlan], settings: Callable[[int], DraftSettings]
    ) -> list[dict[str, dict[int, int]]]:
        """Return whom each sequence asks for how much at each turn, while it has no drafts."""
        turns: list[dict[str, dict[int, int]]] = []
        longest, last = self.target.longest_draft, self.target.n_ctx - 1
        for seq, plan in wanted.items():
            state = self.states[seq]
            if state.pending is None:
                self.states.choose(seq, check_sampling(settings(seq).sampling))
            room = min(last - state.n, longest)
            if room <= 0 or not any(plan.values()):
                continue
            turn, is_known = 0, state.n_known == state.n
            for role, k in plan.items():
                follows = is_known and role != FORCED  # as in most rounds
                if k and (follows or self._follow(role, seq, settings)):
                    if turn == len(turns):
                        turns.append({})
                    most = self._limits.get(role, room)
                    turns[turn].setdefault(role, {})[seq] = min(k, room, most)
                    turn += 1
            if not turn and settings(seq).sampling.grammar is None and not self._has_follower(seq):
                self.checker.pause(seq, state.n_known)  # the text, not the plan, is why
        return turns

    def _verify_after(
        self,
        turns: Sequence[Mapping[str, Mapping[int, int]]],
        wanted: Mapping[int, DraftPlan],
        verified: Mapping[int, Sampling],
    ) -> Verify | None:
        """Return what may run in one launch with the drafts: nobody else is asked after them."""
        n_wanted = sum(any(plan.values()) for plan in wanted.values())
        is_only = [*map(len, turns)] == [1] and len(next(iter(turns[0].values()))) == n_wanted
        if not is_only or _grammars(verified, verified):  # whose masks follow the drafts
            return None
        return partial(self._verify_ahead, verified, n_wanted)

    def _job(self, role: str, seq: int, k: int, settings: DraftSettings) -> DraftJob:
        """Return what a drafter is asked for a sequence."""
        sampling, kind, p_min, processor = settings
        state, drafter = self.states[seq], self.drafters.get(role)
        n, grammar = state.n + 1, sampling.grammar
        sampler = self.states.sampler(seq, sampling, kind)
        if state.stream is not None:
            sampling = msgspec.structs.replace(sampling, stream=state.stream)
        return DraftJob(
            seq,
            state.history[:n],
            state.n_prompt,
            k,
            sampler,
            p_min,
            state.rows if drafter and drafter.reads_rows else NO_ROWS,
            sampling,
            None if processor is None else self._processor_of_drafts(seq, processor),
            None if grammar is None else self.states.matcher(seq, grammar),
            NO_TEXT if grammar is None else state.text(n),
        )

    def _processor_of_drafts(self, seq: int, processor: LogitsProcessor) -> DraftProcessor | None:
        """Return what changes the logits of a sequence's drafters; None: nothing."""
        if not isinstance(processor, PureProcessor):
            return None
        n_vocab = self.target.model.hparams.n_vocab
        return DraftProcessor(processor, n_vocab, partial(self.checker.doubt, seq))

    def _ask(
        self,
        role: str,
        asked: Mapping[int, int],
        settings: Callable[[int], DraftSettings],
        drafted: RoundDrafts,
        verify: Verify | None,
        keep: KeepDrafts | None,
    ) -> None:
        """Let one drafter draft, and note what it made."""
        begin = perf_counter()
        drafter, proposals = self.drafters.get(role), dict[int, Proposal]()
        if isinstance(drafter, ProposerDrafter):  # it mostly has nothing, and jobs take longer
            made = self._let_propose(drafter, asked)
            jobs = [self._job(role, seq, asked[seq], settings(seq)) for seq in made]
        else:
            jobs = [self._job(role, seq, k, settings(seq)) for seq, k in asked.items()]
            made = self._let_draft(drafter, jobs, verify)
        for job in jobs:
            answer = made.get(job.seq)
            if answer is None or (type(answer) is list and not answer):
                continue
            proposal = self.checker.check(role, job, answer)
            if job.matcher is not None:
                allowed = job.matcher.cut(job.text, proposal.draft)
                proposal = Proposal(allowed, proposal.confidence)
            if len(proposal.draft):
                proposals[job.seq] = proposal
        depths = keep(role, proposals) if keep and proposals and role != FORCED else {}
        for seq, proposal in proposals.items():
            draft, confidence = proposal.draft, proposal.confidence
            kept = cut_draft(draft, depths[seq]) if seq in depths else draft
            if len(kept):
                drafted.drafts[seq], drafted.makers[seq] = kept, role
                if confidence is not None:
                    drafted.confidences[seq] = confidence
        drafted.seconds[role] = drafted.seconds.get(role, 0.0) + perf_counter() - begin

    def _let_propose(
        self, drafter: ProposerDrafter, asked: Mapping[int, int]
    ) -> Mapping[int, Draft | Proposal]:
        """Return what a proposer has, by sequence."""
        made: dict[int, Draft | Proposal] = {}
        for seq, k in asked.items():
            state = self.states[seq]
            answer = drafter.propose(seq, state.history[: state.n + 1], k)
            if answer is not None:
                made[seq] = answer
        return made

    def _let_draft(
        self, drafter: Drafter | None, jobs: list[DraftJob], verify: Verify | None
    ) -> Mapping[int, Draft | Proposal]:
        if drafter is None:
            return draft_forced(jobs)
        if any(runner.backend is not self.target.backend for runner in drafter.runners.values()):
            verify = None
        return drafter.draft(jobs, verify)

    def _verify_ahead(
        self,
        verified: Mapping[int, Sampling],
        n_drafted: int,
        seqs: Sequence[int],
        n_drafts: Sequence[int],
    ) -> Verification | None:
        """Return the pass that verifies what a schedule for these sequences drafts, or None.

        None if the run is only one of several for the ``n_drafted`` sequences, if logits are wanted
        as well, if a sequence has adapters, or if there is no room, which ``verify`` will report.
        """
        n_rows = len(verified) + sum(n_drafts)
        if len(seqs) < n_drafted or n_rows > self.target.n_batch:
            return None
        if self.target.sequences.adapters:  # another plan runs rows that have some
            return None
        made: dict[int, Draft] = {seq: [] for seq in verified}
        for seq, n in zip(seqs, n_drafts, strict=True):
            made[seq] = [0] * n  # the backend writes its drafts there
        try:
            rows = self._draft_rows(made, verified, {})
            fused = self._fused_sampling(rows, rows.batch(), verified, {})
            if fused is None or None in fused.samplers:  # logits are wanted as well
                return None
            self._ahead = VerificationAhead(self.target, rows, fused, seqs)
        except CapacityError:
            return None
        return self._ahead.verification

    def _follow(self, role: str, seq: int, settings: Callable[[int], DraftSettings]) -> bool:
        """Say whether a role can draft after everything that the target read of a sequence."""
        drafter = self.drafters.get(role)
        if drafter is None:
            return role == FORCED and settings(seq).sampling.grammar is not None
        return self._reads_all(drafter, seq)

    def _reads_all(self, drafter: Drafter, seq: int) -> bool:
        state = self.states[seq]
        if state.n_known == state.n or not drafter.reads_text:
            return True
        lengths = [runner.lengths[seq] for runner in drafter.runners.values()]
        places = range(max(min(lengths, default=0), drafter.first), state.n)
        return drafter.reads_rows and state.rows.reach(state.history, places) == state.n

    def _has_follower(self, seq: int) -> bool:
        return any(self._reads_all(drafter, seq) for drafter in self.drafters.values())

    def _release(self, seq: int) -> None:
        """Forget embedding rows that every drafter which reads them has read."""
        state = self.states[seq]
        if state.rows.end:
            readers = [d for d in self.drafters.values() if d.reads_rows]
            lengths = [one.lengths[seq] for d in readers for one in d.runners.values()]
            state.rows = state.rows.after(min(lengths))

    # Verifying

    def verify(
        self,
        drafts: Mapping[int, Draft],
        sampling: Samplings,
        prefill: Mapping[int, Sequence[int] | Prompt],
        unfinished: Collection[int],
        processors: Mapping[int, LogitsProcessor],
        *,
        logits: bool = False,
        predicted: Collection[int] = (),
    ) -> Verdicts:
        """Let the target choose after every drafted token; see ``Cross.verify``.

        The output has all logits of the prompts, of tokens, that are ``predicted``.
        """
        ahead, self._ahead = self._ahead, None
        # What was run ahead holds drafts alone, and of their logits only the choices.
        if ahead is not None and (prefill or processors or logits):
            ahead.give_back()
            ahead = None
        prompts = {seq: ids for seq, ids in prefill.items() if isinstance(ids, Prompt)}
        texts = {s: ids for s, ids in prefill.items() if not isinstance(ids, Prompt) and len(ids)}
        if both := drafts.keys() & (texts.keys() | prompts.keys()):
            raise BatchError("both drafts and a prompt", where=f"sequence {min(both)}")
        rows = self._draft_rows(drafts, sampling, processors)
        for seq, ids in texts.items():
            place, ends = self.states.decided(seq).n, seq not in unfinished
            rows.add_prompt(seq, place, ids, ends=ends, predicted=seq in predicted)
        # Rows with positions of their own, or that are no tokens, are a batch of another kind.
        for seq, prompt in prompts.items():
            n, n_axes = self.states.decided(seq).n, self.target.program.n_axes
            outputs: Wanted = "none" if seq in unfinished else "last"
            batch = prompt.batch(seq=seq, place=n, n_axes=n_axes, outputs=outputs)
            self.target.process(batch)
        if not len(rows):
            return Verdicts({}, None)
        masks = self.states.masks(drafts, _grammars(sampling, drafts))
        batch = rows.batch()
        self._round = rows
        fused = None if logits else self._fused_sampling(rows, batch, sampling, processors)
        if ahead is None:
            output = self.target.process(batch, fused)
        else:
            admitted = self.target.admit(batch, fused)
            output = self.target.run(batch, admitted, ahead.take(admitted))
        self._round = None
        begin = perf_counter()
        verdicts = {
            seq: self._match(
                seq,
                batch,
                span,
                output,
                drafts[seq],
                setting_of(sampling, seq),
                processors.get(seq),
                masks.get(seq),
            )
            for seq, span in rows.spans.items()
        }
        self.choose_seconds += perf_counter() - begin
        self._deliver_paths(rows, output, verdicts)
        for seq, verdict in verdicts.items():
            self.states[seq].undecided = verdict
        for seq, ids in texts.items():
            self._diverge(self.states[seq], seq, int(ids[0]))
        if texts:
            self.states.note(batch, output, {seq: output.rows_of_seq[seq] for seq in texts})
        return Verdicts(verdicts, output)

    def _draft_rows(
        self,
        drafts: Mapping[int, Draft],
        sampling: Samplings,
        processors: Mapping[int, LogitsProcessor],
    ) -> RoundBatch:
        """Return the rows of drafts, each after its pending token; any of them can be rejected."""
        rows = RoundBatch()
        for seq, draft in drafts.items():
            state = self.states.decided(seq)
            if self.target.memory:
                self.target.memory.allow_rewind(len(draft))
            pending = self.states.choose(seq, setting_of(sampling, seq), processors.get(seq))
            rows.add_draft(seq, state.n, pending, draft)
        return rows

    def _fused_sampling(
        self,
        rows: RoundBatch,
        batch: Batch,
        sampling: Samplings,
        processors: Mapping[int, LogitsProcessor],
    ) -> FusedSampling | None:
        """Return the samplers of a pass; None if all logits are needed.

        Logits of prompts are kept until a token is chosen; a logits processor needs them, too, and
        so do settings that only the host chooses by.
        """
        places = batch.pos[batch.outputs]
        samplers: list[Sampler | None] = [None] * len(places)
        texts, n_prompt = [batch.tokens[:0]] * len(places), [0] * len(places)
        needs_texts = False
        for seq, (begin, end) in rows.spans.items():
            sampler = self.states.sampler(seq, setting_of(sampling, seq))
            if seq in processors or setting_of(sampling, seq).grammar is not None:
                continue
            if not sampler.is_gumbel_max:
                if self.target.backend.on_host or sampler.sampling.is_for_hosts:
                    continue
                state, needs_texts = self.states[seq], True
                texts[begin:end] = rows.texts(seq, state.history[: state.n])
                n_prompt[begin:end] = [state.n_prompt] * (end - begin)
            samplers[begin:end] = [sampler] * (end - begin)
        if not any(samplers):
            return None
        fused = FusedSampling(samplers=samplers, indices=(places + 1).tolist())
        if needs_texts:
            fused = msgspec.structs.replace(fused, texts=texts, n_prompt=n_prompt)
        return fused

    def _match(
        self,
        seq: int,
        batch: Batch,
        span: tuple[int, int],
        output: Output,
        draft: Draft,
        sampling: Sampling,
        processor: LogitsProcessor | None,
        masks: NDArray[np.uint32] | None,
    ) -> Verdict:
        state, sampler = self.states[seq], self.states.sampler(seq, sampling)
        begin, end = span  # of rows, and of logits: those of drafts come first
        history = state.history[: state.n + end - begin]
        history[state.n] = batch.tokens[begin]  # after n nothing counts until it is accepted

        def choose(row: int, tokens: NDArray[np.int32]) -> int:
            try:
                token = output.chosen_at(begin + row)
                if token is not None:
                    return token
                logits = process_logits(processor, tokens, output.logits_at(begin + row))
                mask = None if masks is None else masks[row]
                return sampler.choose(logits, tokens, state.n_prompt, len(tokens), mask=mask)
            except NoTokenError:  # ends the text there, and no other sequence's round
                return -1

        return match_drafts(draft, choose, history)

    def _deliver_paths(
        self, rows: RoundBatch, output: Output, verdicts: Mapping[int, Verdict]
    ) -> None:
        """Keep of each tree the path taken, of chains beside it all, and deliver the paths."""
        if not rows.branching:
            return
        paths = {seq: tree_rows(verdicts[seq].path) for seq in rows.branching}
        for seq, indices in output.rows_of_seq.items():
            self.target.sequences.decide(seq, paths.get(seq, range(len(indices))))()
        self.links.post(
            "llm", output, {seq: output.rows_of_seq[seq][path] for seq, path in paths.items()}
        )

    def _deliverer(self, role: str) -> Deliver:
        def deliver(batch: Batch, output: Output) -> None:
            target, delivered = role == "llm", output.rows_of_seq
            # Which rows of a tree are followed is known only when the target has chosen, and the
            # inboxes hold one row a place: _deliver_paths hands on those of the path.
            if target and self._round is not None:
                branching = self._round.branching
                delivered = {seq: rows for seq, rows in delivered.items() if seq not in branching}
                self.links.post(role, output, delivered)
                return
            if batch.parent is not None:
                raise LinkError(
                    "a linked context decides a draft tree at once",
                    where=role,
                    fix="give the tree to verify() of its Cross, or use a context of its own",
                )
            if target:  # a caller's own batch, which need not begin with the pending token
                for seq, rows in delivered.items():
                    self._diverge(self.states.decided(seq), seq, int(batch.tokens[rows[0]]))
            self.links.post(role, output, delivered)
            if target:
                self.states.note(batch, output, delivered)

        return deliver

    def _diverge(self, state: SequenceState, seq: int, token: int) -> None:
        """Forget what drafters made of the pending token where another one takes its place."""
        if token != state.pending:
            for drafter in self.drafters.values():
                drafter.rewind(seq, state.n)

    def accept(self, seq: int, n: int | None = None) -> None:
        """Commit the pending token and ``n`` drafts; see ``Cross.accept``."""
        state = self.states[seq]
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
        state.undecided = None
        state.commit(length)
        if n < len(verdict.tokens):
            state.set_pending(verdict.tokens[n])
        else:
            state.pending = None  # no token was left to choose

    # Sequences

    def rollback(self, seq: int, n: int) -> None:
        """Forget everything of a sequence from place ``n`` on, in every role.

        Where recurrent layers have no state of this place any more, all roles go back to the
        nearest one before it that they have, and the target processes the tokens after that again.
        Rows have the same bits as before: an act that fails half-way is taken back as any other.
        """
        state, place = self.states[seq], self.nearest(seq, n)
        again = state.history[place:n].copy()
        if (again < 0).any():  # embedding rows, which are gone: let _rewind refuse this place
            place, again = n, again[:0]
        own, n_prompt = self._own_positions(seq, place, n), min(state.n_prompt, n)
        self._rewind(seq, place)
        state.rewind(self.target.lengths[seq])
        if len(again):
            pos = place if own is None else own
            self.target.process(Batch(again, seq=seq, pos=pos, outputs="none"))
            state.n_prompt = n_prompt

    def _own_positions(self, seq: int, begin: int, end: int) -> NDArray[np.int32] | None:
        """Return the positions of rows of the target; None where they are those of text."""
        return self.target.sequences.positions.of_stored(seq, begin, end)

    @property
    def is_recurrent(self) -> bool:
        """Whether a role has recurrent layers: it has states of few places."""
        return any(self.runners[name].program.states for name in ("llm", *self.followers()))

    def nearest(self, seq: int, n: int) -> int:
        """Return the greatest place, at most ``n``, whose state every recurrent layer has."""
        runners = [self.runners[name] for name in ("llm", *self.followers())]
        place = n  # each role's nearest may be one that another has no state of: until all agree
        while (least := min(one.sequences.nearest(seq, place) for one in runners)) < place:
            place = least
        return place

    def reachable(self, seq: int, n: int) -> int:
        """Return the greatest place, at most ``n``, that every role can go back to; 0: none.

        Recurrent layers have states of few places, and a sliding window has lost what lies far
        after it.
        """
        place = self.nearest(seq, n)
        try:
            for name in ("llm", *self.followers()):
                if self.runners[name].lengths[seq] > place:
                    self.runners[name].sequences.check_rewind(seq, place)
        except CapacityError:
            return 0
        return place

    def bytes_of(self, seqs: Collection[int]) -> int:
        """Return the bytes that these sequences take in the memory of all roles, and no other."""
        memories = [runner.memory for runner in self.runners.values() if runner.host is None]
        return sum(memory.bytes_of(seqs) for memory in memories if memory)

    def _rewind(self, seq: int, n: int) -> None:
        """Take every role back to ``n`` tokens; the one place where rewinding happens."""
        followers = {"llm", *self.followers()}
        # First all are asked, so that a refusal finds every role as it was.
        for name, runner in self.runners.items():
            if runner.lengths[seq] > n and name in followers:
                _check_rewind(name, runner, seq, n)
        for name, runner in self._others.items():
            if runner.lengths[seq] > n and (name == "llm" or name in self.links.readers("llm")):
                runner.sequences.rewind(seq, n)
        for drafter in self.drafters.values():
            drafter.rewind(seq, n)
        self.links.rewind(seq, n)

    def shift(self, seq: int, keep: int, drop: int) -> None:
        """Process the tokens after ``keep + drop`` again, after the first ``keep`` ones.

        The act that this is part of writes over rows of the target: ``Overwritten`` brings them
        back if it fails.
        """
        state = self.states.decided(seq)
        n_prompt = min(state.n_prompt, keep) + max(state.n_prompt - keep - drop, 0)
        end_of_early = max(keep + drop, state.early_end or state.n_prompt)
        early = state.text(end_of_early).copy()
        pending, chooses = state.pending, state.last_logits is not None
        begin, end = keep + drop, state.n
        if chooses and begin == end:  # the newest row's logits are wanted, and not kept
            keep, begin, end = keep - 1, keep - 1, keep
        tail = state.history[begin:end].copy()
        if (tail < 0).any() or self._own_positions(seq, begin, end) is not None:
            raise BatchError(
                "embedding rows, tokens at own positions and codes cannot be processed again",
                where=f"sequence {seq}",
                fix="drop them, too, or keep all up to them",
            )
        kept = state.history[:keep].copy()
        is_text = (kept >= 0).all() and self._own_positions(seq, 0, keep) is None
        try:
            self.rollback(seq, keep)
        except CapacityError:  # a role keeps too little to go back there
            if not is_text:
                raise
            keep, tail = 0, np.concatenate([kept, tail])
            self.rollback(seq, keep)
        if len(tail):
            outputs: Wanted = "last" if chooses else "none"
            self.target.process(Batch.of(tail, seq=seq, pos=keep, outputs=outputs))
        state.n_prompt, state.early, state.early_end = n_prompt, early, end_of_early - drop
        if pending is not None:
            state.set_pending(pending)

    def fork(self, seq: int, new: int, stream: int | None) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is; see ``Cross.fork``."""
        state, other = self.states.decided(seq), self.states[new]
        stream = state.stream if stream is None else Sampling(seed=0, stream=stream).stream
        if other.n or seq == new:
            raise BatchError(
                "a fork goes to an empty sequence", where=f"sequence {new}", fix="remove it first"
            )
        for drafter in self.drafters.values():
            drafter.remove(new)
        for runner in self._others.values():
            runner.sequences.fork(seq, new)
        for drafter in self.drafters.values():
            drafter.fork(seq, new)
        self.links.fork(seq, new)
        other.copy_from(state)
        other.set_stream(stream)

    def remove(self, seq: int) -> None:
        """Forget a whole sequence, in every role; an empty one stays empty."""
        for runner in self._others.values():
            runner.sequences.remove(seq)
        for drafter in self.drafters.values():
            drafter.remove(seq)
        self.links.remove(seq)
        self.states[seq].clear()

    def followers(self) -> Iterator[str]:
        """Yield the roles that hold no more of a sequence than its text."""
        for name, runner in self.runners.items():
            if id(runner) in self._drafter_of or name in self.links.readers("llm"):
                yield name

    def settle(self, runner: GraphRunner, seq: int) -> None:
        """Let a drafter's graph hold exactly the entries of the tokens that were processed."""
        drafter, state = self._drafter_of.get(id(runner)), self.states[seq]
        if drafter is None:
            return
        if drafter.reads_rows:
            drafter.settle(seq, state.history[: state.n], state.rows)
            self._release(seq)
        else:
            drafter.settle(seq, self.states.known(seq))

    def settle_all(self, seq: int) -> None:
        """Let every drafter's graphs hold exactly the entries of the tokens that were processed."""
        for runner in self.runners.values():
            self.settle(runner, seq)


class Overwritten:
    """The rows of a sequence that an act writes over when it processes tokens again.

    A journal restores them last: by then the sequence has the places that it had.
    """

    def __init__(self, speculation: Speculation, seq: int) -> None:
        memory = speculation.target.memory
        self._state, self._seq = speculation.states[seq], seq
        self._parts, self._boxes = memory.parts if memory else (), [*speculation.links.boxes]

    def save(self) -> Any:
        """Return copies of the rows in memory and in inboxes, and of the tokens."""
        stored = [part.snapshot(self._seq) for part in self._parts]
        waiting = [box.snapshot(self._seq) for box in self._boxes]
        return stored, waiting, self._state.history[: self._state.n + 1].copy()

    def restore(self, saved: Any) -> None:
        """Put back what ``save`` returned."""
        stored, waiting, history = saved
        for part, rows in zip(self._parts, stored, strict=True):
            part.refill(self._seq, rows)
        for box, held in zip(self._boxes, waiting, strict=True):
            box.refill(self._seq, held)
        self._state.history[: len(history)] = history


def _grammars(sampling: Samplings, seqs: Iterable[int]) -> dict[int, Grammar]:
    """Return the grammars of those sequences whose settings have one."""
    found = ((seq, check_sampling(setting_of(sampling, seq)).grammar) for seq in seqs)
    return {seq: grammar for seq, grammar in found if grammar is not None}


def _name_of(role: str, drafter: Drafter) -> str:
    return drafter.spec.name if drafter.spec else role


def _check_rewind(name: str, runner: GraphRunner, seq: int, n: int) -> None:
    try:
        runner.sequences.check_rewind(seq, n)
    except CapacityError as error:
        raise error.at(f"role {name}") from None
