"""What one token costs by the file: bytes read and multiply-accumulates."""

from __future__ import annotations

import math

import msgspec

import mtpcore

__all__ = ["Work"]


class Work(msgspec.Struct, frozen=True):
    """Bytes of matrices and multiply-adds of the trunk, and of the head where there is one.

    ``shared`` is read for any number of rows, ``experts`` is the bytes of all experts of all
    blocks, of which a row uses the share ``used``. ``macs`` is one row's without the output matrix.
    """

    shared: int
    experts: int
    used: float
    macs: float

    @classmethod
    def of(cls, model: mtpcore.Model, *, head: bool = False, n_logits: int | None = None) -> Work:
        """Count over a model's tensors, of the trunk or of what comes after it.

        ``n_logits`` is how many rows of the output matrix are read: by default all.
        """
        used = 1.0
        if experts := getattr(model.hparams, "experts", None):
            key = f"{model.architecture}.expert_count"
            used = experts.n_used / model.metadata[key]
        n_layers, names = model.hparams.n_layers, set(model.tensors)
        output = "output.weight" if "output.weight" in names else "token_embd.weight"
        shared, all_experts, macs = 0, 0, 0.0
        for name, tensor in model.tensors.items():
            block = int(name.split(".")[1]) if name.startswith("blk.") else -1
            mine = name == output or (block >= n_layers if head else 0 <= block < n_layers)
            if not mine or len(tensor.shape) < 2:
                continue
            if len(tensor.shape) == 3:
                all_experts += tensor.n_bytes
                macs += math.prod(tensor.shape) * used
            else:
                rows = n_logits if name == output and n_logits else tensor.shape[0]
                shared += tensor.n_bytes * rows // tensor.shape[0]
                macs += math.prod(tensor.shape) if name != output else 0
        return cls(shared, all_experts, used, macs)

    def n_bytes(self, rows: int) -> float:
        """Return the bytes read for so many rows, each with experts drawn at random."""
        return self.shared + self.experts * (1 - (1 - self.used) ** rows)
