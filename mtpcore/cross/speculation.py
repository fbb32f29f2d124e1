"""Draft, verify, accept: what a Cross does with its graphs, links and drafters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.acts.journal import Saved
from mtpcore.backends.base import FusedSampling, Plan, Verification
from mtpcore.boundary.arguments import read_below
from mtpcore.cross.ahead import VerificationAhead
from mtpcore.cross.by_sequence import setting_of
from mtpcore.cross.codebooks import CodebookDecoder, FrameJob
from mtpcore.cross.draft_checker import DraftChecker
from mtpcore.cross.sequence import SequenceState, SequenceStates, Verdict
from mtpcore.cross.verification import RoundBatch, Verdicts, match_drafts, tree_rows
from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.drafting.drafters import Drafter, DraftJob, Verify
from mtpcore.drafting.embedding_rows import NO_ROWS
from mtpcore.errors import BatchError, CapacityError, LinkError, NoTokenError, spell
from mtpcore.links.links import Links
from mtpcore.runtime.batch import Batch, Wanted
from mtpcore.runtime.output import Output
from mtpcore.runtime.prompt import Prompt
from mtpcore.runtime.runner import Deliver, GraphRunner
from mtpcore.sampling import (
    DraftProcessor,
    LogitsProcessor,
    PureProcessor,
    Sampling,
    process_logits,
)

__all__ = ["DraftSampler", "Drafted", "Overwritten", "DraftPlan", "Samplings", "Speculation"]

DraftSampler = Literal["coupled", "argmax"]
Samplings = Sampling | Mapping[int, Sampling]
DraftPlan = Mapping[str, int]
"""Who is asked for drafts, by role and in this order, and for how many tokens."""


NO_PROCESSORS: Mapping[int, LogitsProcessor] = {}


class Drafted(NamedTuple):
    """Drafts by sequence, the role that made each one, and the seconds that each role took."""

    drafts: dict[int, Draft]
    makers: dict[int, str]
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
    """

    def __init__(
        self,
        runners: Mapping[str, GraphRunner],
        links: Links,
        drafters: Mapping[str, Drafter],
        codes: CodebookDecoder | None = None,
    ) -> None:
        self.runners, self.links, self.drafters = runners, links, drafters
        self.codes = codes
        self.target = runners["llm"]
        self.names = {role: _name_of(role, drafter) for role, drafter in drafters.items()}
        self.states, self.checker = SequenceStates(self.target), DraftChecker(self.target)
        self.states.keeps_rows = any(drafter.reads_rows for drafter in drafters.values())
        self.choose_seconds = 0.0
        self._drafter_of = {
            id(runner): drafter
            for drafter in drafters.values()
            for runner in drafter.runners.values()
        }
        self._others = {
            name: runner for name, runner in runners.items() if id(runner) not in self._drafter_of
        }
        self._round: RoundBatch | None = None  # which is being verified
        self._ahead: VerificationAhead | None = None  # what was run behind the drafts
        links.apply()
        for name, runner in runners.items():
            runner.deliver = self._deliverer(name)

    # What acts may change

    def saved(self, seqs: Collection[int]) -> Iterator[Saved]:
        """Yield what an act on these sequences may change."""
        yield self
        yield from (runner for runner in self.runners.values() if runner.host is None)
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

    # Reading

    @property
    def encoder(self) -> GraphRunner | None:
        """What reads prompts, where it is not the target."""
        spec = self.target.model.spec
        return self.runners.get(spec.encoder) if spec is not None and spec.encoder else None

    def encode(self, prompts: Mapping[int, Sequence[int]]) -> None:
        """Let the encoder read prompts of empty sequences; see ``Cross.encode``."""
        if not prompts:
            return
        encoder = self.encoder
        if encoder is None:
            raise LinkError(
                "no role reads prompts for the target",
                got=", ".join(self.runners),
                fix="link(Context(model)) makes an encoder's context where the model has one",
            )
        for seq, ids in prompts.items():
            if not isinstance(ids, list) or not ids:
                raise BatchError(
                    "an encoder reads one token or more",
                    where=f"sequence {seq}",
                    wanted="a list of token ids",
                    got=spell(ids),
                )
            if n := encoder.lengths[encoder.sequences.check(seq)]:
                raise BatchError(
                    "the sequence has a prompt already",
                    where=f"sequence {seq}",
                    got=f"{n} tokens",
                    fix="remove it first",
                )
        seqs = [seq for seq, ids in prompts.items() for _ in ids]
        tokens = [token for ids in prompts.values() for token in ids]
        encoder.process(Batch(tokens, seq=seqs, outputs="none"))

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
                    wanted=", ".join(self.names.values()) or "none: it decodes without drafts",
                    got=spell(name),
                    fix='name it in link(llm, [...]), as in link(llm, ["lookup", "auto"])',
                )
            plan[role] = k
        return plan

    def draft(
        self,
        wanted: Mapping[int, DraftPlan],
        sampling: Samplings,
        draft_sampler: DraftSampler | Mapping[int, DraftSampler],
        p_min: float | Mapping[int, float],
        *,
        processors: Mapping[int, LogitsProcessor] = NO_PROCESSORS,
        verified: Sequence[int] = (),
    ) -> Drafted:
        """Draft for each sequence, by the first drafter in its plan that proposes anything.

        Sequences that ask the same drafter at the same turn draft together. Of ``processors`` the
        pure ones change the drafters' logits, too. ``verified`` are the
        sequences, in order, that the next call will ``verify`` with nothing else in its pass: then
        a backend may run that pass as a part of the schedule.
        """
        jobs: dict[int, DraftJob] = {}
        for s, plan in wanted.items():
            state, settings = self.states[s], setting_of(sampling, s)
            self.states.choose(s, settings)
            room = min(max(self.target.n_ctx - state.n - 1, 0), self.target.longest_draft)
            n = min(max(plan.values(), default=0), room)
            if n and self.drafters and not any(self._follow(d, s) for d in self.drafters.values()):
                self.checker.pause(s, state.n_known)
            elif n:
                sampler = self.states.sampler(s, settings, setting_of(draft_sampler, s))
                text, least = state.history[: state.n + 1], setting_of(p_min, s)
                if state.stream is not None:
                    settings = msgspec.structs.replace(settings, stream=state.stream)
                processor = self._processor_of_drafts(s, processors.get(s))
                jobs[s] = DraftJob(
                    *(s, text, state.n_prompt, room, sampler, least, state.rows, settings),
                    processor=processor,
                )
        drafted = Drafted({s: [] for s in wanted}, {}, {})
        turn = 0
        while asked := _ask(wanted, jobs.keys() - drafted.makers.keys(), turn):
            for name, drafter in self.drafters.items():
                limit = drafter.spec.limit if drafter.spec else self.target.n_ctx
                open_jobs = [
                    msgspec.structs.replace(
                        jobs[s],
                        k=min(jobs[s].k, wanted[s][name], limit),
                        rows=jobs[s].rows if drafter.reads_rows else NO_ROWS,
                    )
                    for s in jobs
                    if asked.get(s) == name and self._follow(drafter, s)
                ]
                if open_jobs:
                    is_only = len(open_jobs) == len(wanted) and not any(
                        any(plan[other] for other in plan if other != name)
                        for plan in wanted.values()
                    )
                    told = verified, sampling, len(open_jobs)
                    verify = partial(self._verify_ahead, *told) if is_only else None
                    self._draft_by(name, drafter, open_jobs, drafted, verify)
            turn += 1
        for s in jobs:
            self._release(s)
        return drafted

    def _processor_of_drafts(
        self, seq: int, processor: LogitsProcessor | None
    ) -> DraftProcessor | None:
        """Return what changes the logits of a sequence's drafters; None: nothing."""
        if not isinstance(processor, PureProcessor):
            return None
        n_vocab = self.target.model.hparams.n_vocab
        return DraftProcessor(processor, n_vocab, partial(self.checker.doubt, seq))

    def _draft_by(
        self,
        name: str,
        drafter: Drafter,
        jobs: list[DraftJob],
        drafted: Drafted,
        verify: Verify | None,
    ) -> None:
        """Let one drafter draft, and note what it made."""
        begin = perf_counter()
        by_seq = {job.seq: job for job in jobs}
        for s, draft in drafter.draft(jobs, verify).items():
            drafted.drafts[s] = self.checker.check(name, by_seq[s], draft)
            if len(drafted.drafts[s]):
                drafted.makers[s] = name
        drafted.seconds[name] = drafted.seconds.get(name, 0.0) + perf_counter() - begin

    def _verify_ahead(
        self,
        verified: Sequence[int],
        sampling: Samplings,
        n_drafted: int,
        plan: Plan,
        seqs: Sequence[int],
        drafts: Sequence[int] | Sequence[DraftTree],
    ) -> Verification | None:
        """Return the pass that verifies what a schedule for these sequences drafts, or None.

        None if the run is only one of several for the ``n_drafted`` sequences, if the plans cannot
        be joined, or if there is no room, which ``verify`` will report.
        """
        n_rows = len(verified) + sum(n if isinstance(n, int) else len(n) for n in drafts)
        if len(seqs) < n_drafted:
            return None
        if not verified or not plan.joins(self.target.plan) or n_rows > self.target.n_batch:
            return None
        rows, draft_of = RoundBatch(), dict[int, int | DraftTree](zip(seqs, drafts, strict=True))
        for seq in verified:
            pending = self.states.choose(seq, setting_of(sampling, seq))
            n = self.states.decided(seq).n
            wanted = draft_of.get(seq, 0)
            if isinstance(wanted, DraftTree) and len(wanted) > self.checker.room(n + 1):
                return None
            draft: Draft = [pending] * wanted if isinstance(wanted, int) else wanted
            rows.add_draft(seq, n, pending, draft)  # with any tokens that there are
            if self.target.memory:
                self.target.memory.allow_rewind(len(draft))
        fused = self._fused_sampling(rows, rows.batch(), sampling, {})
        try:
            self._ahead = VerificationAhead(self.target, rows, fused, seqs)
        except CapacityError:
            return None
        return self._ahead.verification

    def _follow(self, drafter: Drafter, seq: int) -> bool:
        """Say whether a drafter can read everything that the target read of a sequence."""
        state = self.states[seq]
        if state.n_known == state.n or not drafter.reads_text:
            return True
        lengths = [runner.lengths[seq] for runner in drafter.runners.values()]
        places = range(max(min(lengths, default=0), drafter.first), state.n)
        return drafter.reads_rows and state.rows.reach(state.history, places) == state.n

    def _release(self, seq: int) -> None:
        """Forget embedding rows that every drafter which reads them has read."""
        state = self.states[seq]
        if state.rows.end:
            readers = [d for d in self.drafters.values() if d.reads_rows]
            lengths = [one.lengths[seq] for d in readers for one in d.runners.values()]
            state.rows = state.rows.behind(min(lengths))

    # Frames

    def frame(
        self,
        seqs: Sequence[int],
        sampling: Samplings,
        depth_sampling: Samplings | None,
        earlier: Mapping[int, NDArray[np.int32]],
    ) -> dict[int, NDArray[np.int32] | None]:
        """Choose the frame of codes that follows each sequence; see ``Cross.frame``.

        None where no code was left to choose.
        """
        codes, jobs = self.codes, []
        assert codes is not None
        frames: dict[int, NDArray[np.int32] | None] = dict.fromkeys(seqs)
        for s in seqs:
            state, settings = self.states.decided(s), setting_of(sampling, s)
            if state.last_logits is None:
                raise BatchError(
                    "nothing to continue from",
                    where=f"sequence {s}",
                    fix="process() rows with outputs='last' first",
                )
            text = earlier.get(s, np.zeros(0, np.int32))
            sampler = self.states.sampler(s, settings)
            logits = codes.allowed(state.last_logits)
            try:
                first = sampler.choose(logits, text, 0, codes.index(state.n))
            except NoTokenError:
                continue
            inner = settings if depth_sampling is None else setting_of(depth_sampling, s)
            jobs.append(FrameJob(s, state.n, first, self.states.sampler_of_codes(s, inner)))
        return frames | codes.decode(jobs)

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
    ) -> Verdicts:
        """Let the target choose at every drafted position; see ``Cross.verify``."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (prefill or processors or logits):
            ahead.give_back()
            ahead = None
        prompts = {seq: ids for seq, ids in prefill.items() if isinstance(ids, Prompt)}
        texts = {s: ids for s, ids in prefill.items() if not isinstance(ids, Prompt) and len(ids)}
        rows = RoundBatch()
        for seq, draft in drafts.items():
            state = self.states.decided(seq)
            if seq in texts or seq in prompts:
                raise BatchError("both drafts and a prompt", where=f"sequence {seq}")
            if self.target.memory:
                self.target.memory.allow_rewind(len(draft))
            pending = self.states.choose(seq, setting_of(sampling, seq), processors.get(seq))
            rows.add_draft(seq, state.n, pending, draft)
        for seq, ids in texts.items():
            rows.add_prompt(seq, self.states.decided(seq).n, ids, ends=seq not in unfinished)
        for seq, prompt in prompts.items():  # each in a pass of its own: others are of tokens
            n, n_axes = self.states.decided(seq).n, self.target.program.n_axes
            outputs: Wanted = "none" if seq in unfinished else "last"
            batch = prompt.batch(seq=seq, place=n, n_axes=n_axes, outputs=outputs)
            self.target.process(batch)
        if not len(rows):
            return Verdicts({}, None)
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

    def _fused_sampling(
        self,
        rows: RoundBatch,
        batch: Batch,
        sampling: Samplings,
        processors: Mapping[int, LogitsProcessor],
    ) -> FusedSampling | None:
        """Return the samplers of a pass; None if all logits are needed.

        Logits of prompts are kept until a token is chosen; a logits processor needs them, too.
        """
        pos = batch.pos[batch.outputs]
        samplers: list[Sampler | None] = [None] * len(pos)
        texts, n_prompt = [batch.tokens[:0]] * len(pos), [0] * len(pos)
        needs_texts = False
        for seq, (begin, end) in rows.spans.items():
            sampler = self.states.sampler(seq, setting_of(sampling, seq))
            if seq in processors:
                continue
            if not sampler.is_gumbel_max:
                if not self.target.plan.chooses_after_texts:
                    continue
                state, needs_texts = self.states[seq], True
                texts[begin:end] = rows.texts(seq, state.history[: state.n])
                n_prompt[begin:end] = [state.n_prompt] * (end - begin)
            samplers[begin:end] = [sampler] * (end - begin)
        if not any(samplers):
            return None
        fused = FusedSampling(samplers=samplers, indices=(pos + 1).tolist())
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
    ) -> Verdict:
        state, sampler = self.states[seq], self.states.sampler(seq, sampling)
        begin, end = span  # of rows, and of logits: those of drafts come first
        history = state.history[: state.n + end - begin]
        history[state.n] = batch.tokens[begin]  # behind n nothing counts until it is accepted

        def choose(row: int, tokens: NDArray[np.int32]) -> int:
            try:
                token = output.chosen_at(begin + row)
                if token is not None:
                    return token
                logits = process_logits(processor, tokens, output.logits_at(begin + row))
                return sampler.choose(logits, tokens, state.n_prompt, len(tokens))
            except NoTokenError:
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
            self.target.keep(seq, paths.get(seq, range(len(indices))))
        self.links.post(
            "llm", output, {seq: output.rows_of_seq[seq][path] for seq, path in paths.items()}
        )

    def _deliverer(self, role: str) -> Deliver:
        def deliver(batch: Batch, output: Output) -> None:
            target, delivered = role == "llm", output.rows_of_seq
            if target and self._round is not None:  # of a tree the path taken is delivered later
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
            if target:
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
        nearest one before it that they have, and the target processes the tokens behind that again.
        Rows have the same bits as before: an act that fails half-way is taken back as any other.
        """
        state, place = self.states[seq], self.nearest(seq, n)
        again = state.history[place:n].copy()
        if (again < 0).any():  # embedding rows, which are gone
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
        place = n
        while (least := min(one.sequences.nearest(seq, place) for one in runners)) < place:
            place = least
        return place

    def reachable(self, seq: int, n: int) -> int:
        """Return the greatest place, at most ``n``, that every role can go back to; 0: none.

        Recurrent layers have states of few places, and a sliding window has lost what lies far
        behind it.
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
        for name, runner in self.runners.items():
            if runner.lengths[seq] > n and name in followers:
                _check_rewind(name, runner, seq, n)
        for name, runner in self._others.items():
            if runner.lengths[seq] > n and (name == "llm" or name in self.links.readers("llm")):
                runner.rewind(seq, n)
        for drafter in self.drafters.values():
            drafter.rewind(seq, n)
        self.links.rewind(seq, n)

    def shift(self, seq: int, keep: int, drop: int) -> None:
        """Process the tokens behind ``keep + drop`` again, behind the first ``keep`` ones.

        The act that this is part of writes over rows of the target: ``Overwritten`` brings them
        back if it fails.
        """
        state = self.states.decided(seq)
        n_prompt = min(state.n_prompt, keep) + max(state.n_prompt - keep - drop, 0)
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
        state.n_prompt = n_prompt
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
            runner.fork(seq, new)
        for drafter in self.drafters.values():
            drafter.fork(seq, new)
        self.links.fork(seq, new)
        other.copy_from(state)
        other.set_stream(stream)

    def remove(self, seq: int) -> None:
        """Forget a whole sequence, in every role; an empty one stays empty."""
        for runner in self._others.values():
            runner.remove(seq)
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


def _name_of(role: str, drafter: Drafter) -> str:
    return drafter.spec.name if drafter.spec else role


def _ask(wanted: Mapping[int, DraftPlan], seqs: Collection[int], turn: int) -> dict[int, str]:
    """Return the drafter that each of these sequences asks at a turn, if it asks one."""
    orders = {s: [name for name, k in wanted[s].items() if k] for s in seqs}
    return {s: order[turn] for s, order in orders.items() if turn < len(order)}


def _check_rewind(name: str, runner: GraphRunner, seq: int, n: int) -> None:
    try:
        runner.sequences.check_rewind(seq, n)
    except CapacityError as error:
        raise error.at(f"role {name}") from None
