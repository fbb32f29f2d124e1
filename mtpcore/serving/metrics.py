"""Counts and times of a server, under the names that dashboards of others read."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mtpcore.lm import LM, Completion

__all__ = ["Metrics"]

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NEXT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """What a server has done.

    Names are those of llama.cpp's server (``llamacpp:``) and of vLLM (``vllm:``), where they count
    the same.

    Parameters
    ----------
    lm : LM
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, lm: LM) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, said: str) -> Counter:
            return Counter(name, said, registry=registry)

        self._prompt = counter("llamacpp:prompt_tokens", "Tokens of prompts that were processed")
        self._cached = counter("vllm:prefix_cache_hits", "Tokens of prompts that were cached")
        self._written = counter("llamacpp:tokens_predicted", "Tokens of texts")
        self._passes = counter("llamacpp:n_decode", "Passes of the model after prompts")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Drafts that were verified")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted")
        self._refused = counter("mtpcore:requests_refused", "Requests while the queue was full")
        self._ended = Counter(
            "vllm:request_success", "Texts that ended", ["finished_reason"], registry=registry
        )
        self._first = Histogram(
            "vllm:time_to_first_token_seconds",
            "Until the first piece",
            registry=registry,
            buckets=_FIRST,
        )
        self._next = Histogram(
            "vllm:inter_token_latency_seconds",
            "Between two pieces",
            registry=registry,
            buckets=_NEXT,
        )
        n_at_once = lm.generator.cross.llm.n_seq_max
        for name, said, count in (
            ("llamacpp:requests_processing", "Texts being written", lambda n: min(n, n_at_once)),
            ("llamacpp:requests_deferred", "Texts that wait", lambda n: max(n - n_at_once, 0)),
        ):
            gauge = Gauge(name, said, registry=registry)
            gauge.set_function(lambda count=count: count(lm.n_running))  # type: ignore[misc]

    def observe_piece(self, seconds: float, is_first: bool) -> None:
        """Take the time before a piece."""
        (self._first if is_first else self._next).observe(seconds)

    def observe_reading(self, n_tokens: int) -> None:
        """Take tokens that were read, and not continued."""
        self._prompt.inc(n_tokens)

    def observe_text(self, completion: Completion) -> None:
        """Take a text that ended."""
        stats = completion.stats
        self._prompt.inc(stats.prompt_tokens - stats.cached_tokens)
        self._cached.inc(stats.cached_tokens)
        self._written.inc(stats.tokens)
        self._passes.inc(stats.passes)
        self._drafted.inc(stats.drafted)
        self._accepted.inc(stats.accepted)
        self._ended.labels(completion.finish_reason).inc()

    def count_refused(self) -> None:
        """Count a request that found the queue full."""
        self._refused.inc()

    def show(self) -> bytes:
        """Return all of it in Prometheus' format."""
        return generate_latest(self._registry)
