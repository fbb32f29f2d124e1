"""Muon for the matrices, AdamW for tables, router, norms and biases.

Muon (Keller Jordan, 2024): momentum whose matrix is replaced by the nearest orthogonal one, by
five Newton-Schulz iterations. Stacked expert matrices go through it as a batch.
"""

import torch
from torch import Tensor, nn

_ELSEWHERE = ("token_embd", "output.weight", "ffn_gate_inp")


def _orthogonalize(g: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Muon over parameters of two (a matrix) or three (stacked matrices) axes."""

    def __init__(
        self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """Take one step from the gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                mean = state["mean"].lerp_(p.grad, 1 - group["momentum"])
                update = _orthogonalize(p.grad.lerp(mean, group["momentum"]))
                # A step of the same root mean square for every matrix, whatever its shape.
                size = 0.2 * max(p.shape[-2:]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * size)


def make_optimizers(network: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Split the network's parameters between Muon and AdamW."""
    matrices, others, plain = [], [], []
    for name, p in network.named_parameters():
        if p.dim() == 1:
            plain.append(p)
        elif name.startswith(_ELSEWHERE[:2]) or _ELSEWHERE[2] in name:
            others.append(p)
        else:
            matrices.append(p)
    adamw = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.95),
    )
    return [Muon(matrices, lr=lr), adamw]
