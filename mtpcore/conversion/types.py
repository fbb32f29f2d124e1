"""In which type each tensor is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

from gguf import GGMLQuantizationType, LlamaFileType

from mtpcore.declarations.patterns import pattern
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf.types import BLOCKS, F16, F32

__all__ = ["OutType", "OUT_TYPES", "TypeChoice"]

log = logging.getLogger("mtpcore")

OutType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
OUT_TYPES: tuple[OutType, ...] = ("f32", "f16", "bf16", "q8_0", "q4_0")

_FILE_TYPES: dict[OutType, int] = {
    "f32": int(LlamaFileType.ALL_F32),
    "f16": int(LlamaFileType.MOSTLY_F16),
    "bf16": int(LlamaFileType.MOSTLY_BF16),
    "q8_0": int(LlamaFileType.MOSTLY_Q8_0),
    "q4_0": int(LlamaFileType.MOSTLY_Q4_0),
}

_HEAD_TYPES: dict[OutType, OutType] = {"q8_0": "f16", "q4_0": "q8_0"}
"""What heads are kept in by default where the trunk is smaller: they cost little and guess more."""

_ALWAYS = (("output.weight", "Q8_0"),)
"""Every token is chosen with the output matrix: q4_0 does not suit it."""


def _type_id(name: str) -> int:
    return int(GGMLQuantizationType[name.upper()])


def _bits(kind: int) -> float:
    n_values, n_bytes = BLOCKS[kind]
    return float(8 * n_bytes / n_values)


class TypeChoice:
    """Chooses types.

    Parameters
    ----------
    outtype : str
        Of the trunk's matrices.
    mtp_type : str, optional
        Of the heads' matrices; default: ``outtype``, but f16 for q8_0 and q8_0 for q4_0.
    first_head_block : int or None
        Blocks from this one on are heads; None: the file is a drafter's, and all that it holds.
    min_types : iterable of (str, str)
        Patterns of names and the smallest type that suits them.

    Attributes
    ----------
    file_type : int
        What the file says in ``general.file_type``.

    Raises
    ------
    ModelFileError
        Of ``outtype`` or ``mtp_type``, where it is unknown.
    PluginError
        Of ``min_types``.
    """

    def __init__(
        self,
        outtype: OutType,
        mtp_type: OutType | None,
        first_head_block: int | None,
        min_types: Iterable[tuple[str, str]],
    ) -> None:
        for what, kind in (("outtype", outtype), ("mtp_type", mtp_type or outtype)):
            if kind not in OUT_TYPES:
                wanted = ", ".join(OUT_TYPES)
                raise ModelFileError(
                    "unknown type",
                    where=what,
                    wanted=wanted,
                    got=repr(kind),
                    fix="name one of these",
                )
        head = mtp_type or _HEAD_TYPES.get(outtype, outtype)
        trunk = head if first_head_block is None else outtype
        self.file_type = _FILE_TYPES[trunk]
        self._trunk, self._head = _type_id(trunk), _type_id(head)
        self._first_head_block = first_head_block or 0
        try:
            self._least = [(pattern(name), _type_id(k)) for name, k in (*min_types, *_ALWAYS)]
        except KeyError as error:
            raise PluginError(
                "unknown type", where="min_types", wanted="F16, Q8_0, ...", got=error
            ) from None

    def choose(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the type id for a tensor of floats.

        Vectors, norms and what is no ``.weight`` stay F32. Rows that are no whole blocks become
        F16.
        """
        if len(shape) < 2 or name.endswith("_norm.weight") or not name.endswith(".weight"):
            return F32
        block = pattern("blk.{n}.").match(name)
        in_head = block is not None and int(block["n"]) >= self._first_head_block
        kind = self._head if in_head else self._trunk
        for name_pattern, least in self._least:
            if name_pattern.fullmatch(name) and _bits(kind) < _bits(least):
                kind = least
        if shape[-1] % BLOCKS[kind][0]:
            log.info("%s: rows of %d values are no whole blocks: F16", name, shape[-1])
            return F16
        return kind
