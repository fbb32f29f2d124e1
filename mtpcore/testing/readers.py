"""Conformance: a drafter that reads the target's memory, against its definition and row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtpcore.backends.base import F32, CheckedBatch
from mtpcore.boundary.arguments import Length, expect, read
from mtpcore.cross import Cross
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner
from mtpcore.testing.subject import Subject

__all__ = ["check_readers"]

N_SEQ, LENGTHS = 3, (1, 70, 131)
"""Texts of one token, of a page and some more, and of two pages and some more."""
BACK = (0, 2, 0)
"""How many places each row's newest place lies before the text's last one."""


def check_readers(
    subject: Subject,
    *,
    kv_dtype: str = "f16",
    threads: int | None = 2,
    seed: int = 0,
) -> int:
    """Compare rows of graphs that read the target's memory, at every output, to the last bit.

    Rows of several texts in one batch must equal those of the plain NumPy of
    ``mtpcore.backends.reference``, and those that each text has alone; no digest may change.

    Parameters
    ----------
    kv_dtype, threads
        Of the contexts under test.
    seed : int
        Of what is drawn.

    Returns
    -------
    int
        How many rows were compared; 0 where no graph reads the target's memory.

    Raises
    ------
    AssertionError
        Names the graph and the output that differs.
    """
    expect(subject, Subject, "a subject under test")
    rng = np.random.default_rng(read(seed, Length, "a seed", where="check_readers"))
    options: dict[str, Any] = {"n_seq_max": N_SEQ, "kv_dtype": kv_dtype}
    tested = subject.link(threads=threads, **options)
    wanted = subject.link(backend=subject.definition, **options)
    for cross in (tested, wanted):
        for seq, n in enumerate(LENGTHS):
            cross.llm.process(Batch.of(subject.text(n, seed=seq), seq=seq))
    n_compared = 0
    for role, context in tested.contexts.items():
        if not context.program.shared:
            continue
        batch, before = _rows(context.runner, rng), _digests(tested)
        computed, right = (_run(cross.contexts[role].runner, batch) for cross in (tested, wanted))
        for seq in range(N_SEQ):
            alone = _run(context.runner, _only(batch, seq))
            for name, values in right.items():
                where = f"{subject}, {role}, text {seq}: {name}"
                assert _same(computed[name][seq], values[seq]), f"{where} is not the definition's"
                assert _same(alone[name][0], values[seq]), f"{where} differs where it is alone"
                n_compared += 1
        assert _digests(tested) == before, f"{subject}, {role}: something was stored"
    return n_compared


def _rows(runner: GraphRunner, rng: np.random.Generator) -> CheckedBatch:
    """Return a row of each text, with what slots hold drawn at random."""
    program, seq = runner.program, np.arange(N_SEQ, dtype=np.int32)
    place = np.array([max(n - 1 - back, 0) for n, back in zip(LENGTHS, BACK, strict=True)])
    return CheckedBatch(
        tokens=rng.integers(0, runner.model.hparams.n_vocab, N_SEQ).astype(np.int32),
        positions=np.repeat(place.astype(np.int32)[:, None] + 1, program.n_axes, axis=1),
        seq=seq,
        place=place.astype(np.int32),
        outputs=seq,
        slots={
            slot: rng.normal(size=(N_SEQ, width)).astype(np.float32)
            for slot, width in program.slots().items()
        },
    )


def _only(batch: CheckedBatch, row: int) -> CheckedBatch:
    """Return one row of a batch."""
    one = slice(row, row + 1)
    return CheckedBatch(
        tokens=batch.tokens[one],
        positions=batch.positions[one],
        seq=batch.seq[one],
        place=batch.place[one],
        outputs=np.zeros(1, np.int32),
        slots={slot: rows[one] for slot, rows in batch.slots.items()},
    )


def _run(runner: GraphRunner, batch: CheckedBatch) -> dict[str, F32]:
    made = runner.plan.run(batch, runner.lent)
    return {name: np.asarray(rows) for name, rows in made.items()}


def _digests(cross: Cross) -> list[bytes]:
    return [context.digest(seq) for context in cross.contexts.values() for seq in range(N_SEQ)]


def _same(got: F32, wanted: F32) -> bool:
    return bool(np.array_equal(got.view(np.uint32), wanted.view(np.uint32)))
