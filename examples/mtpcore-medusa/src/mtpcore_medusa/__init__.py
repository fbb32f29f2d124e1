"""Medusa: heads that all read the target's newest row, each for another token ahead."""

from itertools import product
from math import prod

from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, TreeShape, as_variant, first_of, hookimpl
from mtpcore_medusa.checkpoint import AUTHORS, VLLM
from mtpcore_medusa.graph import Hparams, head

MEDUSA = DrafterSpec(
    name="medusa",
    fit=Fit(architectures=frozenset({"medusa"}), tensors=("blk.{n}.medusa.0.weight",)),
    standalone=True,
    hparams=Hparams.read,
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            pairing="next-token",
            evidence="the paper, its code and vLLM: the row after the last norm",
        ),
    ),
    heads=Heads(order="each-step", hidden_from="target"),
    ties=(
        first_of(
            "blk.{n}.output.weight",
            "output.weight",
            "target:output.weight",
            "target:token_embd.weight",
        ),
    ),
    vocabulary="d2t",
    checkpoint=AUTHORS,
    layouts=(VLLM,),
    evidence="Cai et al. 2024 (arXiv 2401.10774)",
)


def likely_paths(depth: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Return the paths of a tree: those whose ranks r have a product of (r + 1) up to ``most``.

    If the r-th best token is right 1 / (r + 1) times as often as the best one, these are the
    likeliest: the heads do not see what was drafted before, so that ranks are all there is.
    """
    ranks = [path for n in range(1, depth + 1) for path in product(range(most), repeat=n)]
    return tuple(path for path in ranks if prod(rank + 1 for rank in path) <= most)


MEDUSA_TREE = as_variant(
    MEDUSA,
    "medusa_tree",
    evidence="the paper verifies fixed trees of the heads' best tokens",
    shape="tree",
    tree=TreeShape(paths=likely_paths(depth=4, most=3)),
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the heads, as a chain and as a tree."""
    return [MEDUSA, MEDUSA_TREE]
