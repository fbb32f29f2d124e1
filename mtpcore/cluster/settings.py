"""What a cluster serves, with how many replicas, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mtpcore.errors import MtpcoreError
from mtpcore.lm.embedding import Pooling

__all__ = ["ClusterSettings", "read_settings"]

_SERVER = (
    *("name", "max_body", "max_waiting", "max_choices", "seconds", "keep_alive"),
    *("page", "pooling", "template_options"),
)
_Several = str | tuple[str, ...]
_Least1 = Annotated[int, Meta(ge=1)]


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a served cluster: of replicas, of the LM in each, and of the server.

    Attributes
    ----------
    model : str
        A GGUF file, under this path on every node, or the name of a model in the package.
    draft_model, drafter, draft, n_ctx, n_seq_max, n_batch, kv_dtype, backend
    adapters, default_adapters
        As ``LM`` takes them; each replica has an LM of its own.
    replicas : int
        How many replicas there are, or the fewest.
    max_replicas : int, optional
        The most; default: always ``replicas``.
    autoscaling : mapping
        Further fields of Ray's ``autoscaling_config``, where there is a ``max_replicas``.
    cpus : int
        CPUs that a replica takes, and threads of its LM.
    gpus : float
        GPUs that a replica takes.
    most_ahead : int
        A conversation goes to the replica that holds it while that has at most so many requests
        more than the one with fewest.
    patience : float
        Seconds that a request waits for a replica that takes it, before it is told to come again.
    stop_seconds : float
        Seconds in which answers may end that a replica has begun when it is to stop.
    name, max_body, max_waiting, max_choices, seconds, keep_alive, page, pooling, template_options
        As ``ServerSettings`` has them, for each replica.
    api_keys, origins, hosts : str or tuple of str
        As ``ServerSettings`` has them.
    """

    model: str
    draft_model: str | None = None
    drafter: str | tuple[str, ...] = "auto"
    draft: Annotated[int, Meta(ge=0)] | Literal["auto"] = "auto"
    n_ctx: _Least1 | None = None
    n_seq_max: _Least1 = 4
    n_batch: _Least1 = 512
    kv_dtype: str = "f16"
    backend: str = "cpu"
    adapters: Mapping[str, str] = {}
    default_adapters: Mapping[str, float] = {}
    replicas: _Least1 = 1
    max_replicas: _Least1 | None = None
    autoscaling: Mapping[str, Any] = {}
    cpus: _Least1 = 1
    gpus: Annotated[float, Meta(ge=0)] = 0
    most_ahead: Annotated[int, Meta(ge=0)] = 4
    patience: Annotated[float, Meta(gt=0)] = 60.0
    stop_seconds: Annotated[float, Meta(ge=0)] = 30.0
    name: str | None = None
    api_keys: _Several = ()
    origins: _Several = ()
    hosts: _Several = ()
    max_body: _Least1 = 32 << 20
    max_waiting: Annotated[int, Meta(ge=0)] = 64
    max_choices: _Least1 = 16
    seconds: Annotated[float, Meta(gt=0)] | None = None
    keep_alive: Annotated[float, Meta(gt=0)] = 15.0
    page: bool = True
    pooling: Pooling | None = None
    template_options: Mapping[str, Any] = {}

    def lm_options(self) -> dict[str, Any]:
        """Return the arguments of a replica's LM."""
        drafter = self.drafter if isinstance(self.drafter, str) else list(self.drafter)
        return {
            "draft_model": self.draft_model,
            "drafter": drafter,
            "draft": self.draft,
            "n_ctx": self.n_ctx,
            "n_seq_max": self.n_seq_max,
            "n_batch": self.n_batch,
            "kv_dtype": self.kv_dtype,
            "backend": self.backend,
            "adapters": dict(self.adapters),
            "default_adapters": dict(self.default_adapters),
            "threads": self.cpus,
        }

    def server_options(self) -> dict[str, Any]:
        """Return the fields of ``ServerSettings`` that a replica heeds."""
        return {name: getattr(self, name) for name in _SERVER}

    def access_options(self) -> dict[str, tuple[str, ...]]:
        """Return the fields of ``ServerSettings`` that say who may ask."""
        found = {name: getattr(self, name) for name in ("api_keys", "origins", "hosts")}
        return {name: (v,) if isinstance(v, str) else tuple(v) for name, v in found.items()}


def read_settings(given: Mapping[str, Any]) -> ClusterSettings:
    """Return settings, checked; numbers may be texts, as command lines have them.

    Raises
    ------
    MtpcoreError
        One that there is not, or a value that makes no sense.
    """
    try:
        found = msgspec.convert(dict(given), ClusterSettings, strict=False)
    except msgspec.ValidationError as error:
        raise MtpcoreError(
            "the settings of the cluster cannot be read",
            got=str(error),
            fix="mtpcore.cluster.ClusterSettings has their names and types",
        ) from None
    if found.max_replicas is not None and found.max_replicas < found.replicas:
        raise MtpcoreError(
            "fewer replicas at most than at least",
            wanted=f"max_replicas >= {found.replicas}",
            got=found.max_replicas,
        )
    if found.autoscaling and found.max_replicas is None:
        raise MtpcoreError("autoscaling without a bound", fix="give max_replicas, too")
    return found
