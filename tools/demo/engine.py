"""What mtpcore makes of a written file, beside what PyTorch makes of it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

import mtpcore

N_CTX = 320


@torch.no_grad()
def compare(
    paths: Sequence[Path],
    network: nn.Module,
    tokenizer: Tokenizer,
    prompts: list[str],
    texts: list[str],
    n_draft: int,
) -> str:
    """Describe how far the logits along the texts differ, and mtpcore's own draft rounds.

    The logits are those of the reference backend, which like PyTorch multiplies by dequantised
    weights; the rounds are those of the CPU's kernels, which also round what they multiply.

    Parameters
    ----------
    paths
        The model, and the drafter if it has a file of its own.
    texts
        Prompts and continuations, as `measure` returns them.
    """
    model, *drafters = [mtpcore.load_model(path) for path in paths]
    differs = 0.0
    for text in texts:
        context = mtpcore.Context(model, N_CTX, kv_dtype="f32", backend="reference")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found = context.process(mtpcore.Batch.of(ids, outputs="all")).logits
        wanted = network.output(network(torch.tensor([ids])).hidden[0])
        differs = max(differs, float((torch.from_numpy(found.copy()) - wanted).abs().max()))
    cross = mtpcore.link(
        mtpcore.Context(model, N_CTX), draft_model=drafters[0] if drafters else None
    )
    generator = mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=n_draft)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        n_text = len(tokenizer.encode(text, add_special_tokens=False).ids) - len(ids)
        list(generator.generate(ids, max_tokens=n_text))
    stats = generator.stats
    rates = ", ".join(f"{rate:.3f}" for rate in stats.acceptance_per_position)
    return (
        f"mtpcore: logits differ by at most {differs:.2g}; {stats.passes} passes of {n_draft} "
        f"drafts, accepted by position {rates}; {stats.tokens_per_pass:.2f} tokens a pass"
    )
