"""Train a family's demo model from a seed, write it as GGUF, measure what was written.

    python tools/train_demo.py --family mimo               # 10 to 30 minutes of one core
    python tools/train_demo.py --family mimo --evaluate    # a minute: measures the shipped file

The models are small but real: `glm` (the default, `mtpcore run demo`), `deepseek`, `mimo` and
`mimo2`, trunk and heads trained together; `eagle3`, a Llama and then a head for it as it is, each
in a file of its own; `small`, a draft model for `glm` as it is. The text is the sources of the
running CPython's standard library (PSF licence; see `demo/corpus.py` for what is left out), the
weights are stored as Q8_0. A drafter learns to foresee its trunk: its loss is the cross-entropy
against the trunk's own distribution for the same place, which is what acceptance asks of it. A head
is trained on three draft steps, the later ones on its own outputs.

Seeded throughout; the same bits need the same CPython, PyTorch, CPU and number of threads. All
of this, and how far training went, is recorded in each file's `general.description`. A held-out
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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from demo.corpus import choose_prompts, encode_files, read_corpus, train_tokenizer
from demo.engine import compare
from demo.families import FAMILIES
from demo.measure import N_STEPS, continue_greedily, measure
from demo.model_file import read_model, write_model
from demo.network import Shape, Stage
from demo.optimizer import make_optimizers
from tokenizers import Tokenizer
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ("glm", "small")
"""Families in mtpcore itself; the others are in a package of their own."""
PROMPTS = ROOT / "tests/data/demo/prompts.json"
README_PROMPT = "def read_config(path):"

WEIGHTS = (0.5, 0.25, 0.15)  # of the draft steps' losses, beside the trunk's 1
BALANCE = 1e-3  # step of the correction bias


def losses(network: nn.Module, tokens: Tensor, depth: int) -> list[Tensor]:
    """Return the trunk's loss and the head's for each draft step; `tokens` is [batch, n + 1].

    The steps after the first see half the batch: they cost as much as the first.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    embedding, hidden, seen = network(inputs)
    logits = network.output(hidden)
    found = [F.cross_entropy(logits.flatten(0, 1), targets.flatten())]
    if depth == 0:
        return found
    foreseen = network.narrow(torch.softmax(logits.detach(), dim=-1))
    half = len(tokens) if depth == 1 else len(tokens) // 2
    steps = network.draft(embedding[:half], seen[:half], depth)
    if depth > 1:
        first = network.draft(embedding[half:], seen[half:], 1)[0]
        steps[0] = torch.cat([steps[0], first])
    for j, u in enumerate(steps, start=1):
        wanted = foreseen[: len(u), j:].flatten(0, 1)
        found.append(F.cross_entropy(network.foresee(u).flatten(0, 1), wanted))
    return found


def draw_batch(stream: np.ndarray, n_rows: int, n_ctx: int, rng: np.random.Generator) -> Tensor:
    """Cut windows of n_ctx + 1 tokens at random places."""
    starts = rng.integers(0, len(stream) - n_ctx - 1, size=n_rows)
    rows = stream[starts[:, None] + np.arange(n_ctx + 1)]
    return torch.from_numpy(rows.astype(np.int64))


@torch.no_grad()
def held_out_loss(network: nn.Module, stream: np.ndarray) -> str:
    """Describe the losses on 8 fixed windows of held-out text."""
    network.eval()
    tokens = draw_batch(stream, 8, 256, np.random.default_rng(0))
    found = " ".join(f"{loss:.3f}" for loss in losses(network, tokens, len(WEIGHTS)))
    network.train()
    return found


def make_network(args: argparse.Namespace) -> nn.Module:
    """Make the family's network; a target that is trained already is read."""
    family = FAMILIES[args.family]
    network = family.network()
    if family.target:
        read_model(args.models / family.target, network.target)
    return network


def train(args: argparse.Namespace) -> None:
    """Train stage by stage, write the files and, beside the run, their checkpoints."""
    torch.manual_seed(args.seed)
    family = FAMILIES[args.family]
    torch.set_float32_matmul_precision(family.precision)
    corpus = read_corpus()
    tokenizer = train_tokenizer([corpus.train[p] for p in sorted(corpus.train)], Shape.n_vocab)
    stream = encode_files(tokenizer, corpus.train, args.seed)
    held_out = encode_files(tokenizer, corpus.held_out, args.seed)
    if not args.keep_prompts:
        prompts = choose_prompts(tokenizer, corpus.held_out, 20, args.seed)
        PROMPTS.parent.mkdir(parents=True, exist_ok=True)
        PROMPTS.write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
    network = make_network(args)
    network.count(stream)
    n_weights = sum(p.numel() for p in network.parameters())
    print(f"{n_weights} weights; {len(stream)} tokens of text, {len(held_out)} held out")

    rng = np.random.default_rng(args.seed)
    for stage, n_steps in zip(network.stages(), args.steps, strict=True):
        network.requires_grad_(False)
        stage.trained.requires_grad_(True)
        for step in train_stage(args, network, stage, n_steps, stream, rng):
            if step % 200 == 0 or step == n_steps:
                print(f"step {step} held-out loss {held_out_loss(network, held_out)}", flush=True)
                if args.checkpoint is not None:
                    write(args, args.checkpoint, network, tokenizer, len(stream))
    write(args, args.models, network, tokenizer, len(stream))


