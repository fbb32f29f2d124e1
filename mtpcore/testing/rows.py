"""Conformance: kernels are batch-invariant; a token's bits depend on its own text alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from mtpcore.boundary.arguments import expect
from mtpcore.cross import Cross
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.testing.subject import Subject

__all__ = ["Batching", "check_rows"]

N_WHOLE = 8
"""Rows of a batch where rows of a sequence have to come together."""
_SEED = 11


class Batching(msgspec.Struct, frozen=True):
    """How the tokens of a text are batched, and beside how many other sequences.

    Attributes
    ----------
    chunk : int
        Rows of the text in a batch.
    n_batch, threads : int
        Of the context.
    neighbours : int
        Other sequences whose rows lie between those of the text.
    n_tokens : int
        Of the text; by default more than a page of memory, and than a short window.
    """

    chunk: int = 1
    n_batch: int = 512
    threads: int = 1
    neighbours: int = 0
    n_tokens: int = 96


def check_rows(subject: Subject, batching: Batching, kv_dtype: str = "f16") -> None:
    """Compare every graph of the family, batched as ``batching`` says, with token by token runs.

    Where a row depends on which rows of its sequence come with it, as in a block, these always come
    together, and what may differ is what comes beside them.

    The trunk with all taps that the drafter reads, and each graph of the drafter on rows drawn at
    random, are run with a memory of type ``kv_dtype``, batched as ``batching`` says; outputs and
    digests must be equal.

    Raises
    ------
    AssertionError
        Names the graph and the output that differs.
    """
    expect(subject, Subject, "a subject under test")
    expect(batching, Batching, "how rows reach a context")
    trace = _trace(subject, batching, kv_dtype)  # contexts refuse what is no argument
    wanted = _trace_alone(subject, batching.n_tokens, kv_dtype)
    different = [name for name in wanted if wanted[name] != trace[name]]
    assert not different, f"{subject}, {batching}: {', '.join(different)} differ from rows alone"


@lru_cache(maxsize=8)
def _trace_alone(subject: Subject, n_tokens: int, kv_dtype: str) -> dict[str, bytes]:
    """Run a text token by token, once for all batchings that are compared with it."""
    return _trace(subject, Batching(n_tokens=n_tokens), kv_dtype)


def _trace(subject: Subject, batching: Batching, kv_dtype: str) -> dict[str, bytes]:
    cross = subject.link(
        n_seq_max=1 + batching.neighbours,
        n_batch=batching.n_batch,
        threads=batching.threads,
        kv_dtype=kv_dtype,
    )
    return {
        f"{role}.{name}": computed
        for role, context in _unlinked(cross, batching)
        for name, computed in _feed(context, subject, batching)
    }


def _unlinked(cross: Cross, batching: Batching) -> Iterator[tuple[str, Context]]:
    """Yield a context like each role's, without links."""
    for role, linked in cross.contexts.items():
        if linked.program.shared:
            continue  # check_readers has its rows
        least = N_WHOLE * (1 + batching.neighbours) if linked.program.is_run_whole else 1
        yield (
            role,
            Context(
                linked.model,
                linked.n_ctx,
                graph_type=linked.graph_type,
                n_seq_max=linked.n_seq_max,
                n_batch=max(linked.n_batch, least),
                kv_dtype=linked.kv_dtype,
                threads=linked.threads,
                backend=linked.backend,
                taps=linked.taps,
                drafter=linked.drafter,
            ),
        )


def _feed(context: Context, subject: Subject, batching: Batching) -> Iterator[tuple[str, bytes]]:
    parts: dict[str, list[np.ndarray]] = {}
    if context.program.is_run_whole:
        batching = msgspec.structs.replace(batching, chunk=N_WHOLE)
    for begin in range(0, batching.n_tokens, batching.chunk):
        batch, mine = _batch(context, subject, batching, begin)
        output = context.process(batch)
        for name in context.program.outputs:
            rows = output.logits if name == "logits" else output.tap(name)
            parts.setdefault(name, []).append(rows[mine])
    for name, chunks in parts.items():
        yield name, np.concatenate(chunks).tobytes()
    yield "memory", context.digest(0)


def _batch(
    context: Context, subject: Subject, batching: Batching, begin: int
) -> tuple[Batch, np.ndarray]:
    """Return a batch with rows [begin, begin + chunk) of sequence 0, and which rows those are."""
    rows = [
        (seq, place)
        for place in range(begin, min(begin + batching.chunk, batching.n_tokens))
        for seq in (*range(1, 1 + batching.neighbours), 0)
    ]
    seq, place = np.array(rows, np.int32).T
    n_texts = 1 + batching.neighbours
    texts = [subject.text(batching.n_tokens, seed=_SEED + s) for s in range(n_texts)]
    batch = Batch(
        np.array([texts[s][p] for s, p in rows], np.int32),
        seq=seq,
        pos=place,
        outputs="all",
        slots=_slots(context, rows),
    )
    return batch, np.flatnonzero(seq == 0)


def _slots(context: Context, rows: list[tuple[int, int]]) -> dict[str, Any]:
    """Return rows for every slot, drawn by sequence and place."""
    slots = {}
    for number, (slot, value) in enumerate(context.program.inputs.items()):
        if slot not in ("tokens", "positions", "embeddings"):
            width = int(context.program.values[value].shape[1])
            slots[slot] = np.stack(
                [np.random.default_rng([number, s, p]).normal(size=width) for s, p in rows]
            ).astype(np.float32)
    return slots
