"""What a frame of codes costs: one call against a call for each code, and against transformers.

``python benchmarks/codebooks.py`` writes a model of CSM-1B's depth decoder (4 layers, 1024 wide, 32
codebooks of 2051 codes; random weights) with a backbone of one small layer to a temporary folder,
and prints how long the 31 codes after the first take: chosen in one call (``Cross.frame``), by 32
calls of ``Context.process`` with a choice in Python after each, and by
``CsmDepthDecoderForCausalLM.generate`` of transformers, in float32 and bfloat16, each in a process
of its own (of the interpreter ``--transformers``, by default this one; left out where it has no
torch or transformers). It prints each time as a multiple of the first, and how fast that reads
weights beside what memory gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, quants
from timing import Reader, alternate, bandwidth

import mtpcore
from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.gguf import write_model_file

REST = 0.5  # seconds before each frame, in which the threads of the one before stop spinning
N_CODEBOOKS, N_CODES, N_TEXT = 32, 2051, 256
WIDTH, DEPTH, N_FF, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS = 2048, 1024, 8192, 8, 2, 128, 4


TRANSFORMERS = """
import json, sys
import torch
from transformers import CsmDepthDecoderConfig, CsmDepthDecoderForCausalLM
asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])
dtype, n = getattr(torch, asked["dtype"]), asked["n_codes"]
model = CsmDepthDecoderForCausalLM(CsmDepthDecoderConfig(**asked["config"])).eval().to(dtype)
hidden = torch.zeros(1, asked["config"]["backbone_hidden_size"], dtype=dtype)
ids = torch.zeros(1, 2, dtype=torch.long)
print("ready", flush=True)
for _ in sys.stdin:
    with torch.inference_mode():
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), min_new_tokens=n,
            backbone_last_hidden_state=hidden.clone(), max_new_tokens=n, **asked["sampling"],
        )
    print("done", flush=True)
"""


def random_rows(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """Return rows of a type, made of one random piece again and again."""
    piece = rng.normal(0, shape[-1] ** -0.5, (997, shape[-1])).astype(np.float32)
    blocks = quants.quantize(piece, GGMLQuantizationType[kind])
    n = int(np.prod(shape[:-1]))
    return np.resize(blocks, (n, blocks.shape[1])).reshape(*shape[:-1], -1)


def write(path: Path, kind: str) -> Path:
    """Write the model; return ``path``."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_TEXT, WIDTH),
        "audio_embd.weight": (N_CODEBOOKS * N_CODES, WIDTH),
        "output.weight": (N_CODES, WIDTH),
        "depth.input.weight": (DEPTH, WIDTH),
        "depth.output.weight": (N_CODEBOOKS - 1, N_CODES, DEPTH),
    }
    norms = {"output_norm.weight": WIDTH, "depth.output_norm.weight": DEPTH}
    for at, n, width, n_ff in (("", 1, WIDTH, 64), ("depth.", LAYERS, DEPTH, N_FF)):
        for block in (f"{at}blk.{i}." for i in range(n)):
            shapes |= {
                f"{block}attn_q.weight": (HEADS * HEAD_WIDTH, width),
                f"{block}attn_k.weight": (KV_HEADS * HEAD_WIDTH, width),
                f"{block}attn_v.weight": (KV_HEADS * HEAD_WIDTH, width),
                f"{block}attn_output.weight": (width, HEADS * HEAD_WIDTH),
                f"{block}ffn_gate.weight": (n_ff, width),
                f"{block}ffn_up.weight": (n_ff, width),
                f"{block}ffn_down.weight": (width, n_ff),
            }
            norms |= {f"{block}attn_norm.weight": width, f"{block}ffn_norm.weight": width}
    tensors = {name: random_rows(rng, kind, *shape) for name, shape in shapes.items()}
    tensors |= {name: np.ones(n, np.float32) for name, n in norms.items()}
    metadata: dict[str, Any] = {"csm.codebook_count": N_CODEBOOKS, "csm.codebook_size": N_CODES}
    for at, n, width, n_ff in (("csm.", 1, WIDTH, 64), ("csm.depth.", LAYERS, DEPTH, N_FF)):
        metadata |= {
            f"{at}block_count": n,
            f"{at}context_length": 2048,
            f"{at}embedding_length": width,
            f"{at}feed_forward_length": n_ff,
            f"{at}attention.head_count": HEADS,
            f"{at}attention.head_count_kv": KV_HEADS,
            f"{at}attention.key_length": HEAD_WIDTH,
            f"{at}attention.value_length": HEAD_WIDTH,
            f"{at}attention.layer_norm_rms_epsilon": 1e-5,
            f"{at}rope.freq_base": 500000.0,
        }
    types = {name: kind if name in shapes else "F32" for name in tensors}
    write_model_file(path, "csm", metadata, tensors, types)
    return path


