"""An application of Ray Serve: an ingress, and replicas of a model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from mtpcore.cluster.settings import ClusterSettings, read_settings
from mtpcore.errors import MtpcoreError

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["application", "check_installed"]

_AT_ONCE = 10_000
"""Requests that the ingress has open; replicas and their queues are what bounds them."""
_OTHERS = 16
"""Requests beside texts, such as for tokens or the model's name, that a replica takes at once."""
_HEALTH_SECONDS = 120.0
"""A round of a large model on few CPUs may take long; it is no reason to end the replica."""


def application(settings: Mapping[str, Any] | ClusterSettings) -> Application:
    """Return an application for ``serve.run``, and ``serve run mtpcore.cluster:application``.

    Each replica has an LM of its own and serves it by the application that ``build_app`` makes. A
    conversation goes to the replica that holds most of it in its KV cache (``PrefixRouter``); the
    answers are the same wherever they are written.

    Parameters
    ----------
    settings : mapping or ClusterSettings
        By name; as a command line's ``model=demo replicas=2`` its values may be texts.

    Raises
    ------
    MtpcoreError
        Settings that make no sense, or Ray is not installed.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(application({"model": "demo", "replicas": 2}))  # doctest: +SKIP
    """
    check_installed("ray", "starlette", "prometheus_client")
    if isinstance(settings, ClusterSettings):
        settings = msgspec.structs.asdict(settings)
    found = read_settings(settings)
    from ray import serve
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    from mtpcore.cluster.ingress import Ingress
    from mtpcore.cluster.replica import Replica
    from mtpcore.cluster.router import PrefixRouter

    scale: dict[str, Any] = {"num_replicas": found.replicas}
    if found.max_replicas is not None:
        wanted = {"target_ongoing_requests": found.n_seq_max, **found.autoscaling}
        wanted |= {"min_replicas": found.replicas, "max_replicas": found.max_replicas}
        scale = {"autoscaling_config": AutoscalingConfig(**wanted)}
    router = RequestRouterConfig(
        request_router_class=PrefixRouter,
        request_router_kwargs={"most_ahead": found.most_ahead},
    )
    replicas = serve.deployment(
        Replica,
        ray_actor_options={"num_cpus": found.cpus, "num_gpus": found.gpus},
        max_ongoing_requests=found.n_seq_max + found.max_waiting + _OTHERS,
        max_queued_requests=max(found.max_waiting, 1),
        health_check_timeout_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=found.stop_seconds,
        request_router_config=router,
        **scale,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_AT_ONCE,
        graceful_shutdown_timeout_s=found.stop_seconds,
    )
    bound = replicas.bind(found.model, found.lm_options(), found.server_options())
    access = found.access_options() | {"max_body": found.max_body}
    return ingress.bind(bound, access, found.patience)


def check_installed(*packages: str) -> None:
    """Raise MtpcoreError where a package of the extra ``ray`` is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise MtpcoreError(
                "Ray is not installed", got=f"no {package}", fix="pip install 'mtpcore[ray]'"
            )
