"""Adapters beside a model (LoRA): the graphs they change, and which of them each sequence has.

They stay apart from the model's weights: a context that was made with some runs rows with adapters
and rows without in one batch, each with the bits that it has alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import WeightSource
from mtpcore.boundary.arguments import expect
from mtpcore.errors import BatchError, LinkError, StateError, spell
from mtpcore.gguf.adapter import Adapter, AdapterMatrix, is_scale
from mtpcore.gguf.held_tensor import HeldTensor
from mtpcore.gguf.merged_adapters import add_product
from mtpcore.gguf.tensor import Tensor
from mtpcore.graph import (
    JOINT,
    Program,
    adapt_products,
    adapted_products,
    adapted_tables,
    adapted_vectors,
)
from mtpcore.runtime.further_weights import FurtherWeights

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = [
    "AdapterChoice",
    "AdapterTable",
    "Adapters",
    "Chosen",
    "SavedAdapters",
    "add_draft_adapter",
    "choose_none",
    "read_adapters",
    "read_named",
]

_MOST = 64
"""How many adapters a context has at most: a stack of each matrix holds all of them."""
_MOST_USED = 8
"""How many of them a sequence has at most."""

_STACKS = (" of adapters, a", " of adapters, b")
"""What follows a matrix's name in those of its stacks."""

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
T = TypeVar("T")
Chosen = tuple[tuple[int, float], ...]
"""The adapters of a sequence, in the order in which they add: their numbers and scales."""
SavedAdapters = tuple[tuple[str, float], ...]
"""The same, by digest."""
AdapterChoice = Mapping[str, float] | Sequence[str]
"""Names of adapters with their scales, in order; 1 where there are names alone."""


