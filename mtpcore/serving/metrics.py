"""Counts and times of a server, under the names that dashboards of others read."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
        self._counts = _Counts(lm)
        registry.register(self._counts)
        self._refused = Counter(
            "mtpcore:requests_refused", "Requests while the queue was full", registry=registry
        )
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

    def observe_piece(self, seconds: float, is_first: bool) -> None:
        """Take the time before a piece."""
        (self._first if is_first else self._next).observe(seconds)

    def observe_reading(self, n_tokens: int) -> None:
        """Take tokens that were read, and not continued."""
        self._counts.n_read += n_tokens

    def observe_text(self, completion: Completion) -> None:
        """Take a text that ended."""
        stats, counts = completion.stats, self._counts
        counts.n_longest = max(counts.n_longest, stats.prompt_tokens + stats.tokens)
        self._ended.labels(completion.finish_reason).inc()

    def count_refused(self) -> None:
        """Count a request that found the queue full."""
        self._refused.inc()

    def show(self) -> bytes:
        """Return all of it in Prometheus' format."""
        return generate_latest(self._registry)


class _Counts(Collector):
    """What an LM counts itself, read when it is asked for, and what it does not count.

    Attributes
    ----------
    n_read : int
        Tokens that were read, and not continued.
    n_longest : int
        Tokens of the longest text with its prompt.
    """

    def __init__(self, lm: LM) -> None:
        self._lm = lm
        self.n_read = self.n_longest = 0

    def collect(self) -> Iterator[Metric]:
        """Yield all counts."""
        stats = self._lm.stats
        n_prompt, n_drafts = stats.prompt_tokens + self.n_read, stats.verify_steps
        for name, said, count in (
            ("llamacpp:prompt_tokens", "Tokens of prompts read", n_prompt - stats.cached_tokens),
            ("llamacpp:prompt_tokens_cached", "Tokens of prompts cached", stats.cached_tokens),
            ("llamacpp:prompt_seconds", "Passes that only read prompts", stats.prefill_seconds),
            ("llamacpp:tokens_predicted", "Tokens of texts", stats.tokens),
            ("llamacpp:tokens_predicted_seconds", "What else took time", stats.text_seconds),
            ("llamacpp:n_decode", "Passes of the model after prompts", stats.passes),
            ("vllm:prompt_tokens", "Tokens of prompts", n_prompt),
            ("vllm:generation_tokens", "Tokens of texts", stats.tokens),
            ("vllm:prefix_cache_queries", "Tokens of prompts looked for", stats.prompt_tokens),
            ("vllm:prefix_cache_hits", "Tokens of prompts cached", stats.cached_tokens),
        ):
            yield CounterMetricFamily(name, said, count)
        for program in ("llamacpp", "vllm"):
            begin = f"{program}:spec_decode_num"
            yield CounterMetricFamily(f"{begin}_drafts", "Drafts verified", n_drafts)
            yield CounterMetricFamily(f"{begin}_draft_tokens", "Tokens of them", stats.drafted)
            yield CounterMetricFamily(f"{begin}_accepted_tokens", "Accepted ones", stats.accepted)
            name, said = f"{begin}_accepted_tokens_per_pos", "Accepted ones by their place"
            places = CounterMetricFamily(name, said, labels=["position"])
            for i, n_accepted in enumerate(stats.accepted_per_position):
                places.add_metric([str(i)], n_accepted)
            yield places
        n_texts, n_at_once = self._lm.n_running, self._lm.generator.cross.llm.n_seq_max
        n_written = min(n_texts, n_at_once)
        n_steps = sum(stats.lengths.values())
        for name, said, value in (
            ("llamacpp:prompt_tokens_seconds", "Prompts' pace", stats.prefill_tokens_per_second),
            ("llamacpp:predicted_tokens_seconds", "Texts' pace", stats.tokens_per_second),
            ("llamacpp:requests_processing", "Texts being written", n_written),
            ("llamacpp:requests_deferred", "Texts that wait", n_texts - n_written),
            ("llamacpp:n_busy_slots_per_decode", "Texts a pass", n_steps / max(stats.passes, 1)),
            ("llamacpp:n_tokens_max", "Tokens of the longest text", self.n_longest),
            ("vllm:num_requests_running", "Texts being written", n_written),
            ("vllm:num_requests_waiting", "Texts that wait", n_texts - n_written),
        ):
            yield GaugeMetricFamily(name, said, value)
