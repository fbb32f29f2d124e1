"""Reading arguments of a round that are given by sequence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from mtpcore.boundary.arguments import read
from mtpcore.boundary.arrays import integers
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.errors import BatchError, spell
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import LogitsProcessor, Sampling

__all__ = [
    "Samplings",
    "pairs_of",
    "read_ids",
    "read_names",
    "read_processors",
    "read_unfinished",
    "setting_of",
]

Samplings = Sampling | Mapping[int, Sampling]


def setting_of(value: Any, seq: int) -> Any:
    """Return what holds for a sequence: one value for all, or its entry of a mapping."""
    if not isinstance(value, (dict, Mapping)):  # dict alone is quick to tell
        return value
    try:
        return value[seq]
    except MemoryError:
        raise
    except Exception as error:  # not there, or whatever a caller's mapping raises
        where = f"sequence {seq}"
        raise BatchError("settings of a sequence are missing", where=where) from error


def pairs_of(given: Any, where: str) -> Iterable[tuple[Any, Any]]:
    """Return what is given by sequence."""
    if type(given) is dict:  # each round asks this
        return given.items()
    try:
        if isinstance(given, Mapping):
            return list(given.items())
    except MemoryError:
        raise
    except Exception:  # whatever a caller's mapping raises
        pass
    raise BatchError("not given by sequence", where=where, wanted="a mapping", got=spell(given))


def read_ids(given: Any, where: str) -> dict[int, Any]:
    """Return lists of ids, trees or prompts by sequence; a batch reads the entries of lists."""
    by_seq = {}
    for seq, ids in pairs_of(given, where):
        if not isinstance(ids, (list, DraftTree, Prompt)):
            array = integers(ids, f"{where} of sequence {spell(seq)}")
            if array.ndim != 1:
                raise BatchError("token ids have one axis", where=where, got=array.shape)
            ids = array.tolist()
        by_seq[seq] = ids
    return by_seq


def read_names(given: Any) -> tuple[str, ...] | None:
    """Return names of drafters, each once; None where none are given."""
    if given is None:
        return None
    if isinstance(given, str):
        given = (given,)
    names: tuple[str, ...] = read(
        given, tuple[str, ...], "drafters are given by their names", wanted="a list of names"
    )
    return tuple(dict.fromkeys(names))


def read_unfinished(unfinished: Collection[int], prefill: Mapping[int, Any]) -> frozenset[int]:
    """Return which prompts go on in a later batch."""
    if type(unfinished) in (list, tuple) and not unfinished:
        return frozenset()
    try:
        seqs = frozenset(islice(unfinished, len(prefill) + 1))
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError(
            "not sequences whose prompts go on", where="unfinished", got=spell(unfinished)
        ) from error
    if unknown := seqs - prefill.keys():
        raise BatchError(
            "no prompt that could go on",
            where="unfinished",
            wanted=f"sequences of prefill: {list(prefill)}",
            got=spell(list(unknown)),
        )
    return seqs


def read_processors(given: Any) -> dict[int, LogitsProcessor]:
    """Return logits processors by sequence."""
    processors = dict(pairs_of(given, "processors"))
    for seq, processor in processors.items():
        if not callable(processor):
            raise BatchError(
                "a logits processor is a callable",
                where=f"sequence {spell(seq)}",
                wanted="processor(tokens, logits)",
                got=spell(processor),
            )
    return processors
