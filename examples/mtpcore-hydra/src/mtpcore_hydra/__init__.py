"""Hydra: heads for each step that read the target's row and all tokens drafted before."""

import msgspec

from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, TreeShape, as_variant, first_of, hookimpl
from mtpcore_hydra.checkpoint import MLP, PREFIX_MLP
from mtpcore_hydra.graph import HydraHparams, head, prefix

_TENSORS = ("blk.{n}.hydra.residual.weight", "blk.{n}.hydra.0.weight", "blk.{n}.output.weight")
_PREFIX = "prefix.output_norm.weight"
_STATE = Feed(
    slot="state",
    taps=("hidden",),
    pairing="next-token",
    recycle="state",
    width="{arch}.state_length",
    evidence="the authors' code: the first head reads the row after the last norm of the token "
    "before the pending one, and each of them the embeddings of all tokens since",
)

HYDRA = DrafterSpec(
    name="hydra",
    fit=Fit(architectures=frozenset({"hydra"}), tensors=_TENSORS, absent=(_PREFIX,)),
    standalone=True,
    hparams=HydraHparams.read,
    build=head,
    feeds=(_STATE,),
    heads=Heads(order="each-step"),
    ties=(first_of("token_embd.weight", "target:token_embd.weight"),),
    checkpoint=MLP,
    evidence="Ankner et al. 2024 (arXiv 2402.05109)",
)

HYDRA_PREFIX = msgspec.structs.replace(
    HYDRA,
    name="hydra_prefix",
    fit=Fit(architectures=frozenset({"hydra"}), tensors=(*_TENSORS, _PREFIX)),
    graphs=(("prefix", prefix),),
    feeds=(
        Feed(slot="hidden", graph="prefix", taps=("hidden",), pairing="same-token"),
        msgspec.structs.replace(_STATE, src="prefix", taps=("prefix",)),
    ),
    checkpoint=PREFIX_MLP,
    evidence="the paper's Hydra++: a layer over the target's rows goes before the heads",
)

HYDRA_TREE, HYDRA_PREFIX_TREE = (
    as_variant(
        spec,
        f"{spec.name}_tree",
        evidence="the paper verifies several continuations of each draft",
        shape="tree",
        tree=TreeShape(depth=4, width=4, n_nodes=16),
    )
    for spec in (HYDRA, HYDRA_PREFIX)
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer both kinds of heads, as chains and as trees."""
    return [HYDRA, HYDRA_PREFIX, HYDRA_TREE, HYDRA_PREFIX_TREE]