class Adapters:
    """The adapters of a context, by number and name.

    Parameters
    ----------
    model : Model
    adapters : mapping of str to Adapter
        By the names by which sequences choose them.
    n_used : int, optional
        How many a row has at most; default: as many as a sequence may have.

    Raises
    ------
    LinkError
        Too many, or one that is for other models, or that changes what the graph does not multiply
        by as a matrix or a stack of experts, nor looks tokens up in, nor adds as a bias, nor
        multiplies a norm by.

    Attributes
    ----------
    names : tuple of str
    by_name : dict of str to Adapter
    digests : tuple of str
        Hashes of them.
    n_used : int
        How many a row has at most.
    """

    def __init__(
        self, model: Model, adapters: Mapping[str, Adapter], n_used: int | None = None
    ) -> None:
        most = _MOST + (n_used is not None)
        if not 0 < len(adapters) <= most:
            raise LinkError("too many adapters", wanted=f"1..{most}", got=len(adapters))
        self._model, self.names, self.by_name = model, tuple(adapters), dict(adapters)
        self.n_used = min(len(adapters), _MOST_USED) if n_used is None else n_used
        self._adapters = tuple(adapters.values())
        for adapter in self._adapters:
            if adapter.architecture != model.architecture:
                raise LinkError(
                    "an adapter for models of another architecture",
                    where=str(adapter.path),
                    wanted=model.architecture,
                    got=adapter.architecture,
                    fix="give the adapter of this model",
                )
        self.digests = tuple(adapter.digest for adapter in self._adapters)

    def __len__(self) -> int:
        return len(self.names)

    def choose(self, choice: AdapterChoice) -> Chosen:
        """Return numbers and scales of adapters that are chosen by name.

        Those with scale 0 are left out: they add nothing.

        Raises
        ------
        BatchError
            There is no adapter of a name, a scale is no finite number, or they are too many.
        """
        chosen: list[tuple[int, float]] = []
        for name, scale in read_choice(choice):
            if name not in self.names:
                raise BatchError(
                    "no such adapter",
                    wanted=", ".join(self.names),
                    got=spell(name),
                    fix="give one that was loaded (adapters=, --lora)",
                )
            if rounded := float(np.float32(scale)):
                chosen.append((self.names.index(name), rounded))
        if len(chosen) > self.n_used:
            raise BatchError(
                "more adapters than a sequence can have", wanted=self.n_used, got=len(chosen)
            )
        return tuple(chosen)

    def adapt(self, program: Program) -> tuple[Program, WeightSource]:
        """Return a program that the adapters change, and where it finds its weights.

        Raises
        ------
        LinkError
            An adapter does not fit.
        """
        tables, vectors = adapted_tables(program), adapted_vectors(program)
        matrices = adapted_products(program) | tables | vectors
        ranks: dict[str, int] = {}
        for adapter in self._adapters:
            for name, change in adapter.matrices.items():
                shape = (*change.b.shape[:-1], change.a.shape[-1])
                if matrices.get(name) != shape:
                    raise self._misfit(adapter, name, shape, matrices.get(name))
                ranks[name] = max(ranks.get(name, 0), change.rank)
        made = {name: self._tables for name in tables} | {name: self._vectors for name in vectors}
        halves = {name: made.get(name, self._stack)(name, rank) for name, rank in ranks.items()}
        adapted = adapt_products(program, ranks, len(self), self.n_used, _STACKS)
        stacks: dict[str, Tensor] = {}
        for name in adapted.weights():
            for i, suffix in enumerate(_STACKS):
                if name.endswith(suffix):
                    joined = name.removesuffix(suffix).split(JOINT)
                    values = np.concatenate([halves[one][i] for one in joined], axis=1)
                    _, origin = self._pairs(joined[0])
                    stacks[name] = HeldTensor.smallest(name, values, (origin.a, origin.b)[i])
        packed = _Packed(self._model.packed, frozenset(stacks))
        return adapted, FurtherWeights(self._model, stacks, packed)

    def _pairs(self, name: str) -> tuple[list[AdapterMatrix | None], AdapterMatrix]:
        """Return what each adapter adds to a matrix, and the first of these that there is."""
        pairs = [adapter.matrices.get(name) for adapter in self._adapters]
        return pairs, next(pair for pair in pairs if pair is not None)

    def _stack(self, name: str, rank: int) -> tuple[F32, F32]:
        """Return the matrices of all adapters, filled up with zeros to a common rank."""
        pairs, origin = self._pairs(name)
        stack = origin.a.shape[:-2]  # of experts, and the last of all is for rows without any
        n = len(pairs) * math.prod(stack) + 1
        a = np.zeros((n, rank, origin.a.shape[-1]), np.float32)
        b = np.zeros((n, origin.b.shape[-2], rank), np.float32)
        own = [half[: n - 1].reshape(len(pairs), *stack, *half.shape[1:]) for half in (a, b)]
        for i, pair in enumerate(pairs):
            if pair is not None:
                down, up = pair.factors()
                own[0][i][..., : pair.rank, :], own[1][i][..., : pair.rank] = down, up
        return a, b

    def _tables(self, name: str, rank: int) -> tuple[F32, F32]:
        """Return the tables of all adapters, one after the other, and what their rows are sent by.

        The row after them, and the last matrix, are zeros.
        """
        pairs, origin = self._pairs(name)
        n_rows, width = origin.b.shape[0], origin.a.shape[1]
        rows = np.zeros((len(pairs) * n_rows + 1, rank), np.float32)
        b = np.zeros((len(pairs) + 1, width, rank), np.float32)
        for i, pair in enumerate(pairs):
            if pair is not None:
                down, up = pair.factors()
                rows[i * n_rows : (i + 1) * n_rows, : pair.rank] = up
                b[i, :, : pair.rank] = down.T
        return rows, b

    def _vectors(self, name: str, rank: int) -> tuple[F32, F32]:
        """Return what all adapters add to a vector, a row each, and one of zeros; and nothing."""
        pairs, origin = self._pairs(name)
        rows = np.zeros((len(pairs) + 1, origin.a.shape[1]), np.float32)
        for i, pair in enumerate(pairs):
            if pair is not None:
                a, b = pair.factors()
                add_product(rows[i : i + 1], a, b)
        return rows, np.zeros((0, 0), np.float32)

    def _misfit(
        self, adapter: Adapter, name: str, got: tuple[int, ...], wanted: tuple[int, ...] | None
    ) -> LinkError:
        where = f"{adapter.path}: {name[:80]!r}"
        if wanted is not None:
            return LinkError(
                "an adapter of a matrix of another shape",
                where=where,
                wanted=wanted,
                got=got,
                fix="give the adapter that was made for this model",
            )
        if name not in self._model.tensors:
            return LinkError(
                "an adapter of a matrix that the model does not have",
                where=where,
                fix="give the adapter that was made for this model",
            )
        return LinkError(
            "an adapter of what the model does not multiply by as a matrix or a stack of experts, "
            "nor looks tokens up in, nor adds as a bias, nor multiplies a norm by: matrices of "
            "heads, or a drafter's weight",
            where=where,
            fix="merge it into the model: mtpcore quantize --lora, or --lora-merge",
        )


