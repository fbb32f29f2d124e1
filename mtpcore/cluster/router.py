"""The router of a served cluster: conversations go to the replica that holds them."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from mtpcore.cluster.forwarding import ForwardedRequest
from mtpcore.cluster.prefix_table import PrefixTable

__all__ = ["PrefixRouter"]

_ENDED = 1000
"""Requests that are remembered of which the end was told before the beginning."""


class PrefixRouter(RequestRouter):
    """Sends a conversation to the replica that was sent most of it, unless that is busy.

    Others, and those for which that replica has no room, go to the one of two replicas, chosen at
    random, that has fewer requests. Each process that holds a handle of the deployment has a router
    with a table of its own.
    """

    def initialize_state(self, **options: Any) -> None:
        """Take the options of the deployment, which are those of ``PrefixTable``."""
        self._table: PrefixTable[ReplicaID] = PrefixTable(**options)
        self._running: defaultdict[ReplicaID, set[str]] = defaultdict(set)
        self._ended: OrderedDict[tuple[ReplicaID, str], None] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica that holds the conversation, if there is one, and then two others."""
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        if pending_request is None:
            return [two]
        # Where all are full the next try is to wait a little.
        pending_request.routing_context.should_backoff = True
        loads = {one.replica_id: self._load(one.replica_id) for one in candidate_replicas}
        chosen = self._table.choose(_keys_of(pending_request), loads)
        return [[one for one in candidate_replicas if one.replica_id == chosen], two]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember where a request went."""
        request = pending_request.metadata.internal_request_id
        self._table.add(_keys_of(pending_request), replica_id)
        if self._ended.pop((replica_id, request), "") == "":
            self._running[replica_id].add(request)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a request that has ended; a short one ends before it is said where it went."""
        running = self._running[replica_id]
        if internal_request_id in running:
            running.remove(internal_request_id)
            return
        self._ended[replica_id, internal_request_id] = None
        if len(self._ended) > _ENDED:
            self._ended.popitem(last=False)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget what a replica held that has died."""
        super().on_replica_actor_died(replica_id)
        self._forget_others()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that there are now, and forget what others held."""
        super().update_replicas(replicas)
        self._forget_others()

    def _forget_others(self) -> None:
        there = self.curr_replicas.keys()
        self._table.keep(there)
        for gone in [one for one in self._running if one not in there]:
            del self._running[gone]

    def _load(self, replica: ReplicaID) -> int:
        """Return how many requests a replica has: those of other routers are known from answers."""
        said = self.replica_queue_len_cache.get(replica) or 0
        return max(said, len(self._running[replica]))


def _keys_of(pending: PendingRequest) -> tuple[bytes, ...]:
    request = pending.args[0] if pending.args else None
    return request.keys if isinstance(request, ForwardedRequest) else ()
