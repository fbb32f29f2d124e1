"""A trunk and its drafter: what every family's network has, and how drafts are made of it.

`x[p]` is the token at p, `h[p]` what the trunk shows its drafter when `x[p]` was read: the hidden
state after the final norm, in some families the one before it or several layers' inputs.

A head reads pairs (x[p], h[p-1]) and predicts x[p+1]. When it drafts several tokens, the pair of a
later step holds its own output in place of the trunk's hidden state, while its attention sees the
true pairs of all accepted tokens and its own pairs of this draft. `draft` computes every draft
that could start anywhere in a text at once: with `depth` 3, row p of depth j is step j of a draft
that began j-1 tokens earlier, the tokens between being those of the text. Along a text the model
itself chose, that is what a draft loop computes for as long as its drafts are accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from demo.blocks import Layer, RmsNorm, linear

Value = int | float | bool | list[int]


@dataclass(frozen=True)
class Shape:
    """Sizes that every family has; widths of matrix inputs are multiples of 32 (Q8_0 blocks)."""

    n_vocab: int = 2048
    n_embd: int = 128
    n_layer: int = 4
    n_head: int = 4
    rms_eps: float = 1e-5
    n_ctx: int = 512


class Reading(NamedTuple):
    """What the trunk makes of a text, each [batch, n, width]."""

    embedding: Tensor
    hidden: Tensor  # after the final norm: the output matrix reads it
    seen: Tensor  # what the drafter reads


class Stage(NamedTuple):
    """A part of the training: what learns, and how many draft steps before and after half."""

    trained: nn.Module
    depth: int
    later_depth: int


class Head(Layer):
    """A drafter's layer after the join of an embedding and a hidden state."""

    recycles_normed: ClassVar[bool] = True

    def join(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the residual stream starts, and what attention reads."""
        raise NotImplementedError

    def norm(self, y: Tensor) -> Tensor:
        """Apply the norm before the output matrix."""
        raise NotImplementedError


class NextNNames(nn.Module):
    """The tensors that GGUF keeps under `nextn.`; table and output matrix are the trunk's."""

    def __init__(self, n_embd: int, eps: float, own_norm: bool = True) -> None:
        super().__init__()
        self.eh_proj = linear(2 * n_embd, n_embd)
        self.enorm = RmsNorm(n_embd, eps)
        self.hnorm = RmsNorm(n_embd, eps)
        if own_norm:
            self.shared_head_norm = RmsNorm(n_embd, eps)


class NextN(Head):
    """The join and the norm of a NextN block; a family adds its layer."""

    nextn: NextNNames

    def join(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Project the two normed inputs, embedding first."""
        e, h = self.nextn.enorm(embedding), self.nextn.hnorm(hidden)
        z = self.nextn.eh_proj(torch.cat([e, h], dim=-1))
        return z, self.attn_norm(z)

    def norm(self, y: Tensor) -> Tensor:
        """Apply the head's own norm."""
        return self.nextn.shared_head_norm(y)


def draft(heads: Sequence[Head], embedding: Tensor, seen: Tensor, depth: int) -> list[Tensor]:
    """Compute the normed output of `depth` draft steps everywhere in a text.

    Step j is the j-th head's, or the last one's for all the steps that follow. A head that takes
    over reads the true pairs and the pairs of the steps before it anew, as its keys are its own.

    Parameters
    ----------
    embedding, seen
        [batch, n, n_embd]: embedding of x[p] and what the trunk shows of p, p = 0..n-1.

    Returns
    -------
    list of Tensor
        Step j (from 1): [batch, n - j, n_embd], row i belongs to position j + i and predicts the
        token at j + i + 1. There is no entry for position 0.
    """
    n = embedding.shape[1]
    steps: list[Tensor] = []
    given = [seen]
    reader = None
    for j in range(1, depth + 1):
        head = heads[min(j, len(heads)) - 1]
        if head is not reader:
            reader = head
            keys: list[Tensor] = []
            values: list[Tensor] = []
        for i in range(len(keys) + 1, j + 1):
            z, a = head.join(embedding[:, i:], given[i - 1][:, : n - i])
            q, k, v = head.project(a, i)
            keys.append(k)
            values.append(v)
        y = head.finish(z, head.attend(q, keys, values))
        steps.append(head.norm(y))
        given.append(steps[-1] if head.recycles_normed else y)
    return steps


class Network(nn.Module):
    """A trunk, the blocks of its heads after it, and the tables.

    A family sets `arch` (GGUF's name), `title`, makes its layers, and declares its metadata.
    """

    arch: ClassVar[str]
    title: ClassVar[str]
    sees_normed: ClassVar[bool] = True

    def __init__(self, shape: Shape, layers: list[Layer], heads: list[Head]) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blk = nn.ModuleList([*layers, *heads])
        self.output_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.output = linear(shape.n_embd, shape.n_vocab)
        draw_weights(self, shape.n_layer)

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        raise NotImplementedError

    def files(self) -> list["Network"]:
        """Return what is written into a file each; here all into one."""
        return [self]

    def stages(self) -> list[Stage]:
        """Train trunk and heads together, on later draft steps when the basics are learned."""
        return [Stage(self, 1, 3)]

    def count(self, stream: np.ndarray) -> None:
        """Look at the text that will be trained on; here for nothing."""

    @property
    def heads(self) -> list[Head]:
        """The heads' blocks."""
        return list(self.blk[self.shape.n_layer :])

    def forward(self, tokens: Tensor) -> Reading:
        """Read [batch, n] tokens."""
        embedding = self.token_embd(tokens)
        x = embedding
        for layer in self.blk[: self.shape.n_layer]:
            x = layer(x)
        hidden = self.output_norm(x)
        return Reading(embedding, hidden, hidden if self.sees_normed else x)

    def draft(self, embedding: Tensor, seen: Tensor, depth: int) -> list[Tensor]:
        """Compute `depth` draft steps everywhere in a text (see `draft`)."""
        return draft(self.heads, embedding, seen, depth)

    def foresee(self, u: Tensor) -> Tensor:
        """Return a draft step's logits, of the ids that `narrow` keeps."""
        return self.output(u)

    def narrow(self, probabilities: Tensor) -> Tensor:
        """Keep of [..., n_vocab] what can be drafted; here all."""
        return probabilities

    def drafted(self, u: Tensor) -> Tensor:
        """Return the most likely token of each row of a draft step."""
        return self.foresee(u).argmax(-1)

    def balance(self, rate: float) -> None:
        """Move each correction bias against its expert's load since the last call."""
        for layer in self.blk:
            layer.balance(rate)


def draw_weights(module: nn.Module, n_layer: int) -> None:
    """Draw the matrices from the global generator, in the order of their names' making."""
    for name, parameter in module.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1:
            scale = 0.02 if name.startswith(("token_embd", "output")) else 0.05
            if "attn_output" in name or "ffn_down" in name:
                scale /= (2 * n_layer) ** 0.5
            nn.init.normal_(parameter, std=scale)
