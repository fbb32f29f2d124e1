"""Reading chunks of text with a model and its heads, whose products are watched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.backends.base import Backend, CheckedBatch, Plan
from mtpcore.backends.schedule import Drafts, Schedule
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import ChunkSums
from mtpcore.conversion.mixes import is_of_output
from mtpcore.cross.link import link
from mtpcore.declarations.spec import TARGET, DrafterSpec
from mtpcore.drafting.drafters import GREEDY, Drafter, DraftJob
from mtpcore.evaluation import compare_rows
from mtpcore.graph import GraphType, ProductInput, Program, delivered_products, expose_products
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import Deliver, GraphRunner

__all__ = ["ChunkReader", "Said", "drafters_in"]

I32 = NDArray[np.int32]

_FEWEST = 16
"""Rows of a batch at least."""
_UNLIKELY = 1e-30
"""The least probability of a draft: then none is no fault."""
See = Callable[[CheckedBatch, Mapping[str, NDArray[Any]]], None]
"""``see(batch, made)``: what a plan made of a batch."""


class Said:
    """How surprising a text was: the sum of -log p of tokens, and of how many."""

    def __init__(self, surprise: float = 0.0, n: int = 0) -> None:
        self.surprise, self.n = surprise, n

    def add(self, logits: NDArray[np.float32], tokens: I32) -> None:
        """Count tokens int32[n], each by the logits before it, float32[n, n_vocab]."""
        self.surprise += float(compare_rows(logits, tokens).losses.sum())
        self.n += len(tokens)

    def add_all(self, other: Said) -> None:
        """Count what another one counted."""
        self.surprise += other.surprise
        self.n += other.n

    @property
    def perplexity(self) -> float | None:
        """The perplexity; None where nothing was counted."""
        return math.exp(self.surprise / self.n) if self.n else None


def drafters_in(model: Model) -> list[DrafterSpec]:
    """Return the drafters with graphs of their own in a model's file."""
    return [one for one in model.drafters if not one.variant_of and one.build is not None]


class _FirstRows:
    """A plan that runs the rows with which rounds begin, and shows them; nothing is drafted."""

    def __init__(self, plan: Plan, see: See) -> None:
        self._plan, self._see = plan, see

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def run_schedule(self, schedule: Schedule) -> Drafts:
        """Run the rows of the first pass."""
        first, n = schedule.passes[0], len(schedule.round.drafts)
        self._see(first.batch, self._plan.run(first.batch, first.memory))
        return Drafts([-1] * n, [*range(n)], [not at for at in range(len(schedule.round.stages))])


