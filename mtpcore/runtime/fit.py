"""Which drafters a model file holds, by its tensors, and what their declarations mean for it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec

from mtpcore.boundary.arguments import read
from mtpcore.declarations.checkpoint import Key
from mtpcore.declarations.spec import (
    Block,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    ModelSizes,
    ModelSpec,
    Noise,
)
from mtpcore.errors import MtpcoreError, PluginError, spell
from mtpcore.gguf import Fields

__all__ = [
    "FittedDrafter",
    "block_of",
    "fit_drafter",
    "fits",
    "fits_architecture",
    "holds",
    "lacking",
    "named_keys",
    "read_hparams",
]

log = logging.getLogger("mtpcore")

_Layer = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_HeadCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_BLOCK_SIZES = {
    drafts_first: Annotated[int, msgspec.Meta(ge=least, le=1 << 10, description=f"{least}..1024")]
    for drafts_first, least in ((True, 1), (False, 2))
}
"""Rows of a block, by whether the first one drafts."""
_PassCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 10, description="1..1024")]
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_One = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1, description="an int in 1..2**31 - 1")]
_Some = Annotated[int, msgspec.Meta(ge=0, le=1 << 20, description=f"an int in 0..{1 << 20}")]
_SIZES = {
    "n_vocab": _One,
    "width": _One,
    "n_layers": _Some,
    "n_drafter_blocks": _Some,
    "rotary_axes": _One,
    "target_width": _One,
    "start_token": _Some,
}
"""What is read of hyper-parameters outside of a family's own graphs."""

_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


class FittedDrafter(msgspec.Struct, frozen=True):
    """A drafter that a file holds.

    ``spec`` has numbers in place of metadata keys; ``first_block`` is the block of head 0;
    ``hparams`` are what its graphs are built with.
    """

    spec: DrafterSpec
    first_block: int
    hparams: Any

    @property
    def n_heads(self) -> int:
        """How many heads there are."""
        return cast(int, self.spec.heads.count)


class HeadHparams:
    """A head's own hyper-parameters, and after them the trunk's: those that it lacks."""

    def __init__(self, own: object, trunk: object) -> None:
        self._own, self._trunk = own, trunk

    def __getattr__(self, name: str) -> Any:
        """Return the head's value, or the trunk's where it has none."""
        try:
            return getattr(self._own, name)
        except AttributeError:
            return getattr(self._trunk, name)


def block_of(tensor: str) -> int | None:
    """Return the block that a tensor belongs to, or None."""
    match = _BLOCK.match(tensor)
    return int(match[1]) if match else None


def fits_architecture(spec: ModelSpec | DrafterSpec, architecture: str) -> bool:
    """Say whether an architecture is a spec's."""
    return not spec.fit.architectures or architecture in spec.fit.architectures


def fits(spec: ModelSpec | DrafterSpec, architecture: str, tensors: Collection[str]) -> bool:
    """Say whether architecture and tensors without a block are a spec's."""
    fit = spec.fit
    if not fits_architecture(spec, architecture):
        return False
    present = all(name in tensors for name in fit.tensors if "{n}" not in name)
    return present and not any(name in tensors for name in fit.absent)


def lacking(spec: ModelSpec, tensors: Collection[str]) -> list[str]:
    """Return a trunk's tensors that a file lacks; a file of heads alone has none of its blocks."""
    held = {block_of(name) for name in tensors}
    return [
        name
        for name in spec.fit.tensors
        if name not in tensors and (block_of(name) is None or block_of(name) in held)
    ]


def holds(spec: DrafterSpec, architecture: str, tensors: Collection[str], first_block: int) -> bool:
    """Say whether all tensors of a drafter are there; ``first_block`` follows the trunk's last."""
    if not fits(spec, architecture, tensors):
        return False
    return not _in_blocks(spec.fit) or _count_heads(spec.fit, tensors, first_block) > 0


def _in_blocks(fit: Fit) -> list[str]:
    return [name for name in fit.tensors if "{n}" in name]


