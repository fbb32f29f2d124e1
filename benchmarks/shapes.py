"""Shapes of generated models: realistic sizes, metadata that both engines want, random values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import msgspec

__all__ = ["SHAPES", "Shape", "byte_letters", "scaled_down", "spread"]


class Shape(msgspec.Struct, frozen=True):
    """A family's architecture in some size.

    ``n_experts`` experts of ``expert_width`` are in every block behind the first ``n_dense``;
    ``n_nextn`` is the number of drafting blocks behind the trunk.
    """

    architecture: str
    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    ff_width: int
    n_vocab: int
    biases: bool = False
    tied: bool = False
    n_experts: int = 0
    n_used: int = 0
    expert_width: int = 0
    n_dense: int = 0
    n_nextn: int = 0

    @property
    def n_blocks(self) -> int:
        """Blocks in the file: the trunk's layers and what drafts behind them."""
        return self.n_layers + self.n_nextn

    @property
    def merges(self) -> bool:
        """Whether the vocabulary is byte-pair encoded; else pieces with scores."""
        return self.architecture != "llama"

    def metadata(self) -> dict[str, Any]:
        """Return the file's metadata, vocabulary included."""
        found: dict[str, Any] = {
            "block_count": self.n_blocks,
            "context_length": 4096,
            "embedding_length": self.width,
            "feed_forward_length": self.ff_width,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.head_width,
            "attention.value_length": self.head_width,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": self.head_width,
            "rope.freq_base": 10000.0,
            "vocab_size": self.n_vocab,
        }
        if self.n_experts:
            found |= {
                "expert_count": self.n_experts,
                "expert_used_count": self.n_used,
                "expert_feed_forward_length": self.expert_width,
                "expert_shared_count": 1,
                "leading_dense_block_count": self.n_dense,
                "expert_gating_func": 2,
                "expert_weights_scale": 1.0,
                "expert_weights_norm": True,
                "rope.dimension_count": self.head_width // 2,
            }
        if self.n_nextn:
            found["nextn_predict_layers"] = self.n_nextn
        named = {f"{self.architecture}.{key}": value for key, value in found.items()}
        return {"general.name": f"synthetic {self.architecture}", **named, **self._vocabulary()}

    def _vocabulary(self) -> dict[str, Any]:
        ends = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
        if not self.merges:
            return {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": [f"<{i}>" for i in range(self.n_vocab)],
                "tokenizer.ggml.scores": [0.0] * self.n_vocab,
                "tokenizer.ggml.token_type": [1] * self.n_vocab,
                **ends,
            }
        letters = byte_letters()
        pairs = product(letters, letters)
        triples = ((a + b, c) for a, b in product(letters, letters) for c in letters)
        n_merges = self.n_vocab - len(letters)
        joined = list(islice(pairs, n_merges))
        joined += islice(triples, n_merges - len(joined))
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": letters + [a + b for a, b in joined],
            "tokenizer.ggml.token_type": [1] * self.n_vocab,
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in joined],
            **ends,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield names and shapes, outermost axis first."""
        yield "token_embd.weight", (self.n_vocab, self.width)
        yield "output_norm.weight", (self.width,)
        if not self.tied:
            yield "output.weight", (self.n_vocab, self.width)
        for n in range(self.n_blocks):
            for name, shape in self._block(n):
                yield f"blk.{n}.{name}", shape

    def _block(self, n: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        e, q, kv = self.width, self.n_heads * self.head_width, self.n_kv_heads * self.head_width
        yield "attn_norm.weight", (e,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"attn_{name}.weight", (rows, e)
            if self.biases:
                yield f"attn_{name}.bias", (rows,)
        yield "attn_output.weight", (e, q)
        yield ("post_attention_norm.weight" if self.n_experts else "ffn_norm.weight"), (e,)
        if not self.n_experts or n < self.n_dense:
            yield from _swiglu((self.ff_width, e), "")
        else:
            yield "ffn_gate_inp.weight", (self.n_experts, e)
            yield "exp_probs_b.bias", (self.n_experts,)
            yield from _swiglu((self.n_experts, self.expert_width, e), "_exps")
            yield from _swiglu((self.expert_width, e), "_shexp")
        if n >= self.n_layers:
            yield "nextn.eh_proj.weight", (e, 2 * e)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                yield f"nextn.{name}.weight", (e,)


def _swiglu(shape: tuple[int, ...], suffix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    *outer, f, e = shape
    yield f"ffn_gate{suffix}.weight", (*outer, f, e)
    yield f"ffn_up{suffix}.weight", (*outer, f, e)
    yield f"ffn_down{suffix}.weight", (*outer, e, f)


def byte_letters() -> list[str]:
    """Return the 256 letters that stand for bytes in byte-pair vocabularies."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]


def scaled_down(shape: Shape, n_layers: int = 3, n_vocab: int = 2048, n_nextn: int = 0) -> Shape:
    """Return the same layers, but few, and a small vocabulary: what float64 can compute."""
    return msgspec.structs.replace(shape, n_layers=n_layers, n_vocab=n_vocab, n_nextn=n_nextn)


SHAPES: dict[str, Shape] = {
    "llama-1b": Shape("llama", 22, 2048, 32, 4, 64, 5632, 32000),
    "llama-100m": Shape("llama", 6, 768, 12, 4, 64, 2048, 32000),
    "qwen2-1.5b": Shape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, biases=True, tied=True),
    # four rows wake 2.7 times the experts of one: 32 (1 - (1 - 8/32)**4) / 8
    "glm-moe-1b": Shape(
        *("glm4moe", 16, 1024, 16, 4, 64, 3072, 32768),
        biases=True,
        n_experts=32,
        n_used=8,
        expert_width=512,
        n_dense=1,
        n_nextn=1,
    ),
    "mimo-1b": Shape("mimo", 22, 2048, 32, 4, 64, 5632, 32000, biases=True, n_nextn=1),
}


def spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and deviation of a tensor's values, so that activations stay about one."""
    if name.endswith("norm.weight"):
        return 1.0, 0.2
    if len(shape) == 1:
        return 0.0, 0.1
    return 0.0, 1.0 if name == "token_embd.weight" else 1.0 / math.sqrt(shape[-1])
