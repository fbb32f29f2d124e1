"""Generator: one or many requests, drafted and verified together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Literal

from mtpcore.acts import Storey, act
from mtpcore.arguments import Length, offers, read
from mtpcore.context import Context
from mtpcore.cross import Acceptance, Cross, Draft, DraftSampler, Verdict
from mtpcore.decoding.length import controller_for
from mtpcore.decoding.policy import LengthPolicy, Round
from mtpcore.decoding.request import Request, read_draft, read_draft_sampler, read_p_min
from mtpcore.decoding.stats import Stats
from mtpcore.draft_tree import DraftTree
from mtpcore.errors import BatchError, BusyError, CapacityError, LinkError, spell
from mtpcore.sampling import Sampling, check_sampling

__all__ = ["Generator"]


class Generator:
    """Runs requests on a Cross, or plainly on a bare LLM context.

    Its calls are those of the Cross: one at a time, another one meanwhile is a BusyError.

    Parameters
    ----------
    source : Cross or Context
        Where to run; its empty sequences are used.
    sampling : Sampling, optional
        Default settings; default: temperature 1 with a seed drawn and recorded.
    draft : int or "auto"
        Default longest draft; 0 decodes plainly; "auto" measures which length is fastest, and
        drafts nothing where that is. The tokens are the same for every value.
    draft_sampler : {"coupled", "argmax"}
        How drafts are chosen.
    p_min : float
        A draft less probable than this ends the drafts.
    acceptance : callable, optional
        For measurements: decides which drafts are accepted in place of the target, see
        ``SyntheticAcceptance``. The text is then meaningless.
    lengths : LengthPolicy, optional
        What chooses the lengths of "auto"; default: a ``Controller`` that learns from the rounds.
    """

    def __init__(
        self,
        source: Cross | Context,
        *,
        sampling: Sampling | None = None,
        draft: int | Literal["auto"] = 0,
        draft_sampler: DraftSampler = "coupled",
        p_min: float = 0.0,
        acceptance: Acceptance | None = None,
        lengths: LengthPolicy | None = None,
    ) -> None:
        if acceptance is not None and not callable(acceptance):
            raise BatchError("acceptance is a callable", got=spell(acceptance))
        if lengths is not None and not offers(lengths, "choose", "observe", "forget"):
            raise BatchError(
                "lengths are chosen by a LengthPolicy",
                wanted="choose, observe and forget",
                got=type(lengths).__name__,
                fix="leave it out, or pass a Controller",
            )
        self.sampling = Sampling() if sampling is None else sampling
        check_sampling(self.sampling)
        self.draft, self.draft_sampler = read_draft(draft), read_draft_sampler(draft_sampler)
        self.p_min = read_p_min(p_min)
        if isinstance(source, Context):
            owner = source.owner
            source = owner if isinstance(owner, Cross) else Cross(llm=source)
        if not isinstance(source, Cross):
            raise LinkError(
                "a generator runs on a Cross or an LLM context",
                got=type(source).__name__,
                fix="make one: Generator(link(Context(model)))",
            )
        self.cross, self.guard = source, source.guard
        self.acceptance = acceptance
        self.lengths = controller_for(source) if lengths is None else lengths
        self.stats = Stats()
        self._waiting: deque[Request] = deque()
        self._left: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._finished: list[int] = []
        self._before = self.cross.invalid, self.cross.paused
        llm = self.cross.llm
        self._free = [s for s in range(llm.n_seq_max - 1, -1, -1) if not llm.length(s)]

    def __repr__(self) -> str:
        return (
            f"Generator({self.cross!r}, draft={self.draft!r}, {len(self._running)} running, "
            f"{len(self._waiting)} waiting)"
        )

    @act(Storey.GENERATOR)
    def add(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling | None = None,
        draft: int | Literal["auto"] | None = None,
        max_tokens: int = 128,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        draft_sampler: DraftSampler | None = None,
        p_min: float | None = None,
    ) -> Request:
        """Queue a request; ``step`` works on it.

        Raises
        ------
        BatchError, CapacityError
            A prompt that cannot be processed, or that fills the context.
        """
        llm = self.cross.llm
        request = Request(
            prompt,
            sampling=self.sampling if sampling is None else sampling,
            draft=self.draft if draft is None else draft,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            draft_sampler=self.draft_sampler if draft_sampler is None else draft_sampler,
            p_min=self.p_min if p_min is None else p_min,
            tokenizer=llm.model.tokenizer,
        )
        n_vocab = llm.model.hparams.n_vocab
        bad = [t for t in request.prompt if not 0 <= t < n_vocab]
        if bad:
            raise BatchError(
                "no such token", where="prompt", wanted=f"0..{n_vocab - 1}", got=bad[0]
            )
        if len(request.prompt) > llm.n_ctx:
            raise CapacityError(
                "the prompt is longer than the context",
                wanted=llm.n_ctx,
                got=len(request.prompt),
                fix="make n_ctx= (-c) larger",
            )
        if request.max_tokens == 0:
            request.end("length")
        else:
            self._waiting.append(request)
        return request

    @property
    def active(self) -> bool:
        """Whether requests are queued or running."""
        return bool(self._waiting or self._running)

    @act(Storey.GENERATOR)
    def cancel(self, request: Request) -> None:
        """Stop a request; its sequence is free at once.

        Raises
        ------
        BatchError
            Another generator works on it.
        """
        if not isinstance(request, Request):
            raise BatchError("cancel() takes a request", got=spell(request))
        if not request.done:
            if request not in self._waiting and request not in self._running.values():
                raise BatchError(
                    "this generator does not work on the request",
                    fix="call cancel on the generator whose add() gave it",
                )
            self._end(request)

    def _end(self, request: Request) -> None:
        request.end("cancelled")
        if request in self._waiting:
            self._waiting.remove(request)
        self._release(request)
        self._forget_finished()

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 128,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        sampling: Sampling | None = None,
        draft: int | Literal["auto"] | None = None,
    ) -> Iterator[int]:
        """Yield the tokens of one request; its sequence is freed afterwards."""
        request = self.add(
            prompt,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            sampling=sampling,
            draft=draft,
        )
        given = 0
        try:
            while not request.done:
                self.step()
                yield from request.tokens[given:]
                given = len(request.tokens)
        finally:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        """Cancel a request that nobody reads on; iterators are also closed as garbage, any time."""
        try:
            self.cancel(request)
        except BusyError:
            self._left.append(request)

    @act(Storey.GENERATOR)
    def step(self) -> None:
        """Run one round: draft, verify together with chunks of prompts, commit.

        Where something raises (a proposer, a context), every request is as it was before the
        round and ``step`` may be called again. What chooses lengths is told of a round that is
        done: what it raises then takes nothing back.
        """
        self._admit()
        ready = {s: r for s, r in self._running.items() if self.cross.pending(s) is not None}
        samplings = {s: r.sampling for s, r in self._running.items()}
        t0 = perf_counter()
        asked = self._choose_lengths(ready)
        t1 = perf_counter()
        drafts = self._draft(asked, samplings)
        t2 = perf_counter()
        prefill = self._chunks(sum(len(d) + 1 for d in drafts.values()))
        chosen_before = self.cross.choose_seconds
        verdicts = self.cross.verify(
            drafts,
            samplings,
            prefill=prefill,
            unfinished=self._unfinished(prefill),
            acceptance=self.acceptance,
        )
        t3 = perf_counter()
        choose_seconds = self.cross.choose_seconds - chosen_before
        for seq, verdict in verdicts.items():
            self._commit(seq, drafts[seq], verdict)
        for seq, tokens in prefill.items():
            self._advance(seq, len(tokens))
        t4 = perf_counter()
        stats = self.stats
        stats.passes += bool(verdicts)
        stats.draft_seconds += t2 - t1
        stats.commit_seconds += t4 - t3
        stats.invalid = self.cross.invalid - self._before[0]
        stats.paused = self.cross.paused - self._before[1]
        if verdicts:
            stats.verify_seconds += t3 - t2 - choose_seconds
            stats.choose_seconds += choose_seconds
            n_prompt = sum(map(len, prefill.values()))
            done = Round(
                asked=asked,
                made={seq: len(draft) for seq, draft in drafts.items()},
                accepted={seq: verdict.accepted for seq, verdict in verdicts.items()},
                rows=sum(len(draft) + 1 for draft in drafts.values()) + n_prompt,
                prompt_rows=n_prompt,
                draft_seconds=t2 - t1,
                pass_seconds=t4 - t2 + t1 - t0 - choose_seconds,
                choose_seconds=choose_seconds,
            )
            self._learn(done, any(request.draft == "auto" for request in ready.values()))
        else:
            stats.prefill_seconds += t3 - t2
        self._forget_finished()
        stats.length_seconds += t1 - t0 + perf_counter() - t4

    def _forget_finished(self) -> None:
        """Let what chooses lengths forget the texts that ended, once it saw their last round."""
        while self._finished:
            self.guard.lend(self.lengths.forget, self._finished.pop())

    def _admit(self) -> None:
        while self._left:
            request = self._left.popleft()
            if not request.done:
                self._end(request)
        self._forget_finished()
        while self._waiting and self._free:
            request = self._waiting.popleft()
            request.seq = self._free.pop()
            self._running[request.seq] = request
            self.stats.prompt_tokens += len(request.prompt)

    def _choose_lengths(self, ready: Mapping[int, Request]) -> dict[int, int]:
        """Return how much to draft for each sequence: no more than it has room and budget for."""
        room = self.cross.llm.n_ctx + 1
        asked: dict[int, int] = {}
        limits: dict[int, int] = {}
        for seq, request in ready.items():
            n = len(request.tokens)
            left = max(min(request.max_tokens - n, room - len(request.prompt) - n) - 1, 0)
            if request.draft == "auto":
                limits[seq] = left
            else:
                asked[seq] = min(request.draft, left)
        if limits:
            chosen = self.guard.lend(self.lengths.choose, limits, asked)
            where = type(self.lengths).__name__
            if not isinstance(chosen, Mapping):
                raise BatchError("no lengths of drafts", where=where, got=spell(chosen))
            for seq, most in limits.items():
                k = read(chosen.get(seq, 0), Length, "draft is a number of tokens", where=where)
                asked[seq] = min(k, most)
        return asked

    def _learn(self, done: Round, auto: bool) -> None:
        """Count the lengths, and let what chooses them see what they brought."""
        for k in done.asked.values():
            self.stats.lengths[k] = self.stats.lengths.get(k, 0) + 1
        if auto:
            self.stats.note(self.guard.lend(self.lengths.observe, done))

    def _draft(
        self, asked: Mapping[int, int], samplings: Mapping[int, Sampling]
    ) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {seq: [] for seq in asked}
        wanted = {seq: k for seq, k in asked.items() if k}
        for p_min in {self._running[seq].p_min for seq in wanted}:
            mine = {seq: k for seq, k in wanted.items() if self._running[seq].p_min == p_min}
            drafts |= self.cross.draft(
                mine,
                sampling=samplings,
                p_min=p_min,
                draft_sampler={seq: self._running[seq].draft_sampler for seq in mine},
            )
        return drafts

    def _chunks(self, taken: int) -> dict[int, list[int]]:
        """Share what the batch has left among prompts that are not processed yet."""
        room = max(self.cross.llm.n_batch - taken, 1)
        chunks = {}
        for seq, request in self._running.items():
            tokens = request.prompt[request.n_prefilled : request.n_prefilled + room]
            if tokens and room > 0:
                chunks[seq] = tokens
                room -= len(tokens)
        return chunks

    def _unfinished(self, chunks: Mapping[int, Sequence[int]]) -> list[int]:
        """Return the sequences whose prompts go on after these chunks."""
        running = self._running
        return [
            seq
            for seq, tokens in chunks.items()
            if running[seq].n_prefilled + len(tokens) < len(running[seq].prompt)
        ]

    def _advance(self, seq: int, n: int) -> None:
        request = self._running[seq]
        request.n_prefilled += n
        if request.n_prefilled < len(request.prompt):
            return
        token = self.cross.pending(seq, request.sampling)
        assert token is not None
        going = self._take(request, token, drafted=False)
        self.stats.prompts += len(request.tokens)
        if going:
            self._check_room(request)

    def _commit(self, seq: int, drafts: Draft, verdict: Verdict) -> None:
        request = self._running[seq]
        before = len(request.tokens)
        for i, token in enumerate(verdict.tokens):
            if not self._take(request, token, drafted=i < verdict.accepted):
                break
        if len(drafts):
            depth = drafts.depth.max() if isinstance(drafts, DraftTree) else len(drafts)
            self.stats.count(len(drafts), int(depth), sum(request.drafted[before:]))
        if not request.done:
            self.cross.accept(seq)
            self._check_room(request)

    def _take(self, request: Request, token: int, *, drafted: bool) -> bool:
        """Commit one token, count it if the text has it; return whether the request goes on."""
        before = len(request.tokens)
        going = request.commit(token, drafted=drafted)
        self.stats.tokens += len(request.tokens) - before
        if going:
            return True
        self._release(request)
        return False

    def _check_room(self, request: Request) -> None:
        assert request.seq is not None
        if self.cross.llm.length(request.seq) >= self.cross.llm.n_ctx:
            request.end("length")
            self._release(request)

    def _release(self, request: Request) -> None:
        if request.seq is not None:
            self.cross.remove(request.seq)
            self._finished.append(request.seq)
            self._running.pop(request.seq, None)
            self._free.append(request.seq)
            request.seq = None
