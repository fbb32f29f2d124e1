"""In which type each tensor is stored: what users ask for, and what families declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import msgspec

from mtpcore.boundary.arguments import expect
from mtpcore.conversion.mixes import (
    ALIASES,
    MIXES,
    Described,
    MixName,
    TypeRules,
    choose_types,
    model_shape,
    read_type,
)
from mtpcore.declarations.patterns import pattern
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.types import BLOCKS, F16, F32, block_type
from mtpcore.runtime.fit import block_of

__all__ = ["TensorTypes", "TypeChoice"]

_HEAD_TYPES = ("f32", "f16", "bf16")
"""What heads are kept in where nothing is said, if the trunk is; else in Q8_0, with which as many
drafts are accepted as with F16, and more than with four bits (``benchmarks/head_types.py``)."""

Least = Iterable[tuple[str, str]]


class TensorTypes(msgspec.Struct, frozen=True, kw_only=True):
    """Which matrices get another type than their mix would give them.

    Attributes
    ----------
    output : str, optional
        Type of the output matrix; ``keep``: as it is.
    embedding : str, optional
        Type of token embeddings.
    named : mapping of str to str
        Types by regular expressions, of which the first counts that is found in a name.
    pure : bool
        Whether all other matrices get the mix's own type.
    """

    output: str | None = None
    embedding: str | None = None
    named: Mapping[str, str] = {}
    pure: bool = False


class TypeChoice:
    """Chooses the types of a file's tensors.

    Parameters
    ----------
    outtype : str
        Of the trunk's matrices: a key of ``MIXES``.
    mtp_type : str, optional
        Type of the heads' matrices, or ``mix``: as the trunk's; default: q8_0, or a type of
        floats as the trunk's.
    first_head_block : int or None
        Blocks from this one on are heads; None: the file is a drafter's, and all that it holds.
    least, head_least : iterable of (str, str)
        Patterns of names and the smallest type that suits them: those that the family declares,
        and those that its heads do, which count unless they are in the mix.
    types : TensorTypes, optional
        Types of some matrices.
    weighted : collection of str, optional
        Matrices of which an importance matrix has weights; None: there is none.

    Attributes
    ----------
    mix : str
        What the file is called by.

    Raises
    ------
    ModelFileError
        Of a type or an expression that is none.
    PluginError
        Of a declared type that is none.
    """

    def __init__(
        self,
        outtype: MixName,
        mtp_type: str | None,
        first_head_block: int | None,
        least: Least,
        head_least: Least = (),
        types: TensorTypes | None = None,
        weighted: Collection[str] | None = None,
    ) -> None:
        if not isinstance(outtype, str) or outtype not in MIXES:
            raise ModelFileError(
                "unknown type",
                where="outtype",
                wanted=", ".join(MIXES),
                got=repr(outtype)[:80],
                fix="name one of these",
            )
        head = mtp_type
        if head is None:
            head = outtype if outtype in _HEAD_TYPES else "q8_0"
        asked = expect(types or TensorTypes(), TensorTypes, "types", error=ModelFileError)
        named = [_named(*pair) for pair in asked.named.items()]
        self.mix: str = outtype
        self._least = [_least(*pair) for pair in least]
        if head != "mix":
            kind = read_type(head, "mtp_type")
            self._least += [_least(*pair) for pair in head_least]
            if first_head_block is None:  # the whole file: as such a file of a trunk
                own = ALIASES.get(head.lower(), head.lower())
                self.mix = own if own in MIXES else "mxfp4_moe"
            else:
                named.append((partial(_is_head, first_head_block), kind))
        keeps = asked.output == "keep"
        self._rules = TypeRules(
            output=None if keeps or asked.output is None else read_type(asked.output, "output"),
            embedding=None if asked.embedding is None else read_type(asked.embedding, "embedding"),
            named=named,
            least=self._least,
            is_pure=asked.pure,
            keeps_output=keeps,
            weighted=weighted,
        )

    @property
    def file_type(self) -> int:
        """What the file says in ``general.file_type``."""
        return MIXES[self.mix].file_type

    def choose(
        self,
        tensors: Iterable[Described],
        architecture: str,
        metadata: Mapping[str, MetadataValue],
        *,
        in_order: bool = False,
    ) -> dict[str, int]:
        """Return the type id of each tensor of floats; ``in_order`` as in ``choose_types``.

        Raises
        ------
        ModelFileError
            A matrix needs an importance matrix in this mix.
        """
        shape = model_shape(architecture, metadata)
        return choose_types(tensors, self.mix, shape, self._rules, in_order=in_order)

    def published_type(self, name: str, shape: tuple[int, ...]) -> int:
        """Return the type of a tensor of floats in a file whose matrices are not quantised.

        Vectors, norms and what is no ``.weight`` are F32.
        """
        if len(shape) < 2 or name.endswith("_norm.weight") or not name.endswith(".weight"):
            return F32
        plain = MIXES[self.mix].type
        kind = F16 if BLOCKS[plain][0] > 1 else plain
        fitting = (one for fits, one in self._least if fits(name) and BLOCKS[one][0] == 1)
        return max((kind, *fitting), key=lambda one: BLOCKS[one][1])


def _named(spelled: str, kind: str) -> tuple[Callable[[str], object], int]:
    try:
        return re.compile(spelled).search, read_type(kind, f"type of {spelled!r}"[:80])
    except re.error as error:
        raise ModelFileError(
            "not a regular expression", where=repr(spelled)[:80], got=error, fix="correct it"
        ) from None


def _least(name: str, kind: str) -> tuple[Callable[[str], object], int]:
    found = block_type(kind.upper())
    if found is None:
        raise PluginError("unknown type", where="min_types", wanted="F16, Q8_0, ...", got=kind)
    return pattern(name).fullmatch, found


def _is_head(first_head_block: int, name: str) -> bool:
    """Say whether a tensor is a head's."""
    block = block_of(name)
    return block is not None and block >= first_head_block
