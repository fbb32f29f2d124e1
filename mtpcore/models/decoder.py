"""Decoders: layers between the embeddings and the output matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mtpcore.declarations.spec import Fit
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import attention_block, feed_forward_block, trunk_outputs
from mtpcore.models.hparams import Hparams

__all__ = ["decoder", "dense_layer", "dense_trunk", "trunk_fit"]

H = TypeVar("H", bound=Hparams)


def trunk_fit(*architectures: str, also: tuple[str, ...] = ()) -> Fit:
    """Return the ``Fit`` of a decoder for these architectures; ``also`` are further tensors."""
    return Fit(
        architectures=frozenset(architectures),
        tensors=("token_embd.weight", "output_norm.weight", *also),
    )


def decoder(
    g: GraphBuilder,
    inputs: Inputs,
    h: H,
    layer: Callable[[GraphBuilder, Value, Value, int, H], Value],
    x: Value | None = None,
) -> Outputs:
    """Build a trunk from a layer; each layer's input can be tapped.

    Parameters
    ----------
    layer : callable
        ``layer(g, x, positions, n, h)`` returns the residual stream x, f32[n_tokens, width], with
        what block n adds to it.
    x : Value, optional
        f32[n_tokens, width], what enters the first layer; default: the tokens' embeddings.
    """
    if x is None:
        x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    for n in range(h.n_layers):
        x = layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    g.tap(f"layer_input:{h.n_layers}", x)  # what would enter one more layer
    return trunk_outputs(g, x, h)


def dense_layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: Hparams) -> Value:
    """Add attention and a dense feed-forward part to the residual stream."""
    x = g.add(x, attention_block(g, x, positions, n, h))
    return g.add(x, feed_forward_block(g, x, n, h))


def dense_trunk(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build a trunk of such layers."""
    return decoder(g, inputs, h, dense_layer)
