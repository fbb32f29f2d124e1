"""What eight drafts cost in one pass over a block, and in eight steps of a NextN head.

``python benchmarks/blocks.py`` writes a small NextN model (152 k tokens, Q4_0, width 1536) and a
DFlash drafter of the same sizes, 5 layers and blocks of 9 rows, to a temporary folder. It prints
the times of eight drafts and their ratio: after one new token, and after four, as after a round in
which three drafts were accepted. Then it adds post-heads of rank 256 to the drafter, as DSpark and
XPress have them, and prints how long their drafts take, in how many calls of compiled code, and how
much of it is spent outside these calls: in Python, between them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from timing import Sample, Undone, alternate

import mtpcore
from mtpcore.backends.cpu import backend
from mtpcore.gguf import MetadataValue, write_model_file

WIDTH, FEED_FORWARD, HEADS, HEAD_WIDTH, N_VOCAB = 1536, 4096, 12, 128, 151_936
LAYERS, N_DRAFTS, TAPS, RANK = 5, 8, (0, 1), 256
N_CTX, TEXT = 512, list(range(256))
POST_HEADS: dict[str, dict[str, tuple[int, int]]] = {
    "": {},
    "dspark": {"markov_w1": (N_VOCAB, RANK), "markov_w2": (N_VOCAB, RANK)},
    "xpress": {
        "refiner.row": (RANK, WIDTH),
        "refiner.block": (RANK, WIDTH),
        "refiner.token_embd": (N_VOCAB, RANK),
        "refiner.join": (RANK, 3 * RANK),
        "refiner.ffn_gate": (2 * RANK, RANK),
        "refiner.ffn_up": (2 * RANK, RANK),
        "refiner.ffn_down": (RANK, 2 * RANK),
        "refiner.output": (N_VOCAB, RANK),
    },
}
"""Matrices by the drafter that has them."""


def q4_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random rows uint8[rows, bytes], weights about 1 / sqrt(columns)."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
    scale = np.float16(0.22 / np.sqrt(columns))
    blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def write_target(path: Path) -> Path:
    """Write a NextN model, a trunk of one block and a head of one; return ``path``."""
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
    metadata: dict[str, MetadataValue] = {
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


def write_drafter(path: Path, kind: str = "") -> Path:
    """Write a drafter of a kind that borrows the target's tables; return ``path``."""
    rng = np.random.default_rng(1)
    wide = HEADS * HEAD_WIDTH
    shapes = {"fc.weight": (WIDTH, len(TAPS) * WIDTH)}
    shapes |= {f"{name}.weight": shape for name, shape in POST_HEADS[kind].items()}
    norms = {"enc.output_norm.weight": WIDTH, "output_norm.weight": WIDTH}
    for n in range(LAYERS):
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
        norms |= {f"blk.{n}.{name}.weight": WIDTH for name in ("attn_norm", "ffn_norm")}
        norms |= {f"blk.{n}.attn_{x}_norm.weight": HEAD_WIDTH for x in "qk"}
    tensors = {name: q4_0(rng, *shape) for name, shape in shapes.items()}
    if kind == "xpress":
        mixer = rng.normal(0, 0.3, (N_DRAFTS + 1, N_DRAFTS + 1, RANK)).astype(np.float32)
        tensors["refiner.mix.weight"] = mixer
    tensors |= {name: np.ones(n, np.float32) for name, n in norms.items()}
    metadata: dict[str, MetadataValue] = {
        "dflash.block_count": LAYERS,
        "dflash.block_size": N_DRAFTS + 1,
        "dflash.context_length": 4096,
        "dflash.embedding_length": WIDTH,
        "dflash.feed_forward_length": FEED_FORWARD,
        "dflash.attention.head_count": HEADS,
        "dflash.attention.head_count_kv": HEADS // 6,
        "dflash.attention.key_length": HEAD_WIDTH,
        "dflash.attention.layer_norm_rms_epsilon": 1e-5,
        "dflash.rope.freq_base": 10000.0,
        "dflash.vocab_size": N_VOCAB,
        "dflash.target_layers": list(TAPS),
        "tokenizer.ggml.mask_token_id": N_VOCAB - 1,
    }
    types = {name: "Q4_0" if name in shapes else "F32" for name in tensors}
    write_model_file(path, "dflash", metadata, tensors, types)
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-n", type=int, default=20, help="drafts of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        target = mtpcore.load_model(write_target(Path(name) / "target.gguf"), sidecars=False)
        drafter = mtpcore.load_model(write_drafter(Path(name) / "drafter.gguf"))
        crosses = {}
        for label, draft_model in (("eight steps of a head", None), ("a block", drafter)):
            llm = mtpcore.Context(target, N_CTX, threads=given.threads)
            crosses[label] = mtpcore.link(llm, draft_model=draft_model)
            crosses[label].prepare()
            llm.process(mtpcore.Batch.of(TEXT))
        for n_new in (1, 4):
            runs = [Undone(partial(draft, c), partial(renew, c, n_new)) for c in crosses.values()]
            samples = alternate(runs, given.n, rest=0.0)
            for label, sample in zip(crosses, samples, strict=True):
                print(f"eight drafts after {n_new} new tokens, {label:21s}: {sample}")
            steps, block = (sample.median for sample in samples)
            print(f"a block is {steps / block:.2f} times as fast")
        for kind in ("dspark", "xpress"):
            drafter = mtpcore.load_model(write_drafter(Path(name) / f"{kind}.gguf", kind))
            cross = mtpcore.link(
                mtpcore.Context(target, N_CTX, threads=given.threads), draft_model=drafter
            )
            cross.prepare()
            cross.llm.process(mtpcore.Batch.of(TEXT))
            run = Undone(partial(draft, cross), partial(renew, cross, 1))
            (sample,) = alternate([run], given.n, rest=0.0)
            outside, n_calls = watch(cross, given.n)
            print(f"eight drafts of {kind} after 1 new token: {sample}")
            print(f"in {n_calls} calls, and outside of them: {outside}")


def draft(cross: mtpcore.Cross) -> None:
    """Draft eight tokens after the text."""
    assert len(cross.draft(0, N_DRAFTS)) == N_DRAFTS


def watch(cross: mtpcore.Cross, n: int) -> tuple[Sample, int]:
    """Return how long drafts spend outside the calls of plans, and how many calls the last had."""
    calls: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begin = perf_counter()
            made = call(*given)
            calls.append(perf_counter() - begin)
            return made

        return run

    for context in cross.contexts.values():
        plan: Any = context.runner.plan
        plan.run = timed(plan.run)
    compiled: Any = backend
    compiled.draft = timed(compiled.draft)
    outside = Sample()
    for _ in range(n):
        renew(cross, 1)
        calls.clear()
        begin = perf_counter()
        draft(cross)
        outside.append(perf_counter() - begin - sum(calls))
    return outside, len(calls)


def renew(cross: mtpcore.Cross, n_new: int) -> None:
    """Let the target read the last tokens again, so that its drafter lacks them."""
    n = len(TEXT) - n_new
    cross.rollback(0, n)
    cross.llm.process(mtpcore.Batch.of(TEXT[n:], pos=n))


if __name__ == "__main__":
    main()
