"""A checked batch, how tokens are sampled while it runs, and what verifies drafts.

Arrays in ``CheckedBatch`` are checked before a plan sees them: ids, positions, places and parents
are in range, and the arrays are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.errors import BatchError
from mtpcore.graph.program import Program
from mtpcore.memory.base import Memory

__all__ = [
    "CHOSEN",
    "F32",
    "I32",
    "ChangeLogits",
    "CheckedBatch",
    "FusedSampling",
    "RunsBatches",
    "Verification",
    "NUMBERS",
    "numbers_of",
]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


CHOSEN: Final = "chosen token"
"""The name of what fused sampling makes; outputs of a graph are words, and so have other names."""


NUMBERS: Final = ("codes", "adapters", "adapter_scales")
"""Inputs of programs that are attributes of batches of the same names."""

ChangeLogits = Callable[[I32, F32, I32 | None], F32]
"""``change(tokens, logits, token_ids)`` returns the logits float32[n_logits] from which the token
after int32[n] ``tokens`` is chosen."""


class FusedSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are sampled while their logits are computed: one entry for each of m outputs.

    For output i ``samplers[i]``, whose ``is_gumbel_max`` is true, samples the token with index
    ``indices[i]`` in its sequence. Where the sampler is None the logits are wanted instead, and
    the index is ignored. ``token_ids`` int32[n_logits] names the token of each logit where that
    is not its index.

    With ``texts`` samplers may have bias, penalties and cuts as well: ``texts[i]`` int32[n] are the
    tokens before that of output i, ``n_prompt[i]`` of them the prompt. Plans on a host leave such
    sampling to the caller.
    """

    samplers: Sequence[Sampler | None]
    indices: Sequence[int]
    token_ids: I32 | None = None
    texts: Sequence[I32] = ()
    n_prompt: Sequence[int] = ()

    def part(self, begin: int, end: int) -> FusedSampling:
        """Return the samplers of outputs ``begin`` to ``end``."""
        names = ("samplers", "indices", "texts", "n_prompt")
        parts = {name: getattr(self, name)[begin:end] for name in names}
        return msgspec.structs.replace(self, **parts)


class CheckedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A checked batch of n rows, as plans read it.

    Rows of one sequence come in the order of their places.

    Attributes
    ----------
    tokens : int32[n]
        -1 where ``embeddings`` hold the row.
    positions : int32[n, axes]
        By which queries and keys are rotated.
    seq : int32[n]
        The sequence of each row.
    place : int32[n]
        The index in the sequence at which a row is stored. In a chain it attends to the sequence's
        rows from the first one to this place.
    outputs : int32[m]
        The rows whose logits are wanted, ascending.
    parent : int32[n], optional
        In a draft tree, the row (index in this batch) that a row follows; -1: what is stored.
    until : int32[n], optional
        Where attention has the mask ``spans``, the place after the last one that a row sees.
    embeddings : float32[n, width], optional
    codes : int32[n, n_codes], optional
        -1 where a row has none; given where the program reads codes.
    adapters : int32[n, n_adapters], optional
        Which of a program's adapters each row has, -1 where it has none; given where the program
        has any.
    adapter_scales : float32[n, n_adapters], optional
        Factors of what they add, 0 where a row has none.
    slots : mapping of str to float32[n, width]
    fused_sampling : FusedSampling, optional
        Outputs with a sampler return a token in place of their logits.
    """

    tokens: I32
    positions: I32
    seq: I32
    place: I32
    outputs: I32
    parent: I32 | None = None
    until: I32 | None = None
    embeddings: F32 | None = None
    codes: I32 | None = None
    adapters: I32 | None = None
    adapter_scales: F32 | None = None
    slots: Mapping[str, F32] = {}
    fused_sampling: FusedSampling | None = None


def numbers_of(batch: CheckedBatch, program: Program, name: str) -> I32 | F32:
    """Return what a batch has for an input, int32[n, width] or float32[n, width].

    Parameters
    ----------
    batch : CheckedBatch
    program : Program
    name : str
        One of ``NUMBERS``.

    Raises
    ------
    BatchError
        It is not what the program reads.
    """
    value = program.values[program.inputs[name]]
    wanted = (len(batch.tokens), value.shape[1])
    dtype = np.dtype(np.int32 if value.dtype == "i32" else np.float32)
    given: I32 | F32 | None = getattr(batch, name)
    if given is None or given.shape != wanted or given.dtype != dtype:
        raise BatchError(
            f"{name} do not fit",
            where=program.name,
            wanted=f"{dtype}{list(wanted)}",
            got=None if given is None else f"{given.dtype}{list(given.shape)}",
        )
    return given


class RunsBatches(Protocol):
    """A plan, as far as batches know it; see ``Plan``."""

    program: Program

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, NDArray[Any]]:
        """Run all rows and return new arrays by output name."""


class Verification(msgspec.Struct, kw_only=True):
    """The target's pass over what a schedule drafts, which a plan may run after it in one go.

    ``batch`` has of the schedule's text i, from row ``first[i]`` on, the pending token and its
    drafts, whose tokens are filled in, in the texts before its choices, too; its places are
    reserved in ``memory``. They are a chain; where the drafts are trees, the batch that was run is
    put in its place, but for the tokens. ``arrays`` are what ``plan.run`` returns of it, if it was
    run: not where a draft is missing.
    """

    plan: RunsBatches
    memory: Memory | None
    batch: CheckedBatch
    first: Sequence[int]
    arrays: dict[str, NDArray[Any]] | None = None
