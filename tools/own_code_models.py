"""Models that are published with code of their own, said again with classes of transformers.

``tools/published_families.py`` computes logits with them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

__all__ = ["GroveMoeForCausalLM"]

_N_OF_GROUP, _FACTOR = 2, 0.05


class _GroveMoe(nn.Module):
    """Experts, and the small ones of groups of two, as the code of GroveMoE-Inst computes them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.n_used = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))
        self.experts = _mlps(config, config.num_experts, config.moe_intermediate_size)
        n_groups = config.num_experts // _N_OF_GROUP
        self.chunk_experts = _mlps(config, n_groups, config.head_dim)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the sums of the chosen experts' rows, each token for itself."""
        made = torch.zeros_like(rows)
        for batch, at in torch.cartesian_prod(*map(torch.arange, rows.shape[:2])):
            x = rows[batch, at]
            logits = self.gate(x)
            chosen = torch.topk(torch.sigmoid(logits), self.n_used).indices
            shares = torch.softmax(logits, -1)[chosen]
            for share, expert in zip(shares / shares.sum(), chosen.tolist(), strict=True):
                small = self.chunk_experts[expert // _N_OF_GROUP](x)
                made[batch, at] += share * (self.experts[expert](x) + _FACTOR * small)
        return made


def _mlps(config: Any, n: int, width: int) -> nn.ModuleList:
    sized = copy.copy(config)
    sized.intermediate_size = width
    return nn.ModuleList(Qwen3MLP(sized) for _ in range(n))


class GroveMoeForCausalLM(Qwen3ForCausalLM):
    """GroveMoE: attention is Qwen3's."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = _GroveMoe(config)
        self.post_init()
