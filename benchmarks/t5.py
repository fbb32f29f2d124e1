"""Measure encoder and decoder against transformers and llama.cpp, on a file of T5-small's shape.

``python benchmarks/t5.py [--threads 2] [--turns 5] [--transformers PYTHON]``: a prompt of 128
tokens is encoded, and 64 tokens are decoded greedily after it, by each program in turn. Printed
are the medians of both parts, their spread, and how many times as long as ours the others take. The
weights are random (60 M parameters); mtpcore and llama.cpp read them in F32, as transformers has
them, and in Q8_0.

transformers is asked in a process of its own, by the interpreter ``--transformers`` (default: this
one); it and llama.cpp (``llama-cpp-python``) are left out, with the reason, where they are not
installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import numpy as np

import mtpcore
from mtpcore.gguf import MetadataValue, write_model_file

WIDTH, N_FF, N_HEADS, N_LAYERS, N_VOCAB, N_BUCKETS = 512, 2048, 8, 6, 32128, 32
N_PROMPT, N_TEXT = 128, 64
PARTS = ("encode", "decode")
Run = Callable[[], tuple[float, float]]
"""Encodes and decodes; returns the seconds of both."""

TRANSFORMERS = """
import json, sys, time
import torch
from transformers import T5Config, T5ForConditionalGeneration
asked = json.load(sys.stdin)
torch.set_num_threads(asked["threads"])
torch.manual_seed(0)
model = T5ForConditionalGeneration(T5Config(**asked["config"])).eval()
prompt = torch.tensor([asked["prompt"]])
found = []
with torch.inference_mode():
    for turn in range(asked["turns"] + 1):
        begin = time.perf_counter()
        encoded = model.encoder(prompt)
        middle = time.perf_counter()
        cache, token = None, torch.zeros((1, 1), dtype=torch.long)
        for _ in range(asked["n_text"]):
            out = model(encoder_outputs=encoded, decoder_input_ids=token, use_cache=True,
                        **({} if cache is None else {asked["name"]: cache}))
            cache = getattr(out, asked["name"])
            token = out.logits[:, -1:].argmax(-1)
        if turn:
            found.append([middle - begin, time.perf_counter() - middle])
print(json.dumps(found))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--transformers", default=sys.executable, metavar="PYTHON")
    options = parser.parse_args()
    prompt = np.random.default_rng(1).integers(3, 32000, N_PROMPT).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("F32", "Q8_0"):
            path = Path(folder) / f"t5-{kind}.gguf"
            write(path, kind)
            runs = {"mtpcore": ours(path, prompt, options.threads)}
            if find_spec("llama_cpp") is None:
                print("llama.cpp: left out, llama-cpp-python is not installed")
            else:
                runs["llama.cpp"] = llama_cpp(path, prompt, options.threads)
            found = measure(runs, options.turns)
            if kind == "F32":
                found |= transformers(prompt, options)
            show(kind, found)


