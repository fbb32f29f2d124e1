"""Train a DFlash drafter for the demo model as it is, write it as GGUF, measure what was written.

    python tools/train_dflash.py               # ten minutes of one core
    python tools/train_dflash.py --evaluate    # measures the shipped file

The trunk is that of `mtpcore/data/demo.gguf`, its weights dequantised; the text is that of
`train_demo.py`. Blocks start at random places of a text, and each row learns the trunk's own
distribution for its token. Seeded, as `train_demo.py` is; what it was trained on, and for how long,
is recorded in the file's `general.description`.

Needs the extra `train` (PyTorch).
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from demo.corpus import encode_files, read_corpus
from demo.dflash import Dflash, DflashShape
from demo.glm import Glm
from demo.model_file import read_model, write_model
from demo.optimizer import make_optimizers
from torch import Tensor

import mtpcore

ROOT = Path(__file__).resolve().parent.parent
TRUNK = ROOT / "mtpcore/data/demo.gguf"
DRAFTER = ROOT / "demos/mtpcore_demos/demo-dflash-draft.gguf"
PROMPTS = ROOT / "tests/data/demo/prompts.json"
N_ROWS, N_CTX, N_BLOCKS = 4, 256, 40


@torch.no_grad()
def read(trunk: Glm, tokens: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the inputs of some layers, joined, and the trunk's distribution after each token."""
    x = trunk.token_embd(tokens)
    inputs = []
    for layer in trunk.blk[: trunk.shape.n_layer]:
        inputs.append(x)
        x = layer(x)
    inputs.append(x)
    taps = torch.cat([inputs[i] for i in layers], dim=-1)
    return taps, torch.softmax(trunk.output(trunk.output_norm(x)), dim=-1)


def block_loss(trunk: Glm, drafter: Dflash, tokens: Tensor, starts: Tensor) -> Tensor:
    """Return the cross-entropy of each row against the trunk's distribution, [rows]."""
    taps, wanted = read(trunk, tokens, drafter.shape.taps)
    logits = trunk.output(drafter(trunk, tokens, taps, starts))
    # Row i of a block foresees the token after its place n + i - 1.
    places = starts[:, None] + torch.arange(logits.shape[2])
    losses = F.cross_entropy(
        logits.flatten(0, 2), wanted[:, places].flatten(0, 2), reduction="none"
    )
    return losses.unflatten(0, logits.shape[:3]).mean(dim=(0, 1))


def train(args: argparse.Namespace) -> None:
    """Train the drafter and write its file."""
    torch.manual_seed(args.seed)
    trunk = Glm()
    tokenizer = read_model(TRUNK, trunk)
    trunk.requires_grad_(False)
    corpus = read_corpus()
    stream = encode_files(tokenizer, corpus.train, args.seed)
    s = trunk.shape
    drafter = Dflash(DflashShape(s.n_embd, s.n_ctx, s.rms_eps))
    n_weights = sum(p.numel() for p in drafter.parameters())
    print(f"{n_weights} weights; {len(stream)} tokens of text", flush=True)
    optimizers = make_optimizers(drafter, args.lr)
    rates = [[group["lr"] for group in o.param_groups] for o in optimizers]
    weights = 0.8 ** torch.arange(drafter.shape.n_block - 1)  # the first drafts count most
    rng = np.random.default_rng(args.seed)
    began, n_steps = time.monotonic(), args.steps
    for step in range(n_steps):
        begins = rng.integers(0, len(stream) - N_CTX, size=N_ROWS)
        tokens = torch.from_numpy(stream[begins[:, None] + np.arange(N_CTX)].astype(np.int64))
        places = rng.choice(N_CTX - drafter.shape.n_block - 8, N_BLOCKS, replace=False) + 8
        rows = block_loss(trunk, drafter, tokens, torch.from_numpy(np.sort(places)))
        loss = (rows * weights).sum() / weights.sum()
        factor = min(1.0, (step + 1) / 50) * (
            0.02 + 0.49 * (1 + math.cos(math.pi * step / n_steps))
        )
        for optimizer, base in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 50 == 0 or step == n_steps - 1:
            shown = " ".join(f"{row.item():.3f}" for row in rows)
            print(f"step {step} {time.monotonic() - began:.0f} s, loss {shown}", flush=True)
    about = {
        "general.name": "mtpcore demo dflash draft",
        "general.description": (
            "A small DFlash drafter for the mtpcore demo model. Trained by tools/train_dflash.py, "
            f"seed {args.seed}, {n_steps} steps of {N_ROWS * N_BLOCKS} blocks, on {len(stream)} "
            f"tokens of the standard library of CPython {platform.python_version()}; PyTorch "
            f"{torch.__version__}, {torch.get_num_threads()} threads."
        ),
        "general.license": "PSF-2.0",
        "general.license.link": "https://docs.python.org/3/license.html",
    }
    write_model(args.output, drafter, tokenizer, about)


def evaluate(args: argparse.Namespace) -> None:
    """Count accepted drafts in texts from held-out prompts, greedy and sampled."""
    target, drafter = mtpcore.load_model(TRUNK), mtpcore.load_model(args.output)
    prompts = [p["text"] for p in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    ways: tuple[tuple[float, Literal["coupled", "argmax"]], ...]
    ways = ((0.0, "coupled"), (1.0, "coupled"), (1.0, "argmax"))
    for temperature, how in ways:
        cross = mtpcore.link(mtpcore.Context(target, 320), draft_model=drafter)
        sampling = mtpcore.Sampling(temperature=temperature, seed=1)
        generator = mtpcore.Generator(cross, sampling=sampling, draft=args.draft, draft_sampler=how)
        for prompt in prompts:
            list(generator.generate(target.tokenizer.encode(prompt), max_tokens=args.tokens))
        stats = generator.stats
        rates = ", ".join(f"{rate:.3f}" for rate in stats.acceptance_per_position)
        print(
            f"temperature {temperature}, {how}: {stats.acceptance:.3f} of {stats.drafted} drafts "
            f"accepted, by position {rates}; {stats.tokens_per_pass:.2f} tokens a pass"
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluate", action="store_true", help="measure the file, train nothing")
    parser.add_argument("--output", type=Path, default=DRAFTER, help="the drafter's file")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draft", type=int, default=3, help="drafts of a round, to measure")
    parser.add_argument("--tokens", type=int, default=96, help="continuation measured per prompt")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