def _count_heads(fit: Fit, tensors: Collection[str], first_block: int) -> int:
    """Return how many blocks from ``first_block`` on hold all tensors that have a block."""
    names, n = _in_blocks(fit), 0
    while names and all(name.replace("{n}", str(first_block + n)) in tensors for name in names):
        n += 1
    return n


def read_hparams(
    spec: ModelSpec | DrafterSpec,
    fields: Fields,
    tensors: Mapping[str, Any],
    trunk: ModelSizes | None = None,
) -> Any:
    """Ask a declaration for a file's hyper-parameters, and check those that all code reads.

    Those of a head in the trunk's file lie over the ``trunk``'s.

    Raises
    ------
    ModelFileError
        What the plugin says of the file.
    PluginError
        It raised something else, or returned what are no hyper-parameters; names the plugin.
    """
    where = f"{fields.file}: hparams of {spec.full_name}"
    assert spec.hparams is not None
    try:
        hparams = spec.hparams(fields, tensors)
        if trunk is not None:
            hparams = HeadHparams(hparams, trunk)
        sizes = {name: getattr(hparams, name, None) for name in _SIZES}
    except MtpcoreError:
        raise
    except Exception as error:  # whatever a plugin raises
        said = spell(error, str)
        raise PluginError(f"raised {type(error).__name__}: {said}", where=where) from error
    needed = {"n_vocab", "width"} | ({"n_layers"} if isinstance(spec, ModelSpec) else set())
    if isinstance(spec, ModelSpec) and spec.encoder:
        needed.add("start_token")
    for name, kind in _SIZES.items():
        if sizes[name] is not None or name in needed:
            read(sizes[name], kind, "no such size", where=f"{where}: {name}", error=PluginError)
    return hparams


def fit_drafter(
    spec: DrafterSpec, fields: Fields, tensors: Mapping[str, Any], first_block: int, hparams: Any
) -> FittedDrafter | None:
    """Return the drafter as this file holds it, or None where its tensors are not there.

    A file that counts heads in its metadata but holds none, or only parts of one, is warned
    about.

    Parameters
    ----------
    first_block : int
        The block after the trunk's last.
    hparams : object
        The trunk's hyper-parameters: a head's are these, and what it reads itself lies over them.
        None for a drafter in a file of its own.

    Raises
    ------
    ModelFileError
        A metadata key that the declaration names is missing or wrong.
    PluginError
        As ``read_hparams``.
    """
    if not fits(spec, fields.architecture, tensors):
        return None
    n_heads = _count_heads(spec.fit, tensors, first_block)
    if _in_blocks(spec.fit):
        _warn(spec, fields, tensors, first_block + n_heads, n_heads)
    if not holds(spec, fields.architecture, tensors, first_block):
        return None
    if spec.hparams is not None:
        hparams = read_hparams(spec, fields, tensors, hparams)
    return FittedDrafter(_resolve(spec, fields, n_heads), first_block, hparams)


def _warn(
    spec: DrafterSpec, fields: Fields, tensors: Collection[str], block: int, n_heads: int
) -> None:
    """Warn of parts in ``block``, the first that is no whole head, of heads after it, of a key."""
    needed = [name.replace("{n}", str(block)) for name in _in_blocks(spec.fit)]
    missing = [name for name in needed if name not in tensors]
    if len(missing) < len(needed):
        log.warning(
            "%s: block %d is not a whole head of %s and is left out: %s is missing",
            fields.file,
            block,
            spec.name,
            ", ".join(missing),
        )
    held = {block_of(name) for name in tensors}
    after = sorted(b for b in held if b and b > block and _count_heads(spec.fit, tensors, b))
    if after:
        log.warning(
            "%s: block %d is a head of %s and is left out: block %d before it is none",
            fields.file,
            after[0],
            spec.name,
            block,
        )
    key = spec.fit.count_key
    declared = fields.get(key, int, 0) if key else n_heads
    if key and declared != n_heads:
        log.warning(
            "%s: metadata key %r says %d heads, tensors of %d are there: the tensors decide",
            fields.file,
            fields.key(key),
            declared,
            n_heads,
        )


