"""Hyper-parameters that decoder families share, read from metadata and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal, Self

import msgspec

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.errors import ModelFileError
from mtpcore.gguf import Tensor
from mtpcore.gguf.axes import fit_axes
from mtpcore.gguf.metadata import Fields, convert
from mtpcore.models.rope import Rope, Style

__all__ = ["Experts", "Hparams", "count_layers"]

_BEST_OF_GROUP = {"softmax": 1, "sigmoid": 2}
"""By how many experts a group is judged: DeepSeek-V2's way, which brought groups, and V3's."""

_GATES: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """How a mixture of experts routes; the fields are arguments of ``GraphBuilder.route``."""

    n_used: int
    gate: Literal["softmax", "sigmoid"]
    normalise: bool
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1
    n_best_of_group: int = 2

    @classmethod
    def read(
        cls, fields: Fields, *, gate: Literal["softmax", "sigmoid"], normalise: bool = False
    ) -> Experts | None:
        """Read ``{arch}.expert_*``; None where the model has no experts.

        ``gate`` and ``normalise`` are the family's, where the file does not say.
        """
        size = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
        if not fields.get("{arch}.expert_count", size, 0):
            return None
        code = fields.get("{arch}.expert_gating_func", size, None)
        if code and code not in _GATES:
            raise fields.error("{arch}.expert_gating_func", "unknown gate", wanted=_GATES, got=code)
        kind = _GATES[code] if code else gate
        # llama.cpp saves 0 for a family whose routing it does not read, and no norm beside it.
        said = fields.get("{arch}.norm_top_k_prob", bool, normalise)  # as Ollama writes it
        said = fields.get("{arch}.expert_weights_norm", bool, said)
        return cls(
            n_used=fields.require("{arch}.expert_used_count", Count),
            gate=kind,
            normalise=normalise if code == 0 else said,
            scale=fields.get("{arch}.expert_weights_scale", float, 1.0),
            n_groups=fields.get("{arch}.expert_group_count", size, 1),
            n_groups_used=fields.get("{arch}.expert_group_used_count", size, 1),
            n_best_of_group=_BEST_OF_GROUP[kind],
        )


class Hparams(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters of decoders; families add fields, with keys by ``msgspec.field(name=...)``.

    Attributes
    ----------
    rope_style, interleaves_axes, rounds_ramp, raises_scores
        How files of the family mean the rotation; see ``Rope.read``.
    n_vocab, n_layers, n_drafter_blocks, rope
        Found from tensors and several keys by ``read``: vocabulary, layers of the trunk alone,
        blocks of heads after them, rotation.
    width : int
        Of a row of the residual stream.
    n_heads, n_kv_heads, head_width : int
        Query heads, key and value heads, and the width of one.
    n_ctx_train : int
        Positions that the model was trained for.
    n_ctx_short : int, optional
        The longest context for which LongRoPE's short factors are, where the file has such.
    norm_eps : float
    """

    rope_style: ClassVar[Style] = "halves"
    interleaves_axes: ClassVar[bool] = False
    rounds_ramp: ClassVar[bool] = True
    raises_scores: ClassVar[bool] = False

    width: Count = msgspec.field(name="embedding_length")
    n_blocks: Depth = msgspec.field(name="block_count")
    n_ctx_train: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="context_length")
    n_heads: Count = msgspec.field(name="attention.head_count")
    n_kv_heads: Count = msgspec.field(name="attention.head_count_kv", default=0)
    head_width: Count = msgspec.field(name="attention.key_length", default=0)
    norm_eps: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="attention.layer_norm_rms_epsilon"
    )
    n_vocab: int = 0
    n_layers: int = 0
    n_drafter_blocks: int = 0
    n_ctx_short: int | None = None
    rope: Rope = Rope(frequencies=(), style="halves", axes=())

    def __post_init__(self) -> None:
        """Fill in what the file may leave out, and check that heads fit."""
        set_field = msgspec.structs.force_setattr
        if not self.n_kv_heads:
            set_field(self, "n_kv_heads", self.n_heads)
        if not self.head_width:
            if self.width % self.n_heads:
                raise ValueError(
                    f"{self.n_heads} heads do not divide a width of {self.width} evenly"
                )
            set_field(self, "head_width", self.width // self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} query heads do not share {self.n_kv_heads} key heads evenly"
            )

    @property
    def rotary_axes(self) -> int:
        """Axes of a position."""
        return self.rope.n_axes

    @property
    def table_width(self) -> int:
        """Width of the embedding table, where the graph projects its rows to ``width``."""
        return self.width

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a model's metadata; tensors decide where both speak.

        Raises
        ------
        ModelFileError
            A key is missing or out of range, or does not agree with the tensors.
        """
        hparams = cls._read(
            fields,
            tensors,
            cls.rope_style,
            interleaves_axes=cls.interleaves_axes,
            raises_scores=cls.raises_scores,
        )
        return msgspec.structs.replace(hparams, **cls.read_more(fields))

    @classmethod
    def _read(
        cls,
        fields: Fields,
        tensors: Mapping[str, Tensor],
        style: Style,
        *,
        interleaves_axes: bool = False,
        turns_fourth_axis: bool = False,
        raises_scores: bool = False,
    ) -> Self:
        """Read what all families have."""
        hparams = convert(fields, cls)
        n_layers, n_drafter_blocks = count_layers(fields, tensors, hparams.n_blocks)
        return msgspec.structs.replace(
            hparams,
            n_vocab=_count_vocabulary(fields, tensors, hparams.table_width),
            n_layers=n_layers,
            n_drafter_blocks=n_drafter_blocks,
            n_ctx_short=_read_short(fields, tensors, hparams.n_ctx_train),
            rope=Rope.read(
                fields,
                hparams.head_width,
                style,
                interleaved=interleaves_axes,
                turns_fourth=turns_fourth_axis,
                rounds_ramp=fields.get("{arch}.rope.scaling.truncate", bool, cls.rounds_ramp),
                raises_scores=raises_scores,
            ),
        )

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Return a family's fields that are not one key each."""
        return {}


