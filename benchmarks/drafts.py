"""What drafts cost with a large vocabulary, and with a draft vocabulary.

``python benchmarks/drafts.py`` writes a small NextN model with 152 k tokens (Q4_0, width 1536) to a
temporary folder and prints the time of three drafts, with the whole output matrix and with 32 k and
8 k of its rows, by sampler.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from timing import alternate

import mtpcore
from mtpcore.gguf import write_model_file

WIDTH, FEED_FORWARD, HEADS, HEAD_WIDTH, N_VOCAB = 1536, 4096, 12, 128, 151_936
SAMPLINGS = {
    "greedy": mtpcore.Sampling.greedy(),
    "temperature 1": mtpcore.Sampling(seed=1),
    "top-k 40": mtpcore.Sampling(top_k=40, seed=1),
}


def q4_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random rows uint8[rows, bytes], weights about 1 / sqrt(columns)."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
    scale = np.float16(0.22 / np.sqrt(columns))
    blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path) -> Path:
    """Write a trunk of one block and a head of one; return ``path``."""
    rng = np.random.default_rng(0)
    wide = HEADS * HEAD_WIDTH
    shapes = {"token_embd.weight": (N_VOCAB, WIDTH), "output.weight": (N_VOCAB, WIDTH)}
    norms = {"output_norm.weight": WIDTH}
    for n in (0, 1):
        for name, shape in {
            "attn_q": (wide, WIDTH),
            "attn_k": (wide // 6, WIDTH),
            "attn_v": (wide // 6, WIDTH),
            "attn_output": (WIDTH, wide),
            "ffn_gate": (FEED_FORWARD, WIDTH),
            "ffn_up": (FEED_FORWARD, WIDTH),
            "ffn_down": (WIDTH, FEED_FORWARD),
        }.items():
            shapes[f"blk.{n}.{name}.weight"] = shape
        for name in ("attn_norm", "post_attention_norm"):
            norms[f"blk.{n}.{name}.weight"] = WIDTH
    shapes["blk.1.nextn.eh_proj.weight"] = (WIDTH, 2 * WIDTH)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        norms[f"blk.1.nextn.{name}.weight"] = WIDTH
    tensors = {name: q4_0(rng, *shape) for name, shape in shapes.items()}
    tensors |= {name: np.ones(n, np.float32) for name, n in norms.items()}
    metadata = {
        "glm4moe.block_count": 2,
        "glm4moe.nextn_predict_layers": 1,
        "glm4moe.context_length": 4096,
        "glm4moe.embedding_length": WIDTH,
        "glm4moe.feed_forward_length": FEED_FORWARD,
        "glm4moe.leading_dense_block_count": 2,
        "glm4moe.attention.head_count": HEADS,
        "glm4moe.attention.head_count_kv": HEADS // 6,
        "glm4moe.attention.key_length": HEAD_WIDTH,
        "glm4moe.attention.value_length": HEAD_WIDTH,
        "glm4moe.attention.layer_norm_rms_epsilon": 1e-5,
        "glm4moe.rope.dimension_count": HEAD_WIDTH // 2,
        "glm4moe.rope.freq_base": 10000.0,
    }
    types = {name: "Q4_0" if name in shapes else "F32" for name in tensors}
    write_model_file(path, "glm4moe", metadata, tensors, types)
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-n", type=int, default=30, help="drafts of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = mtpcore.load_model(write(Path(folder) / "head.gguf"))
        order = np.random.default_rng(1).permutation(N_VOCAB)
        crosses = {}
        for n in (N_VOCAB, 32_768, 8_192):
            few = mtpcore.DraftVocabulary(order[:n], tokenizer="")
            llm = mtpcore.Context(model, 128, threads=given.threads)
            crosses[n] = mtpcore.link(llm, draft_vocabulary=few if n < N_VOCAB else None)
            crosses[n].prepare()
            llm.process(mtpcore.Batch.of([5, 6, 7, 8]))
        for name, sampling in SAMPLINGS.items():
            runs = [lambda c=c: c.draft(0, 3, sampling) for c in crosses.values()]  # noqa: B023
            for n, sample in zip(crosses, alternate(runs, given.n, rest=0.0), strict=True):
                print(f"three drafts, {name:13s} {n:7d} tokens: {sample}")


if __name__ == "__main__":
    main()
