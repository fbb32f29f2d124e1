"""Contexts: one graph, its own memory, and ``process``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.acts.guards import Guard, Storey, act, perform_together
from mtpcore.acts.journal import Journal, Transaction
from mtpcore.backends.base import Backend, Choices, DraftPass, DraftRun, Plan, WeightSource
from mtpcore.backends.select import select_backend
from mtpcore.backends.threads import default_threads
from mtpcore.boundary.arguments import offers, read, read_below
from mtpcore.boundary.arrays import integers
from mtpcore.declarations.spec import DrafterSpec, Tap, read_taps
from mtpcore.errors import BatchError, GraphError, LinkError
from mtpcore.graph import GraphType
from mtpcore.memory import GroupedKV, PagedKV, make_memory
from mtpcore.runtime.admission import (
    Admitted,
    RowSource,
    admit,
    check_path,
    check_rewind,
    run_parts,
    undecided_tree,
)
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.limits import read_sizes
from mtpcore.runtime.output import Output
from mtpcore.runtime.sliced_logits import slice_logits

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["Context", "Watcher", "run_drafts"]

I32 = NDArray[np.int32]
Watcher = Callable[[Batch, Output], None]
"""Is told of every batch that was processed; what it raises undoes the batch."""


class Context:
    """One graph of a model with its own memory.

    Contexts of one model may be used in several threads at once; on one context, as on a Cross
    with all that belongs to it, one call at a time: another one meanwhile is a BusyError.

    Parameters
    ----------
    model : Model
        What ``load_model`` returned; it outlives its contexts or is kept alive by them.
    n_ctx : int
        Places of each sequence.
    graph_type : GraphType or str
        Which graph of the model: LLM, DRAFT, ENCODER, DECODER or a registered one.
    n_seq_max : int
        Sequences 0 .. n_seq_max - 1 can be used.
    n_batch : int
        Rows that run at once; larger batches are split inside.
    kv_dtype : {"f16", "f32", "q8_0"}
        Type of stored keys and values.
    threads : int, optional
        Threads of the CPU; default: the processors this process may use, at most as many as its
        control groups pay for.
    backend : str or Backend
        "cpu", "reference" or a backend object.
    taps : sequence of str or Tap
        Hidden states to hand out, e.g. ``["hidden", "layer_input:2"]``.
    drafter : DrafterSpec or str, optional
        Whose graph, where the graph type is a drafter's; default: the model's only one.
    head : int
        Which of the drafter's heads, where each has a memory of its own.
    logit_rows : int32[n], optional
        Which logits the graph makes, ascending; default: all.

    Raises
    ------
    CapacityError, GraphError, LinkError, BackendError
        Sizes out of range, taps the graph does not offer, a model without that graph, a backend
        that cannot run.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int = 512,
        *,
        graph_type: GraphType | str = GraphType.LLM,
        n_seq_max: int = 1,
        n_batch: int = 512,
        kv_dtype: str = "f16",
        threads: int | None = None,
        backend: str | Backend = "cpu",
        taps: Sequence[str | Tap] = (),
        drafter: DrafterSpec | str | None = None,
        head: int = 0,
        logit_rows: I32 | None = None,
    ) -> None:
        if not offers(model, "program", "find_drafter"):
            raise BatchError(
                "a context takes a model",
                where="Context(model)",
                wanted="Model",
                got=type(model).__name__,
                fix="load it: Context(load_model(path))",
            )
        self.n_ctx, self.n_seq_max, self.n_batch, self.threads, self.kv_dtype = read_sizes(
            n_ctx, n_seq_max, n_batch, default_threads() if threads is None else threads, kv_dtype
        )
        self.model, self.graph_type = model, GraphType(graph_type)
        self.backend = select_backend(backend)
        plain = drafter is None and self.graph_type is not GraphType.DRAFT
        self.drafter = None if plain else model.find_drafter(drafter)
        self.head = read(head, int, "no such head", where="Context(head=...)", error=GraphError)
        self.logit_rows = None if logit_rows is None else integers(logit_rows, "logit_rows")
        self.sources: dict[str, RowSource] = {}
        self.watchers: list[Watcher] = []
        self.deliver: Watcher | None = None
        self.before_digest: Callable[[int], None] | None = None
        self.owner: object | None = None
        self.guard = Guard()  # a Cross gives its contexts one in common
        self.journal = Journal()
        self.transaction: Callable[[Iterable[int]], Transaction] = lambda seqs: (
            self.journal.transaction((self,))
        )
        self.set_taps(read_taps(taps))

    @act(Storey.PASS)
    def set_taps(self, taps: tuple[Tap, ...]) -> None:
        """Hand out these taps from now on; for ``link``, while the context holds no tokens."""
        program = self.model.program(
            self.graph_type, taps=taps, drafter=self.drafter, head=self.head
        )
        source: WeightSource = self.model
        if self.logit_rows is not None:
            program, source = slice_logits(program, self.model, self.logit_rows)
        memory: PagedKV | GroupedKV | None = None
        if program.memory:
            memory = make_memory(
                program.memory,
                lambda layers, n_pages: self.backend.store(layers, n_pages, self.kv_dtype),
                n_seq=self.n_seq_max,
                n_ctx=self.n_ctx,
                n_batch=self.n_batch,
            )
        with self.model.planning():
            plan: Plan = self.backend.plan(
                program,
                source,
                n_batch=self.n_batch,
                n_ctx=self.n_ctx,
                threads=self.threads,
                stores=[group.store for group in memory.groups] if memory else (),
            )
        self.taps, self.program, self.memory, self.plan = taps, program, memory, plan
        self.n_axes, self.slots = program.n_axes, program.slots()
        self.lengths = [0] * self.n_seq_max
        self.undecided: dict[int, tuple[int, int]] = {}

    @act(Storey.CONTEXT)
    def add_taps(self, taps: Sequence[Tap]) -> None:
        """Hand out further taps from now on.

        Raises
        ------
        LinkError
            The context holds tokens already: rows of these taps would be missing.
        """
        wanted = tuple(dict.fromkeys((*self.taps, *read_taps(taps))))
        if wanted == self.taps:
            return
        if any(self.length(seq) for seq in range(self.n_seq_max)):
            raise LinkError(
                "the context holds tokens whose hidden states were not kept",
                wanted=f"taps {', '.join(map(str, wanted))}",
                got=f"taps {', '.join(map(str, self.taps)) or 'none'}",
                fix="link before the first process(), or make the context with these taps",
            )
        self.set_taps(wanted)

    def _alone(self, seqs: Iterable[int]) -> Transaction:
        """Return a transaction on this context; one that a Cross owns asks the Cross for it."""
        return self.journal.transaction((self,))

    def __repr__(self) -> str:
        taps = ", ".join(map(str, self.taps))
        sizes = f"n_ctx={self.n_ctx}, n_seq_max={self.n_seq_max}, backend={self.backend.name}"
        return f"Context({self.model.architecture}, {self.graph_type.name}, {sizes}, taps=({taps}))"

    @property
    def guarantee(self) -> str:
        """``exact``, ``exact-backend``, ``tie-exact`` or ``fast``; see the guarantees page."""
        return self.backend.guarantee

    @property
    def longest_draft(self) -> int:
        """How many drafts the memory can take back."""
        return self.memory.longest_rewind if self.memory else self.n_ctx

    def length(self, seq: int) -> int:
        """Return the place after the newest row of a sequence; 0 where it is empty."""
        seq = self.check_seq(seq)
        self.journal.settle()
        return self.lengths[seq]

    @act(Storey.PASS)
    def process(self, batch: Batch, choices: Choices | None = None) -> Output:
        """Run all rows and store them; all or nothing.

        Parameters
        ----------
        batch : Batch
            Rows of any mix of sequences; those of one sequence continue it in order.
        choices : mtpcore.backends.base.Choices, optional
            Who chooses from each row of logits, where nothing else is wanted of these:
            ``Output.chosen`` has the tokens, and ``Output.logits`` only the rows without a
            sampler. Watchers see all.

        Returns
        -------
        Output
            Logits of the rows asked for, and every tap's rows.

        Raises
        ------
        BatchError, CapacityError, LinkError, SamplingError
            Ids, positions, sequences, parents, rows or choices that do not fit; no room; a linked
            row that is missing. The state is what it was.
        """
        self.journal.settle()
        admitted = admit(self, batch, choices)
        with self.transaction(admitted[1]):
            return self._run(batch, admitted)

    def extend(self, batch: Batch, choices: Choices | None = None) -> Output:
        """Do what ``process`` does, in an act that is under way."""
        return self._run(batch, admit(self, batch, choices))

    def _run(self, batch: Batch, admitted: Admitted) -> Output:
        rows, ranges, groups = admitted
        arrays = run_parts(self, rows, ranges)
        output = Output(rows.seq, rows.place, rows.outputs, groups, arrays)
        for watcher in self.watchers:
            self.guard.lend(watcher, batch, output)
        if self.deliver is not None:
            self.deliver(batch, output)
        for seq, (begin, end) in ranges.items():
            self.lengths[seq] = end
            if rows.parent is not None:
                self.undecided[seq] = (begin, end)
        return output

    def save(self) -> Any:
        """Return what ``restore`` needs to take back the rows of an act."""
        memory = self.memory.save() if self.memory else None
        return self.lengths.copy(), self.undecided.copy(), memory

    def restore(self, saved: Any) -> None:
        """Hold the rows that there were at the last ``save``."""
        lengths, undecided, memory = saved
        if self.memory:
            self.memory.restore(memory)
        self.lengths[:], self.undecided = lengths, undecided.copy()

    @act(Storey.PASS)
    def draft(
        self,
        batch: Batch,
        k: Sequence[int],
        *,
        later: Sequence[tuple[Context, Batch]] = (),
        **choices: Any,
    ) -> list[list[int]]:
        """Run rows and go on with what is chosen from them; only the rows themselves are kept.

        The batch's outputs are the newest rows of its sequences; ``choices`` are the other fields
        of ``DraftRun``, one entry for each sequence in the order of the outputs.

        With ``later`` a context of its own makes each further draft: pass p reads a batch with the
        sequences that want more than p drafts, where the newest p rows of each stand for those
        before. The rows of passes that nobody reached are not kept.

        Raises
        ------
        BatchError, CapacityError, LinkError
            As ``process``; the batch and the passes after it fit ``n_batch`` and ``n_ctx``.
        """
        guards = {one.guard for one, _ in later} - {self.guard}
        arguments = self, batch, later, k, choices
        found: list[list[int]] = perform_together(
            tuple(guards), Context._draft, Storey.PASS, arguments, {}
        )
        return found

    def _draft(
        self,
        batch: Batch,
        later: Sequence[tuple[Context, Batch]],
        k: Sequence[int],
        choices: dict[str, Any],
    ) -> list[list[int]]:
        self.journal.settle()
        with self.journal.transaction([self, *(context for context, _ in later)]):
            return run_drafts([(self, batch), *later], k, choices)

    @act(Storey.PASS)
    def explore(self, batch: Batch) -> Output:
        """Run rows, or a draft tree, and forget them: they reach no link and no watcher.

        Raises
        ------
        BatchError, CapacityError, LinkError
            As ``process``.
        """
        with self.transaction(()):
            return self.look_ahead(batch)

    def look_ahead(self, batch: Batch) -> Output:
        """Do what ``explore`` does, in an act that is under way."""
        rows, ranges, groups = admit(self, batch)
        arrays = run_parts(self, rows, ranges)
        if self.memory:
            for seq, (begin, _) in ranges.items():
                self.memory.rewind(seq, begin)
        return Output(rows.seq, rows.place, rows.outputs, groups, arrays)

    @act(Storey.CONTEXT)
    def keep(self, seq: int, path: Sequence[int]) -> None:
        """After a draft tree: keep of its rows only this path, as a chain.

        ``path`` counts the tree's rows of that sequence in the order of the batch, ascending.

        Raises
        ------
        BatchError, LinkError
            There is no tree, or no such path; the context belongs to a Cross.
        """
        self._check_free("accept")
        with self.transaction(()) as transaction:
            transaction.commit(partial(self._keep, *check_path(self, seq, path)))

    @act(Storey.CONTEXT)
    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows of a sequence from place ``length`` on.

        Raises
        ------
        BatchError, LinkError
            The place lies beyond the sequence; the context belongs to a Cross.
        """
        self._check_free("rollback")
        with self.transaction(()):
            self.forget(seq, length)

    @act(Storey.CONTEXT)
    def remove(self, seq: int) -> None:
        """Forget a whole sequence."""
        self._check_free("remove")
        with self.transaction(()):
            self.forget(seq, 0)

    @act(Storey.CONTEXT)
    def fork(self, seq: int, new: int) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is."""
        self._check_free("fork")
        with self.transaction(()):
            self.copy(seq, new)

    def _check_free(self, act: str) -> None:
        if self.owner is not None:
            raise LinkError(
                "a linked context changes together with the others",
                fix=f"call {act}() of its Cross",
            )

    @act(Storey.ROWS)
    def forget(self, seq: int, length: int) -> None:
        """Rewind this context alone, in an act that is under way."""
        seq, length = check_rewind(self, seq, length)
        if self.memory:
            self.memory.rewind(seq, length)
        self.lengths[seq] = self.memory.length(seq) if self.memory else length
        self.undecided.pop(seq, None)

    @act(Storey.ROWS)
    def follow(self, seq: int, path: Sequence[int]) -> None:
        """Keep a path in this context alone, in an act that is under way."""
        self._keep(*check_path(self, seq, path))

    def _keep(self, seq: int, begin: int, steps: list[int]) -> None:
        """Keep these rows of a tree; what was cut off half-way is ended by the same call."""
        if self.memory:
            self.memory.keep(seq, begin, steps)
        self.lengths[seq] = begin + len(steps)
        self.undecided.pop(seq, None)

    @act(Storey.ROWS)
    def copy(self, seq: int, new: int) -> None:
        """Fork this context alone, in an act that is under way."""
        seq, new = self.check_seq(seq), self.check_seq(new)
        if seq in self.undecided:
            raise undecided_tree(seq)
        if self.lengths[new] or seq == new:
            raise BatchError(
                "a fork goes to an empty sequence",
                where=f"sequence {new}",
                got=f"{self.lengths[new]} rows",
                fix="remove it first",
            )
        if self.memory:
            self.memory.fork(seq, new)
        self.lengths[new] = self.lengths[seq]

    @act(Storey.CONTEXT)
    def digest(self, seq: int) -> bytes:
        """Return a hash of what is stored for a sequence: 16 bytes, equal for equal states."""
        seq = self.check_seq(seq)
        with self.transaction((seq,)):
            return self.digest_now(seq)

    def digest_now(self, seq: int) -> bytes:
        """Do what ``digest`` does, in an act that is under way."""
        if self.before_digest:
            self.before_digest(seq)
        if self.memory:
            return self.memory.digest(seq)
        return self.lengths[seq].to_bytes(16, "little")

    def check_seq(self, seq: int) -> int:
        """Return the sequence; raise BatchError where there is none of this number."""
        return read_below(seq, self.n_seq_max, "no such sequence", fix="make n_seq_max larger")


