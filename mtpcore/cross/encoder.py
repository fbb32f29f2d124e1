"""The graph that reads prompts, where it is not the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtpcore.errors import BatchError, spell
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.runner import GraphRunner

__all__ = ["Encoder", "find_encoder"]


class Encoder:
    """Reads prompts for the target, which attends to their rows.

    Parameters
    ----------
    runner : GraphRunner
    """

    def __init__(self, runner: GraphRunner) -> None:
        self.runner = runner

    def read(self, prompts: Mapping[int, Sequence[int]]) -> None:
        """Read prompts, by sequence, in one batch; none is no batch.

        Raises
        ------
        BatchError, CapacityError
            Ids that are no tokens, or none, a sequence that has a prompt, or no room.
        """
        for seq, ids in prompts.items():
            if not isinstance(ids, list) or not ids:
                raise BatchError(
                    "an encoder reads one token or more",
                    where=f"sequence {seq}",
                    wanted="a list of token ids",
                    got=spell(ids),
                )
            if n := self.runner.lengths[self.runner.sequences.check(seq)]:
                raise BatchError(
                    "the sequence has a prompt already",
                    where=f"sequence {seq}",
                    got=f"{n} tokens",
                    fix="remove it first",
                )
        if prompts:
            seqs = [seq for seq, ids in prompts.items() for _ in ids]
            tokens = [token for ids in prompts.values() for token in ids]
            self.runner.process(Batch(tokens, seq=seqs, outputs="none"))


def find_encoder(runners: Mapping[str, GraphRunner]) -> Encoder | None:
    """Return what reads prompts for the role ``llm``; None where that does it itself."""
    spec = runners["llm"].model.spec
    runner = runners.get(spec.encoder) if spec is not None and spec.encoder else None
    return None if runner is None else Encoder(runner)