def add_draft_adapter(model: Model, adapters: Adapters | None) -> Adapters:
    """Return the adapters of a target's sequences and after them the one that drafts for it.

    A row has it besides those of its sequence.

    Raises
    ------
    LinkError
        The model has no such adapter, or it does not fit.
    """
    adapter = model.draft_adapter
    if adapter is None:
        raise LinkError(
            "the model has no adapter that drafts",
            where=str(model.path),
            fix="load it with its file: load_model(path, mtp_path=...) (--mtp-path)",
        )
    named = dict(adapters.by_name) if adapters else {}
    name = adapter.name
    while name in named:
        name += " "
    n_used = adapters.n_used if adapters else 0
    return Adapters(model, {**named, name: adapter}, n_used + 1)


def choose_none(choice: AdapterChoice) -> Chosen:
    """Refuse a choice of adapters where there are none to choose from.

    Raises
    ------
    BatchError
        Some are chosen.
    """
    if given := read_choice(choice):
        raise BatchError(
            "the context has no adapters",
            got=", ".join(name for name, _ in given),
            fix="make it with Context(adapters=), LM(adapters=) or --lora",
        )
    return ()


def read_choice(choice: AdapterChoice) -> list[tuple[str, float]]:
    """Return names and scales of adapters that a caller chose.

    Raises
    ------
    BatchError
        It is no choice, a name is no text, or a scale no finite number.
    """
    cause: Exception | None = None
    pairs: list[Any] = []
    try:
        if isinstance(choice, Mapping):
            pairs = [*choice.items()]
        elif not isinstance(choice, str | bytes) and isinstance(choice, Sequence):
            pairs = [(name, 1.0) for name in choice]
        else:
            raise TypeError
        pairs = [(name, scale) for name, scale in pairs]
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's own raises
        cause = error
    if cause is not None or not all(isinstance(name, str) for name, _ in pairs):
        raise BatchError(
            "adapters are chosen by name",
            wanted="names, or a dict of names to scales",
            got=spell(choice),
        ) from cause
    for name, scale in pairs:
        if not is_scale(scale):
            raise BatchError(
                "a scale is a finite number", where=f"adapter {name!r}", got=spell(scale)
            )
    return pairs


def read_adapters(given: Mapping[str, Adapter] | None) -> dict[str, Adapter]:
    """Return adapters by the names that a caller gave them.

    Raises
    ------
    LinkError
        They have no names, or are none.
    """
    named = read_named(given)
    for adapter in named.values():
        expect(adapter, Adapter, "adapters are what load_adapter() returned", error=LinkError)
    return named


