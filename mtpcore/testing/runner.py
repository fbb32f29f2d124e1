"""Runner: runs a program with its own KV cache, without a context, for tests of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mtpcore.backends.base import F32, NUMBERS, Backend, CheckedBatch, WeightSource, WeightTensor
from mtpcore.graph import split_sources
from mtpcore.graph.program import Program
from mtpcore.memory import make_memory
from mtpcore.runtime.delivery import delivered_batch

__all__ = ["Runner", "Weights"]


class Weights:
    """Tensors, and the packed weights that backends make of them; a ``WeightSource``.

    Parameters
    ----------
    tensors : mapping of str to WeightTensor
    repack : bool
        Whether backends may copy them into a layout of their own.
    """

    def __init__(self, tensors: Mapping[str, WeightTensor], *, repack: bool = True) -> None:
        self.tensors, self.repack = tensors, repack
        self.packed: dict[Any, Any] = {}


class Runner:
    """Runs a program on a backend, with its own memory and without a context.

    Parameters
    ----------
    backend : Backend
    program : Program
    source : WeightSource
        A model, or ``Weights``.
    n_seq, n_ctx, n_batch, threads : int
    kv_dtype : str
    checkpoint_bytes : int, optional
    """

    def __init__(
        self,
        backend: Backend,
        program: Program,
        source: WeightSource,
        *,
        n_seq: int = 4,
        n_ctx: int = 512,
        n_batch: int = 512,
        threads: int = 1,
        kv_dtype: str = "f32",
        checkpoint_bytes: int | None = None,
    ) -> None:
        self.memory = make_memory(
            program.memory,
            lambda layers, n_pages: backend.store(layers, n_pages, kv_dtype),
            n_seq=n_seq,
            n_ctx=n_ctx,
            n_batch=n_batch,
            states=program.states,
            make_state_store=partial(backend.state_store, source=source),
            checkpoint_bytes=checkpoint_bytes,
            delivered=program.delivered,
        )
        self._program = program
        batches, delivered = split_sources(program)
        recurrent = self.memory.recurrent
        make_plan = partial(
            backend.plan, source=source, n_batch=n_batch, n_ctx=n_ctx, threads=threads
        )
        self.plan = make_plan(
            batches,
            stores=[group.store for group in self.memory.groups],
            states=recurrent.store if recurrent else None,
        )
        self._delivery_plan = None
        if delivered is not None and self.memory.delivered is not None:
            self._delivery_plan = make_plan(delivered, stores=[self.memory.delivered.store])

    def deliver(self, seq: int = 0, **rows: np.ndarray) -> None:
        """Deliver a whole sequence, in place of one that was delivered before.

        Parameters
        ----------
        seq : int
        **rows : float32[n, width]
            The rows, by the name of their slot.
        """
        memory = self.memory.delivered
        assert memory is not None
        assert self._delivery_plan is not None
        for slot, given in rows.items():
            batch = delivered_batch(self._program, slot, seq, given)
            memory.rewind(seq, 0)
            memory.reserve({seq: (0, len(given))})
            self._delivery_plan.run(batch, memory)

    def feed(
        self,
        tokens: Sequence[int] | np.ndarray,
        *,
        seq: int = 0,
        place: int | None = None,
        outputs: Sequence[int] | None = None,
        parent: Sequence[int] | None = None,
        positions: np.ndarray | None = None,
        **slots: np.ndarray,
    ) -> dict[str, F32]:
        """Append rows to a sequence and return the plan's outputs.

        Parameters
        ----------
        tokens : int32[n]
        place : int, optional
            Of the first row; where the sequence ends, if left out.
        outputs : rows whose logits are wanted; all, if left out.
        parent : int32[n], optional
        positions : int32[n, axes], optional
            Places on every axis, or depths in the tree where ``parent`` is given, if left out.
        **slots : float32[n, width]
            Rows of the program's slots; ``embeddings`` are rows in place of tokens of -1, and
            ``codes``, ``adapters`` and ``adapter_scales`` are those of a batch.
        """
        n = len(tokens)
        begin = self.memory.length(seq) if place is None else place
        places = np.arange(begin, begin + n, dtype=np.int32)
        if positions is None:
            depths = places.copy()
            for t, above in enumerate(parent or ()):
                depths[t] = begin if above < 0 else depths[above] + 1
            program = self.plan.program
            axes = int(program.values[program.inputs["positions"]].shape[1])
            positions = np.repeat(depths[:, None], axes, axis=1)
        given: dict[str, Any] = {
            name: slots.pop(name) for name in ("embeddings", *NUMBERS) if name in slots
        }
        rows = CheckedBatch(
            tokens=np.asarray(tokens, np.int32),
            positions=np.asarray(positions, np.int32),
            seq=np.full(n, seq, np.int32),
            place=places,
            outputs=np.arange(n, dtype=np.int32)
            if outputs is None
            else np.asarray(outputs, np.int32),
            parent=None if parent is None else np.asarray(parent, np.int32),
            slots=slots,
            **given,
        )
        self.memory.reserve({seq: (begin, begin + n)})
        made = self.plan.run(rows, self.memory)
        return {name: np.asarray(values) for name, values in made.items()}
