"""Conformance: a backend computes what a family's graphs say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import F32, CheckedBatch
from mtpcore.backends.select import select_backend
from mtpcore.boundary.arguments import Finite, Length, expect, read
from mtpcore.declarations.spec import Tap
from mtpcore.graph.program import Program
from mtpcore.runtime.context import Context
from mtpcore.testing.runner import Runner
from mtpcore.testing.subject import Subject

__all__ = ["check_graphs"]

N_SEQ, N_CTX = 2, 128
BATCHES = (
    ((0, 5),),
    ((1, 1),),
    ((0, 2), (1, 3)),
    ((1, 12), (0, 60), (1, 1)),  # more than a unit of rows, and over the end of a page
    ((0, 1),),
)
"""Batches as (sequence, rows) after each other."""

SOURCES = (3, 70)
"""Rows that are delivered to each sequence, where a graph attends to such rows."""


def check_graphs(
    subject: Subject,
    *,
    kv_dtype: str = "f16",
    threads: int | None = 2,
    bound: float = 0.0,
    seed: int = 0,
) -> int:
    """Compare every graph of the family with its definition, at every output.

    The trunk and each graph of the drafter are fed tokens, slots and embedding rows drawn at
    random, in batches of one row, of a few and of many. Each is run as the drafter's link runs it,
    and with every tap that it offers. Outputs, and what is stored in memory where bits are
    compared, must be those of the plain NumPy of ``mtpcore.backends.reference``, or of another
    definition of the subject's.

    Parameters
    ----------
    kv_dtype : {"f16", "f32", "q8_0"}
    threads : int, optional
        None: as many as a context takes by itself.
    bound : float
        0: the same bits, as the ``cpu`` backend promises; values that are not numbers count as
        equal. Else how far a value may be from the definition's, as a part of the root mean square
        of all values of this output in this batch.
    seed : int
        Of what is drawn.

    Returns
    -------
    int
        How many rows were compared.

    Raises
    ------
    AssertionError
        Names the graph, the output, its first entry that differs, and both values.
    """
    expect(subject, Subject, "a subject under test")
    bound = read(bound, Finite, "a bound", where="check_graphs")
    seed = read(seed, Length, "a seed", where="check_graphs")
    n_compared = 0
    for where, context, program in _programs(subject, kv_dtype, threads):
        tested, wanted = (
            Runner(
                chosen_backend,
                program,
                context.model,
                n_seq=N_SEQ,
                n_ctx=N_CTX,
                n_batch=N_CTX,
                threads=context.threads,
                kv_dtype=kv_dtype,
            )
            for chosen_backend in (
                select_backend(subject.backend, context.model.backends),
                subject.definition,
            )
        )
        rng = np.random.default_rng(seed)
        if program.whole_slot is not None:
            for seq, n in enumerate(SOURCES):
                whole = _normal(rng, n, program, program.whole_slot)
                for runner in (tested, wanted):
                    runner.deliver(seq, **{program.whole_slot: whole})
        lengths = [0] * N_SEQ
        for number, batch in enumerate(BATCHES):
            rows = _rows(program, batch, lengths, rng)
            computed, right = (_run(runner, rows) for runner in (tested, wanted))
            for name, values in right.items():
                at = f"{subject}, {where}, batch {number}: {name}"
                _compare(computed[name], values, bound, at)
                n_compared += len(values)
        for seq in range(N_SEQ if not bound else 0):
            same = tested.memory.digest(seq) == wanted.memory.digest(seq)
            assert same, f"{subject}, {where}: memory of sequence {seq} differs from the definition"
    return n_compared


def _programs(
    subject: Subject, kv_dtype: str, threads: int | None
) -> Iterator[tuple[str, Context, Program]]:
    """Yield every graph of the family: as it is run, and with all taps it offers."""
    cross = subject.link(N_CTX, kv_dtype=kv_dtype, threads=threads)
    for role, context in cross.contexts.items():
        if context.program.shared:
            continue  # check_readers has its rows
        yield role, context, context.program
        taps = context.program.taps
        if set(taps) - context.program.outputs.keys():
            program = context.runner.with_taps([Tap.parse(tap) for tap in taps]).program
            yield f"{role} with all taps", context, program


def _rows(
    program: Program,
    batch: tuple[tuple[int, int], ...],
    lengths: list[int],
    rng: np.random.Generator,
) -> CheckedBatch:
    """Return random tokens for a program, which continue the sequences."""
    seq: list[int] = []
    place: list[int] = []
    for sequence, n in batch:
        seq += [sequence] * n
        place += range(lengths[sequence], lengths[sequence] + n)
        lengths[sequence] += n
    n = len(seq)
    tokens = rng.integers(0, program.n_embeddings or 1, n).astype(np.int32)
    embeddings = None
    if "embeddings" in program.inputs:
        embeddings = _normal(rng, n, program, "embeddings")
        tokens[rng.random(n) < 0.2] = -1
    return CheckedBatch(
        tokens=tokens,
        positions=np.repeat(np.array(place, np.int32)[:, None], program.n_axes, axis=1),
        seq=np.array(seq, np.int32),
        place=np.array(place, np.int32),
        outputs=np.flatnonzero(rng.random(n) < 0.5).astype(np.int32),
        embeddings=embeddings,
        codes=_codes(program, n, rng),
        slots={slot: _normal(rng, n, program, slot) for slot in program.slots()},
    )


def _codes(program: Program, n: int, rng: np.random.Generator) -> NDArray[np.int32] | None:
    """Return codes, some rows without any, where the program reads them."""
    if not program.n_codes:
        return None
    codes = rng.integers(0, program.n_per_codebook, (n, program.n_codes)).astype(np.int32)
    codes[rng.random(n) < 0.3] = -1
    return codes


def _normal(rng: np.random.Generator, n: int, program: Program, name: str) -> F32:
    width = int(program.values[program.inputs[name]].shape[1])
    return rng.normal(size=(n, width)).astype(np.float32)


def _run(runner: Runner, batch: CheckedBatch) -> dict[str, F32]:
    for seq in np.unique(batch.seq).tolist():
        mine = batch.place[batch.seq == seq]
        runner.memory.reserve({seq: (int(mine[0]), int(mine[-1]) + 1)})
    made = runner.plan.run(batch, runner.memory)
    return {name: np.asarray(rows) for name, rows in made.items()}


def _compare(got: NDArray[np.float32], wanted: F32, bound: float, where: str) -> None:
    """Raise AssertionError at the first value that differs."""
    assert got.shape == wanted.shape, f"{where} is {got.shape}, by definition {wanted.shape}"
    both_nan = np.isnan(got) & np.isnan(wanted)
    if bound:
        finite = wanted[np.isfinite(wanted)].astype(np.float64)
        most = bound * float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        with np.errstate(invalid="ignore"):  # infinite ones less infinite ones
            is_near = np.abs(got - wanted.astype(np.float64)) <= most
        differs = ~(is_near | (got == wanted) | both_nan)
    else:
        differs = (got.view(np.uint32) != wanted.view(np.uint32)) & ~both_nan
    for at in np.argwhere(differs)[:1].tolist():
        i = tuple(at)
        n = int(differs.sum())
        raise AssertionError(
            f"{where}{at} is {got[i]}, by definition {wanted[i]}; {n} of {differs.size} differ"
        )
