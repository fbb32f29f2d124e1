"""Shapes of generated models: realistic sizes, metadata that both engines want, random values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import msgspec

__all__ = ["SHAPES", "HybridShape", "Shape", "byte_letters", "scaled_down", "spread"]


class Shape(msgspec.Struct, frozen=True):
    """A family's architecture in some size.

    ``n_experts`` experts of ``expert_width`` are in every block after the first ``n_dense``;
    ``n_nextn`` is the number of drafting blocks after the trunk.
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
        """Blocks in the file: the trunk's layers and what drafts after them."""
        return self.n_layers + self.n_nextn

    @property
    def merges(self) -> bool:
        """Whether the vocabulary is byte-pair encoded; else pieces with scores."""
        return self.architecture != "llama"

    @property
    def pretokenizer(self) -> str:
        """How text is split before byte-pair encoding."""
        return "qwen2"

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
            "tokenizer.ggml.pre": self.pretokenizer,
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
            yield from _nextn(e)


class HybridShape(Shape, frozen=True, kw_only=True):
    """A hybrid's: every ``interval``-th layer is one of attention, the others are Gated DeltaNet.

    All blocks have experts, or none; the shared expert is as wide as the others.
    """

    n_linear_keys: int
    n_linear_values: int
    linear_width: int = 128
    interval: int = 4

    @property
    def pretokenizer(self) -> str:
        """How text is split before byte-pair encoding."""
        return "qwen35"

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
            "attention.layer_norm_rms_epsilon": 1e-6,
            "full_attention_interval": self.interval,
            "rope.dimension_count": self.head_width // 4,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 1e7,
            "ssm.conv_kernel": 4,
            "ssm.state_size": self.linear_width,
            "ssm.group_count": self.n_linear_keys,
            "ssm.time_step_rank": self.n_linear_values,
            "ssm.inner_size": self.n_linear_values * self.linear_width,
            "vocab_size": self.n_vocab,
        }
        if self.n_experts:
            found |= {
                "expert_count": self.n_experts,
                "expert_used_count": self.n_used,
                "expert_feed_forward_length": self.expert_width,
                "expert_shared_feed_forward_length": self.expert_width,
            }
        if self.n_nextn:
            found["nextn_predict_layers"] = self.n_nextn
        named = {f"{self.architecture}.{key}": value for key, value in found.items()}
        return {"general.name": f"synthetic {self.architecture}", **named, **self._vocabulary()}

    def _block(self, n: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        e = self.width
        yield "attn_norm.weight", (e,)
        yield "post_attention_norm.weight", (e,)
        if n < self.n_layers and (n + 1) % self.interval:
            yield from self._delta_net()
        else:
            q, kv = self.n_heads * self.head_width, self.n_kv_heads * self.head_width
            yield "attn_q.weight", (2 * q, e)
            yield "attn_k.weight", (kv, e)
            yield "attn_v.weight", (kv, e)
            yield "attn_output.weight", (e, q)
            yield "attn_q_norm.weight", (self.head_width,)
            yield "attn_k_norm.weight", (self.head_width,)
        if self.n_experts:
            yield "ffn_gate_inp.weight", (self.n_experts, e)
            yield "ffn_gate_inp_shexp.weight", (1, e)
            yield from _swiglu((self.n_experts, self.expert_width, e), "_exps")
            yield from _swiglu((self.expert_width, e), "_shexp")
        else:
            yield from _swiglu((self.ff_width, e), "")
        if n >= self.n_layers:
            yield from _nextn(e)

    def _delta_net(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        e, n = self.width, self.n_linear_values
        values = n * self.linear_width
        channels = 2 * self.n_linear_keys * self.linear_width + values
        yield "attn_qkv.weight", (channels, e)
        yield "attn_gate.weight", (values, e)
        yield "ssm_alpha.weight", (n, e)
        yield "ssm_beta.weight", (n, e)
        yield "ssm_conv1d.weight", (channels, 4)
        yield "ssm_dt.bias", (n,)
        yield "ssm_a", (n,)
        yield "ssm_norm.weight", (self.linear_width,)
        yield "ssm_out.weight", (e, values)


def _nextn(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "nextn.eh_proj.weight", (width, 2 * width)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        yield f"nextn.{name}.weight", (width,)


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
    # Qwen3.5-0.8B and 2B, with a vocabulary of a quarter
    "qwen35-0.8b": HybridShape(
        *("qwen35", 24, 1024, 8, 2, 256, 3584, 62080),
        tied=True,
        n_nextn=1,
        n_linear_keys=16,
        n_linear_values=16,
    ),
    "qwen35-2b": HybridShape(
        *("qwen35", 24, 2048, 8, 2, 256, 6144, 62080),
        tied=True,
        n_nextn=1,
        n_linear_keys=16,
        n_linear_values=16,
    ),
    # 35B-A3B with a fifth of its layers and an eighth of its experts
    "qwen35moe-1b": HybridShape(
        *("qwen35moe", 8, 2048, 16, 2, 256, 512, 32768),
        n_experts=32,
        n_used=8,
        expert_width=512,
        n_nextn=1,
        n_linear_keys=16,
        n_linear_values=32,
    ),
}


for _name in ("qwen35-0.8b", "qwen35-2b"):  # with all of the published vocabulary
    SHAPES[f"{_name}-248k"] = msgspec.structs.replace(SHAPES[_name], n_vocab=248320)


def spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and deviation of a tensor's values, so that activations stay about one."""
    if name.endswith("norm.weight"):
        return 1.0, 0.2
    if name.endswith("ssm_a"):
        return -0.5, 0.1  # a state decays
    if len(shape) == 1:
        return 0.0, 0.1
    return 0.0, 1.0 if name == "token_embd.weight" else 1.0 / math.sqrt(shape[-1])