def by_steps(
    cross: mtpcore.Cross, sampling: mtpcore.Sampling, hidden: np.ndarray, first: int
) -> Callable[[], list[int]]:
    """Return what makes the same frame by a call of ``process`` for each row."""
    llm = cross.llm
    depth = mtpcore.Context(
        llm.model, N_CODEBOOKS, graph_type="depth", threads=llm.threads, n_batch=N_CODEBOOKS
    )
    sampler, none = Sampler(sampling, Scratch(N_CODES)), np.zeros(0, np.int32)
    begin = llm.length(0) * N_CODEBOOKS

    def run() -> list[int]:
        codes = [first]
        depth.process(mtpcore.Batch(embeddings=hidden, outputs="none"))
        for i in range(1, N_CODEBOOKS):
            logits = np.array(depth.process(mtpcore.Batch([codes[-1]], pos=i)).logits[0])
            codes.append(sampler.choose(logits, none, 0, begin + i))
        depth.remove(0)
        return codes

    return run


@contextmanager
def by_transformers(
    python: str, sampling: mtpcore.Sampling, threads: int
) -> Iterator[dict[str, Callable[[], object]]]:
    """Give the loop of transformers, by the type of its weights; none where it is missing.

    Each runs in a process of its own, so that its threads and ours do not share the cores.
    """
    asked: dict[str, Any] = {
        "threads": threads,
        "n_codes": N_CODEBOOKS - 1,
        "sampling": {"do_sample": False},
        "config": {
            "num_codebooks": N_CODEBOOKS,
            "vocab_size": N_CODES,
            "backbone_hidden_size": WIDTH,
            "hidden_size": DEPTH,
            "intermediate_size": N_FF,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_WIDTH,
        },
    }
    if sampling.temperature:
        asked["sampling"] = {
            "do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k
        }  # fmt: skip
    with ExitStack() as stack:
        runs: dict[str, Callable[[], object]] = {}
        for dtype in ("float32", "bfloat16"):
            command = [python, "-c", TRANSFORMERS, json.dumps({**asked, "dtype": dtype})]
            peer = stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True))
            assert peer.stdin is not None
            assert peer.stdout is not None

            def run(write: IO[str] = peer.stdin, read: IO[str] = peer.stdout) -> None:
                write.write("run\n")
                write.flush()
                if not read.readline():
                    raise RuntimeError("transformers ended: what it wrote stands above")

            stack.callback(peer.stdin.close)
            if peer.stdout.readline():  # it writes one where it has its model
                runs[f"transformers, {dtype}"] = run
        yield runs


def measure(
    kind: str,
    sampling: mtpcore.Sampling,
    given: argparse.Namespace,
    peers: Mapping[str, Callable[[], object]],
) -> None:
    """Measure with matrices of one type, and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "csm.gguf", kind)
        n_bytes = depth_bytes(path)
        cross = mtpcore.link(mtpcore.Context(mtpcore.load_model(path), 128, threads=given.threads))
        cross.prepare()
        out = cross.llm.process(mtpcore.Batch.of([5, 6, 7, 8]))
        frame = cross.frame([0], sampling)[0].tolist()
        steps = by_steps(cross, sampling, out.tap("hidden")[-1:], frame[0])
        assert steps() == frame
        runs: dict[str, Callable[[], object]] = {
            f"one call, {kind}": lambda: cross.frame([0], sampling),
            f"32 calls, {kind}": steps,
            **peers,
        }
        samples = alternate(list(runs.values()), given.n, rest=REST)
    for name, sample in zip(runs, samples, strict=True):
        print(f"{name:22s} {sample}   {sample.median / samples[0].median:5.2f}")
    speed = n_bytes / samples[0].median / 1e9
    memory = bandwidth(Reader.fastest(given.threads)) / 1e9
    print(f"one call reads {speed:.1f} GB/s of weights; memory gives {memory:.1f} GB/s")


def depth_bytes(path: Path) -> int:
    """Return how many bytes of weights the passes of a frame read; the first has two rows."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    in_each = ("depth.blk.", "depth.input.")
    each = sum(n_bytes for name, n_bytes in sizes.items() if name.startswith(in_each))
    return (N_CODEBOOKS - 1) * each + sizes["depth.output.weight"]


def main() -> None:
    """Measure each type in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--types", nargs="+", default=["F16", "Q8_0"], help="of all matrices: F32, BF16, Q4_0, ..."
    )
    parser.add_argument("--greedy", action="store_true", help="in place of T 0.9, top-k 50")
    parser.add_argument("--transformers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("-n", type=int, default=10, help="frames of each kind")
    given = parser.parse_args()
    sampling = mtpcore.Sampling(temperature=0.9, top_k=50, seed=1)
    if given.greedy:
        sampling = mtpcore.Sampling.greedy()
    with by_transformers(given.transformers, sampling, given.threads) as peers:
        for kind in given.types:
            measure(kind, sampling, given, peers)


if __name__ == "__main__":
    main()
