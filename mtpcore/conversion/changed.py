"""Tensors of a checkpoint as an adapter that PEFT saved changes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mtpcore.conversion.expert_changes import spread_over_experts
from mtpcore.conversion.family import Family, canonical_names
from mtpcore.conversion.peft import (
    MERGE,
    LowRank,
    NewRows,
    NewValues,
    OfExperts,
    SavedAdapter,
    Shift,
    WeightChange,
)
from mtpcore.conversion.plan import SCALES
from mtpcore.conversion.published import PublishedTensor
from mtpcore.declarations.checkpoint import Config
from mtpcore.errors import ModelFileError
from mtpcore.gguf.merged_adapters import add_product

__all__ = ["ChangedTensor", "change_tensors", "changes_of"]

_TABLES = ("token_embd.weight", "output.weight")


class ChangedTensor(PublishedTensor, frozen=True):
    """A tensor of a checkpoint whose values are changed as they are read, in float32.

    Attributes
    ----------
    base : PublishedTensor
    change : WeightChange
    kind : str
        ``changed``: the bytes in the file are not these values.
    """

    base: PublishedTensor
    change: WeightChange

    @classmethod
    def of(cls, base: PublishedTensor, change: WeightChange) -> ChangedTensor:
        """Make one.

        Raises
        ------
        ModelFileError
            The change is of a tensor of another shape.
        """
        _check(base, change)
        return cls(base.name, base.file, "changed", base.shape, base.begin, base, change)

    def rows(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return rows of the outermost axis, float32."""
        end = self.n_rows if end is None else end
        change = self.change
        if isinstance(change, NewValues):
            return np.asarray(change.tensor.rows(begin, end), np.float32)
        values = np.array(self.base.rows(begin, end), np.float32)
        if isinstance(change, NewRows):
            for i, row in enumerate(change.ids):
                if begin <= row < end:
                    values[row - begin] = change.tensor.rows(i, i + 1)[0]
            return values
        if isinstance(change, Shift):
            values += change.values[begin:end]
            return values
        if isinstance(change, OfExperts):
            for matrix, pair in zip(values, change.pairs[begin:end], strict=True):
                add_product(matrix, pair.a, pair.b * np.float32(pair.scale))
            return values
        add_product(values, change.a, change.b[begin:end] * np.float32(change.scale))
        if change.magnitude is not None:
            lengths = np.sqrt(np.square(values, dtype=np.float64).sum(axis=1))
            values *= (change.magnitude[begin:end] / lengths).astype(np.float32)[:, None]
        return values

    def equals(self, other: PublishedTensor) -> bool:
        """Say whether both hold the same values, reading some rows at a time."""
        if self.shape != other.shape:
            return False
        step = max(1, (1 << 20) // max(1, math.prod(self.shape[1:])))
        pieces = ((at, min(at + step, self.n_rows)) for at in range(0, self.n_rows, step))
        return all(np.array_equal(self.rows(*piece), other.rows(*piece)) for piece in pieces)


def _check(base: PublishedTensor, change: WeightChange) -> None:
    if isinstance(change, LowRank):
        shape: tuple[int, ...] = (len(change.b), change.a.shape[1])
        lengths = change.magnitude
        fits = shape == base.shape and (lengths is None or lengths.shape == shape[:1])
    elif isinstance(change, OfExperts):
        (a, b, *_), n = change.pairs[0], len(change.pairs)
        shape = (n, len(b), a.shape[1])
        fits = shape == base.shape
    elif isinstance(change, NewRows):
        shape = change.tensor.shape
        fits = shape[1:] == base.shape[1:] and max(change.ids) < base.n_rows
    else:
        shape = change.values.shape if isinstance(change, Shift) else change.tensor.shape
        fits = shape == base.shape
    if not fits or base.is_integer:
        raise ModelFileError(
            "the adapter is of a model whose tensor has another shape",
            where=f"{base.file}: {base.name}",
            wanted=base.shape,
            got=shape,
            fix="give the model that it was trained on; where its vocabulary grew, merge the "
            "adapter with PEFT (merge_and_unload), and convert that",
        )


def changes_of(
    saved: SavedAdapter,
    family: Family,
    tensors: Mapping[str, PublishedTensor] | None,
    config: Config,
) -> dict[str, tuple[WeightChange, ...]]:
    """Return an adapter's changes by names as the family's table spells them.

    An output matrix that is the table of embeddings changes with it where the adapter says so, or
    holds the table beside what its settings speak of.

    Parameters
    ----------
    saved : SavedAdapter
    family : Family
    tensors : mapping, optional
        The base model's, by the same names; None where only its configuration is there.
    config : Config

    Raises
    ------
    ModelFileError
        It cannot be told whether the output matrix is the table, or the adapter has tensors that
        are no such tables, and of which its settings do not speak.
    """
    spelled = canonical_names(family.main, saved.changes)
    changes: dict[str, tuple[WeightChange, ...]] = {}
    stacks: dict[str, OfExperts] = {}
    for name, own in spelled.items():
        for change in saved.changes[own]:
            if isinstance(change, OfExperts):
                stacks[name] = change
            else:
                changes[name] = (*changes.get(name, ()), change)
    for name, part in spread_over_experts(stacks, family, config, tensors) if stacks else ():
        changes[name] = (*changes.get(name, ()), part)
    tables = {one.source for one in family.main.tensors if one.tensor in _TABLES}
    whole = {name for name, own in spelled.items() if own in saved.unspoken}
    if strange := sorted(whole - tables):
        raise ModelFileError(
            "a tensor of which the settings of the adapter do not speak",
            where=f"{saved.folder}: {spelled[strange[0]]}",
            wanted="lora_A and lora_B of modules, what bias and modules_to_save name, and tables "
            "of embeddings and of the output",
            fix=MERGE,
        )
    for source, table in _copies(family):
        is_changed = table in changes and source not in changes
        if not is_changed or not (saved.is_tied or table in whole):
            continue
        if tensors is None:
            raise ModelFileError(
                "the adapter changes the table of embeddings, and with it an output matrix that is "
                "the same one: whether it is, the base model's configuration alone does not say",
                where=str(saved.folder),
                fix="give the folder of the base model with its tensors: --base HF_DIR",
            )
        if source not in tensors or tensors[source].equals(tensors[table]):
            changes[source] = changes[table]
    return changes


def change_tensors(
    saved: Sequence[SavedAdapter],
    family: Family,
    tensors: Mapping[str, PublishedTensor],
    config: Config,
) -> dict[str, PublishedTensor]:
    """Return a checkpoint's tensors with what adapters change, one after the other.

    Parameters
    ----------
    saved : sequence of SavedAdapter
    family : Family
    tensors : mapping of str to PublishedTensor
        By name as the family's table spells it.
    config : Config

    Raises
    ------
    ModelFileError
        An adapter of tensors that there are not, of other shapes, or of eight bits.
    """
    found = dict(tensors)
    tables = dict(_copies(family))
    for one in saved:
        before = dict(found)
        changes = changes_of(one, family, before, config)
        for source, table in tables.items():
            # What is the same matrix no longer is, once one of both has changed.
            if source not in before and table in before and {source, table} & changes.keys():
                found[source] = before[table]
        for name, own in changes.items():
            if name not in found:
                raise ModelFileError(
                    "the adapter changes what the model's checkpoint does not have",
                    where=str(one.folder),
                    got=name,
                    fix="give the adapter of this model; beside experts that are published in four "
                    "bits it stays: mtpcore convert ADAPTER_DIR --base HF_DIR",
                )
            if name + SCALES in found:
                raise ModelFileError(
                    "an adapter of a matrix of eight bits",
                    where=f"{found[name].file}: {name}",
                    fix="take the checkpoint that is not quantised",
                )
            for change in own:
                found[name] = ChangedTensor.of(found[name], change)
    return found


def _copies(family: Family) -> Iterator[tuple[str, str]]:
    """Yield names of output matrices, each with the table of embeddings that it may be."""
    for rename in family.main.tensors:
        if rename.copy_of and rename.tensor == "output.weight":
            yield rename.source, rename.copy_of
