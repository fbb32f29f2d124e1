"""The parts of NextN heads around their layer, as GLM and DeepSeek publish them.

``x = eh_proj [rms(embedding of token p), rms(hidden row p - 1)]``, a layer of the family,
``u = rms(x; shared_head_norm)``, logits ``shared_head_head u``. ``{n}`` is the head's block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from mtpcore.declarations.spec import DrafterSpec, Feed, Fit, Tie, first_of
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import ROUTER_TYPE
from mtpcore.models.hparams import Hparams

__all__ = [
    "LAYER_NORM_TIES",
    "NEXTN_TENSORS",
    "NEXTN_TIES",
    "nextn_fit",
    "nextn_head",
    "nextn_input",
    "nextn_outputs",
    "nextn_spec",
]

H = TypeVar("H", bound=Hparams)

NEXTN_TENSORS: tuple[str, ...] = (
    "blk.{n}.nextn.eh_proj.weight",
    "blk.{n}.nextn.enorm.weight",
    "blk.{n}.nextn.hnorm.weight",
)
"""Tensors by which such a head is found."""

NEXTN_TIES: tuple[Tie, ...] = (
    first_of("blk.{n}.nextn.embed_tokens.weight", "token_embd.weight"),
    first_of("blk.{n}.nextn.shared_head_head.weight", "output.weight", "token_embd.weight"),
    first_of("blk.{n}.nextn.shared_head_norm.weight", "output_norm.weight"),
)
"""Tables and norm are the head's own where the file has them, else the trunk's."""

LAYER_NORM_TIES: tuple[Tie, ...] = (
    *NEXTN_TIES[:-1],
    first_of(
        "blk.{n}.nextn.shared_head_norm.weight",
        "blk.{n}.layer_output_norm.weight",
        "output_norm.weight",
    ),
)
"""The same where the head's norm may be called the layer's (Ling's ``final_layernorm``)."""


def nextn_fit(*architectures: str, also: tuple[str, ...] = ()) -> Fit:
    """Return the ``Fit`` of a NextN head for these architectures; ``also`` are further tensors."""
    return Fit(
        architectures=frozenset(architectures),
        tensors=(*NEXTN_TENSORS, *also),
        count_key="{arch}.nextn_predict_layers",
        sidecars=("mtp-*.gguf",),
    )


def nextn_spec(
    architecture: str,
    build: Callable[[GraphBuilder, Inputs, Any], Outputs],
    *,
    state: Literal["hidden", "residual"] = "hidden",
    ties: tuple[Tie, ...] = NEXTN_TIES,
    source: str = "llama.cpp's draft-mtp",
    **more: Any,
) -> DrafterSpec:
    """Declare the NextN head of a trunk that has experts and is held against llama.cpp's logits.

    Parameters
    ----------
    architecture : str
        Of the files.
    build : callable
        The head's graph.
    state : {"hidden", "residual"}
        The state of the trunk that is fed; the head's own is recycled.
    ties : tuple of Tie
    source : str
        Who feeds this state.
    **more
        Further fields of ``DrafterSpec``.
    """
    feed = Feed(
        slot="hidden",
        taps=(state,),
        recycle=state,
        evidence=f"{source} feeds this state of the trunk, and recycles the head's",
    )
    declared: dict[str, Any] = {"fit": nextn_fit(architecture), "min_types": (ROUTER_TYPE,)} | more
    return DrafterSpec(
        name=f"{architecture}_nextn",
        build=build,
        feeds=(feed,),
        ties=ties,
        evidence="random models: logits are those of llama.cpp, of its graph of the head or of the "
        "block as a layer",
        **declared,
    )


def nextn_input(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Value:
    """Join each token's embedding with the row of the slot ``hidden``: f32[n_tokens, width].

    Where the trunk read an embedding row, that row is joined.
    """
    token = g.embed(inputs.tokens, "blk.{n}.nextn.embed_tokens.weight", embeddings=True)
    token = g.rms_norm(token, "blk.{n}.nextn.enorm.weight", h.norm_eps)
    hidden = g.rms_norm(inputs["hidden"], "blk.{n}.nextn.hnorm.weight", h.norm_eps)
    return g.matmul(g.concat(token, hidden), "blk.{n}.nextn.eh_proj.weight")


def nextn_outputs(g: GraphBuilder, x: Value, h: Hparams, **rows: Value) -> Outputs:
    """Return logits of the output rows, ``hidden`` (after the head's norm) and further rows."""
    hidden = g.rms_norm(x, "blk.{n}.nextn.shared_head_norm.weight", h.norm_eps)
    logits = g.matmul(g.output_rows(hidden), "blk.{n}.nextn.shared_head_head.weight")
    return Outputs(logits=logits, hidden=hidden, **rows)


def nextn_head(
    g: GraphBuilder,
    inputs: Inputs,
    h: H,
    layer: Callable[[GraphBuilder, Value, Value, int, H], Value],
) -> Outputs:
    """Build a head around a layer of the family: the function that ``decoder`` takes."""
    x = nextn_input(g, inputs, h)
    return nextn_outputs(g, layer(g, x, inputs.positions, g.n, h), h)
