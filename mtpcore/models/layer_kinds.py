"""Hyper-parameters of families whose layers have full or sliding-window attention."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.gguf.metadata import Fields
from mtpcore.models.hparams import Hparams
from mtpcore.models.rope import Rope, Style

__all__ = ["LayerKind", "MixedHparams", "windowed_blocks"]

_PATTERN = "{arch}.attention.sliding_window_pattern"


def windowed_blocks(
    fields: Fields,
    n_blocks: int,
    period: int | None = None,
    is_full_first: bool = False,
    heads: bool | None = None,
) -> list[bool]:
    """Return which blocks have a sliding window: a list says so, or of how many one sees all.

    Lists may end before the blocks of heads, as converters write what is published of the trunk.

    Parameters
    ----------
    fields : Fields
    n_blocks : int
        Those of a head included.
    period : int, optional
        The last of so many blocks sees all, where the file does not say, as in Gemma 3 every sixth;
        0: none does. Default: the file must say.
    is_full_first : bool
        Whether it is the first one.
    heads : bool, optional
        Whether heads have one, where no list counts them. Default: as the period says, or none
        after a list.

    Returns
    -------
    list of ``n_blocks`` flags

    Raises
    ------
    ModelFileError
        The key is missing, the list has another number of entries, or the period is out of range.
    """
    n_heads = fields.get("{arch}.nextn_predict_layers", Annotated[int, msgspec.Meta(ge=0)], 0)
    if isinstance(fields.metadata.get(fields.key(_PATTERN)), int):
        period = fields.require(_PATTERN, Annotated[int, msgspec.Meta(ge=0, le=1 << 10)])
    elif _PATTERN in fields or period is None:
        listed = fields.require(_PATTERN, list[bool] | bool)
        if isinstance(listed, list) and len(listed) == n_blocks - n_heads:
            return [*listed, *[bool(heads)] * n_heads]
        return fields.per_layer(_PATTERN, n_blocks, bool)
    full = 0 if is_full_first else period - 1
    near = [not period or n % period != full for n in range(n_blocks)]
    if heads is None:
        return near
    return [heads if n >= n_blocks - n_heads else is_near for n, is_near in enumerate(near)]


class LayerKind(msgspec.Struct, frozen=True):
    """Attention of one block, where blocks differ.

    ``window`` is how many tokens a query attends to, its own included; 0 is all. ``head_width`` is
    that of a key, and ``n_heads`` are its queries', where blocks differ in them; 0: those of
    ``Hparams``.
    """

    n_kv_heads: int
    rope: Rope
    window: int = 0
    head_width: int = 0
    n_heads: int = 0

    @classmethod
    def read(cls, fields: Fields, style: Style, period: int | None = None) -> tuple[LayerKind, ...]:
        """Read every block's kind, those of heads included.

        Blocks of ``{arch}.attention.sliding_window_pattern`` have a window, heads of the width
        ``{arch}.attention.key_length_swa``, and RoPE with the base ``{arch}.rope.freq_base_swa``
        (10,000), of so many dimensions as ``{arch}.rope.dimension_count_swa`` says. Where it does
        not, they are as many as in the others; of heads of a width of their own, all.

        Parameters
        ----------
        fields : Fields
        style : str
            As in ``Rope.read``.
        period : int, optional
            As in ``windowed_blocks``.

        Raises
        ------
        ModelFileError
            A key is missing, has another number of entries than there are blocks, or does not fit.
        """
        n_blocks = fields.require("{arch}.block_count", Depth)
        n_heads = fields.require("{arch}.attention.head_count", Count)
        pattern = windowed_blocks(fields, n_blocks, period)
        n_kv = fields.per_layer("{arch}.attention.head_count_kv", n_blocks, Count)
        if any(pattern):
            window = fields.require("{arch}.attention.sliding_window", Count)
        else:
            window = 0
            fields.dismiss("{arch}.attention.sliding_window")
        width = fields.require("{arch}.attention.key_length", Count)
        near_width = fields.get("{arch}.attention.key_length_swa", Count, width)
        own = "{arch}.rope.dimension_count_swa" in fields or near_width != width
        rope = Rope.read(fields, width, style)
        near_rope = Rope.read(
            fields,
            near_width,
            style,
            "freq_base_swa",
            width_key="dimension_count_swa" if own else "dimension_count",
            scaled=False,
        )
        for n, count in enumerate(n_kv):
            if n_heads % count:
                raise fields.error(
                    "{arch}.attention.head_count_kv",
                    f"the query heads of block {n} do not share its key heads evenly",
                    wanted=f"a divisor of {n_heads}",
                    got=count,
                )
        return tuple(
            cls(count, near_rope, window, near_width) if is_near else cls(count, rope, 0, width)
            for count, is_near in zip(n_kv, pattern, strict=True)
        )


class MixedHparams(Hparams, frozen=True, kw_only=True):
    """Hyper-parameters of such families: ``kinds`` says how each block attends.

    ``period`` is the family's pattern, where its files have none; see ``windowed_blocks``.
    """

    period: ClassVar[int | None] = None

    # The key holds one number for each block; see ``kinds``.
    n_kv_heads: int = msgspec.field(name="n_kv_heads", default=0)
    kinds: tuple[LayerKind, ...] = ()

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read each block's kind."""
        return {"kinds": LayerKind.read(fields, cls.rope_style, cls.period)}
