"""Llama 1 to 3 and what shares their layer: Mistral, Mixtral, SmolLM, many others."""

from __future__ import annotations

from typing import Any, ClassVar

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import OUTPUT_TIE, attention_block, moe, swiglu, trunk_outputs
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.rope import Style
from mtpcore.spec import Fit, ModelSpec

__all__ = ["LLAMA", "LlamaHparams", "build"]


class LlamaHparams(Hparams, frozen=True, kw_only=True):
    """Some members have experts in every layer."""

    # Converters reorder q and k so that the halves of a pair are neighbours.
    rope_style: ClassVar[Style] = "pairs"

    experts: Experts | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, Any]:
        """Read how experts are routed: by softmax, the chosen ones summing to one."""
        return {"experts": Experts.read(fields, gate="softmax", normalise=True)}


def layer(g: GraphBuilder, x: Value, positions: Value, n: int, h: LlamaHparams) -> Value:
    """Add attention and feed-forward of layer n to the residual stream."""
    x = g.plus(x, attention_block(g, x, positions, n, h, factors="rope_freqs.weight"))
    f = g.rms_norm(x, f"blk.{n}.ffn_norm.weight", h.norm_eps)
    return g.plus(x, moe(g, f, n, h.experts) if h.experts else swiglu(g, f, n))


def build(g: GraphBuilder, inputs: Inputs, h: LlamaHparams) -> Outputs:
    """Build the trunk."""
    x = g.embed(inputs.tokens, "token_embd.weight", rows=True)
    for n in range(h.n_layers):
        x = layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    return trunk_outputs(g, x, h)


LLAMA = ModelSpec(
    name="llama",
    fit=Fit(
        architectures=frozenset({"llama"}), tensors=("token_embd.weight", "output_norm.weight")
    ),
    hparams=LlamaHparams.read,
    build=build,
    ties=(OUTPUT_TIE,),
)
