"""Generator: one or many requests, drafted and verified together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Unpack

import msgspec
import numpy as np

from mtpcore.acts.guards import act
from mtpcore.boundary.arguments import offers
from mtpcore.boundary.options import show_options
from mtpcore.cross import Cross, DraftSampler, link
from mtpcore.decoding.context_shift import check_shift, shift_full
from mtpcore.decoding.kept_texts import KeptTexts
from mtpcore.decoding.lengths.length import controller_for
from mtpcore.decoding.lengths.policy import LengthPolicy, Round
from mtpcore.decoding.options import REQUEST_DEFAULTS, RequestOptions, complete_options
from mtpcore.decoding.prefix_cache import PrefixCache, PrefixCacheSize, read_prefix_cache
from mtpcore.decoding.request import (
    NO_LIMIT,
    Progress,
    Request,
    read_draft,
    read_draft_sampler,
    read_p_min,
    read_when_full,
)
from mtpcore.decoding.request_iterator import RequestIterator
from mtpcore.decoding.request_queue import RequestQueue
from mtpcore.decoding.rounds import check_sequences, run_round
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.stopwatch import Stopwatch
from mtpcore.errors import BatchError, CapacityError, LinkError
from mtpcore.runtime.adapters import AdapterChoice
from mtpcore.runtime.context import Context
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import Sampling, check_sampling

__all__ = ["Generator"]

_show_options = show_options(RequestOptions, REQUEST_DEFAULTS)


class Generator(RequestQueue[Request]):
    """Runs requests on a Cross, or without drafts on an LLM context alone.

    Only one call runs at a time on a Cross with its generators: a second one is a BusyError.

    Parameters
    ----------
    source : Cross or Context
        Where to run. Only its empty sequences are used, so generators can share it. A context is
        linked, without drafters: from then on it changes through ``generator.cross`` alone.
    sampling : Sampling, optional
        Default settings; default: temperature 1 with a seed drawn and recorded.
    draft : int or "auto"
        Default for the longest draft; 0: no drafts; "auto" measures which length is fastest, 0
        included. The tokens are the same for every value.
    draft_sampler : {"coupled", "argmax"}
        How drafts are chosen.
    p_min : float
        A draft less probable than this ends the drafts.
    lengths : LengthPolicy, optional
        Chooses the lengths for "auto"; default: a ``Controller`` that learns from the rounds.
    prefix_cache : int or "all" or None
        Bytes that finished texts may take in the memory of all roles, in sequences that no request
        needs; "all": as many as there are. A request whose prompt begins with the same tokens as a
        text, finished or running, then processes only the others. The text is the same. Default:
        every request begins anew, and so it does where the target reads rows of another role.
        Texts with other adapters have nothing in common.
    adapters : mapping of str to float, or sequence of str
        The target's adapters that a text has whose request names none: names and scales, or names
        alone.

    Raises
    ------
    BatchError, SamplingError
        Invalid settings.
    LinkError
        ``source`` is neither a Cross nor a context.
    """

    def __init__(
        self,
        source: Cross | Context,
        *,
        sampling: Sampling | None = None,
        draft: int | Literal["auto"] = 0,
        draft_sampler: DraftSampler = "coupled",
        p_min: float = 0.0,
        lengths: LengthPolicy | None = None,
        prefix_cache: PrefixCacheSize = None,
        adapters: AdapterChoice = (),
    ) -> None:
        if lengths is not None and not offers(lengths, "choose", "keep", "observe", "forget"):
            raise BatchError(
                "lengths are chosen by a LengthPolicy",
                wanted="choose, keep, observe and forget",
                got=type(lengths).__name__,
                fix="leave it out, or pass a Controller",
            )
        self.sampling = Sampling() if sampling is None else sampling
        check_sampling(self.sampling)
        self.draft, self.draft_sampler = read_draft(draft), read_draft_sampler(draft_sampler)
        self.p_min = read_p_min(p_min)
        prefix_cache = read_prefix_cache(prefix_cache)
        target = source.llm if isinstance(source, Cross) else source
        if isinstance(target, Context):  # before anything is linked
            target.runner.choose_adapters(adapters)
        if isinstance(source, Context):
            owner = source.owner
            source = owner if isinstance(owner, Cross) else link(source, [])
        if not isinstance(source, Cross):
            raise LinkError(
                "a generator runs on a Cross or an LLM context",
                got=type(source).__name__,
                fix="make one: Generator(link(Context(model)))",
            )
        if source.llm.model.codebooks is not None:
            raise LinkError(
                "the model writes codes, no tokens",
                got=repr(source.llm),
                fix="let Frames write: Frames(cross).generate(prompt)",
            )
        super().__init__(source, Request)
        self.adapters = adapters
        self.prefixes, self.kept = PrefixCache(source, prefix_cache), KeptTexts(source)
        self.lengths = controller_for(source) if lengths is None else lengths
        self.stats = Stats()
        self._finished: list[int] = []  # sequences of texts that ended

    def __repr__(self) -> str:
        return f"Generator({self.cross!r}, draft={self.draft!r}, {self._describe()})"

    @act
    @_show_options
    def add(self, prompt: Sequence[int] | Prompt, **options: Unpack[RequestOptions]) -> Request:
        """Queue a request; ``step`` works on it.

        Parameters
        ----------
        prompt : sequence of int or Prompt
            Token ids, one or more; or tokens and embedding rows.
        max_tokens : int, optional
            The longest text; None: until the context is full, or without end where it is shifted.
            Default: 128.
        min_tokens : int
            Until the text has so many tokens no token that ends it is chosen, and no stop string
            ends it. Default: 0.
        stop : str or sequence of str
            The text ends before the first of these, control tokens included: ``"<|im_start|>"``.
        stop_token_ids : int or sequence of int
            The text ends before these tokens, whatever ``ignore_eos`` says.
        banned_strings : str or sequence of str
            No token is chosen that would complete one of these in the text, however they are
            divided into tokens. Letters count as they are: "no" does not ban "No".
        special : bool
            Whether the text shows control tokens; by default they are no part of it.
        ignore_eos : bool
            Whether the text goes on after end-of-text tokens.
        sampling, draft, draft_sampler, p_min
            This request's; default: the generator's. Tokens that the model file suppresses are
            chosen only where ``sampling`` has a bias for them.
        drafters : sequence of str, optional
            The drafters of this request by name: the first that proposes anything drafts. Default:
            all that are linked, in their order, or in the order that ``draft="auto"`` finds.
        logprobs : int, optional
            Record each token's log-probability and those of the n likeliest tokens in
            ``Request.logprobs``; 0 records the token's alone. Default: none.
        prompt_logprobs : int, optional
            Record the same of the prompt's tokens, from the second one on, in
            ``Request.prompt_logprobs``. All of the prompt is processed then, whatever the prefix
            cache has of it, in passes of fewer tokens; ``max_tokens=0`` asks for nothing else.
            Default: none.
        logits_processor : callable, optional
            Called with the tokens so far, int32[n_tokens], and the logits, float32[n_vocab], once
            for each token of the text, in order. It may change the logits in place, before bias,
            penalties and cuts, or return others. With drafts it gets the same calls as without; one
            that is a ``PureProcessor`` is called for drafts as well. If it raises,
            ``step`` undoes the round and raises; the next round calls it again.
        when_full : {"stop", "shift"}
            What happens when the context is full. "stop", the default, ends the text. "shift" drops
            half of the tokens after the first ``n_keep``, processes the others again at their new
            positions, and goes on: penalties and processors see what remains, and the noise is
            not used a second time.
        n_keep : int, optional
            How many of the first tokens a shift never drops; default: the prompt, at most half of
            the context.
        adapters : mapping of str to float, or sequence of str, optional
            The target's adapters that the text has, as ``Context.adapt`` takes them; empty: none.
            Default: the generator's.

        Raises
        ------
        BatchError, CapacityError, LinkError
            A prompt that cannot be processed, or that fills the context; or a context that cannot
            be shifted.
        SamplingError
            Invalid settings.
        TypeError
            An option that is unknown.
        """
        request = self.request(prompt, **options)
        self._queue(request)
        return request

    @_show_options
    def request(self, prompt: Sequence[int] | Prompt, **options: Unpack[RequestOptions]) -> Request:
        """Return a request that ``queue`` takes, checked as ``add`` checks it; nothing changes.

        Parameters
        ----------
        prompt : sequence of int or Prompt
            Token ids, one or more; or tokens and embedding rows.
        **options
            As in ``add``.

        Raises
        ------
        BatchError, CapacityError, LinkError, SamplingError, TypeError
            As ``add``.
        """
        llm = self.cross.llm
        goes_on = read_when_full(options.get("when_full", "stop")) == "shift"
        own = RequestOptions(
            max_tokens=NO_LIMIT if goes_on else llm.n_ctx,
            sampling=self.sampling,
            draft=self.draft,
            draft_sampler=self.draft_sampler,
            p_min=self.p_min,
            adapters=self.adapters,
        )
        reader = self.cross.encoder or llm
        complete = complete_options(options, own)
        adapters = complete["adapters"]
        request = Request(
            prompt,
            complete,
            adapters=llm.runner.choose_adapters(() if adapters is None else adapters),
            tokenizer=llm.model.tokenizer if llm.model.has_tokenizer else None,
            start_token=None if reader is llm else getattr(llm.model.hparams, "start_token", None),
        )
        n_vocab, least = llm.model.hparams.n_vocab, 0
        if unknown := [t for t in request.stop_token_ids if not 0 <= t < n_vocab]:
            raise BatchError(
                "no such token",
                where="stop_token_ids",
                wanted=f"0..{n_vocab - 1}",
                got=min(unknown),
            )
        if request.rows is not None:
            least = -1
            _check_rows(llm, request.rows, is_encoded=reader is not llm)
        bad = [t for t in request.given if not least <= t < n_vocab]
        if bad:
            raise BatchError(
                "no such token", where="prompt", wanted=f"0..{n_vocab - 1}", got=bad[0]
            )
        n_ctx = min(reader.n_ctx, llm.n_ctx)
        if len(request.given) > n_ctx:
            raise CapacityError(
                "the prompt is longer than the context",
                wanted=n_ctx,
                got=len(request.given),
                fix="make n_ctx= (-c) larger",
            )
        check_shift(self.cross, request)
        self.cross.speculation.plan_drafts(0, request.drafters)
        if request.sampling.grammar is not None:
            llm.model.grammars.matcher(request.sampling.grammar)
        return request

    def _queue(self, request: Request) -> None:
        if request.max_tokens == 0 and request.n_prompt_logprobs is None:
            request.end("length")
        super()._queue(request)

    def _cancel(self, request: Request) -> None:
        super()._cancel(request)
        self._forget_finished()

    def _cancellation(self, request: Request) -> Callable[[], None]:
        return partial(self._publish, [(request, request.finish("cancelled"))])

    @_show_options
    def generate(
        self, prompt: Sequence[int] | Prompt, **options: Unpack[RequestOptions]
    ) -> Iterator[int]:
        """Return an iterator over the tokens of one request; its sequence is freed afterwards.

        After an interrupt ``next()`` goes on: no token is lost or given twice. Until then the
        request rests, and is cancelled if another one needs its sequence.

        Parameters
        ----------
        prompt : sequence of int or Prompt
            Token ids, one or more; or tokens and embedding rows.
        **options
            As in ``add``.

        Raises
        ------
        BatchError, CapacityError, LinkError, SamplingError, TypeError
            As ``add``.
        """
        request = self.request(prompt, **options)
        return RequestIterator(self, request, request.tokens)

    @act
    def step(self) -> None:
        """Run one round: draft, verify together with chunks of prompts, commit.

        A round happens as a whole or not at all: if something raises (a proposer, a context, a
        signal), every request is as before the round, or as after it with its tokens there.
        ``step`` may be called again in any case. ``lengths`` learns of a round when it is done:
        what it raises then undoes nothing.

        Raises
        ------
        CapacityError
            Requests wait, and further rounds will not free a sequence for them.
        LinkError
            A sequence of a request was changed by other calls.
        """
        self.cross.journal.settle()
        self._forget_finished()
        self._admit()
        running = self._running()
        if not running:
            self._check_waiting()
            return
        check_sequences(self.cross, running)
        shift_full(self.cross, running, self.stats)
        stats, watch = self.stats, Stopwatch()
        with self.cross.transaction(running, stats) as transaction:
            ran = run_round(self.cross, running, self.lengths, stats, watch)
            transaction.commit(partial(self._publish, ran.progress))
        stats.commit_seconds += watch.lap()
        if ran.is_chosen:
            self._learn(ran.cost, watch.total)
        self._forget_finished()
        stats.length_seconds += watch.lap()

    def _publish(self, progress: Sequence[tuple[Request, Progress]]) -> None:
        """Give requests what a round brought, and release the sequences of those that end.

        Forgets finished texts that exceed the prefix cache. Calling it twice is calling it once.
        """
        for request, now in progress:
            request.take(now)
            if not request.done:
                continue
            seq = self.cross.owners.find(request)  # also where an interrupt came before seq was set
            if seq is not None:
                self._finished.append(seq)
                if not self.prefixes.is_on:
                    self.cross.speculation.remove(seq)
                self.cross.owners.release(seq)
            request.seq = None
            self.prefixes.trim()
        self._requests = [request for request in self._requests if not request.done]

    def _learn(self, cost: Round, seconds: float) -> None:
        """Let what chooses lengths see what a round of drafts brought, and its ``seconds``."""
        pass_seconds = seconds - cost.draft_seconds - cost.choose_seconds
        msgspec.structs.force_setattr(cost, "pass_seconds", pass_seconds)  # nobody has seen it yet
        said = self.lengths.observe(cost)
        if type(said) is not list or said:  # mostly there is nothing
            self.stats.note(said)

    def _forget_finished(self) -> None:
        """Let what chooses lengths forget the texts that ended, once it saw their last round."""
        while self._finished:
            self.lengths.forget(self._finished[-1])
            self._finished.pop()

    def _claim(self, request: Request) -> int | None:
        return self.prefixes.claim(request)

    def _is_early(self, request: Request, running: Sequence[Request]) -> bool:
        return self.prefixes.is_coming(request, running)


def _check_rows(llm: Context, prompt: Prompt, *, is_encoded: bool) -> None:
    """Refuse a prompt with rows that the model does not read; an encoder reads tokens alone."""
    program, rows = llm.program, prompt.embeddings
    if rows is None or is_encoded or "embeddings" not in program.inputs:
        raise BatchError("the model reads no such rows", where="prompt", got=repr(prompt))
    width = int(program.values[program.inputs["embeddings"]].shape[1])
    if rows.shape[1] != width:
        raise BatchError(
            "embedding rows have another width", where="prompt", wanted=width, got=rows.shape[1]
        )
    if not np.isfinite(rows).all():
        row = int(np.argwhere(~np.isfinite(rows))[0, 0])
        raise BatchError("embedding row is not finite", where=f"prompt, row {row}")
    longest = int((prompt.until - np.arange(len(prompt))).max())
    if program.sees_spans and longest > llm.n_batch:
        raise CapacityError(
            "an image whose rows see each other runs in one piece",
            wanted=f"n_batch {longest}",
            got=f"n_batch {llm.n_batch}",
            fix="make n_batch larger",
        )
    last = 0 if prompt.positions is None or program.n_axes == 1 else int(prompt.positions.max())
    if last >= llm.n_ctx:
        raise CapacityError(
            "the prompt's positions lie outside the context",
            wanted=f"0..{llm.n_ctx - 1}",
            got=last,
            fix="make n_ctx= (-c) larger",
        )
