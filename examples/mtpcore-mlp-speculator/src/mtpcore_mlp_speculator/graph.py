"""One step of each speculator, and the numbers that they are built with."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from mtpcore.plugin import Fields, GraphBuilder, Inputs, Outputs, Value

EPS = 1e-6


class Hparams(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of a speculator.

    ``width`` is the state's, ``target_width`` that of the target's rows. ``n_predict`` is the
    number of steps that it was trained with.
    """

    n_vocab: int
    width: int
    target_width: int
    n_predict: int
    scale_input: bool

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read the metadata; raise ModelFileError for numbers that are missing or impossible."""
        names = ("token_embd.weight", "blk.0.token_embd.weight")
        table = next(tensors[name] for name in names if name in tensors)
        width = fields.require("{arch}.embedding_length", int)
        n_predict = fields.require("{arch}.block_count", int)
        if width < 1 or n_predict < 1:
            raise fields.error(
                "{arch}.embedding_length",
                "no speculator of this size",
                wanted="a width and steps of 1 or more",
                got=f"{width}, {n_predict}",
            )
        return cls(
            n_vocab=table.shape[0],
            width=width,
            target_width=tensors["blk.0.proj.weight"].shape[1],
            n_predict=n_predict,
            scale_input=fields.get("{arch}.scale_input", bool, False),
        )

    @property
    def token_weight(self) -> float:
        """How much a token counts beside the state."""
        state: float = 0.5 ** (0.5 / self.n_predict)
        token: float = ((1 - state**2) * self.width / 2) ** 0.5
        return token / state


def _entering(g: GraphBuilder, state: Value, h: Hparams) -> Value:
    """Return what enters a step: of the first one the target's row, scaled if the file says so."""
    if g.n == 0 and h.scale_input:
        state = g.scale(g.rms_norm(state, None, EPS), 0.5**0.5)
    return g.matmul(state, "blk.{n}.proj.weight")


def _norm(g: GraphBuilder, x: Value, name: str) -> Value:
    return g.shift_by(g.rms_norm(x, f"{name}.weight", EPS), f"{name}.bias")


def mlp_step(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Make a new state of the last one and the token."""
    token = g.embed(inputs.tokens, "blk.{n}.token_embd.weight", scale=h.token_weight)
    x = g.add(_entering(g, inputs["state"], h), token)
    x = g.activation(_norm(g, x, "blk.{n}.norm"), "gelu")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.output.weight"), state=x)


def lstm_step(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Forget, write and read a cell, as the state and the token say."""
    d = h.width
    token = g.embed(inputs.tokens, "token_embd.weight", scale=h.token_weight)
    x = g.add(_entering(g, inputs["state"], h), g.concat(token, token, token, token))
    forget, write, read = (
        g.activation(g.slice(x, i * d, (i + 1) * d), "sigmoid") for i in range(3)
    )
    new = g.activation(_norm(g, g.slice(x, 3 * d, 4 * d), "blk.0.cell_norm"), "gelu")
    cell = g.add(g.mul(inputs["cell"], forget), g.mul(new, write))
    state = g.mul(g.activation(_norm(g, cell, "blk.0.state_norm"), "gelu"), read)
    logits = g.matmul(g.output_rows(state), "output.weight")
    return Outputs(logits=logits, state=state, cell=cell)
