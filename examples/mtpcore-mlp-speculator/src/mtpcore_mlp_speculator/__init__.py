"""MLP and LSTM speculators: heads that carry a state of their own from step to step."""

from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, TreeShape, as_variant, first_of, hookimpl
from mtpcore_mlp_speculator.checkpoint import LSTM_CHECKPOINT, MLP_CHECKPOINT
from mtpcore_mlp_speculator.graph import Hparams, lstm_step, mlp_step

STATE = Feed(
    slot="state",
    taps=("hidden",),
    pairing="next-token",
    recycle="state",
    width="{arch}.embedding_length",
    evidence="the paper and vLLM: the first head reads the target's state after its last norm",
)
"""The first head reads a row of the target, the others the state that the one before made."""

MLP = DrafterSpec(
    name="mlp_speculator",
    fit=Fit(
        architectures=frozenset({"mlp-speculator"}),
        tensors=("blk.0.proj.weight", "blk.0.token_embd.weight", "blk.0.output.weight"),
    ),
    standalone=True,
    hparams=Hparams.read,
    build=mlp_step,
    feeds=(STATE,),
    heads=Heads(count="{arch}.block_count", order="each-step"),
    # Tied weights stand in the first block alone; of projections the second, for the first one
    # is of another width.
    ties=(
        first_of("blk.{n}.proj.weight", "blk.1.proj.weight"),
        first_of("blk.{n}.token_embd.weight", "blk.0.token_embd.weight"),
        first_of("blk.{n}.norm.weight", "blk.0.norm.weight"),
        first_of("blk.{n}.norm.bias", "blk.0.norm.bias"),
        first_of("blk.{n}.output.weight", "blk.0.output.weight"),
    ),
    checkpoint=MLP_CHECKPOINT,
    acceptance=(0.5, 0.8),
    evidence="Wertheimer et al. 2024 (arXiv 2404.19124), section 4: rates of the first token",
)
LSTM = DrafterSpec(
    name="lstm_speculator",
    fit=Fit(
        architectures=frozenset({"lstm-speculator"}),
        tensors=("blk.0.proj.weight", "blk.0.cell_norm.weight", "token_embd.weight"),
    ),
    standalone=True,
    hparams=Hparams.read,
    build=lstm_step,
    feeds=(
        STATE,
        # Not the target's: the cell begins with zeros.
        Feed(slot="cell", taps=(), recycle="cell", width="{arch}.embedding_length"),
    ),
    heads=Heads(count="{arch}.block_count", order="each-step"),
    ties=(first_of("blk.{n}.proj.weight", "blk.1.proj.weight"),),
    checkpoint=LSTM_CHECKPOINT,
    evidence="Snowflake's ArcticInference, arctic_speculator.py",
)
TREE = TreeShape(depth=4, width=4, n_nodes=12)
MLP_TREE, LSTM_TREE = (
    as_variant(
        spec,
        f"{spec.name}_tree",
        evidence="several candidates for each step, as the paper verifies them",
        shape="tree",
        tree=TREE,
    )
    for spec in (MLP, LSTM)
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer both, as chains and as trees."""
    return [MLP, LSTM, MLP_TREE, LSTM_TREE]
