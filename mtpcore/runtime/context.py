"""Contexts: a graph of a model with its own memory, and ``process``, which runs batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from mtpcore.acts.guards import Guard, act
from mtpcore.acts.journal import Journal, Transaction
from mtpcore.backends.base import Backend, FusedSampling
from mtpcore.backends.select import select_backend
from mtpcore.backends.threads import default_threads
from mtpcore.boundary.arguments import Flag, offers, read
from mtpcore.boundary.arrays import RowsLike, integers, rows_of
from mtpcore.boundary.copies import Uncopied
from mtpcore.declarations.spec import DrafterSpec, Tap, read_taps
from mtpcore.errors import BatchError, GraphError, LinkError, spell
from mtpcore.gguf.adapter import Adapter
from mtpcore.graph import GraphType, Program
from mtpcore.runtime.adapters import AdapterChoice, Adapters, read_adapters
from mtpcore.runtime.arrival import bring
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.limits import read_sizes
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner
from mtpcore.runtime.saving import (
    StateSource,
    check_empty,
    dump_graph,
    dump_origin,
    load_graph,
    most_bytes,
    open_state,
    write_state,
)

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["Context", "Owner"]

I32 = NDArray[np.int32]
_ROLE = "context"
"""What the graph is called in a saved state."""


class Owner(Protocol):
    """What a context belongs to that changes only together with others: a Cross."""

    guard: Guard
    journal: Journal

    def transaction(self, seqs: Iterable[int]) -> Transaction:
        """Return an act that may change these sequences in every context."""

    def settle(self, runner: GraphRunner, seq: int) -> None:
        """Bring the rows of a sequence up to date that are made only when they are needed."""


class Context(Uncopied):
    """One graph of a model with its own memory.

    Contexts of one model may be used in several threads at once; on one context, as on a Cross
    with all that belongs to it, one call at a time: another one meanwhile is a BusyError.

    Parameters
    ----------
    model : Model
        What ``load_model`` returned; it outlives its contexts or is kept alive by them.
    n_ctx : int
        The most tokens of each sequence.
    graph_type : GraphType or str
        Which graph of the model: LLM, DRAFT, ENCODER, DECODER or one of a plugin's own.
    n_seq_max : int
        Sequences 0 .. n_seq_max - 1 can be used.
    n_batch : int
        Rows that run at once; larger batches are split inside.
    kv_dtype : {"f16", "f32", "q8_0"}
        Type of stored keys and values.
    checkpoint_bytes : int, optional
        Bytes that checkpoints of recurrent layers may take, those of all sequences together:
        earlier states, from which rollbacks and shared prefixes go on. 0: no checkpoints; default:
        those of six for each sequence. A graph without recurrent layers has none.
    threads : int, optional
        Threads of the CPU; default: the processors that this process may use, at most its cgroup
        CPU quota.
    backend : str or Backend
        "cpu", "reference" or a backend object.
    taps : sequence of str or Tap
        Hidden states to hand out, e.g. ``["hidden", "layer_input:2"]``.
    drafter : DrafterSpec or str, optional
        The drafter whose graph this is, for its graph types; default: the model's only one.
    head : int
        Which of the drafter's heads, if each has a memory of its own.
    logit_rows : int32[n], optional
        Which logits the graph computes, ascending; default: all.
    adapters : mapping of str to Adapter, optional
        Adapters of the model by the names by which ``adapt`` gives them to sequences. A context
        that has any makes a second plan for batches in which a row has one.
    host : Context, optional
        The context in whose KV cache this one stores its rows, where a drafter's graphs share one;
        it has the same sizes. Default: a memory of its own.

    Raises
    ------
    CapacityError, GraphError, LinkError, BackendError
        Sizes out of range, taps the graph does not offer, a model without that graph, a backend
        that cannot run.
    """

    _instead = "make one of the model, and give it states: load(seq, context.save(seq))"

    def __init__(
        self,
        model: Model,
        n_ctx: int = 512,
        *,
        graph_type: GraphType | str = GraphType.LLM,
        n_seq_max: int = 1,
        n_batch: int = 512,
        kv_dtype: str = "f16",
        checkpoint_bytes: int | None = None,
        threads: int | None = None,
        backend: str | Backend = "cpu",
        taps: Sequence[str | Tap] = (),
        drafter: DrafterSpec | str | None = None,
        head: int = 0,
        logit_rows: I32 | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        host: Context | None = None,
    ) -> None:
        if not offers(model, "program", "find_drafter"):
            raise BatchError(
                "a context takes a model",
                where="Context(model)",
                wanted="Model",
                got=type(model).__name__,
                fix="load it: Context(load_model(path))",
            )
        sizes = read_sizes(
            n_ctx,
            n_seq_max,
            n_batch,
            default_threads() if threads is None else threads,
            kv_dtype,
            checkpoint_bytes,
        )
        kind = GraphType(graph_type)
        self.backend = select_backend(backend, model.backends)
        if host is not None and not isinstance(host, Context):
            raise LinkError("a memory is shared with a Context", where="host", got=spell(host))
        plain = drafter is None and kind != GraphType.DRAFT
        self.runner: GraphRunner = GraphRunner(
            model,
            sizes,
            graph_type=kind,
            backend=self.backend,
            taps=read_taps(taps),
            drafter=None if plain else model.find_drafter(drafter),
            head=read(head, int, "no such head", where="Context(head=...)", error=GraphError),
            logit_rows=None if logit_rows is None else integers(logit_rows, "logit_rows"),
            adapters=Adapters(model, named) if (named := read_adapters(adapters)) else None,
            host=None if host is None else host.runner,
        )
        self.model, self.graph_type = model, kind
        self.n_ctx, self.n_seq_max, self.n_batch = sizes.n_ctx, sizes.n_seq_max, sizes.n_batch
        self.threads, self.kv_dtype = sizes.threads, sizes.kv_dtype
        self.checkpoint_bytes = sizes.checkpoint_bytes
        self.guard: Guard = host.guard if host else Guard()
        self.journal: Journal = host.journal if host else Journal(self.guard)
        self.owner: Owner | None = None

    def __repr__(self) -> str:
        taps = ", ".join(map(str, self.taps))
        sizes = f"n_ctx={self.n_ctx}, n_seq_max={self.n_seq_max}, backend={self.backend.name}"
        return f"Context({self.model.architecture}, {self.graph_type.name}, {sizes}, taps=({taps}))"

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Hidden states that are handed out."""
        return self.runner.taps

    @property
    def program(self) -> Program:
        """The operations of the graph."""
        return self.runner.program

    @property
    def drafter(self) -> DrafterSpec | None:
        """Whose graph it is, where it is a drafter's."""
        return self.runner.drafter

    @property
    def guarantee(self) -> str:
        """``exact``, ``exact-backend``, ``tie-exact`` or ``fast``; see the guarantees page."""
        return self.backend.guarantee

    @property
    def longest_draft(self) -> int:
        """How many drafts the memory can take back."""
        return self.runner.longest_draft

    @property
    def progress(self) -> float:
        """Share of the running batch that is done, 0 .. 1; 0 if none runs or it is not measured.

        Other threads may ask while the batch runs.
        """
        return self.runner.progress

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of weights that are still to be packed after calls of ``process``.

        0 where all are packed, stay in the mapped file, or nothing was run or prepared yet.
        """
        return self.runner.bytes_to_pack

    def join(self, owner: Owner) -> None:
        """Change from now on only together with the other contexts of ``owner``."""
        self.owner, self.journal, self.guard = owner, owner.journal, owner.guard

    def length(self, seq: int) -> int:
        """Return the place after the newest row of a sequence; 0 where it is empty."""
        seq = self.check_seq(seq)
        self.journal.settle()
        return self.runner.lengths[seq]

    def next_position(self, seq: int) -> int:
        """Return the position of a row of text that continues a sequence.

        That is its length, or less after images: one after the largest number on any axis of
        any of its rows.
        """
        seq = self.check_seq(seq)
        self.journal.settle()
        return self.runner.sequences.next_position(seq)

    def check_seq(self, seq: int) -> int:
        """Return the sequence; raise BatchError where there is none of this number."""
        return self.runner.sequences.check(seq)

    @act
    def prepare(self, *, pack: bool = True) -> None:
        """Make the plan and pack all weights now, not after the first calls of ``process``.

        Parameters
        ----------
        pack : bool
            False: make the plan, which tells whether the graph can run, and pack nothing yet.

        Raises
        ------
        BackendError, GraphError
            The backend cannot run the graph.
        """
        self.runner.prepare(pack=read(pack, Flag, "pack is yes or no"))

    @act
    def add_taps(self, taps: Sequence[str | Tap]) -> None:
        """Hand out further taps from now on.

        Raises
        ------
        LinkError
            The context holds tokens already: rows of these taps would be missing.
        GraphError
            The graph has no such tap.
        """
        tapped = self.runner.with_taps(read_taps(taps))
        self.runner.check_taps(tapped)
        self.runner.set_taps(tapped)

    def _transaction(self, seqs: Iterable[int]) -> Transaction:
        if self.owner is not None:
            return self.owner.transaction(seqs)
        return self.journal.transaction((self.runner.sequences,))

    @act
    def process(self, batch: Batch, fused_sampling: FusedSampling | None = None) -> Output:
        """Run all rows and store their keys and values; all or nothing.

        Parameters
        ----------
        batch : Batch
            Rows of any mix of sequences; those of one sequence continue it in order.
        fused_sampling : mtpcore.backends.base.FusedSampling, optional
            Samplers that choose a token of each output in place of returning its logits:
            ``Output.chosen`` has the tokens, and ``Output.logits_at`` the logits of outputs
            without a sampler.

        Returns
        -------
        Output
            Logits of the rows asked for, and every tap's rows.

        Raises
        ------
        BatchError, CapacityError, LinkError, SamplingError
            Ids, positions, sequences, parents, rows or samplers that do not fit; no room; a linked
            row that is missing. The state is what it was.
        """
        self.journal.settle()
        batch = self.runner.bring(batch)
        admitted = self.runner.admit(batch, fused_sampling)
        with self._transaction(admitted[1]):
            return self.runner.run(batch, admitted)

    @act
    def receive(self, slot: str, seq: int, rows: RowsLike) -> None:
        """Deliver a whole sequence of rows, as a link to another context would.

        Parameters
        ----------
        slot : str
            A slot that is fed whole sequences.
        seq : int
            It holds no tokens; rows that were delivered before are replaced.
        rows : array_like or DLPack, shape (n, width)
            What the graph makes of them is kept until the sequence is removed.

        Raises
        ------
        BatchError, CapacityError, LinkError
            No such slot or sequence, rows that do not fit or are not finite, no room, or a sequence
            that was begun. The state is what it was.
        """
        seq, hidden = self.check_seq(seq), rows_of(rows, "delivered rows")
        if hidden.ndim == 2:
            hidden, bad = bring(hidden, self.backend)
            if bad:
                raise BatchError("delivered rows are finite", where=f"slot {slot!r}, row {bad[0]}")
        with self._transaction((seq,)):
            self.runner.receive(slot, seq, hidden)

    @act
    def explore(self, batch: Batch) -> Output:
        """Run a batch of rows, or a draft tree, and forget them: they reach no link.

        Raises
        ------
        BatchError, CapacityError, LinkError
            As ``process``.
        """
        with self._transaction(()):
            return self.runner.explore(batch)

    @act
    def keep(self, seq: int, path: Sequence[int]) -> None:
        """After a draft tree: keep of its rows only this path, as a chain.

        ``path`` counts the tree's rows of that sequence in the order of the batch, ascending.

        Raises
        ------
        BatchError, LinkError
            There is no tree, or no such path; the context belongs to a Cross.
        """
        self._check_free("accept")
        with self._transaction(()) as transaction:
            transaction.commit(self.runner.sequences.decide(seq, path))

    @act
    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows of a sequence from place ``length`` on.

        Raises
        ------
        BatchError, CapacityError, LinkError
            The place lies beyond the sequence, or too far back for a sliding window; recurrent
            layers have no state of it any more; the context belongs to a Cross.
        """
        self._check_free("rollback")
        with self._transaction(()):
            self.runner.sequences.rewind(seq, length)

    @act
    def remove(self, seq: int) -> None:
        """Forget a whole sequence.

        Raises
        ------
        BatchError, LinkError
            No such sequence; the context belongs to a Cross.
        """
        self._check_free("remove")
        with self._transaction(()):
            self.runner.sequences.remove(seq)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that sequences may have."""
        return self.runner.adapters.names if self.runner.adapters else ()

    @act
    def adapt(self, seq: int, adapters: AdapterChoice) -> None:
        """Give an empty sequence adapters: all of its rows have them, until it is removed.

        Forks have them, too. A row has the bits that it has alone, whatever adapters others in its
        batch have, and without adapters those of a context that was made without any.

        Parameters
        ----------
        seq : int
        adapters : mapping of str to float, or sequence of str
            Names and scales, in the order in which what they make is added; with names alone scales
            are 1. Empty: none.

        Raises
        ------
        BatchError, LinkError
            No such sequence or adapter, or a sequence that is not empty; the context belongs to a
            Cross.
        """
        self._check_free("adapt")
        with self._transaction(()):
            self.runner.adapt(seq, adapters)

    @act
    def fork(self, seq: int, new: int) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is.

        Raises
        ------
        BatchError, LinkError
            No such sequence, or one that is not empty; the context belongs to a Cross.
        """
        self._check_free("fork")
        with self._transaction(()):
            self.runner.sequences.fork(seq, new)

    @act
    def digest(self, seq: int) -> bytes:
        """Return a hash of what is stored for a sequence: 16 bytes, equal for equal states."""
        seq = self.check_seq(seq)
        with self._transaction((seq,)):
            if self.owner is not None:
                self.owner.settle(self.runner, seq)
            return self.runner.sequences.digest(seq)

    @overload
    def save(self, seq: int, path: None = None) -> bytes: ...

    @overload
    def save(self, seq: int, path: str | PathLike[str]) -> None: ...

    @act
    def save(self, seq: int, path: str | PathLike[str] | None = None) -> bytes | None:
        """Save all that is stored for a sequence, to be loaded later, also by another process.

        Parameters
        ----------
        seq : int
        path : path, optional
            A file, which is replaced as a whole or not at all.

        Returns
        -------
        bytes or None
            The state, where there is no path.

        Raises
        ------
        BatchError, LinkError
            No such sequence, or an undecided draft tree; the context belongs to a Cross.
        StateError
            The file cannot be written.
        """
        self._check_free("save")
        seq = self.check_seq(seq)
        self.journal.settle()
        self.runner.sequences.check_decided(seq)
        roles = {_ROLE: self.runner}
        sections = chain(dump_origin("Context", roles), dump_graph(_ROLE, self.runner, seq))
        return write_state(path, sections)

    @act
    def load(self, seq: int, source: StateSource) -> None:
        """Let an empty sequence go on where a saved one was.

        Contexts may differ in ``n_ctx``, ``n_seq_max``, ``n_batch``, ``checkpoint_bytes``, threads
        and taps, and sequences in their numbers: what follows is the same, to the last bit.

        Parameters
        ----------
        seq : int
        source : bytes or path
            What ``save`` returned, or the file that it wrote.

        Raises
        ------
        BatchError, LinkError
            No such sequence, or one that is not empty; the context belongs to a Cross.
        StateError
            A state that is damaged, cut short or of another format; or of another model file,
            graph, plugin, backend or ``kv_dtype``; or that does not fit. Nothing changed.
        """
        self._check_free("load")
        seq = self.check_seq(seq)
        self.journal.settle()
        check_empty(seq, self.runner.sequences.n_held(seq))
        state = open_state(source, most_bytes([self.runner]))
        state.check_origin("Context", {_ROLE: self.runner})
        with self._transaction(()):
            load_graph(_ROLE, self.runner, seq, state)
            state.finish()

    def _check_free(self, act: str) -> None:
        if self.owner is not None:
            raise LinkError(
                "a linked context changes together with the others",
                fix=f"call {act}() of its Cross: what link() returned, or generator.cross, as a "
                "Generator links the context that it is given",
            )
