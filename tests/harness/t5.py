"""Small published T5 checkpoints, with random weights that a seed determines.

``tools/t5_references.py`` computes with them what ``tests/data/t5`` holds. The module needs NumPy
only, for its sake.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_VOCAB, WIDTH, N_HEADS, HEAD_WIDTH, N_FF = 48, 24, 4, 10, 40
EPS = 1e-6


class Shape(NamedTuple):
    """One model; ``tied`` is T5 1.0, ``gated`` and not tied is 1.1.

    ``own_biases``: each layer has a position bias of its own, as in UMT5.
    """

    gated: bool
    tied: bool
    n_layers: int
    n_decoder_layers: int
    n_buckets: int
    max_distance: int
    n_source: int
    n_text: int
    n_vocab: int = N_VOCAB
    own_biases: bool = False


SHAPES = {
    "1.0": Shape(False, True, 2, 3, 32, 128, 150, 140),
    "1.1": Shape(True, False, 3, 2, 9, 20, 60, 70),
    "UMT5": Shape(True, False, 2, 3, 10, 24, 70, 60, own_biases=True),
}
"""All read and write further than the distance from which on keys share the last bucket."""


def configuration(s: Shape) -> dict[str, object]:
    """Return ``config.json``, as published before transformers 5."""
    family = "UMT5" if s.own_biases else "T5"
    return {
        "architectures": [f"{family}ForConditionalGeneration"],
        "model_type": family.lower(),
        "is_encoder_decoder": True,
        "vocab_size": s.n_vocab,
        "d_model": WIDTH,
        "d_kv": HEAD_WIDTH,
        "d_ff": N_FF,
        "num_heads": N_HEADS,
        "num_layers": s.n_layers,
        "num_decoder_layers": s.n_decoder_layers,
        "relative_attention_num_buckets": s.n_buckets,
        "relative_attention_max_distance": s.max_distance,
        "layer_norm_epsilon": EPS,
        "feed_forward_proj": "gated-gelu" if s.gated else "relu",
        "tie_word_embeddings": s.tied,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "dropout_rate": 0.0,
    }


def weights(s: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint."""
    made = np.random.default_rng([seed, s.gated, s.n_layers])
    inner = N_HEADS * HEAD_WIDTH

    def matrix(*shape: int, size: float = 1.0) -> np.ndarray:
        return (size * made.normal(size=shape)).astype(np.float32)

    def attention(prefix: str) -> dict[str, np.ndarray]:
        # Scores are not scaled: small queries keep them from choosing one key alone.
        sizes = {"q": 0.25, "k": 0.25, "v": 0.2, "o": 0.2}
        return {
            f"{prefix}.{part}.weight": matrix(WIDTH, inner, size=size)
            if part == "o"
            else matrix(inner, WIDTH, size=size)
            for part, size in sizes.items()
        }

    def norm(prefix: str) -> dict[str, np.ndarray]:
        return {f"{prefix}.weight": 1 + matrix(WIDTH, size=0.2)}

    def feed_forward(prefix: str) -> dict[str, np.ndarray]:
        names = ("wi_0", "wi_1") if s.gated else ("wi",)
        wide = {f"{prefix}.{name}.weight": matrix(N_FF, WIDTH, size=0.2) for name in names}
        return {**wide, f"{prefix}.wo.weight": matrix(WIDTH, N_FF, size=0.2)}

    tensors = {"shared.weight": matrix(s.n_vocab, WIDTH)}
    for stack, n_layers in (("encoder", s.n_layers), ("decoder", s.n_decoder_layers)):
        for n in range(n_layers):
            layer = f"{stack}.block.{n}.layer"
            tensors |= attention(f"{layer}.0.SelfAttention") | norm(f"{layer}.0.layer_norm")
            if n == 0 or s.own_biases:
                bias = f"{layer}.0.SelfAttention.relative_attention_bias.weight"
                tensors[bias] = matrix(s.n_buckets, N_HEADS, size=1.5)
            if stack == "decoder":
                tensors |= attention(f"{layer}.1.EncDecAttention") | norm(f"{layer}.1.layer_norm")
            last = 2 if stack == "decoder" else 1
            tensors |= feed_forward(f"{layer}.{last}.DenseReluDense")
            tensors |= norm(f"{layer}.{last}.layer_norm")
        tensors |= norm(f"{stack}.final_layer_norm")
    if not s.tied:
        tensors["lm_head.weight"] = matrix(s.n_vocab, WIDTH, size=0.2)
    return tensors


def source(s: Shape) -> np.ndarray:
    """Return the tokens that the encoder reads."""
    return np.random.default_rng([1, s.n_source]).integers(0, N_VOCAB, s.n_source)


def text(s: Shape) -> np.ndarray:
    """Return the tokens that the decoder reads."""
    return np.random.default_rng([2, s.n_text]).integers(0, N_VOCAB, s.n_text)
