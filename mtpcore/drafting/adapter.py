"""Drafting a block with the target's own graph: its masks' rows have an adapter that drafts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft
from mtpcore.declarations.spec import Noise
from mtpcore.drafting.base import RoundDrafter, RoundRows
from mtpcore.drafting.batch_rows import BatchRows
from mtpcore.drafting.drafters import DraftJob, Verify
from mtpcore.drafting.reserved import ReservedRows
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_block
from mtpcore.errors import LinkError
from mtpcore.runtime.model import Model
from mtpcore.runtime.runner import GraphRunner

__all__ = ["AdapterDrafter", "NoiseTokens"]

_UNUSED = 5
"""The type of a token that stands for nothing, in GGUF files."""
_64_BITS = (1 << 64) - 1


class NoiseTokens:
    """The mask tokens of a block, by place: one token for all, or noise.

    Parameters
    ----------
    mask : int or Noise
    model : Model
        Whose tokens noise is of, but for those at the end of its vocabulary that are unused.

    Raises
    ------
    LinkError
        The model has no such token, or none for noise.
    """

    def __init__(self, mask: int | Noise, model: Model) -> None:
        n = int(model.hparams.n_vocab)
        types = model.metadata.get("tokenizer.ggml.token_type")
        if isinstance(mask, Noise) and isinstance(types, list):
            n = min(n, len(types))
            while n and types[n - 1] == _UNUSED:
                n -= 1
        self._first, self._n = (mask.first, n) if isinstance(mask, Noise) else (mask, mask + 1)
        if not 0 <= self._first < self._n or self._n > int(model.hparams.n_vocab):
            raise LinkError(
                "the model has no such mask token",
                where=str(model.path),
                wanted=f"below {n}",
                got=self._first,
            )

    def at(self, place: int) -> int:
        """Return the token that stands at a place."""
        return self._first + _mix(place) % (self._n - self._first)


def _mix(number: int) -> int:
    """Return 64 bits that look random (SplitMix64, doi:10.1145/2714064.2660195)."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 & _64_BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
    return bits ^ bits >> 31


class AdapterDrafter(RoundDrafter):
    """The target's graph, which fills a block with an adapter that drafts on rows of masks.

    The pending token's row is the target's own. Rows have their text's adapters besides. (Uno:
    vLLM's pull request 55947, 2026.)

    The block is in the target's memory while it runs, and nothing of it stays. So the drafter has
    nothing to keep in step with the target, to copy or to save.

    Parameters
    ----------
    name : str
        The role.
    runner : GraphRunner
        Of the graph with adapters, in the memory of ``target``.
    target : GraphRunner

    Raises
    ------
    LinkError
        It is in another memory, or rows of the target see what comes after them; as
        ``NoiseTokens``, ``read_vocabulary``.
    """

    reads_text = False

    def __init__(self, name: str, runner: GraphRunner, target: GraphRunner) -> None:
        spec = runner.drafter
        assert spec is not None
        assert spec.block is not None
        assert isinstance(spec.block.size, int)
        assert isinstance(spec.block.mask, int | Noise)
        where = f"drafter {spec.full_name}"
        if runner.host is not target:
            raise LinkError(
                "an adapter drafts in its target's memory",
                where=where,
                fix="let link() make the context",
            )
        if runner.program.is_run_whole:
            raise LinkError("rows of the target depend on which others come with them", where=where)
        self._size = min(spec.block.size, runner.n_batch)  # rows see those before them alone
        self._masks = NoiseTokens(spec.block.mask, runner.model)
        inputs = RoundInput(programs=[runner.program], tree=spec.tree)
        super().__init__(name, {name: runner}, draft_block, inputs)

    def draft(self, jobs: list[DraftJob], verify: Verify | None = None) -> dict[int, Draft]:
        """Draft up to k tokens for each job, as many together as their rows fit a batch."""
        # Both passes write to the same places, so that they are reserved one after the other.
        return super().draft(jobs)

    def rewind(self, seq: int, n: int) -> None:
        """Forget nothing: there is nothing but the target's."""

    def remove(self, seq: int) -> None:
        """Forget nothing, as ``rewind``."""

    def _begin(self, jobs: Sequence[DraftJob]) -> list[DraftJob]:
        return [*jobs]

    def _n_rows(self, jobs: Sequence[DraftJob]) -> int:
        return self._size

    def _compose(self, jobs: Sequence[DraftJob]) -> RoundRows:
        """Return a block of each text: the row of draft i has the place of the token before it."""
        wanted, rows = list[int](), BatchRows(self.runner)
        for job in jobs:
            pending = len(job.history) - 1
            k = max(min(job.k, self._size, self.runner.n_ctx - pending), 0)
            places = [*range(pending, pending + k)]
            masks = [self._masks.at(place) for place in places[1:]]
            rows.add(job.seq, [*job.history[-1:].tolist(), *masks][:k], places, [True] * k)
            wanted.append(k)
        reserved = ReservedRows(self.runner, rows.batch(), is_kept=False)
        given = reserved.given
        numbers, scales = self._adapters_of(given.batch.seq, wanted)
        batch = msgspec.structs.replace(given.batch, adapters=numbers, adapter_scales=scales)
        given = msgspec.structs.replace(given, batch=batch)
        return RoundRows(wanted, wanted, [given], [reserved])

    def _adapters_of(
        self, seq: NDArray[np.int32], lengths: Sequence[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return adapters int32[n, n_used] and scales float32[n, n_used] of the rows of blocks."""
        adapters = self.runner.adapters
        assert adapters is not None
        numbers = np.full((len(seq), adapters.n_used), -1, np.int32)
        scales = np.zeros(numbers.shape, np.float32)
        of_texts = self.runner.sequences.adapters.of_rows(seq)
        if of_texts[0] is not None:
            numbers[:, :-1], scales[:, :-1] = of_texts
        end = 0
        for n in lengths:
            begin, end = end, end + n
            numbers[begin + 1 : end, -1], scales[begin + 1 : end, -1] = len(adapters) - 1, 1.0
        return numbers, scales