class ChunkReader:
    """Reads chunks with a model, and with its heads as they read a prompt: true rows and tokens.

    What reads no prompt, as a drafter that fills blocks, begins a round wherever the last one's
    drafts would end.

    Parameters
    ----------
    model : Model
    settings : ImportanceSettings
    draft_model : Model, optional
        A drafter in a file of its own, whose matrices are weighed in place of the model's.
    threads : int, optional
        Default: as a context's.
    backend : str or Backend
    """

    def __init__(
        self,
        model: Model,
        settings: ImportanceSettings,
        *,
        draft_model: Model | None = None,
        threads: int | None = None,
        backend: str | Backend = "cpu",
    ) -> None:
        size = settings.chunk_size
        self._settings, self._model = settings, model
        program = model.program(GraphType.LLM, n_ctx=size)
        self._weighed = draft_model or model
        wanted = _is_none if draft_model else self._is_weighed
        exposed, _ = expose_products(program, logits=settings.perplexity, wanted=wanted)
        fitting = max(settings.handed_out // max(_bytes_of_row(exposed), 1), _FEWEST)
        self._rows = min(settings.rows, fitting)
        self.together = max(self._rows // size, 1)
        whole = size * self.together if program.is_run_whole else 0
        llm = Context(
            model,
            size,
            n_seq_max=self.together,
            n_batch=max(self._rows, whole),
            checkpoint_bytes=0,
            threads=threads,
            backend=backend,
        )
        self._step = size if whole else min(max(self._rows // self.together, 1), size)
        drafters = drafters_in(self._weighed) if settings.heads or draft_model else []
        self.cross = link(llm, drafters, draft_model=draft_model)
        self._rounds: list[Drafter] = []  # those whose rounds are begun
        self._sampler = Sampler(GREEDY, Scratch(1))  # which nothing is chosen by
        self._sums: dict[int, ChunkSums] = {}
        self._said: dict[int, Said] = {}
        self._chunks: I32 = np.zeros((0, size), np.int32)
        for role, context in self.cross.contexts.items():
            self._watch(role, context.runner)
        if self._rounds:  # pieces of the text end where they begin
            every = math.gcd(*(drafter.round_size for drafter in self._rounds))
            self._step = max(n for n in range(1, self._step + 1) if every % n == 0)

    def _watch(self, role: str, runner: GraphRunner) -> None:
        """Let a graph hand out what its products read, and sum it up."""
        tapped = runner.with_taps(())
        wanted = self._is_weighed if runner.model is self._weighed else _is_none
        makes_logits = role == "llm" and self._settings.perplexity
        program, exposed = expose_products(tapped.program, logits=makes_logits, wanted=wanted)
        delivered = [
            ProductInput(link.tap, None, "one", delivered_products(self.cross.llm.program))
            for link in self.cross.speculation.links
            if (link.src, link.dst, link.pairing) == (role, "llm", "whole-sequence")
        ]
        runner.set_taps(tapped._replace(program=program))
        runner.deliver = self._deliverer(role, runner.deliver, [*exposed, *delivered])
        drafter = self.cross.drafters.get(role)
        if drafter is not None and drafter.round_size and exposed:
            runner.wrap_plan(partial(_FirstRows, see=self._viewer(role, exposed)))
            self._rounds.append(drafter)

    def _viewer(self, role: str, exposed: Sequence[ProductInput]) -> See:
        def see(batch: CheckedBatch, made: Mapping[str, NDArray[Any]]) -> None:
            for seq in np.unique(batch.seq).tolist():
                rows = batch.seq == seq
                for read in exposed:
                    ids = None if read.ids is None else np.asarray(made[read.ids])[rows]
                    self._sums[seq].add(role, read, np.asarray(made[read.rows])[rows], ids)

        return see

    def _is_weighed(self, name: str) -> bool:
        """Say whether a matrix is asked for."""
        is_own = not name.startswith(TARGET)
        return is_own and (self._settings.with_output or not is_of_output(name))

    def _deliverer(
        self, role: str, before: Deliver | None, exposed: Sequence[ProductInput]
    ) -> Deliver:
        def deliver(batch: Batch, output: Output) -> None:
            if before is not None:
                before(batch, output)
            for seq, rows in output.rows_of_seq.items():
                for read in exposed:
                    ids = None if read.ids is None else output.tap(read.ids)[rows]
                    self._sums[seq].add(role, read, output.tap(read.rows)[rows], ids)
                if role == "llm" and self._settings.perplexity:
                    self._note(seq, output.place[rows], output.tap("logits")[rows])

        return deliver

    def _note(self, seq: int, places: I32, logits: NDArray[np.float32]) -> None:
        """Count how surprising the second half of a chunk is, as llama.cpp does."""
        size = self._settings.chunk_size
        known = (places >= size // 2) & (places < size - 1)
        self._said[seq].add(logits[known], self._chunks[seq, places[known] + 1])

    def read(self, chunks: I32) -> Iterator[tuple[ChunkSums, Said]]:
        """Read up to ``together`` chunks, int32[n, chunk_size]; yield what each gave."""
        n, size = chunks.shape
        self._chunks = chunks
        self._sums = {seq: ChunkSums() for seq in range(n)}
        self._said = {seq: Said() for seq in range(n)}
        for seq in range(n):
            self.cross.remove(seq)
        if self.cross.encoder is not None:
            for seq in range(n):
                self.cross.encode({seq: chunks[seq].tolist()})
        for begin in range(0, size, self._step):
            part = chunks[:, begin : begin + self._step]
            places = np.tile(np.arange(begin, begin + part.shape[1]), n)
            seqs = np.repeat(np.arange(n), part.shape[1])
            self.cross.llm.process(Batch(part.ravel(), seq=seqs, pos=places, outputs="none"))
            with self.cross.transaction(range(n)):
                for seq in range(n):
                    self.cross.speculation.settle_all(seq)
                self._begin_rounds(chunks, begin + part.shape[1])
        for seq in range(n):
            yield self._sums[seq], self._said[seq]

    def _begin_rounds(self, chunks: I32, n_read: int) -> None:
        """Begin a round of each drafter that it is time for, after so many tokens of each chunk."""
        for drafter in self._rounds:
            k = drafter.round_size
            if n_read % k == 0 and n_read + k <= chunks.shape[1]:
                texts = chunks[:, : n_read + 1]  # and the pending token
                drafter.draft(
                    [
                        DraftJob(seq, text, n_read, k, self._sampler, p_min=_UNLIKELY)
                        for seq, text in enumerate(texts)
                    ]
                )


def _is_none(name: str) -> bool:
    return False


def _bytes_of_row(program: Program) -> int:
    """Return how many bytes a graph hands out for each row."""
    values = {program.values[i] for i in program.outputs.values()}
    return sum(4 * math.prod(int(n) for n in value.shape[1:]) for value in values)
