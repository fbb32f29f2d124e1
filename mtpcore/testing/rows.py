"""Conformance: a row's bits depend on its text alone, whatever it is computed beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from mtpcore.boundary.arguments import expect
from mtpcore.cross import Cross
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.testing.subject import Subject

__all__ = ["Company", "check_rows"]

N_TOKENS = 96  # more than a page of memory, and than a short window
_SEED = 11


class Company(msgspec.Struct, frozen=True):
    """How a text reaches a context.

    Attributes
    ----------
    chunk : int
        Rows of the text in a batch.
    n_batch, threads : int
        Of the context.
    neighbours : int
        Other sequences whose rows lie between those of the text.
    """

    chunk: int = 1
    n_batch: int = 512
    threads: int = 1
    neighbours: int = 0


def check_rows(subject: Subject, company: Company, kv_dtype: str = "f16") -> None:
    """Compare every graph of the family in this company with itself row by row, bit by bit.

    The trunk with all taps that the drafter reads, and each graph of the drafter on rows drawn at
    random, are run with a memory of type ``kv_dtype``; outputs and digests must be equal.

    Raises
    ------
    AssertionError
        Names the graph and the output that differs.
    """
    expect(subject, Subject, "a family under test")
    expect(company, Company, "how rows reach a context")
    wanted = _trace(subject, Company(), kv_dtype)
    found = _trace(subject, company, kv_dtype)
    different = [name for name in wanted if wanted[name] != found[name]]
    assert not different, f"{subject}, {company}: {', '.join(different)} differ from rows alone"


def _trace(subject: Subject, company: Company, kv_dtype: str) -> dict[str, bytes]:
    cross = subject.link(
        n_seq_max=1 + company.neighbours,
        n_batch=company.n_batch,
        threads=company.threads,
        kv_dtype=kv_dtype,
    )
    return {
        f"{role}.{name}": found
        for role, context in _unlinked(cross)
        for name, found in _feed(context, subject, company)
    }


def _unlinked(cross: Cross) -> Iterator[tuple[str, Context]]:
    """Yield a context like each role's, which nobody feeds but the caller."""
    for role, one in cross.contexts.items():
        yield (
            role,
            Context(
                one.model,
                one.n_ctx,
                graph_type=one.graph_type,
                n_seq_max=one.n_seq_max,
                n_batch=one.n_batch,
                kv_dtype=one.kv_dtype,
                threads=one.threads,
                backend=one.backend,
                taps=one.taps,
                drafter=one.drafter,
            ),
        )


def _feed(context: Context, subject: Subject, company: Company) -> Iterator[tuple[str, bytes]]:
    parts: dict[str, list[np.ndarray]] = {}
    for begin in range(0, N_TOKENS, company.chunk):
        batch, mine = _batch(context, subject, company, begin)
        output = context.process(batch)
        for name in context.program.outputs:
            rows = output.logits if name == "logits" else output.tap(name)
            parts.setdefault(name, []).append(rows[mine])
    for name, made in parts.items():
        yield name, np.concatenate(made).tobytes()
    yield "memory", context.digest(0)


def _batch(
    context: Context, subject: Subject, company: Company, begin: int
) -> tuple[Batch, np.ndarray]:
    """Return a batch with rows [begin, begin + chunk) of sequence 0, and which rows those are."""
    rows = [
        (seq, place)
        for place in range(begin, min(begin + company.chunk, N_TOKENS))
        for seq in (*range(1, 1 + company.neighbours), 0)
    ]
    seq, place = np.array(rows, np.int32).T
    texts = [subject.text(N_TOKENS, seed=_SEED + s) for s in range(1 + company.neighbours)]
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
    found = {}
    for number, (slot, value) in enumerate(context.program.inputs.items()):
        if slot not in ("tokens", "positions", "embeddings"):
            width = int(context.program.values[value].shape[1])
            found[slot] = np.stack(
                [np.random.default_rng([number, s, p]).normal(size=width) for s, p in rows]
            ).astype(np.float32)
    return found
