"""The tokens worth drafting: a frequency-ranked part of a vocabulary, and its file.

A drafter's output matrix is read once for each draft, and with a large vocabulary it is most of
what a draft costs. Rare tokens are rarely drafted well; without them the drafter reads a part of
the matrix. The target still chooses among all tokens, so the text is the same (Zhao et al.,
"FR-Spec: accelerating large-vocabulary language models via frequency-ranked speculative sampling",
2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore.boundary.arguments import read
from mtpcore.boundary.arrays import integers
from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import read_regular, take_path
from mtpcore.boundary.texts import each_text
from mtpcore.drafting.fingerprint import expect_model, fingerprint
from mtpcore.errors import BatchError, LinkError, ModelFileError, spell

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["DraftVocabulary"]

_MOST = 1 << 22
_FORMAT = "mtpcore draft vocabulary 1"
_LONGEST = 32 << 20  # bytes of a file
_HOW = "make one of a text: mtpcore vocabulary MODEL -f TEXT"


class _VocabularyFile(msgspec.Struct, forbid_unknown_fields=True):
    """What a file holds."""

    format: str
    tokenizer: str
    tokens: list[int]


class DraftVocabulary:
    """Tokens that a drafter may draft, the most frequent first.

    Parameters
    ----------
    tokens : array_like of int, shape (n,)
        Different token ids of the target's vocabulary.
    tokenizer : str
        Fingerprint of the tokenizer whose ids these are, as ``of_text`` and ``of_tokens`` take it
        from a model; empty: of any.

    Raises
    ------
    BatchError
        No tokens, one twice, or ids below 0.

    Examples
    --------
    >>> DraftVocabulary([7, 3, 9], tokenizer="").cut(2).tokens.tolist()
    [7, 3]
    """

    def __init__(self, tokens: Iterable[int] | NDArray[np.integer], tokenizer: str) -> None:
        ids = tokens if isinstance(tokens, np.ndarray) else _listed(tokens)
        self._tokens = integers(ids, "tokens of a draft vocabulary")
        self.tokenizer: str = read(tokenizer, str, "a tokenizer's fingerprint", wanted="a text")
        self._tokens.flags.writeable = False
        array = self._tokens
        if array.ndim != 1 or not len(array) or array.min() < 0:
            raise BatchError("a draft vocabulary is a list of token ids", wanted="one or more")
        if len(np.unique(array)) < len(array):
            raise BatchError("a draft vocabulary names a token twice")

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32[n]: token ids, the most frequent first; read-only."""
        return self._tokens

    def __reduce__(self) -> tuple[type[DraftVocabulary], tuple[NDArray[np.int32], str]]:
        return DraftVocabulary, (self.tokens, self.tokenizer)  # a copy's array is read-only, too

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"DraftVocabulary({len(self)} tokens)"

    @classmethod
    def of_text(cls, model: Model, texts: str | Iterable[str]) -> DraftVocabulary:
        """Count the tokens of ``texts``: a text, or pieces of one.

        Tokens that end a text come first, whether they occur or not: a drafter that cannot draft
        them would miss every end. Of equally frequent tokens the lower id comes first. Tokens that
        do not occur are left out.

        Raises
        ------
        ModelFileError
            The model file has no tokenizer.
        """
        tokenizer = _model(model).tokenizer
        counts = np.zeros(model.hparams.n_vocab, np.int64)
        for text in each_text(texts):
            ids = tokenizer.encode(text, add_special=False, parse_special=True)
            counts += np.bincount(ids, minlength=len(counts))[: len(counts)] if ids else 0
        ends = sorted(token for token in tokenizer.end_tokens if token < len(counts))
        counts[ends] = 0
        ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        return cls([*ends, *ranked.tolist()], fingerprint(_model(model)))

    @classmethod
    def of_tokens(
        cls, model: Model, tokens: Iterable[int] | NDArray[np.integer]
    ) -> DraftVocabulary:
        """Take token ids of a model, the most frequent first, as another program counted them.

        Unlike a list made by hand with no fingerprint it is refused with another tokenizer.

        Raises
        ------
        BatchError
            No tokens, one twice, or ids below 0.
        LinkError
            Ids that the model does not have.
        """
        vocabulary = cls(tokens, fingerprint(_model(model)))
        vocabulary.check(model)
        return vocabulary

    @classmethod
    def read(cls, path: str | PathLike[str]) -> DraftVocabulary:
        """Read a file that ``write`` wrote.

        Raises
        ------
        ModelFileError
            It cannot be read, or is something else.
        """
        path = take_path(path)
        where = str(path)
        data = read_regular(path, _LONGEST, fix=_HOW)
        try:
            held = msgspec.json.decode(data, type=_VocabularyFile)
            if held.format != _FORMAT:
                raise ValueError(held.format)
            return cls(held.tokens, held.tokenizer)
        except (ValueError, RecursionError, BatchError) as error:
            raise ModelFileError(
                "not a draft vocabulary", where=where, wanted=_FORMAT, got=error
            ) from error

    def write(self, path: str | PathLike[str]) -> None:
        """Write a file: JSON with the tokenizer's fingerprint and the ids in their order.

        A file that is there is replaced when the new one is whole.

        Raises
        ------
        ModelFileError
            It cannot be written; what was there still is.
        """
        held = _VocabularyFile(_FORMAT, self.tokenizer, self._tokens.tolist())
        path = take_path(path)
        try:
            with replacing(path) as part:
                part.write_bytes(msgspec.json.encode(held) + b"\n")
        except OSError as error:
            raise ModelFileError(
                "cannot write the draft vocabulary",
                where=str(path),
                got=error.strerror or error,
                fix="give another path: write(path), or -o FILE on the command line",
            ) from error

    @staticmethod
    def beside(model: Model) -> Path:
        """Return where a model's draft vocabulary lies: ``name.vocabulary.json`` beside it.

        That of a model in the package, which may not be writable and goes with the next version,
        lies in the current folder.

        Raises
        ------
        BatchError
            No model.
        """
        beside = _model(model).path.with_suffix(".vocabulary.json")
        return Path(beside.name) if Path(__file__).parents[1] in beside.parents else beside

    def cut(self, n: int) -> DraftVocabulary:
        """Return the ``n`` most frequent tokens, one or more; all where there are no more.

        Raises
        ------
        BatchError
            No number of tokens.
        """
        n = read(n, Annotated[int, Meta(ge=1)], "a number of tokens to keep", wanted=">= 1")
        return DraftVocabulary(self._tokens[:n], self.tokenizer)

    def check(self, model: Model) -> None:
        """Check that these are tokens of a model.

        Raises
        ------
        LinkError
            They were counted with another tokenizer, or the model has fewer tokens.
        """
        wanted, n_vocab = fingerprint(_model(model)), model.hparams.n_vocab
        if self.tokenizer not in ("", wanted):
            raise LinkError(
                "the draft vocabulary was made for another tokenizer",
                where=str(model.path),
                wanted=wanted,
                got=self.tokenizer,
                fix="make one for this model: mtpcore vocabulary MODEL -f TEXT",
            )
        if self._tokens.max() >= n_vocab:
            raise LinkError(
                "the draft vocabulary names unknown tokens",
                where=str(model.path),
                wanted=f"0..{n_vocab - 1}",
                got=int(self._tokens.max()),
            )


def _model(model: Model) -> Model:
    return expect_model(model, "a draft vocabulary is of a model's tokens")


def _listed(tokens: Iterable[int]) -> list[int]:
    """Return the ids of any iterable; one that never ends is refused as one that is too long."""
    try:
        listed = list(islice(tokens, _MOST + 1))
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError(
            "a draft vocabulary is a list of token ids", got=spell(error, str)
        ) from error
    if len(listed) > _MOST:
        raise BatchError("a draft vocabulary is too long", wanted=f"at most {_MOST} tokens")
    return listed
