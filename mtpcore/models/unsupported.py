"""Architectures of GGUF files that are known and not run here, and what each would need."""

from __future__ import annotations

from mtpcore.declarations.spec import Unsupported

__all__ = ["UNSUPPORTED"]

_NEEDS = {
    "a diffusion decoder, which fills in masked tokens in any order": (
        *("dream", "llada", "llada-moe", "rnd1"),
    ),
    "a use for models that write no text: embeddings and scores of texts": (
        *("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed"),
        *("modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder"),
    ),
    "an encoder of images": ("clip",),
    "a decoder of sound": ("pockettts", "wavtokenizer-dec"),
    "the recurrence of RWKV": ("arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"),
    "several streams of residuals, mixed by hyper-connections": (
        *("deepseek4", "glm5-next", "hy_v4", "qwen4exp"),
    ),
}

UNSUPPORTED = [
    Unsupported(name=name, needs=needs) for needs, names in _NEEDS.items() for name in names
]
"""Declarations, in no order."""
