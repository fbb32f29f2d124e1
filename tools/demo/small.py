"""A small Llama that drafts for the GLM demo as it is: a draft model, in a file of its own.

It reads tokens alone and shares only the vocabulary with its target. It learns the target's own
distribution of the next token, which is what acceptance asks of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demo.eagle3 import Llama, LlamaShape
from demo.glm import Glm
from demo.network import Network, Reading, Stage


@dataclass(frozen=True)
class SmallShape(LlamaShape):
    """Sizes of the draft model: a fifth of its target's weights."""

    n_embd: int = 96
    n_layer: int = 2
    n_head: int = 3
    n_ff: int = 256
    n_head_kv: int = 1


class Small(nn.Module):
    """The draft model and its target, which does not learn; offers what `Network` does."""

    def __init__(self, shape: SmallShape = SmallShape()) -> None:
        super().__init__()
        self.shape = shape
        self.target = Glm()
        self.drafter = Llama(shape, taps=())

    def files(self) -> list[Network]:
        """Return the draft model."""
        return [self.drafter]

    def stages(self) -> list[Stage]:
        """Train the draft model; all draft steps are alike."""
        return [Stage(self.drafter, 1, 1)]

    def count(self, stream: object) -> None:
        """Do nothing: all tokens are drafted."""

    @property
    def output(self) -> nn.Module:
        """The target's output matrix."""
        return self.target.output

    def forward(self, tokens: Tensor) -> Reading:
        """Read [batch, n] tokens; what the drafter sees is what it made of them itself."""
        with torch.no_grad():
            embedding, hidden, _ = self.target(tokens)
        return Reading(embedding, hidden, self.drafter(tokens).hidden)

    def draft(self, embedding: Tensor, seen: Tensor, depth: int) -> list[Tensor]:
        """Return `depth` draft steps everywhere in a text: of each row the same at every step."""
        return [seen[:, j:] for j in range(1, depth + 1)]

    def foresee(self, u: Tensor) -> Tensor:
        """Return a draft step's logits."""
        return self.drafter.output(u)

    def narrow(self, probabilities: Tensor) -> Tensor:
        """Keep of [..., n_vocab] what can be drafted: all."""
        return probabilities

    def drafted(self, u: Tensor) -> Tensor:
        """Return the most likely token of each row of a draft step."""
        return self.foresee(u).argmax(-1)

    def balance(self, rate: float) -> None:
        """Do nothing: nothing that learns is routed."""