def write(path: Path, kind: str) -> None:
    """Write a model of random weights, its matrices of this type."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        scale = np.float32(shape[-1] ** -0.5)
        return random.standard_normal(shape, np.float32) * scale

    tensors = {"token_embd.weight": matrix(N_VOCAB, WIDTH)}
    for stack, attentions in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        tensors[f"{stack}.output_norm.weight"] = np.ones(WIDTH, np.float32)
        tensors[f"{stack}.blk.0.attn_rel_b.weight"] = matrix(N_BUCKETS, N_HEADS)
        for n in range(N_LAYERS):
            block = f"{stack}.blk.{n}."
            for part in attentions:
                tensors |= {f"{block}{part}_{one}.weight": matrix(WIDTH, WIDTH) for one in "qkvo"}
            for norm in (*attentions, "ffn"):
                tensors[f"{block}{norm}_norm.weight"] = np.ones(WIDTH, np.float32)
            tensors[f"{block}ffn_up.weight"] = matrix(N_FF, WIDTH)
            tensors[f"{block}ffn_down.weight"] = matrix(WIDTH, N_FF)
    types = {
        name: kind if values.ndim == 2 and "rel_b" not in name else "F32"
        for name, values in tensors.items()
    }
    metadata: dict[str, MetadataValue] = {
        "t5.block_count": N_LAYERS,
        "t5.context_length": 512,
        "t5.embedding_length": WIDTH,
        "t5.feed_forward_length": N_FF,
        "t5.attention.head_count": N_HEADS,
        "t5.attention.key_length": WIDTH // N_HEADS,
        "t5.attention.value_length": WIDTH // N_HEADS,
        "t5.attention.layer_norm_rms_epsilon": 1e-6,
        "t5.attention.relative_buckets_count": N_BUCKETS,
        "t5.decoder_start_token_id": 0,
        "tokenizer.ggml.model": "none",
        "t5.vocab_size": N_VOCAB,
    }
    write_model_file(path, "t5", metadata, tensors, types)


def ours(path: Path, prompt: list[int], threads: int) -> Run:
    """Return a run of mtpcore."""
    model = mtpcore.load_model(path)
    cross = mtpcore.link(mtpcore.Context(model, 512, threads=threads), [])
    cross.prepare()

    def run() -> tuple[float, float]:
        cross.remove(0)
        begin = perf_counter()
        cross.encode({0: prompt})
        middle, token = perf_counter(), 0
        for pos in range(N_TEXT):
            out = cross.llm.process(mtpcore.Batch.of([token], pos=pos))
            token = int(out.logits[-1].argmax())
        return middle - begin, perf_counter() - middle

    return run


def llama_cpp(path: Path, prompt: list[int], threads: int) -> Run:
    """Return a run of llama.cpp, with repacked weights."""
    from versus.peer import Peer, PeerModel

    peer = Peer(PeerModel(path, repack=True), flash=False, n_ctx=512, threads=threads)

    def run() -> tuple[float, float]:
        peer.rewind(0)
        begin = perf_counter()
        peer.encode(prompt)
        middle, token = perf_counter(), 0
        for _ in range(N_TEXT):
            token = int(peer.process([token])[-1].argmax())
        return middle - begin, perf_counter() - middle

    return run


def measure(runs: dict[str, Run], turns: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each program, in turn; the first turn warms up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            seconds = run()
            if turn:
                found[name].append(seconds)
    return found


def transformers(
    prompt: list[int], options: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """Return what transformers takes, by its own interpreter; nothing where it cannot run."""
    config = {
        "vocab_size": N_VOCAB,
        "d_model": WIDTH,
        "d_kv": WIDTH // N_HEADS,
        "d_ff": N_FF,
        "num_heads": N_HEADS,
        "num_layers": N_LAYERS,
        "decoder_start_token_id": 0,
    }
    asked = {"config": config, "prompt": prompt, "n_text": N_TEXT, "turns": options.turns}
    for name in ("past_key_values", "cache"):  # as it was called, and is since 5.24
        given = json.dumps({**asked, "threads": options.threads, "name": name})
        command = [options.transformers, "-c", TRANSFORMERS]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        if not done.returncode:
            return {"transformers": [(a, b) for a, b in json.loads(done.stdout)]}
    print(f"transformers: left out, {done.stderr.strip().splitlines()[-1][:120]}")
    return {}


def show(kind: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """Print medians, spreads and ratios."""
    print(f"{kind}: {N_PROMPT} tokens encoded, {N_TEXT} decoded")
    middle = {
        name: [statistics.median(run[part] for run in runs) for part in range(2)]
        for name, runs in found.items()
    }
    for name, runs in found.items():
        shown = []
        for part, what in enumerate(PARTS):
            times = [1e3 * run[part] for run in runs]
            ratio = middle[name][part] / middle["mtpcore"][part]
            spread = f"({min(times):.1f} .. {max(times):.1f})"
            shown.append(f"{what} {1e3 * middle[name][part]:7.1f} ms {spread}, {ratio:.2f} of ours")
        print(f"  {name:13} {'; '.join(shown)}")


if __name__ == "__main__":
    main()
