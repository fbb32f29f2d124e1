"""Embeddings: a text's hidden rows, pooled into one vector."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import numpy as np
from gguf import PoolingType
from msgspec import Meta, Struct
from numpy.typing import NDArray

from mtpcore.boundary.arguments import one_of, read
from mtpcore.cross import Cross
from mtpcore.declarations.spec import Tap
from mtpcore.errors import BatchError, CapacityError
from mtpcore.gguf.header import MetadataValue
from mtpcore.runtime.adapters import AdapterChoice, Chosen
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context

__all__ = ["Embedder", "EmbeddingKind", "Pooling"]

Pooling = Literal["mean", "last", "none"]
F32 = NDArray[np.float32]
_POOLINGS = one_of(*get_args(Pooling))
_NORMALIZED = Annotated[bool | None, Meta(description="True, False or None")]
_OF_FILES: dict[int, Pooling] = {PoolingType.MEAN: "mean", PoolingType.LAST: "last"}


class EmbeddingKind(Struct, frozen=True):
    """Which rows of a text its vector is made of, how, and with which adapters."""

    tap: Tap
    pooling: Pooling
    is_normalized: bool
    adapters: Chosen = ()


class Embedder:
    """Reads texts in a context of its own, and pools the rows of a tap.

    So no text that is being written gives up a sequence, and none is part of the other's rows.
    Readers in several threads have a context each; the one that was used last is kept.

    Parameters
    ----------
    cross : Cross
        Its model, sizes and backend are those of the context. Of a model with an encoder that one
        reads.
    """

    def __init__(self, cross: Cross) -> None:
        encoder = cross.speculation.encoder
        roles = {context.runner: context for context in cross.contexts.values()}
        self._source = cross.llm if encoder is None else roles[encoder.runner]
        self._reads_whole = encoder is not None
        self._idle: deque[Context] = deque(maxlen=1)

    def choose(
        self,
        tap: str | Tap,
        pooling: str | None = None,
        normalize: bool | None = None,
        adapters: AdapterChoice = (),
    ) -> EmbeddingKind:
        """Return what is asked for, checked; the arguments are those of ``LM.embed``.

        Raises
        ------
        MtpcoreError
            No tap or pooling; or none is given, and what the file names is none of these.
        """
        if pooling is None:
            default: Pooling = "mean" if self._reads_whole else "last"
            model = self._source.model
            chosen = _pooling_of(model.metadata, model.architecture) or default
        else:
            chosen = read(pooling, _POOLINGS, "no such pooling", where="pooling")
        adapted = self._source.runner.choose_adapters(adapters)
        asked = read(normalize, _NORMALIZED, "normalize is yes or no")
        is_normalized = chosen != "none" if asked is None else asked
        return EmbeddingKind(Tap.parse(tap), chosen, is_normalized, adapted)

    def embed(self, prompts: Sequence[Sequence[int]], kind: EmbeddingKind) -> Iterator[list[F32]]:
        """Read texts, and yield after each pass the vectors of those that it finished, in order.

        Parameters
        ----------
        prompts : sequence of token ids
            As ``check`` returns them. Short ones share passes; long ones take several.
        kind : EmbeddingKind

        Raises
        ------
        GraphError
            The graph has no such tap.
        """
        context = self._take(kind.tap)
        begin = 0
        while begin < len(prompts):
            end = self._end_of_pass(prompts, begin)
            yield from self._read(context, prompts[begin:end], kind)
            begin = end
        self._idle.append(context)  # not after an error: what it holds goes with it

    def check(self, prompt: NDArray[np.int32]) -> list[int]:
        """Return the tokens of a text; raise BatchError or CapacityError if it cannot be read."""
        source = self._source
        n_vocab, n = source.model.n_tokens(source.graph_type), prompt.size
        if prompt.ndim != 1:
            raise BatchError("a text is a list of token ids", got=f"shape {prompt.shape}")
        if not n:
            raise BatchError("a text without tokens has no embedding", fix="begin with some text")
        if n > source.n_ctx:
            raise CapacityError(
                "the text is longer than the context",
                wanted=source.n_ctx,
                got=n,
                fix="make n_ctx= (-c) larger",
            )
        if len(bad := prompt[(prompt < 0) | (prompt >= n_vocab)]):
            raise BatchError("no such token", wanted=f"0..{n_vocab - 1}", got=int(bad[0]))
        return [*map(int, prompt)]

    def _take(self, tap: Tap) -> Context:
        """Return a context that hands out the rows of a tap, and that nobody else uses."""
        try:
            context = self._idle.pop()
        except IndexError:
            pass
        else:
            if context.taps == (tap,):
                return context
        source = self._source
        adapters = source.runner.adapters
        return Context(
            source.model,
            source.n_ctx,
            graph_type=source.graph_type,
            n_seq_max=source.n_seq_max,
            n_batch=source.n_batch,
            kv_dtype=source.kv_dtype,
            checkpoint_bytes=0,  # nothing is taken back
            threads=source.threads,
            backend=source.backend,
            taps=(tap,),
            adapters=adapters.by_name if adapters else None,
        )

    def _end_of_pass(self, prompts: Sequence[Sequence[int]], begin: int) -> int:
        """Return how far the texts go that are read together: one at least."""
        source, end, n_rows = self._source, begin + 1, len(prompts[begin])
        while end < len(prompts) and end - begin < source.n_seq_max:
            n_rows += len(prompts[end])
            if n_rows > source.n_batch:
                break
            end += 1
        return end

    def _read(
        self, context: Context, prompts: Sequence[Sequence[int]], kind: EmbeddingKind
    ) -> Iterator[list[F32]]:
        """Read texts together, or a long one in several passes."""
        n_most = max(map(len, prompts))
        n_pass = n_most if self._reads_whole else context.n_batch
        pooled: dict[int, NDArray[Any]] = {}
        for seq in range(len(prompts)):
            context.runner.sequences.adapt(seq, kind.adapters)
        for at in range(0, n_most, n_pass):
            parts = {seq: prompt[at : at + n_pass] for seq, prompt in enumerate(prompts)}
            seqs = [seq for seq, part in parts.items() for _ in part]
            tokens = [token for part in parts.values() for token in part]
            output = context.process(Batch(tokens, seq=seqs, pos=at, outputs="none"))
            rows = output.tap(str(kind.tap))
            for seq, own in output.rows_of_seq.items():
                pooled[seq] = _pool(pooled.get(seq), rows[own], kind.pooling)
            if at + n_pass < n_most:
                yield []
        for seq in range(len(prompts)):
            context.remove(seq)
        yield [_vector(pooled[seq], len(prompt), kind) for seq, prompt in enumerate(prompts)]


def _pool(before: NDArray[Any] | None, rows: F32, pooling: Pooling) -> NDArray[Any]:
    """Return what is kept of a text's rows so far, of which ``rows`` are the latest.

    A mean is summed row by row in float64, so that it is the same however the text is cut.
    """
    if pooling == "last":
        kept: NDArray[Any] = rows[-1].copy()
    elif pooling == "mean":
        parts = [rows] if before is None else [before[np.newaxis], rows]
        kept = np.concatenate(parts, dtype=np.float64).sum(axis=0)
    else:
        kept = rows.copy() if before is None else np.concatenate([before, rows])
    return kept


def _vector(pooled: NDArray[Any], n_tokens: int, kind: EmbeddingKind) -> F32:
    """Return a vector, or the rows of tokens, of a text."""
    found = pooled.astype(np.float64)
    if kind.pooling == "mean":
        found /= n_tokens
    if kind.is_normalized:  # fsum: its result is the same on every machine
        for row in found.reshape(-1, found.shape[-1]):
            length = math.sqrt(math.fsum(row * row))
            row /= length or 1.0
    return found.astype(np.float32)


def _pooling_of(metadata: Mapping[str, MetadataValue], architecture: str) -> Pooling | None:
    """Return how a file says that its embeddings are made; None: it does not say."""
    key = f"{architecture}.pooling_type"
    given = metadata.get(key)
    if given is None or given == PoolingType.NONE:
        return None
    if isinstance(given, int) and given in _OF_FILES:
        return _OF_FILES[given]
    raise BatchError(
        "the file asks for a pooling that is not supported",
        where=key,
        wanted=", ".join(f"{int(one)} ({name})" for one, name in _OF_FILES.items()),
        got=given,
        fix='pooling="last" or "mean"',
    )
