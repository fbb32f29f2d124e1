"""Texts that are written for a request: begun together, read as one stream of events, counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cached_property
from time import perf_counter, time
from types import TracebackType
from typing import Any, NamedTuple, Self

from mtpcore.decoding import TokenLogprobs
from mtpcore.lm import LM, AsyncStream, Completion, CompletionStats, Piece, read_together
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.sampling import Sampling
from mtpcore.serving.metrics import Metrics
from mtpcore.serving.refusals import Refusal, refusal_of
from mtpcore.serving.settings import ServerSettings
from mtpcore.version import version

__all__ = ["Answer", "Service", "TextEvent"]


class TextEvent(NamedTuple):
    """What happened to a text, by its number: a piece came, or it ended."""

    text: int
    piece: Piece | None = None
    completion: Completion | None = None


class Service:
    """Where answers begin: it knows the model, its limits, and how many texts wait.

    Parameters
    ----------
    lm : LM
    settings : ServerSettings
    """

    def __init__(self, lm: LM, settings: ServerSettings) -> None:
        self.lm, self.settings = lm, settings
        self.metrics = Metrics(lm)
        self.n_texts = 0
        self.name = settings.name or lm.model.path.stem
        self.created = int(time())
        self.keep_alive = settings.keep_alive

    @cached_property
    def fingerprint(self) -> str:
        """What texts depend on beside the request: weights, backend, type of keys and values."""
        found = self._fingerprint
        return f"mtpcore-{version()}-{found.model[:12]}-{found.backend}-{found.kv_dtype}"

    @property
    def digest(self) -> str:
        """A hash of the file's metadata and weights."""
        return self._fingerprint.model

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        return Fingerprint.of(self.lm.generator.cross.llm.runner)

    @property
    def n_at_once(self) -> int:
        """Texts that are written at once; further ones wait."""
        return self.lm.generator.cross.llm.n_seq_max

    async def begin(
        self, prompts: Sequence[Sequence[int]], options: Mapping[str, Any], n: int = 1
    ) -> Answer:
        """Begin ``n`` texts of each prompt; their order is that of prompts, then of texts.

        The first text of a prompt is the one that a request for one text would get. Others have
        another stream of noise, so that a seed gives each of them again, too.

        Raises
        ------
        Refusal
            Too many texts, or a prompt that does not fit.
        MtpcoreError
            Options that make no sense.
        """
        n_texts = len(prompts) * n
        if n_texts > self.settings.max_choices:
            raise Refusal(
                400, f"at most {self.settings.max_choices} texts a request", param="n", got=n_texts
            )
        for prompt in prompts:
            self.check_prompt(prompt)
        self._check_room(n_texts)
        streams = []
        for prompt in prompts:
            for i in range(n):
                streams.append(self.lm.astream(list(prompt), **self._with_stream(options, i)))
        answer = Answer(self, streams, n)
        try:
            for stream in streams:
                await stream.begin()
        except BaseException:
            await answer.close()
            raise
        return answer

    def _with_stream(self, options: Mapping[str, Any], i: int) -> dict[str, Any]:
        """Return the options of text ``i`` of a prompt."""
        if not i:
            return dict(options)
        named = {name: options[name] for name in Sampling.__struct_fields__ if name in options}
        rest = {name: value for name, value in options.items() if name not in named}
        return rest | {"sampling": Sampling(**{**self.lm.sampling, **named, "stream": i})}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count texts that are read together, and not continued, as one more.

        Raises
        ------
        Refusal
            Too many texts.
        """
        self._check_room(1)
        self.n_texts += 1
        try:
            yield
        finally:
            self.n_texts -= 1

    def _check_room(self, n_texts: int) -> None:
        """Refuse texts where too many wait already."""
        if self.n_texts + n_texts > self.n_at_once + self.settings.max_waiting:
            self.metrics.count_refused()
            raise Refusal(
                429,
                f"{self.n_texts} texts are being written or wait; try again later",
                kind="rate_limit_error",
                code="queue_full",
                retry_after=1,
            )

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise Refusal for a prompt that cannot be read."""
        if not prompt:
            raise Refusal(400, "the prompt is empty")
        if len(prompt) > self.lm.n_ctx:
            raise Refusal(
                400,
                f"the prompt has {len(prompt)} tokens, which is more than the context of "
                f"{self.lm.n_ctx} tokens holds",
                kind="exceed_context_size_error",
                code="context_length_exceeded",
                n_prompt_tokens=len(prompt),
                n_ctx=self.lm.n_ctx,
            )


