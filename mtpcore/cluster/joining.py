"""What all replicas show, as one: counts, slots, and what flows through contexts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

__all__ = ["join_crosses", "join_metrics", "join_slots"]

_SIZES = frozenset({"n_ctx"})
"""Numbers that are the same in each replica, and are not added."""


def join_metrics(found: Mapping[str, bytes]) -> bytes:
    """Return the metrics of all replicas, each with a label that names its replica.

    Parameters
    ----------
    found : mapping of str to bytes
        What each replica shows, in Prometheus' format.
    """
    registry = CollectorRegistry()
    registry.register(_Labelled(found))
    return generate_latest(registry)


class _Labelled(Collector):
    """Metrics of several processes, with their names."""

    def __init__(self, found: Mapping[str, bytes]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all."""
        joined: dict[str, Metric] = {}
        for name, shown in sorted(self._found.items()):
            for metric in text_string_to_metric_families(shown.decode()):
                whole = Metric(metric.name, metric.documentation, metric.type)
                whole = joined.setdefault(metric.name, whole)
                whole.samples += [
                    Sample(one.name, {**one.labels, "replica": name}, one.value)
                    for one in metric.samples
                ]
        yield from joined.values()


def join_slots(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the slots of all replicas; ``replica`` says whose each is."""
    return [{**slot, "replica": name} for name, slots in sorted(found.items()) for slot in slots]


def join_crosses(found: Sequence[Any]) -> Any:
    """Return what ``/cross`` shows of all replicas: counts are added, all else is the first's."""
    return _add(found) if found else {}


def _add(values: Iterable[Any], name: str = "") -> Any:
    """Add numbers; of lists and objects those that stand in the same place."""
    there = [one for one in values if one is not None]
    if not there:
        return None
    first = there[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for one in there for key in one)
        return {key: _add((one.get(key) for one in there), key) for key in keys}
    if isinstance(first, list):
        return [_add(ones, name) for ones in zip_longest(*there)]
    is_count = isinstance(first, int | float) and not isinstance(first, bool)
    return sum(there) if is_count and name not in _SIZES else first
