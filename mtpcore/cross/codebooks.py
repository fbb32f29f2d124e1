"""Frames of codes: the first code by the target, the others by a graph that reads its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.schedule import Schedule, Text
from mtpcore.cross.by_sequence import Samplings, setting_of
from mtpcore.cross.sequence import SequenceStates
from mtpcore.declarations.spec import Codebooks, Link, ModelSpec
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_levels
from mtpcore.errors import BatchError, LinkError, NoTokenError
from mtpcore.links.links import Links
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner
from mtpcore.sampling import check_no_grammar

__all__ = ["CodebookDecoder", "FrameJob", "find_codebooks"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
_SLOT = "embeddings"
"""What of the graph gets the target's row."""


class FrameJob(msgspec.Struct, frozen=True):
    """What is asked for one sequence of ``n`` rows: the frame that follows, and how to choose it.

    ``first`` is its first code; ``sampler`` chooses the others.
    """

    seq: int
    n: int
    first: int
    sampler: Sampler


class CodebookDecoder:
    """The graph that chooses the codes of a frame after the first, one after the other.

    It reads the target's row of a sequence at place 0 and the code before at each other one; all
    codes of a frame, of all sequences, are chosen in one call. Code i of the frame at place n is
    chosen with the noise of index ``n * count + i``. Afterwards its memory is empty: a frame does
    not see the frames before it but through the target's row.

    Parameters
    ----------
    role : str
    runner : GraphRunner
    codebooks : Codebooks
    links : Links
        Whose inbox holds the target's rows.

    Raises
    ------
    LinkError
        Its context has too few places.
    """

    def __init__(self, role: str, runner: GraphRunner, codebooks: Codebooks, links: Links) -> None:
        self.role, self.runner, self.codebooks = role, runner, codebooks
        self._links = links
        self._rounds = lru_cache(maxsize=8)(
            lambda wanted: draft_levels(RoundInput(wanted=wanted, programs=[runner.program]))
        )
        ids = np.arange(codebooks.n_first)
        self._is_mark = (ids >= codebooks.size) & (ids != (codebooks.end or 0))
        for what, wanted, got in (
            ("n_ctx", codebooks.count, runner.n_ctx),
            ("n_batch", 2, runner.n_batch),
        ):
            if got < wanted:
                raise LinkError(
                    "the context is too small for a frame",
                    where=f"role {role}",
                    wanted=f"{what} {wanted}",
                    got=got,
                )

    def index(self, n: int) -> int:
        """Return the index, for noise, of the first code of the frame at place ``n``."""
        return n * self.codebooks.count

    def allowed(self, logits: F32) -> F32:
        """Return the logits of first codes, float32[n_first], minus infinity for marks."""
        if not self._is_mark.any():
            return logits
        kept: F32 = np.where(self._is_mark, np.float32(-np.inf), logits)
        return kept

    def choose(
        self,
        states: SequenceStates,
        seqs: Sequence[int],
        sampling: Samplings,
        depth_sampling: Samplings | None,
        earlier: Mapping[int, I32],
    ) -> dict[int, I32 | None]:
        """Choose the frame int32[count] that follows each sequence; see ``Cross.frame``.

        None where no code was left to choose.

        Raises
        ------
        BatchError
            A sequence has nothing to continue from.
        SamplingError
            Settings with a grammar.
        """
        jobs: list[FrameJob] = []
        for seq in seqs:
            state, settings = states.decided(seq), check_no_grammar(setting_of(sampling, seq))
            if state.last_logits is None:
                raise BatchError(
                    "nothing to continue from",
                    where=f"sequence {seq}",
                    fix="process() rows with outputs='last' first",
                )
            text = earlier.get(seq, np.zeros(0, np.int32))
            logits = self.allowed(state.last_logits)
            try:
                first = states.sampler(seq, settings).choose(logits, text, 0, self.index(state.n))
            except NoTokenError:
                continue
            inner = settings
            if depth_sampling is not None:
                inner = check_no_grammar(setting_of(depth_sampling, seq))
            jobs.append(FrameJob(seq, state.n, first, states.sampler_of_codes(seq, inner)))
        return dict.fromkeys(seqs) | self.decode(jobs)

    def decode(self, jobs: Sequence[FrameJob]) -> dict[int, I32 | None]:
        """Return the frame int32[count] of each sequence; None where no code was left to choose."""
        frames: dict[int, I32 | None] = {}
        n_together = self.runner.n_batch // 2
        for begin in range(0, len(jobs), n_together):
            frames |= self._decode_together(jobs[begin : begin + n_together])
        return frames

    def _decode_together(self, jobs: Sequence[FrameJob]) -> dict[int, I32 | None]:
        box, count = self._links.inboxes(self.role)[_SLOT], self.codebooks.count
        embeddings = np.zeros((2 * len(jobs), box.width), np.float32)
        for i, job in enumerate(jobs):
            embeddings[2 * i] = box.get(job.seq, job.n - 1, job.n)[0]
        rows = Batch(
            [token for job in jobs for token in (-1, job.first)],
            embeddings=embeddings,
            seq=[job.seq for job in jobs for _ in range(2)],
            pos=[0, 1] * len(jobs),
            outputs=[False, True] * len(jobs),
        )
        none, reserved = np.zeros(0, np.int32), ReservedRows(self.runner, rows)
        schedule = Schedule(
            round=self._rounds((count - 1,) * len(jobs)),
            passes=[reserved.given],
            texts=[Text(job.sampler, none, 0, self.index(job.n) + 1) for job in jobs],
        )
        codes = schedule.by_text(run_reserved(schedule, [reserved]).tokens)
        for job in jobs:
            self.runner.sequences.rewind(job.seq, 0)
        return {
            job.seq: np.array([job.first, *others], np.int32) if len(others) == count - 1 else None
            for job, others in zip(jobs, codes, strict=True)
        }


def find_codebooks(runners: Mapping[str, GraphRunner], links: Links) -> CodebookDecoder | None:
    """Return what chooses the target's codes, and declare its links; None where there is no such.

    Raises
    ------
    LinkError, GraphError
        Graphs that do not fit together.
    """
    target = runners["llm"]
    codebooks, spec = target.model.codebooks, target.model.spec
    for role, runner in runners.items():
        if codebooks is None or runner.graph_type.name != codebooks.graph:
            continue
        if runner.model is not target.model:
            raise LinkError("codes are chosen by a graph of the target's own model", where=role)
        assert spec is not None
        _connect(spec, role, codebooks.graph, links)
        return CodebookDecoder(role, runner, codebooks, links)
    return None


def _connect(spec: ModelSpec, role: str, graph: str, links: Links) -> None:
    """Make the links that a trunk's declaration asks for, of one of its further graphs."""
    for feed in spec.feeds:
        if feed.graph != graph:
            continue
        for tap in feed.taps:
            links.connect(Link(src="llm", tap=tap, dst=role, slot=feed.slot, pairing=feed.pairing))
