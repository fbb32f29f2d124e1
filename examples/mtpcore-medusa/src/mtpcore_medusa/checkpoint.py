"""How Medusa heads are published, and what their model files call it."""

from collections.abc import Callable

from mtpcore.plugin import Checkpoint, Config, Count, Rename

MOST_BLOCKS = 8
"""Residual blocks that a head may have; those that are published have one."""


def n_residual(path: str) -> Callable[[Config], int]:
    """Return a source of metadata: how many residual blocks each head has, one where none says."""

    def read(config: Config) -> int:
        n = int(config.get(path, default=1, type=Count))
        if n > MOST_BLOCKS:
            raise ValueError(f"{path} is {n}, more than {MOST_BLOCKS}")
        return n

    return read


def of_target(name: str) -> Callable[[Config], int]:
    """Return a source of metadata: a size that heads have in common with their target."""
    return lambda config: (config.target or config).require(name, Count)


def every_head(when: Callable[[Config], bool]) -> Callable[[Config], range]:
    """Return a function that returns all heads, or none where ``when(config)`` is false."""
    return lambda config: range(config.n_layers if when(config) else 0)


def residual_block(
    b: int, source: str, n_blocks: Callable[[Config], int], *, optional_bias: bool = False
) -> tuple[Rename, ...]:
    """Return the renames of residual block b, of heads that have so many."""
    heads = every_head(lambda config: b < n_blocks(config))
    tensor = f"blk.{{n}}.medusa.{b}"
    return (
        Rename(f"{source}.weight", f"{tensor}.weight", layers=heads),
        Rename(f"{source}.bias", f"{tensor}.bias", layers=heads, optional=optional_bias),
    )


# The authors' own layout: the state of a list of heads, beside a configuration that says little.

_BLOCKS = n_residual("medusa_num_layers")


def output_after(n_blocks: int) -> Rename:
    """Return the rename of the output matrix of heads that have so many residual blocks.

    Heads of version 2, as text-generation-inference calls them, use the target's.
    """
    heads = every_head(
        lambda config: _BLOCKS(config) == n_blocks and str(config.get("version", default=1)) != "2"
    )
    return Rename(f"{{n}}.{n_blocks}.weight", "blk.{n}.output.weight", layers=heads)


AUTHORS = Checkpoint(
    architectures=frozenset(),
    requires=("medusa_num_heads",),
    layers="medusa_num_heads",
    heads="{n}.0.linear.weight",
    counts=("medusa_num_heads",),  # of the first ones it is 2, and there are 5
    tensors=tuple(
        rename
        for b in range(MOST_BLOCKS)
        for rename in (*residual_block(b, f"{{n}}.{b}.linear", _BLOCKS), output_after(b + 1))
    ),
    metadata=(
        ("{arch}.vocab_size", of_target("vocab_size")),
        ("{arch}.embedding_length", of_target("hidden_size")),
        ("{arch}.residual_block_count", _BLOCKS),
    ),
)

# vLLM's layout.

_LAYERS = n_residual("num_hidden_layers")

VLLM = Checkpoint(
    architectures=frozenset({"MedusaModel"}),
    layers="num_heads",
    heads="blocks.{n}.layers.0.weight",
    counts=("num_heads",),
    harmless=(
        ("max_paths topk", "how other engines draft"),
        ("max_seq_len truncated_vocab_size", "the tensors and the target say it"),
    ),
    tensors=(
        *(
            rename
            for b in range(MOST_BLOCKS)
            for rename in residual_block(b, f"blocks.{{n}}.layers.{b}", _LAYERS, optional_bias=True)
        ),
        Rename("lm_heads.{n}.weight", "blk.{n}.output.weight", optional=True),
        Rename("lm_head.weight", "output.weight", optional=True),
        Rename("token_map", "d2t", optional=True),
    ),
    metadata=(
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.residual_block_count", _LAYERS),
    ),
)
