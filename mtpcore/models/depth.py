"""Models that write frames of codes: what they share after the trunk, a decoder of codes.

The depth decoder's tensors and metadata are the trunk's under ``depth.``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from mtpcore.declarations.checkpoint import Config, Key, Rename, TensorValues
from mtpcore.declarations.spec import Codebooks
from mtpcore.gguf.metadata import Fields, convert
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.hparams import Hparams
from mtpcore.models.published import MetadataKeys, in_heads, on_layers
from mtpcore.models.rope import Rope

__all__ = [
    "DEPTH_UNREAD",
    "CodebookHparams",
    "depth_config",
    "depth_decoder",
    "depth_keys",
    "in_depth",
]

DEPTH_UNREAD: tuple[tuple[str, str], ...] = (
    ("{arch}.depth.*feed_forward_length", "the matrices are so wide"),
    ("{arch}.depth.attention.value_length", "the matrices are so wide"),
)
"""Keys of a depth decoder that are not asked for, and why."""

_Code = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
_CodeCount = Annotated[int, msgspec.Meta(ge=2, le=1 << 24)]


class CodebookHparams(Hparams, frozen=True, kw_only=True):
    """Hyper-parameters of a trunk with codebooks, and of the decoder after it.

    Attributes
    ----------
    n_codebooks, n_codes : int
        Codes of a frame, and of each codebook.
    n_first : int
        Ids for first codes, as ``Codebooks.first_size``.
    end_code : int
        As ``Codebooks.end``.
    depth : Hparams
        The depth decoder's.
    """

    n_codebooks: Annotated[int, msgspec.Meta(ge=2, le=1 << 10)] = msgspec.field(
        name="codebook_count"
    )
    n_codes: _CodeCount = msgspec.field(name="codebook_size")
    n_first: _Code = msgspec.field(name="codebook_first_size", default=0)
    end_code: _Code = msgspec.field(name="codebook_end", default=0)
    depth: Hparams | None = None

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Return the depth decoder's, whose keys begin with ``{arch}.depth.``."""
        within = fields.within("depth")
        depth = convert(within, Hparams)
        rope = Rope.read(within, depth.head_width, cls.rope_style)
        return {"depth": msgspec.structs.replace(depth, n_layers=depth.n_blocks, rope=rope)}

    def codebooks(self, n_end: int = 1) -> Codebooks:
        """Return what a frame is; it ends the text where its first ``n_end`` codes do."""
        return Codebooks(
            count=self.n_codebooks,
            size=self.n_codes,
            first_size=self.n_first,
            end=self.end_code,
            n_end=n_end,
        )


def depth_decoder(
    g: GraphBuilder,
    inputs: Inputs,
    h: CodebookHparams,
    layer: Callable[[GraphBuilder, Value, Value, int, Hparams], Value],
) -> Outputs:
    """Build a depth decoder: the trunk's row, then the codes of a frame before each one.

    Position 0 holds the trunk's row, position p code p - 1 from part p - 1 of
    ``depth.audio_embd.weight``; matrix p - 1 of ``depth.output.weight`` makes the logits of code p.
    Rows are projected by ``depth.input`` where the file has it.

    Parameters
    ----------
    layer : callable
        As in ``decoder``, with the depth decoder's hyper-parameters.
    """
    d = h.depth
    assert d is not None
    x = g.embed_by_position(
        inputs.tokens,
        inputs.positions,
        "depth.audio_embd.weight",
        h.n_codebooks,
        first=1,
        n_first=h.n_first,
        embeddings=True,
    )
    with g.within("depth."):
        if g.has("input.weight"):
            x = g.matmul(x, "input.weight", "input.bias")
        for n in range(d.n_layers):
            x = layer(g, x, inputs.positions, n, d)
        hidden = g.tap("hidden", g.rms_norm(x, "output_norm.weight", d.norm_eps))
        logits = g.matmul_by_position(
            g.output_rows(hidden), inputs.positions, "output.weight", first=1
        )
    return Outputs(logits=logits)


def depth_config(config: Config, path: str) -> Config:
    """Return the depth decoder's configuration, which stands at ``path``."""
    return config.within(path)


def in_depth(path: str, prefix: str, *tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables for the depth decoder's layers.

    Parameters
    ----------
    path : str
        Of its configuration, which changes read.
    prefix : str
        With which names of its tensors begin in place of ``model.layers.{n}.``.
    """

    def changed(change: Callable[..., Any]) -> Callable[..., TensorValues]:
        return lambda values, config: change(values, depth_config(config, path))

    return tuple(
        msgspec.structs.replace(
            rename,
            tensor=f"depth.{rename.tensor}",
            change=changed(rename.change) if rename.change else None,
        )
        for rename in on_layers(
            lambda config: range(depth_config(config, path).n_layers), in_heads(prefix, *tables)
        )
    )


def depth_keys(path: str, *tables: MetadataKeys) -> MetadataKeys:
    """Return the metadata of some tables as the depth decoder's, and how many layers it has.

    Parameters
    ----------
    path : str
        Of its configuration.
    """

    def within(source: str | Key | Callable[[Config], object]) -> Callable[[Config], object]:
        def read(config: Config) -> object:
            own = depth_config(config, path)
            if isinstance(source, str):
                return own[source]
            if isinstance(source, Key):
                return own.get(source.name, default=source.default)
            return source(own)

        return read

    return (
        ("{arch}.depth.block_count", lambda config: depth_config(config, path).n_layers),
        *(
            (key.replace("{arch}", "{arch}.depth"), within(source))
            for table in tables
            for key, source in table
        ),
    )
