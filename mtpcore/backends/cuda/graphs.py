"""Launches that come again and again, kept as graphs of the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from mtpcore.backends.cuda.device import Device

__all__ = ["Graphs"]

_MOST = 128


class Graphs:
    """Graphs by what their launches depend on; those that were used last are kept.

    What comes once is launched one by one: prompts have many lengths. What comes a second time is
    recorded, and from then on it is one call.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: OrderedDict[Hashable, Any] = OrderedDict()

    def start(self, key: Hashable, work: Callable[[bool], None]) -> None:
        """Launch what is always the same for a key; ``work`` is told whether it is recorded."""
        if key not in self._graphs:
            work(False)
            self._graphs[key] = None  # seen once
            if len(self._graphs) > _MOST:
                self._graphs.popitem(last=False)
            return
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            graph = self._device.record(lambda: work(True))
            self._graphs[key] = graph
        self._device.replay(graph)
