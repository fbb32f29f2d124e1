"""A Llama (`llama`) and an EAGLE-3 head for it (`eagle3`), which is a file of its own.

The head reads the inputs of three of the target's layers. Its entries are pairs
(x[p+1], taps[p]); the k-th step's place of the taps takes its own un-normed output. It drafts from
the tokens that the training text has most of.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from demo.blocks import Layer, RmsNorm, linear, rotate
from demo.network import Head, Network, Reading, Shape, Stage, Value, draft, draw_weights


@dataclass(frozen=True)
class LlamaShape(Shape):
    """Sizes of the target."""

    n_layer: int = 6
    n_ff: int = 320
    n_head_kv: int = 2
    n_head_dim: int = 32
    rope_base: float = 10_000.0


@dataclass(frozen=True)
class EagleShape:
    """Sizes of the head, where they are not the target's; `taps` are layers, their inputs read."""

    taps: tuple[int, ...] = (2, 3, 5)
    n_draft_vocab: int = 1024
    n_ff: int = 320


class LlamaLayer(Layer):
    """Grouped attention without biases, adjacent pairs rotated."""

    def __init__(self, shape: LlamaShape, n_in: int | None = None, n_ff: int | None = None) -> None:
        super().__init__()
        self.shape = shape
        d, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.attn_q = linear(n_in or d, shape.n_head * head)
        self.attn_k = linear(n_in or d, shape.n_head_kv * head)
        self.attn_v = linear(n_in or d, shape.n_head_kv * head)
        self.attn_output = linear(shape.n_head * head, d)
        self.ffn_norm = RmsNorm(d, shape.rms_eps)
        self.add_feed_forward(d, n_ff or shape.n_ff)

    def project(self, a: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as [batch, heads, n, head dim]; row 0 is at position `first`."""
        n, base = self.shape.n_head_dim, self.shape.rope_base
        q, k, v = (
            matrix(a).unflatten(-1, (-1, n)).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        return rotate(q, first, n, base, adjacent=True), rotate(k, first, n, base, adjacent=True), v


class Llama(Network):
    """A Llama; what a drafter sees of it are the tapped layers' inputs, joined."""

    arch = "llama"
    title = "Llama architecture"
    shape: LlamaShape

    def __init__(self, shape: LlamaShape, taps: tuple[int, ...]) -> None:
        super().__init__(shape, [LlamaLayer(shape) for _ in range(shape.n_layer)], [])
        self.taps = taps

    def forward(self, tokens: Tensor) -> Reading:
        """Read [batch, n] tokens."""
        embedding = self.token_embd(tokens)
        inputs = [embedding]
        for layer in self.blk:
            inputs.append(layer(inputs[-1]))
        hidden = self.output_norm(inputs[-1])
        seen = torch.cat([inputs[i] for i in self.taps], dim=-1) if self.taps else hidden
        return Reading(embedding, hidden, seen)

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        return _llama_metadata(self.shape, self.shape.n_layer, self.shape.n_ff)


def _llama_metadata(s: LlamaShape, n_layer: int, n_ff: int) -> dict[str, Value]:
    return {
        "block_count": n_layer,
        "context_length": s.n_ctx,
        "embedding_length": s.n_embd,
        "feed_forward_length": n_ff,
        "vocab_size": s.n_vocab,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.n_head_dim,
        "attention.value_length": s.n_head_dim,
        "attention.layer_norm_rms_epsilon": s.rms_eps,
        "rope.dimension_count": s.n_head_dim,
        "rope.freq_base": s.rope_base,
    }


class EagleLayer(LlamaLayer, Head):
    """A layer whose attention reads embedding and taps, and whose stream starts at the taps."""

    recycles_normed = False

    def __init__(self, shape: LlamaShape, n_ff: int) -> None:
        super().__init__(shape, 2 * shape.n_embd, n_ff)
        self.attn_norm_2 = RmsNorm(shape.n_embd, shape.rms_eps)

    def join(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projected taps, and the two normed inputs side by side."""
        return hidden, torch.cat([self.attn_norm(embedding), self.attn_norm_2(hidden)], dim=-1)

    def norm(self, y: Tensor) -> Tensor:
        """Leave the norm to `Drafter`, whose tensor it is."""
        return y


class Drafter(nn.Module):
    """The head's own file; it borrows the target's table."""

    arch = "eagle3"
    title = "EAGLE-3 head"
    d2t: Tensor

    def __init__(self, shape: LlamaShape, eagle: EagleShape) -> None:
        super().__init__()
        self.shape, self.eagle = shape, eagle
        self.fc = linear(len(eagle.taps) * shape.n_embd, shape.n_embd)
        self.blk = nn.ModuleList([EagleLayer(shape, eagle.n_ff)])
        self.output_norm = RmsNorm(shape.n_embd, shape.rms_eps)
        self.output = linear(shape.n_embd, eagle.n_draft_vocab)
        self.register_buffer("d2t", torch.arange(eagle.n_draft_vocab))
        draw_weights(self, 1)

    def metadata(self) -> dict[str, Value]:
        """Return the file's entries under the architecture's name."""
        return {
            **_llama_metadata(self.shape, 1, self.eagle.n_ff),
            "target_layers": list(self.eagle.taps),
            "target_hidden_size": self.shape.n_embd,
            "norm_before_residual": False,
            "norm_before_fc": False,
        }


class Eagle3(nn.Module):
    """A target and, trained after it, its head; offers what `Network` does."""

    def __init__(
        self,
        shape: LlamaShape = LlamaShape(),
        eagle: EagleShape = EagleShape(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.target = Llama(shape, eagle.taps)
        self.drafter = Drafter(shape, eagle)

    def files(self) -> list[Network | Drafter]:
        """Return target and head, which are a file each."""
        return [self.target, self.drafter]

    def stages(self) -> list[Stage]:
        """Train the target alone, then the head for the target as it is."""
        return [Stage(self.target, 0, 0), Stage(self.drafter, 1, 3)]

    def count(self, stream: np.ndarray) -> None:
        """Let the head draft the tokens that `stream` has most of, in order of their ids."""
        often = np.bincount(stream, minlength=self.shape.n_vocab).argsort(kind="stable")
        kept = np.sort(often[-len(self.drafter.d2t) :])
        self.drafter.d2t.copy_(torch.from_numpy(kept))

    @property
    def output(self) -> nn.Module:
        """The target's output matrix."""
        return self.target.output

    def forward(self, tokens: Tensor) -> Reading:
        """Read [batch, n] tokens."""
        reading: Reading = self.target(tokens)
        return reading

    def draft(self, embedding: Tensor, seen: Tensor, depth: int) -> list[Tensor]:
        """Compute `depth` draft steps everywhere in a text."""
        return draft(list(self.drafter.blk), embedding, self.drafter.fc(seen), depth)

    def foresee(self, u: Tensor) -> Tensor:
        """Return a draft step's logits, of the ids that `narrow` keeps."""
        return self.drafter.output(self.drafter.output_norm(u))

    def narrow(self, probabilities: Tensor) -> Tensor:
        """Keep of [..., n_vocab] what can be drafted."""
        return probabilities[..., self.drafter.d2t]

    def drafted(self, u: Tensor) -> Tensor:
        """Return the most likely token of each row of a draft step."""
        return self.drafter.d2t[self.foresee(u).argmax(-1)]

    def balance(self, rate: float) -> None:
        """Do nothing: nothing is routed."""