def read_named(given: Mapping[str, T] | None) -> dict[str, T]:
    """Return adapters, or their files, by the names that a caller gave them.

    Raises
    ------
    LinkError
        They have no names.
    """
    cause: Exception | None = None
    named: dict[str, T] = {}
    try:
        if isinstance(given, Mapping):
            named = {name: one for name, one in given.items()}
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's own raises
        cause = error
    texts = all(isinstance(name, str) for name in named)
    if cause is not None or not isinstance(given, Mapping | None) or not texts:
        raise LinkError(
            "adapters have names", wanted="a dict of names to adapters", got=spell(given)
        ) from cause
    return named


class _Packed(MutableMapping[Any, Any]):
    """A model's packed weights, but for stacks of adapters, which go with their context."""

    def __init__(self, shared: MutableMapping[Any, Any], own: frozenset[str]) -> None:
        self._shared, self._names, self._own = shared, own, dict[Any, Any]()

    def _keeper(self, key: Any) -> MutableMapping[Any, Any]:
        return self._shared if self._names.isdisjoint(key) else self._own

    def __getitem__(self, key: Any) -> Any:
        return self._keeper(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._keeper(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._keeper(key)[key]

    def __iter__(self) -> Iterator[Any]:
        return chain(self._shared, self._own)

    def __len__(self) -> int:
        return len(self._shared) + len(self._own)


class AdapterTable:
    """Which adapters each sequence of a context has, if any.

    Parameters
    ----------
    adapters : Adapters, optional
        Those that there are.
    """

    def __init__(self, adapters: Adapters | None) -> None:
        self._adapters = adapters
        self._chosen: dict[int, Chosen] = {}  # replaced, never changed

    def __bool__(self) -> bool:
        return bool(self._chosen)

    def of(self, seq: int) -> SavedAdapters:
        """Return the digests of a sequence's adapters, and their scales."""
        digests = self._adapters.digests if self._adapters else ()
        return tuple((digests[number], scale) for number, scale in self._chosen.get(seq, ()))

    def chosen(self, seq: int) -> Chosen:
        """Return the numbers of a sequence's adapters, and their scales."""
        return self._chosen.get(seq, ())

    def set(self, seq: int, chosen: Chosen) -> None:
        """Give a sequence adapters from now on, or none."""
        others = {one: own for one, own in self._chosen.items() if one != seq}
        self._chosen = {**others, seq: chosen} if chosen else others

    def fork(self, seq: int, new: int) -> None:
        """Give a sequence those of another one."""
        self.set(new, self._chosen.get(seq, ()))

    def find(self, saved: SavedAdapters) -> Chosen:
        """Return the numbers of adapters that ``of`` returned in another context.

        Raises
        ------
        StateError
            This context does not have them.
        """
        digests = self._adapters.digests if self._adapters else ()
        if lacking := [digest for digest, _ in saved if digest not in digests]:
            raise StateError(
                "the state is of a sequence with adapters that the context does not have",
                wanted=", ".join(digests) or "a state without adapters",
                got=", ".join(lacking),
                fix="make the context with these adapters",
            )
        return tuple((digests.index(digest), scale) for digest, scale in saved)

    def of_rows(self, seq: I32) -> tuple[I32, NDArray[np.float32]] | tuple[None, None]:
        """Return adapters int32[n, n_used] and scales float32[n, n_used] of rows of sequences.

        None where no row has any.
        """
        if not self._chosen or self._adapters is None:
            return None, None
        numbers = np.full((len(seq), self._adapters.n_used), -1, np.int32)
        scales = np.zeros(numbers.shape, np.float32)
        for one, chosen in self._chosen.items():
            rows = seq == one
            for i, (number, scale) in enumerate(chosen):
                numbers[rows, i], scales[rows, i] = number, scale
        return (numbers, scales) if (numbers >= 0).any() else (None, None)

    def save(self) -> dict[int, Chosen]:
        """Return what ``restore`` needs."""
        return self._chosen

    def restore(self, saved: dict[int, Chosen]) -> None:
        """Go back to what was saved."""
        self._chosen = saved
