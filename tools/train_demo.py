"""Train the demo model from a seed, write it as GGUF, measure what was written.

    python tools/train_demo.py                # about half an hour of one core
    python tools/train_demo.py --evaluate     # a minute: measures the shipped file

The model is small but real: the GLM-4.5 architecture (`glm4moe`) with its NextN block, trunk and
head trained together on the sources of the running CPython's standard library (PSF licence; see
`demo/corpus.py` for what is left out), stored as Q8_0. The head learns to foresee the trunk: its
loss is the cross-entropy against the trunk's own distribution for the same place, which is what
acceptance asks of it, and it is trained on three draft steps, the later ones on its own outputs.

Seeded throughout; the same bits need the same CPython, PyTorch, CPU and number of threads. All
of this, and how far training went, is recorded in the file's `general.description`. A held-out
twentieth of the files gives the loss printed on the way and the 20 prompts of
`tests/data/demo/prompts.json`, on which `--evaluate` measures acceptance. Greedy text of so small
a model falls into loops, and loops are easy to draft: read the number together with the text.

Needs the extra `train` (PyTorch).
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from demo.corpus import choose_prompts, encode_files, read_corpus, train_tokenizer
from demo.measure import continue_greedily, measure
from demo.model_file import read_model, write_model
from demo.network import Network, Shape
from demo.optimizer import make_optimizers
from tokenizers import Tokenizer
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "mtpcore/data/demo.gguf"
PROMPTS = ROOT / "tests/data/demo/prompts.json"
README_PROMPT = "def read_config(path):"

N_BATCH = 2048  # tokens in a step
WEIGHTS = (0.5, 0.25, 0.15)  # of the draft steps' losses, beside the trunk's 1
BALANCE = 1e-3  # step of the correction bias


def losses(network: Network, tokens: Tensor, depth: int) -> list[Tensor]:
    """Return the trunk's loss and the head's for each draft step; `tokens` is [batch, n + 1].

    The steps after the first see half the batch: they cost as much as the first.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    embedding, hidden = network(inputs)
    logits = network.output(hidden)
    found = [F.cross_entropy(logits.flatten(0, 1), targets.flatten())]
    foreseen = torch.softmax(logits.detach(), dim=-1)
    half = len(tokens) if depth == 1 else len(tokens) // 2
    steps = network.head(embedding[:half], hidden[:half], depth)
    if depth > 1:
        first = network.head(embedding[half:], hidden[half:], 1)[0]
        steps[0] = torch.cat([steps[0], first])
    for j, u in enumerate(steps, start=1):
        wanted = foreseen[: len(u), j:].flatten(0, 1)
        found.append(F.cross_entropy(network.output(u).flatten(0, 1), wanted))
    return found


def draw_batch(stream: np.ndarray, n_ctx: int, rng: np.random.Generator) -> Tensor:
    """Cut windows of n_ctx + 1 tokens at random places."""
    starts = rng.integers(0, len(stream) - n_ctx - 1, size=N_BATCH // n_ctx)
    rows = stream[starts[:, None] + np.arange(n_ctx + 1)]
    return torch.from_numpy(rows.astype(np.int64))


@torch.no_grad()
def held_out_loss(network: Network, stream: np.ndarray) -> str:
    """Describe the losses on 16 fixed windows of held-out text."""
    network.eval()
    tokens = draw_batch(stream, 256, np.random.default_rng(0))
    found = " ".join(f"{loss:.3f}" for loss in losses(network, tokens, len(WEIGHTS)))
    network.train()
    return found


def train(args: argparse.Namespace) -> None:
    """Train, write the model and, beside the run, its checkpoints."""
    torch.manual_seed(args.seed)
    corpus = read_corpus()
    tokenizer = train_tokenizer([corpus.train[p] for p in sorted(corpus.train)], Shape.n_vocab)
    stream = encode_files(tokenizer, corpus.train, args.seed)
    held_out = encode_files(tokenizer, corpus.held_out, args.seed)
    if not args.keep_prompts:
        prompts = choose_prompts(tokenizer, corpus.held_out, 20, args.seed)
        PROMPTS.parent.mkdir(parents=True, exist_ok=True)
        PROMPTS.write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
    network = Network(Shape())
    n_weights = sum(p.numel() for p in network.parameters())
    print(f"{n_weights} weights; {len(stream)} tokens of text, {len(held_out)} held out")

    optimizers = make_optimizers(network, args.lr)
    rates = [[group["lr"] for group in o.param_groups] for o in optimizers]
    rng = np.random.default_rng(args.seed)
    network.train()
    began = time.monotonic()
    for step in range(args.steps):
        done = step / args.steps
        factor = min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for optimizer, base in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
        # Long windows and later draft steps cost more; they come when the basics are learned.
        tokens = draw_batch(stream, 512 if done >= 0.8 else 256, rng)
        depth = len(WEIGHTS) if done >= 0.5 else 1
        found = losses(network, tokens, depth)
        total = found[0] + sum(w * loss for w, loss in zip(WEIGHTS, found[1:], strict=False))
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        network.balance(BALANCE * factor)
        if step % 20 == 0:
            shown = " ".join(f"{loss.item():.3f}" for loss in found)
            print(f"step {step} {time.monotonic() - began:.0f} s, loss {shown}", flush=True)
        if (step + 1) % 200 == 0 or step + 1 == args.steps:
            print(f"step {step + 1} held-out loss {held_out_loss(network, held_out)}", flush=True)
            write(args, network, tokenizer, step + 1, len(stream))


def write(
    args: argparse.Namespace, network: Network, tokenizer: Tokenizer, n_steps: int, n_text: int
) -> None:
    """Write the model; before the last step to `--checkpoint`, if one is wanted."""
    path = args.model if n_steps == args.steps else args.checkpoint
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "general.name": "mtpcore demo",
        "general.description": (
            "A small model of the GLM-4.5 architecture with a NextN block that continues Python "
            f"source text. Trained by tools/train_demo.py, seed {args.seed}, {n_steps} of "
            f"{args.steps} steps of {N_BATCH} tokens, on {n_text} tokens of the standard library "
            f"of CPython {platform.python_version()}; PyTorch {torch.__version__}, "
            f"{torch.get_num_threads()} threads."
        ),
        "general.license": "PSF-2.0",
        "general.license.link": "https://docs.python.org/3/license.html",
    }
    write_model(path, network, tokenizer, about)


def evaluate(args: argparse.Namespace) -> None:
    """Measure the written file, its weights dequantised, on the held-out prompts."""
    network, tokenizer = read_model(args.model)
    prompts = [p["text"] for p in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    acceptance, texts = measure(network, tokenizer, prompts, args.tokens)
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"--- {prompt}>>>{text[len(prompt) :]}")
    ids = tokenizer.encode(README_PROMPT, add_special_tokens=False).ids
    print("--- " + tokenizer.decode(continue_greedily(network, ids, 200)))
    print(
        f"=== {args.model}: {args.model.stat().st_size} bytes; greedy text of {len(prompts)}"
        f" prompts, up to {args.tokens} tokens each"
    )
    print(acceptance.describe())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluate", action="store_true", help="measure the file, train nothing")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--checkpoint", type=Path, help="also written every 200 steps")
    parser.add_argument("--keep-prompts", action="store_true", help="leave prompts.json alone")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96, help="continuation measured per prompt")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
