"""How Hydra heads are published, and what their model files call it.

The authors' code saves the state of the heads, ``hydra_lm_head.pt``, beside a configuration that
names the target and says neither sizes nor an architecture (github.com/zankner/Hydra).
"""

from collections.abc import Callable

import msgspec

from mtpcore.plugin import (
    ATTENTION,
    DECODER,
    ROPE_KEYS,
    SWIGLU,
    Checkpoint,
    Config,
    Count,
    Key,
    Rename,
    block_renames,
)

MOST_BLOCKS = 8
"""Blocks that a head may have; those that are published have four."""


def n_residual(config: Config) -> int:
    """Return how many blocks each head has."""
    n: int = config.require("hydra_num_layers", Count)
    if n > MOST_BLOCKS:
        raise ValueError(f"hydra_num_layers is {n}, more than {MOST_BLOCKS}")
    return n


def of_target(source: str | Key | Callable[[Config], object]) -> Callable[[Config], object]:
    """Return a source of metadata that asks the target's configuration."""

    def read(config: Config) -> object:
        target = config.target or config
        if isinstance(source, Key):
            return target.get(source.name, default=source.default)
        return target.require(source) if isinstance(source, str) else source(target)

    return read


def state_length(config: Config) -> int:
    """Return how many values heads hand on: a row of the target's width for each head."""
    width: int = (config.target or config).require("hidden_size", Count)
    return config.n_layers * width


def heads(first: int, step: int, output: str) -> tuple[Rename, ...]:
    """Return the renames of heads whose blocks are numbered so, with this output matrix."""
    renames = []
    for b in range(MOST_BLOCKS):
        source = f"hydra_mlp.{{n}}.{first + step * b}.linear"
        blocks = _heads_with(b)
        renames += [
            Rename(f"{source}.{part}", f"blk.{{n}}.hydra.{b}.{part}", layers=blocks)
            for part in ("weight", "bias")
        ]
    entry = f"hydra_mlp.{{n}}.{first}.res_connection"
    renames += [
        Rename(f"{source}.{part}", f"blk.{{n}}.{tensor}.{part}")
        for source, tensor in ((entry, "hydra.residual"), (output, "output"))
        for part in ("weight", "bias")
    ]
    return tuple(renames)


def _heads_with(b: int) -> Callable[[Config], range]:
    """Return a function that returns the heads that have block b: all, or none."""
    return lambda config: range(config.n_layers if b < n_residual(config) else 0)


MLP = Checkpoint(
    architectures=frozenset(),
    requires=("hydra_num_heads", "grounded_heads"),
    layers="hydra_num_heads",
    heads="hydra_mlp.{n}.0.linear.weight",
    counts=("hydra_num_heads",),
    tensors=heads(0, 1, "hydra_lm_head.{n}"),
    constants=(
        ("hydra_head_arch", ("mlp",)),
        ("grounded_heads", (True,)),  # others are Medusa's
        ("hidden_state_offset", (0,)),
    ),
    metadata=(
        ("{arch}.vocab_size", of_target("vocab_size")),
        *((key, of_target(source)) for key, source in (*DECODER, *ROPE_KEYS)),
        ("{arch}.residual_block_count", n_residual),
        ("{arch}.state_length", state_length),
    ),
)

_LAYER = block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"})
_PREFIX = "prefix_embeding_layer."

PREFIX_MLP = msgspec.structs.replace(
    MLP,
    has=f"{_PREFIX}norm.weight",
    heads="hydra_mlp.{n}.1.linear.weight",  # after a dropout, as all other blocks
    tensors=(
        *heads(1, 2, "hydra_lm_head.{n}.1"),
        *(
            Rename(
                rename.source.replace("model.layers.{n}.", f"{_PREFIX}layers.0."),
                rename.tensor.replace("blk.{n}.", "prefix.blk.0."),
            )
            for rename in (*ATTENTION, *_LAYER, *SWIGLU)
        ),
        Rename(f"{_PREFIX}norm.weight", "prefix.output_norm.weight"),
    ),
    dropped=(f"{_PREFIX}embed_tokens.weight", f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq"),
    constants=(("hydra_head_arch", ("prefix-mlp",)), *MLP.constants[1:]),
)
