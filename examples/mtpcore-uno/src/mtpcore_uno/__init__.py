"""Uno: the target drafts for itself, with an adapter (LoRA) on rows of noise."""

from mtpcore.plugin import Block, DrafterSpec, Fit, Noise, draft_block_tree, hookimpl

UNO = DrafterSpec(
    name="uno",
    fit=Fit(),
    adapter=True,
    shape="block",
    block=Block(size=8, mask=Noise(first=1)),
    schedule=draft_block_tree,
    acceptance=(0.99, 1.0),  # the first row is the target's own
    evidence="s-sahoo/uno-qwen3-8B was trained for noise of tokens 1 to 151668, those that Qwen3 "
    "uses, and is run with blocks of 8",
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the drafter, for every model that is given an adapter of the kind."""
    return [UNO]