def train_stage(
    args: argparse.Namespace,
    network: nn.Module,
    stage: Stage,
    n_steps: int,
    stream: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[int]:
    """Train `stage.trained` for `n_steps`, yield the number of steps taken after each."""
    optimizers = make_optimizers(stage.trained, args.lr)
    rates = [[group["lr"] for group in o.param_groups] for o in optimizers]
    network.train()
    began = time.monotonic()
    for step in range(n_steps):
        done = step / n_steps
        factor = min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for optimizer, base in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
        # Long windows and later draft steps cost more; they come when the basics are learned.
        n_ctx = 512 if done >= 0.8 else 256
        tokens = draw_batch(stream, FAMILIES[args.family].n_batch // n_ctx, n_ctx, rng)
        found = losses(network, tokens, stage.later_depth if done >= 0.5 else stage.depth)
        total = found[0] + sum(w * loss for w, loss in zip(WEIGHTS, found[1:], strict=False))
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(stage.trained.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        network.balance(BALANCE * factor)
        if step % 20 == 0:
            shown = " ".join(f"{loss.item():.3f}" for loss in found)
            print(f"step {step} {time.monotonic() - began:.0f} s, loss {shown}", flush=True)
        yield step + 1


def write(
    args: argparse.Namespace, folder: Path, network: nn.Module, tokenizer: Tokenizer, n_text: int
) -> None:
    """Write the family's files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[args.family]
    steps = " + ".join(str(n) for n in args.steps)
    for name, part in zip(family.files, network.files(), strict=True):
        about = {
            "general.name": f"mtpcore {Path(name).stem.replace('-', ' ')}",
            "general.description": (
                f"A small model of the {part.title} that continues Python source text. Trained "
                f"by tools/train_demo.py --family {args.family}, seed {args.seed}, {steps} steps "
                f"of {family.n_batch} tokens, on {n_text} tokens of the standard library of "
                f"CPython {platform.python_version()}; PyTorch {torch.__version__}, "
                f"{torch.get_num_threads()} threads."
            ),
            "general.license": "PSF-2.0",
            "general.license.link": "https://docs.python.org/3/license.html",
        }
        write_model(folder / name, part, tokenizer, about)


def evaluate(args: argparse.Namespace) -> None:
    """Measure the written files, their weights dequantised, on the held-out prompts."""
    family = FAMILIES[args.family]
    network = make_network(args)
    for name, part in zip(family.files, network.files(), strict=True):
        tokenizer = read_model(args.models / name, part)
    network.eval()
    prompts = [p["text"] for p in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    acceptance, texts = measure(network, tokenizer, prompts, args.tokens)
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"--- {prompt}>>>{text[len(prompt) :]}")
    ids = tokenizer.encode(README_PROMPT, add_special_tokens=False).ids
    print("--- " + tokenizer.decode(continue_greedily(network, ids, 200)))
    sizes = ", ".join(f"{n}: {(args.models / n).stat().st_size} bytes" for n in family.files)
    print(f"=== {sizes}; greedy text of {len(prompts)} prompts, up to {args.tokens} tokens each")
    print(acceptance.describe())
    paths = [args.models / name for name in (family.target, *family.files) if name]
    print(compare(paths, network, tokenizer, prompts, texts, N_STEPS))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="glm")
    parser.add_argument("--evaluate", action="store_true", help="measure the files, train nothing")
    parser.add_argument("--models", type=Path, help="folder of the files; default: the package's")
    parser.add_argument("--checkpoint", type=Path, help="folder also written to every 200 steps")
    parser.add_argument("--keep-prompts", action="store_true", help="leave prompts.json alone")
    parser.add_argument("--steps", type=int, nargs="+", help="of each stage; default: the family's")
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96, help="continuation measured per prompt")
    args = parser.parse_args()
    own = "mtpcore/data" if args.family in PACKAGED else "demos/mtpcore_demos"
    args.models = args.models or ROOT / own
    args.steps = args.steps or FAMILIES[args.family].n_steps
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
