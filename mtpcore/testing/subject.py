"""Subject: the model file that the conformance kit tests, with its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike, fspath
from typing import TypedDict, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import Backend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.boundary.arguments import Length, Whole31, read
from mtpcore.cross import Cross, find_drafter, link
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import DrafterSpec, Tap
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model

__all__ = ["DEFINITION", "Subject"]

I32 = NDArray[np.int32]

DEFINITION = ReferenceBackend(quantise_activations=True)
"""Computes as ``mtpcore.backends.reference.arithmetic`` writes down, to the last bit."""


class ContextOptions(TypedDict, total=False):
    """Arguments of ``Context`` that tests vary."""

    n_seq_max: int
    n_batch: int
    kv_dtype: str
    checkpoint_bytes: int | None
    threads: int | None
    backend: str | Backend
    taps: Sequence[str | Tap]


class Subject(msgspec.Struct, frozen=True):
    """A model file and a drafter to test.

    Attributes
    ----------
    name : str
    path : str or path
        A model file, or the name of one in the package.
    draft_path : str or path, optional
        The draft model's file, if there is one.
    mtp_path : str or path, optional
        The file of the head that ``path`` lacks, or of an adapter that drafts.
    drafter : str
        Which of the drafters; "auto" takes the best.
    plugins : Registry, optional
        Plugins to load with; the installed ones, if left out.
    backend : str or Backend
        Computes what is tested.
    definition : Backend
        Computes what is right, in the same order of sums; that of the ``cpu`` backend, if left out.
    """

    name: str
    path: str | PathLike[str]
    draft_path: str | PathLike[str] | None = None
    drafter: str = "auto"
    plugins: Registry | None = None
    backend: str | Backend = "cpu"
    definition: Backend = DEFINITION
    mtp_path: str | PathLike[str] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> Model:
        """The target; loaded once, so that packed weights are shared."""
        beside = None if self.mtp_path is None else fspath(self.mtp_path)
        return _load(fspath(self.path), self.plugins, beside)

    @property
    def draft_model(self) -> Model | None:
        """The model of a drafter in a file of its own."""
        path = self.draft_path
        return None if path is None else _load(fspath(path), self.plugins)

    @property
    def spec(self) -> DrafterSpec:
        """The drafter's declaration."""
        found = find_drafter(self.model, self.draft_model, self.drafter)
        return self.model.find_drafter() if found is None else found[1]

    def context(self, n_ctx: int = 256, **options: Unpack[ContextOptions]) -> Context:
        """Return a context of the target, of ``n_ctx`` places; ``options`` as of ``Context``."""
        options.setdefault("backend", self.backend)
        return Context(self.model, n_ctx, **options)

    def link(
        self,
        n_ctx: int = 256,
        *,
        drafter: DrafterSpec | None = None,
        before: Proposer | None = None,
        draft_vocabulary: DraftVocabulary | None = None,
        **options: Unpack[ContextOptions],
    ) -> Cross:
        """Return a new target context with the drafter linked to it.

        Parameters
        ----------
        n_ctx, **options
            Of the context, as in ``context``.
        drafter : DrafterSpec, optional
            A variant of the subject's drafter.
        before : Proposer, optional
            Asked first; the drafter drafts if it has no guess.
        draft_vocabulary : DraftVocabulary, optional
            As in ``mtpcore.link``.
        """
        head = self.drafter if drafter is None else drafter
        return link(
            self.context(n_ctx, **options),
            head if before is None else [before, head],
            draft_model=self.draft_model,
            draft_vocabulary=draft_vocabulary,
        )

    def text(self, n: int, seed: int = 0) -> I32:
        """Return n tokens, int32[n], drawn evenly from the vocabulary by a ``seed``."""
        n_vocab = self.model.hparams.n_vocab
        n = read(n, Whole31, "a number of tokens", where="Subject.text")
        seed = read(seed, Length, "a seed", where="Subject.text")
        return np.random.default_rng(seed).integers(0, n_vocab, n).astype(np.int32)


@lru_cache(maxsize=16)
def _load(path: str, plugins: Registry | None, mtp_path: str | None = None) -> Model:
    return load_model(path, mtp_path=mtp_path, sidecars=False, plugins=plugins)