def _read_short(fields: Fields, tensors: Mapping[str, Tensor], n_ctx_train: int) -> int | None:
    if "rope_factors_long.weight" not in tensors:
        return None
    key = "{arch}.rope.scaling.original_context_length"
    n_short: int = fields.get(key, Annotated[int, msgspec.Meta(ge=1)], n_ctx_train)
    return n_short


def count_layers(fields: Fields, tensors: Mapping[str, Tensor], n_blocks: int) -> tuple[int, int]:
    """Return how many layers the trunk has, and how many head blocks follow.

    ``block_count`` counts both. Blocks with ``nextn.eh_proj`` are heads; where a file lacks them
    ``nextn_predict_layers`` says how many were left out, unless the last blocks are layers after
    all: then ``block_count`` was corrected and the other key was not.
    """
    heads = _blocks_with(tensors, r"nextn\.eh_proj\.weight")
    layers = _blocks_with(tensors, ".+") - _blocks_with(tensors, r"nextn\..+")
    declared = fields.get(
        "{arch}.nextn_predict_layers", Annotated[int, msgspec.Meta(ge=0, le=1 << 20)], 0
    )
    n_held = min(max(layers, default=-1) + 1, n_blocks)
    n_layers = min(heads) if heads else max(n_blocks - declared, n_held)
    if not 1 <= n_layers <= n_blocks:
        raise fields.error(
            "{arch}.block_count",
            "no layers are left for the trunk, or heads lie after the last block",
            wanted=f"1 to {n_blocks} layers before the first head",
            got=n_layers,
        )
    if heads and (after := {n for n in layers if n > n_layers}):
        raise fields.error(
            "{arch}.block_count",
            "layers of the trunk lie after a head",
            wanted=f"none after block {n_layers}",
            got=", ".join(map(str, sorted(after)[:8])),
        )
    return n_layers, len(heads)


def _blocks_with(tensors: Iterable[str], rest: str) -> set[int]:
    """Return the blocks that have a tensor whose name goes on as this pattern says."""
    found = (re.fullmatch(rf"blk\.(\d{{1,6}})\.{rest}", name) for name in tensors)
    return {int(match[1]) for match in found if match}


def _count_vocabulary(fields: Fields, tensors: Mapping[str, Tensor], width: int) -> int:
    """Return the rows of the embedding table; where it is another file's, what the metadata says.

    Trunks always have one: it is among the tensors by which they are found.
    """
    table = tensors.get("token_embd.weight")
    if table is None:
        texts = fields.metadata.get("tokenizer.ggml.tokens")
        n_texts = len(texts) if isinstance(texts, list) else 0
        if n_vocab := fields.get("{arch}.vocab_size", Count, n_texts):
            return int(n_vocab)
    shape = None if table is None else fit_axes(table.shape, 2)
    if shape is None or len(shape) != 2 or shape[1] != width:
        raise ModelFileError(
            "no embedding table of the right width",
            where=f"{fields.file}: tensor 'token_embd.weight'",
            wanted=f"[n_vocab, {width}]",
            got=shape if shape is None else list(shape),
            fix="convert the model again, or give the right file",
        )
    return int(shape[0])