def named_keys(spec: DrafterSpec) -> set[str]:
    """Return the metadata keys that a declaration names in place of numbers."""
    block, taps = spec.block, [tap for feed in spec.feeds for tap in feed.taps]
    values = [spec.fit.count_key, spec.heads.count, *(feed.width for feed in spec.feeds)]
    if block is not None:
        mask = None if isinstance(block.mask, Noise) else block.mask
        values += [block.size, mask, block.from_pending, block.passes]
    names = {value.name if isinstance(value, Key) else value for value in values}
    return {name for name in names if isinstance(name, str)} | {
        layer for tap in taps if (layer := tap.partition(":")[2]) and not layer.isdigit()
    }


def _resolve(spec: DrafterSpec, fields: Fields, n_heads: int) -> DrafterSpec:
    """Put the file's numbers in place of metadata keys, and draw the limit from them."""
    count = n_heads or _value(spec.heads.count, fields, _HeadCount, "no number of heads")
    heads = msgspec.structs.replace(spec.heads, count=count)
    block, limit = _resolve_block(spec.block, fields), spec.limit
    if heads.count == 1:  # a single head drafts every step
        heads = Heads(count=1)
    elif heads.order == "each-step":
        limit = min(limit, cast(int, heads.count))
    if block is not None:
        limit = min(limit, cast(int, block.size) - (not block.from_pending))
    feeds = _resolve_feeds(spec.feeds, fields)
    if heads.count == 1 and any(feed.width and feed.taps for feed in feeds):
        limit = 1  # what the head makes has another width than what it reads
        feeds = tuple(msgspec.structs.replace(feed, width=0, recycle=None) for feed in feeds)
    unfed = any(not feed.graph and not feed.recycle for feed in feeds)
    if heads.count == 1 and spec.heads.hidden_from == "target" and unfed:
        limit = 1  # the target has no row for a second step of the same head
    return msgspec.structs.replace(spec, heads=heads, block=block, limit=limit, feeds=feeds)


def _resolve_block(block: Block | None, fields: Fields) -> Block | None:
    """Put the file's numbers in place of metadata keys.

    Raises
    ------
    ModelFileError, PluginError
        A key is missing, or the block is too short to draft anything.
    """
    if block is None:
        return None
    from_pending = _value(block.from_pending, fields, bool, "neither true nor false")
    return msgspec.structs.replace(
        block,
        size=_value(
            block.size, fields, _BLOCK_SIZES[from_pending], "no size of a block that drafts"
        ),
        mask=block.mask
        if isinstance(block.mask, Noise)
        else _value(block.mask, fields, _Token, "no mask token"),
        passes=block.passes and _value(block.passes, fields, _PassCount, "no number of passes"),
        from_pending=from_pending,
    )


def _resolve_feeds(feeds: Sequence[Feed], fields: Fields) -> tuple[Feed, ...]:
    """Put the layers that a metadata key lists in place of it, and the file's width."""
    return tuple(
        msgspec.structs.replace(
            feed,
            taps=tuple(resolved for tap in feed.taps for resolved in _taps(tap, fields)),
            width=_value(feed.width, fields, _Some, "no width of a row"),
        )
        for feed in feeds
    )


def _taps(tap: str, fields: Fields) -> list[str]:
    point, _, layer = tap.partition(":")
    if not layer or layer.isdigit():
        return [tap]
    return [f"{point}:{i}" for i in fields.require(layer, list[_Layer])]


def _value(value: Any, fields: Fields, kind: Any, what: str) -> Any:
    """Return a value of a declaration, read from the file where it is a key."""
    if isinstance(value, str):
        return fields.require(value, kind)
    where = what
    if isinstance(value, Key):
        where, value = value.name, fields.get(value.name, kind, value.default)
    return read(value, kind, what, where=where, error=PluginError)
