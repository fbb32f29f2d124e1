"""What a saved state was made of: it makes sense nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from mtpcore.errors import StateError
from mtpcore.runtime.runner import GraphRunner

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["Fingerprint"]

_SAMPLE = 4096
"""Bytes of a tensor that are taken at each of three places."""

_HASHED: WeakKeyDictionary[Model, hashlib.blake2b] = WeakKeyDictionary()
"""Metadata of models: those of a large vocabulary take a quarter of a second to hash."""

_OTHERWISE = "process the text again"
_CAUSES = {
    "model": ("model file", "load the file that the state was saved with"),
    "graph": ("graph", "load it into a context of this graph"),
    "drafter": ("drafter", "link the drafter that the state was saved with"),
    "is_long": ("length of context", "open one as long as the state's was"),
    "head": ("head of the drafter", "load it into a context of this head"),
    "plugins": ("plugin, or another version of it", f"install that version, or {_OTHERWISE}"),
    "backend": ("backend", f"choose that backend, or {_OTHERWISE}"),
    "kv_dtype": ("type of keys and values", f"choose that kv_dtype, or {_OTHERWISE}"),
}


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything on which the bits of a sequence's memory depend, beside its tokens.

    ``model`` is a hash of the file's metadata and of the weights that the graph reads; ``plugins``
    are those of trunk and drafter with their versions; ``is_long`` is said of contexts in which the
    graph has other weights (``Model.is_long``). Other sizes of contexts and batches, threads and
    instruction sets are not part of it: bits do not depend on them.
    """

    graph: str
    drafter: str
    head: int
    is_long: bool = False
    model: str
    plugins: tuple[str, ...]
    backend: str
    kv_dtype: str

    @classmethod
    def of(cls, runner: GraphRunner) -> Fingerprint:
        """Take the fingerprint of a graph and its memory."""
        model, drafter = runner.model, runner.drafter
        program = model.program(runner.graph_type, drafter=drafter, head=runner.head)
        specs = [spec for spec in (model.spec, drafter) if spec is not None]
        return cls(
            graph=runner.graph_type.name,
            drafter=drafter.name if drafter else "",
            head=runner.head,
            is_long=model.is_long(runner.n_ctx, drafter),
            model=_hash_model(model, program.weights()),
            plugins=tuple(f"{spec.plugin} ({spec.version})" for spec in specs),
            backend=runner.backend.name,
            kv_dtype=runner.sizes.kv_dtype,
        )

    def check(self, found: Fingerprint, where: str) -> None:
        """Refuse a state whose fingerprint, ``found``, is another one.

        Raises
        ------
        StateError
            Says what differs.
        """
        for name, wanted, got in self._differences(found):
            cause, fix = _CAUSES[name]
            raise StateError(
                f"the state is of another {cause}", where=where, wanted=wanted, got=got, fix=fix
            )

    def _differences(self, found: Fingerprint) -> Iterator[tuple[str, object, object]]:
        for name in self.__struct_fields__:
            wanted, got = getattr(self, name), getattr(found, name)
            if wanted != got:
                yield name, wanted, got


def _hash_model(model: Model, names: Iterable[str]) -> str:
    """Return a hash of a model's metadata and of the tensors of these names, in hex.

    Of each tensor it takes name, shape, type, and the bytes at its begin, middle and end: all
    bytes together would take as long to read as the weights.
    """
    if model not in _HASHED:
        _HASHED[model] = _hash_metadata(model)
    hashed = _HASHED[model].copy()
    for name in sorted(names):
        tensor = model.tensors[name]
        hashed.update(f"{name!r} {tensor.shape} {tensor.type} ".encode())
        raw = tensor.raw()
        for begin in (0, len(raw) // 2, max(len(raw) - _SAMPLE, 0)):
            hashed.update(raw[begin : begin + _SAMPLE].tobytes())
    return hashed.hexdigest()


def _hash_metadata(model: Model) -> hashlib.blake2b:
    hashed = hashlib.blake2b(digest_size=16)
    for key, value in sorted(model.metadata.items()):
        parts = value if isinstance(value, list) else [value]
        hashed.update(f"{key!r} {type(value).__name__} {len(parts)} ".encode())
        hashed.update(b"".join(map(_bytes_of, parts)))
    return hashed


def _bytes_of(part: object) -> bytes:
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str} {part.shape} ".encode() + part.tobytes()
    return f"{part}\0".encode(errors="surrogatepass")
