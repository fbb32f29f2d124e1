"""One graph with its plan and its memory, and the methods that change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import (
    F32,
    Backend,
    CheckedBatch,
    FusedSampling,
    Plan,
    StateStore,
    Store,
    WeightSource,
)
from mtpcore.declarations.spec import DrafterSpec, Tap
from mtpcore.errors import CapacityError, GraphError, LinkError
from mtpcore.graph import GraphType, Program, split_sources
from mtpcore.memory import make_memory
from mtpcore.runtime.adapters import (
    AdapterChoice,
    Adapters,
    Chosen,
    add_draft_adapter,
    choose_none,
)
from mtpcore.runtime.admission import Admission, Admitted
from mtpcore.runtime.arrival import bring_batch
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.delivery import delivered_batch
from mtpcore.runtime.limits import Sizes
from mtpcore.runtime.output import Output
from mtpcore.runtime.parts import finish, run_parts
from mtpcore.runtime.sequences import ContextMemory, Sequences
from mtpcore.runtime.sliced_logits import slice_logits

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = [
    "Deliver",
    "GraphRunner",
    "Tapped",
]

Deliver = Callable[[Batch, Output], None]
"""Is told of every batch that was processed; what it raises undoes the batch."""


class Tapped(NamedTuple):
    """A graph that hands out some hidden states, and where it finds its weights.

    ``adapted`` is the same of the graph for batches with rows that have adapters.
    """

    taps: tuple[Tap, ...]
    program: Program
    source: WeightSource
    adapted: tuple[Program, WeightSource] | None = None


class GraphRunner:
    """One graph of a model with the memory of its sequences.

    It has the methods of a ``Context`` without their safety: nothing here refuses a second caller,
    or undoes what an exception leaves half done. A Context or a Cross does both, and calls these
    methods within its acts.

    ``sources`` give slots their rows; ``deliver`` is told of each batch that was processed;
    ``lent`` is another graph's memory, which a graph without its own reads.

    Parameters
    ----------
    model : Model
    sizes : Sizes
    graph_type : GraphType
    backend : Backend
    taps : tuple of Tap
    drafter : DrafterSpec, optional
        Whose graph, where it is a drafter's.
    head : int
        Which of the drafter's heads.
    logit_rows : int32[n], optional
        Which logits the graph makes; None: all.
    adapters : Adapters, optional
        Those that sequences may have.
    host : GraphRunner, optional
        The graph in whose memory this one stores its rows; None: a memory of its own.

    Raises
    ------
    GraphError
        The model has no such graph, or the graph not these taps or logits; or it does not store
        what its host does.
    CapacityError
        The context is longer than the graph serves.
    """

    def __init__(
        self,
        model: Model,
        sizes: Sizes,
        *,
        graph_type: GraphType,
        backend: Backend,
        taps: tuple[Tap, ...],
        drafter: DrafterSpec | None,
        head: int,
        logit_rows: NDArray[np.int32] | None,
        adapters: Adapters | None = None,
        host: GraphRunner | None = None,
    ) -> None:
        if drafter is not None and drafter.adapter:
            adapters = _adapters_of_drafts(model, host, adapters)
        self.model, self.sizes, self.backend = model, sizes, backend
        self.graph_type, self.drafter, self.head = graph_type, drafter, head
        self.logit_rows, self.adapters, self.host = logit_rows, adapters, host
        self.n_ctx, self.n_batch, self.n_seq_max = sizes.n_ctx, sizes.n_batch, sizes.n_seq_max
        self._tapped = self._build(taps)
        if host is None:
            memory = self._make_memory()
            self.sequences = Sequences(sizes.n_seq_max, memory, self.program.n_axes, adapters)
        else:
            self._check_host(host)
            self.sequences = host.sequences
        self.memory = self.sequences.memory
        self.lengths = self.sequences.lengths
        self._admission = Admission(
            self.program,
            self.sequences,
            n_vocab=model.n_tokens(graph_type),
            n_ctx=sizes.n_ctx,
            starts_late=drafter is not None,
        )
        self.sources = self._admission.sources
        self.admit, self.check_rows = self._admission.admit, self._admission.check_rows
        self.deliver: Deliver | None = None
        self.lent: ContextMemory | None = None
        self._plan: Plan | None = None
        self._delivery_plan: Plan | None = None
        self._adapted_plan: Plan | None = None

    def _make_memory(self) -> ContextMemory | None:
        """Return a memory for the program; None where it remembers nothing."""
        program, sizes, backend = self.program, self.sizes, self.backend
        if not program.remembers:
            return None
        return make_memory(
            program.memory,
            lambda layers, n_pages: backend.store(layers, n_pages, sizes.kv_dtype),
            n_seq=sizes.n_seq_max,
            n_ctx=sizes.n_ctx,
            n_batch=sizes.n_batch,
            states=program.states,
            make_state_store=partial(backend.state_store, source=self._tapped.source),
            checkpoint_bytes=sizes.checkpoint_bytes,
            delivered=program.delivered,
        )

    def _check_host(self, host: GraphRunner) -> None:
        """Refuse a memory that is of other layers, sizes or another backend."""
        for what, wanted, got in (
            ("layers", host.program.memory, self.program.memory),
            ("recurrent layers", host.program.states, self.program.states),
            ("delivered layers", host.program.delivered, self.program.delivered),
            ("sizes", host.sizes, self.sizes),
            ("backend", host.backend.name, self.backend.name),
        ):
            if wanted != got:
                raise GraphError(
                    f"the graph does not fit the memory of another one: {what} differ",
                    where=f"{self.program.name} in the memory of {host.program.name}",
                    wanted=wanted,
                    got=got,
                )

    def _build(self, taps: tuple[Tap, ...]) -> Tapped:
        program = self.model.program(
            self.graph_type,
            taps=taps,
            drafter=self.drafter,
            head=self.head,
            n_ctx=self.n_ctx,
        )
        self._check_limit(program)
        if self.drafter is not None and self.drafter.adapter:
            assert self.adapters is not None
            return Tapped(taps, *self.adapters.adapt(program))
        if self.logit_rows is not None:
            return Tapped(taps, *slice_logits(program, self.model, self.logit_rows))
        adapted = self.adapters.adapt(program) if self.adapters else None
        return Tapped(taps, program, self.model, adapted)

    def _check_limit(self, program: Program) -> None:
        if program.limit is None or self.n_ctx <= program.limit[0]:
            return
        most, why = program.limit
        raise CapacityError(
            "the context is too long for the model's graph",
            where=program.name,
            wanted=f"at most {most} tokens: {why}",
            got=self.n_ctx,
            fix=f"n_ctx={most} (-c {most})",
        )

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Hidden states that are handed out."""
        return self._tapped.taps

    @property
    def program(self) -> Program:
        """The operations of the graph."""
        return self._tapped.program

    def with_taps(self, taps: Sequence[Tap]) -> Tapped:
        """Return the graph with further taps, for ``set_taps``; nothing changes until then.

        Raises
        ------
        GraphError
            The graph has no such tap.
        """
        wanted = tuple(dict.fromkeys((*self.taps, *taps)))
        return self._tapped if wanted == self.taps else self._build(wanted)

    def check_taps(self, tapped: Tapped) -> None:
        """Refuse further taps where tokens were processed: their rows would be missing.

        Raises
        ------
        LinkError
            There are tokens in memory.
        """
        if tapped is not self._tapped and any(self.lengths):
            raise LinkError(
                "the context holds tokens whose hidden states were not kept",
                wanted=f"taps {', '.join(map(str, tapped.taps))}",
                got=f"taps {', '.join(map(str, self.taps)) or 'none'}",
                fix="link before the first process(), or make the context with these taps",
            )

    def set_taps(self, tapped: Tapped) -> None:
        """Hand out from now on what ``with_taps`` returned and ``check_taps`` let pass."""
        if tapped is not self._tapped:
            self._tapped, self._plan = tapped, None
            self._delivery_plan = self._adapted_plan = None

    @property
    def plan(self) -> Plan:
        """The plan, made when it is first asked for: memory for packed weights is taken then.

        Raises
        ------
        BackendError, GraphError
            The backend cannot run the graph.
        """
        if self._plan is None:
            self._plan = self.model.plan_alone(self._make_plans)
        return self._plan

    def wrap_plan(self, wrap: Callable[[Plan], Plan]) -> None:
        """Run batches by what ``wrap`` makes of the plan, as what watches rounds of drafts does."""
        self._plan = wrap(self.plan)

    def _make_plans(self) -> Plan:
        """Return the plan, after that of deliveries where the graph has some."""
        batches, delivery = split_sources(self.program)
        if delivery is not None and self.memory and self.memory.delivered:
            stores = [self.memory.delivered.store]
            self._delivery_plan = self._make_plan(delivery, stores, None)
        return self._make_plan(batches, *self._stores())

    def _stores(self) -> tuple[list[Store], StateStore | None]:
        """Return what plans of batches store in."""
        read = self.memory or self.lent
        recurrent = self.memory.recurrent if self.memory else None
        stores = [group.store for group in read.groups] if read else []
        return stores, recurrent.store if recurrent else None

    def _plan_of(self, batch: CheckedBatch) -> Plan:
        """Return the plan for a batch: one where a row has adapters, another where none has."""
        return self._plan or self.plan if batch.adapters is None else self.adapted_plan

    @property
    def adapted_plan(self) -> Plan:
        """The plan for batches in which a row has adapters; made as ``plan`` is."""
        if self._adapted_plan is None:
            self._adapted_plan = self.model.plan_alone(self._make_adapted_plan)
        return self._adapted_plan

    def _make_adapted_plan(self) -> Plan:
        assert self._tapped.adapted is not None  # only then is there a row with an adapter
        program, source = self._tapped.adapted
        batches, _ = split_sources(program)
        return self._make_plan(batches, *self._stores(), source)

    def _plans(self) -> list[Plan]:
        """Return those that were made."""
        plans = self._plan, self._delivery_plan, self._adapted_plan
        return [plan for plan in plans if plan is not None]

    def prepare(self, *, pack: bool) -> None:
        """Make the plans, and let them pack at once what their runs would; see ``plan``."""
        _ = self.plan, self._tapped.adapted and self.adapted_plan
        for plan in self._plans():
            if pack:
                plan.prepare()

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of weights that are still to be packed after runs."""
        return sum(plan.bytes_to_pack for plan in self._plans())

    @property
    def is_warm(self) -> bool:
        """Whether the last run took no longer than such runs will."""
        return all(plan.is_warm for plan in (self._plan, self._adapted_plan) if plan)

    def _make_plan(
        self,
        program: Program,
        stores: Sequence[Store],
        states: StateStore | None,
        source: WeightSource | None = None,
    ) -> Plan:
        return self.backend.plan(
            program,
            source or self._tapped.source,
            n_batch=self.n_batch,
            n_ctx=self.n_ctx,
            threads=self.sizes.threads,
            stores=stores,
            states=states,
        )

    @property
    def progress(self) -> float:
        """Share of the running batch that is done, 0 .. 1; 0 if none runs or it is not measured."""
        return max((plan.progress for plan in self._plans()), default=0.0)

    @property
    def longest_draft(self) -> int:
        """How many drafts the memory can take back."""
        return self.memory.longest_rewind if self.memory else self.n_ctx

    def bring(self, batch: Batch) -> Batch:
        """Return a batch with all rows where the plan reads them; see ``bring_batch``."""
        return bring_batch(batch, self.backend)

    def process(self, batch: Batch, fused_sampling: FusedSampling | None = None) -> Output:
        """Run all rows and store them; see ``Context.process``."""
        batch = self.bring(batch)
        return self.run(batch, self.admit(batch, fused_sampling))

    def run(
        self, batch: Batch, admitted: Admitted, arrays: dict[str, NDArray[Any]] | None = None
    ) -> Output:
        """Run rows that were admitted, store them, and deliver what they made.

        ``arrays`` are what the plan made of them, where they were run already.
        """
        checked, ranges, rows_of_seq = admitted
        if arrays is None:
            plan = self._plan_of(checked)
            arrays = run_parts(plan, self.memory, self.n_batch, checked, ranges)
        else:
            arrays = finish(checked, arrays)
        output = Output(checked.seq, checked.place, checked.outputs, rows_of_seq, arrays)
        if self.deliver is not None:
            self.deliver(batch, output)
        own = (
            {s: checked.positions[rows] for s, rows in rows_of_seq.items()}
            if batch.pos.ndim == 2
            else {}
        )
        self.sequences.extend(ranges, own, branching=checked.parent is not None)
        return output

    def adapt(self, seq: int, choice: AdapterChoice) -> None:
        """Give an empty sequence adapters, or none.

        Raises
        ------
        BatchError
            No such sequence or adapter, or a sequence that is not empty.
        """
        self.sequences.adapt(seq, self.choose_adapters(choice))

    def choose_adapters(self, choice: AdapterChoice) -> Chosen:
        """Return numbers and scales of adapters that are chosen by name.

        Raises
        ------
        BatchError
            No such adapter, or no finite scale.
        """
        return self.adapters.choose(choice) if self.adapters else choose_none(choice)

    def receive(self, slot: str, seq: int, rows: F32) -> None:
        """Keep what the graph makes of a whole sequence's rows, delivered to a slot.

        Parameters
        ----------
        slot : str
            The one that is fed whole sequences.
        seq : int
            It is empty, but for rows delivered before, which these replace.
        rows : float32[n, width]

        Raises
        ------
        BatchError, CapacityError, LinkError
            No such slot, width or room, no rows, or a sequence that was begun.
        """
        batch = delivered_batch(self.program, slot, seq, rows)
        _ = self.plan
        assert self._delivery_plan is not None
        memory = self.sequences.deliver(seq, len(rows))
        run_parts(self._delivery_plan, memory, self.n_batch, batch, {seq: (0, len(rows))})

    def explore(self, batch: Batch) -> Output:
        """Run rows, or a draft tree, and forget them; they are not delivered."""
        checked, ranges, rows_of_seq = self.admit(self.bring(batch))
        plan = self._plan_of(checked)
        arrays = run_parts(plan, self.memory, self.n_batch, checked, ranges)
        if self.memory:
            for seq, (begin, _) in ranges.items():
                self.memory.rewind(seq, begin)
        return Output(checked.seq, checked.place, checked.outputs, rows_of_seq, arrays)


def _adapters_of_drafts(model: Model, host: GraphRunner | None, given: Adapters | None) -> Adapters:
    """Return the adapters of the rows with which an adapter drafts, in its target's memory."""
    if host is None or given is not None:
        raise LinkError(
            "an adapter drafts in its target's memory, beside the target's adapters",
            wanted="host=, the target's context, and no adapters=",
            fix="let link() make the context",
        )
    return add_draft_adapter(model, host.adapters)