class Answer:
    """The texts of one request; leaving it ends those that are not finished.

    Parameters
    ----------
    service : Service
    streams : sequence of AsyncStream
        One a text.
    n : int
        Texts of each prompt.

    Attributes
    ----------
    pause : callable
        Called where all that has happened was given, before more is waited for.
    """

    def __init__(self, service: Service, streams: Sequence[AsyncStream], n: int) -> None:
        self._desk, self._streams, self._n = service, streams, n
        self._begin = perf_counter()
        self._first = 0.0  # when the first piece came; 0: none has
        self._is_open = True
        self.pause: Callable[[], Awaitable[None]] = _go_on
        service.n_texts += len(streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End texts that are not finished, and free their sequences."""
        if self._is_open:
            self._is_open = False
            self._desk.n_texts -= len(self._streams)
            for stream in self._streams:
                await stream.aclose()

    async def events(self) -> AsyncGenerator[TextEvent]:
        """Yield what happens to the texts, those of one text in order.

        Raises
        ------
        Refusal
            They took longer than the settings allow, or one could not be written to its end.
        """
        metrics, limit = self._desk.metrics, self._desk.settings.seconds
        passed, now = perf_counter() - self._begin, asyncio.get_running_loop().time()
        end = None if limit is None else now + limit - passed
        last = [0.0] * len(self._streams)
        try:
            async with aclosing(read_together(self._streams, self.pause, end)) as pieces:
                async for i, piece in pieces:
                    if piece is None:
                        completion = self._streams[i].completion
                        metrics.observe_text(completion)
                        yield TextEvent(i, completion=completion)
                        continue
                    now = perf_counter()
                    metrics.observe_piece(now - (last[i] or self._begin), not last[i])
                    self._first, last[i] = self._first or now, now
                    yield TextEvent(i, piece)
        except Exception as error:  # the request was fine
            raise refusal_of(error, is_asked=False) from error
        finally:
            await self.close()

    async def finish(self) -> list[Completion]:
        """Wait for all texts; raises what ``events`` raises."""
        found: dict[int, Completion] = {}
        async for event in self.events():
            if event.completion is not None:
                found[event.text] = event.completion
        return [found[i] for i in range(len(self._streams))]

    def prompt_logprobs(self, i: int) -> Sequence[TokenLogprobs]:
        """Return those of the prompt of text ``i``, of which something has come; see ``LM``."""
        return self._streams[i].prompt_logprobs or ()

    def usage(self, completions: Sequence[Completion], n_reasoning: int = 0) -> dict[str, Any]:
        """Return how many tokens there were, as OpenAI's API counts them: a prompt once.

        ``n_reasoning`` are those of them that are reasoning.
        """
        stats = [one.stats for one in completions]
        prompts = stats[:: self._n]
        prompt = sum(one.prompt_tokens for one in prompts)
        written, accepted = sum(one.tokens for one in stats), sum(one.accepted for one in stats)
        rejected = sum(one.drafted for one in stats) - accepted
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
            "completion_tokens_details": {
                "reasoning_tokens": n_reasoning,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        }

    def figures_at_end(self, found: Mapping[int, Completion]) -> dict[str, Any]:
        """Return ``figures`` if all texts have ended; else nothing."""
        is_over = len(found) == len(self._streams)
        return self.figures([found[i] for i in sorted(found)]) if is_over else {}

    def figures(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return what dashboards read of times and drafts, in two shapes."""
        stats = [one.stats for one in completions]
        return {
            "timings": self._timings(stats),
            "metrics": {"speculative_decoding": self._speculation(stats)},
        }

    def figures_of_tokens(self, n_tokens: int, *, drafted: bool, timed: bool) -> dict[str, Any]:
        """Return what goes with tokens of an event.

        ``drafted``: all of them were accepted drafts; ``timed``: times so far go with them, too.
        """
        figures: dict[str, Any] = {"mtpcore": {"drafted": drafted, "tokens": n_tokens}}
        if timed:
            figures["timings"] = self._timings([stream.stats for stream in self._streams])
        return figures

    def _timings(self, stats: Sequence[CompletionStats]) -> dict[str, Any]:
        """Return times and drafts in the shape of llama.cpp's server."""
        now = perf_counter()
        first = self._first or now
        read, wrote = 1e3 * (first - self._begin), 1e3 * (now - first)
        n_cached = sum(one.cached_tokens for one in stats)
        n_read = sum(one.prompt_tokens for one in stats) - n_cached
        n_written = sum(one.tokens for one in stats)
        n_later = sum(max(one.tokens - 1, 0) for one in stats)  # the first ends the prompt's pass
        timings: dict[str, Any] = {
            "cache_n": n_cached,
            "prompt_n": n_read,
            "prompt_ms": read,
            "prompt_per_token_ms": read / max(n_read, 1),
            "prompt_per_second": 1e3 * n_read / max(read, 1e-6),
            "predicted_n": n_written,
            "predicted_ms": wrote,
            "predicted_per_token_ms": wrote / n_later if n_later else 0.0,
            "predicted_per_second": 1e3 * n_later / wrote if wrote else 0.0,
        }
        if any(one.drafted for one in stats):
            timings["draft_n"] = sum(one.drafted for one in stats)
            timings["draft_n_accepted"] = sum(one.accepted for one in stats)
        return timings

    def _speculation(self, stats: Sequence[CompletionStats]) -> dict[str, Any]:
        """Return what drafts brought, in the shape of vLLM's metrics of a request."""
        drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
        passes = sum(one.passes for one in stats)
        return {
            "num_spec_steps": passes,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "mean_acceptance_length": sum(one.tokens for one in stats) / passes if passes else 0.0,
        }


async def _go_on() -> None:
    """Do nothing."""