def run_drafts(
    passes: Sequence[tuple[Context, Batch]], k: Sequence[int], choices: Mapping[str, Any]
) -> list[list[int]]:
    """Run a draft in an act that is under way; only rows that ran are kept."""
    taken = []
    for context, batch in passes:
        rows, ranges, _ = admit(context, batch)
        if len(batch) > context.n_batch:
            raise BatchError("a draft runs in one piece", wanted=context.n_batch, got=len(batch))
        taken.append((context, rows, ranges, {seq: context.lengths[seq] for seq in ranges}))
        room = ranges
        if len(passes) == 1:
            seqs = rows.seq[rows.outputs].tolist()
            ahead = {seq: max(n - 1, 0) for seq, n in zip(seqs, k, strict=True)}
            room = {seq: (begin, end + ahead[seq]) for seq, (begin, end) in ranges.items()}
        if context.memory:
            context.memory.reserve(room)
    (first, rows, _, _), *others = taken
    later = [DraftPass(one.plan, one.memory, its) for one, its, _, _ in others]
    found, n_run = first.plan.draft(DraftRun(rows=rows, k=k, later=later, **choices), first.memory)
    for number, (context, _, ranges, before) in enumerate(taken):
        for seq, (_, end) in ranges.items():
            kept = end if number < n_run else before[seq]
            if context.memory:
                context.memory.rewind(seq, kept)
            context.lengths[seq] = kept
    return found
