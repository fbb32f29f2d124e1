"""Texts in which lookup finds, beside the one that is written, and their file."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore.boundary.arguments import read
from mtpcore.boundary.arrays import integers
from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import open_regular, take_path
from mtpcore.boundary.texts import each_text, read_pieces
from mtpcore.drafting.fingerprint import expect_model, fingerprint
from mtpcore.errors import BatchError, LinkError, ModelFileError

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["LookupTexts"]

I32 = NDArray[np.int32]
_MOST = 1 << 28  # tokens
_SORTED_BY = 32  # tokens that end at a place
_NO_TOKEN = -1  # stands after each text
_MAGIC = b"mtpcore lookup 1"
_HEADER = struct.Struct("<16s32sq8x")
"""Format, the tokenizer's fingerprint, n; then int32[n] tokens and int32[n] places."""
_HOW = "make one of texts: mtpcore lookup MODEL FILE -o INDEX"


class LookupTexts:
    """Tokens of texts, and their places sorted by the tokens that end there, read backwards.

    One binary search finds the longest match of some last tokens (a suffix array of the reversed
    text; Manber and Myers 1990). Read from a file, the arrays are mapped, and shared by processes.

    Parameters
    ----------
    tokens : array_like of int, shape (n,)
        Of all texts; a negative one stands between two.
    tokenizer : str
        Fingerprint of the tokenizer whose ids these are, as ``of_texts`` takes it from a model.

    Raises
    ------
    BatchError
        No list of tokens, or more than 2**28.
    """

    def __init__(self, tokens: ArrayLike, tokenizer: str) -> None:
        self._tokens = integers(tokens, "tokens of texts")
        self.tokenizer: str = read(tokenizer, str, "a tokenizer's fingerprint", wanted="a text")
        if not re.fullmatch("[0-9a-f]{32}", self.tokenizer):
            raise BatchError(
                "a tokenizer's fingerprint",
                wanted="32 hexadecimal digits, as of_texts takes them",
                got=self.tokenizer,
            )
        if self._tokens.ndim != 1 or len(self._tokens) > _MOST:
            raise BatchError(
                "texts are a list of tokens",
                wanted=f"at most {_MOST}",
                got=list(self._tokens.shape),
            )
        self._places = _sort_places(self._tokens)
        self._tokens.flags.writeable = self._places.flags.writeable = False

    @property
    def tokens(self) -> I32:
        """int32[n]: of all texts, a negative one between two; read-only."""
        return self._tokens

    @property
    def places(self) -> I32:
        """int32[n]: of these tokens, sorted; read-only. Of a file they may be anything."""
        return self._places

    def __reduce__(self) -> tuple[type[LookupTexts], tuple[I32, str]]:
        return LookupTexts, (self.tokens, self.tokenizer)  # a copy is read-only, too

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"LookupTexts({len(self)} tokens)"

    @classmethod
    def of_texts(cls, model: Model, texts: str | Iterable[str]) -> LookupTexts:
        """Take the tokens of a text, or of several; or of pieces of one that end with lines.

        Raises
        ------
        BatchError
            No model, or more tokens than 2**28.
        ModelFileError
            The model file has no tokenizer.
        """
        tokenizer = expect_model(model, "texts are in a model's tokens").tokenizer
        ids = [
            tokenizer.encode(text, add_special=False, parse_special=False)
            for text in each_text(texts)
        ]
        tokens = [np.array([*of_text, _NO_TOKEN], np.int32) for of_text in ids]
        return cls(np.concatenate([np.empty(0, np.int32), *tokens]), fingerprint(model))

    @classmethod
    def open(cls, model: Model, path: str | PathLike[str]) -> LookupTexts:
        """Read an index that ``write`` wrote, or make one of a text in UTF-8.

        Raises
        ------
        ModelFileError
            The file cannot be read, or is a damaged index.
        LinkError
            An index with another tokenizer's tokens.
        """
        path = take_path(path)
        if not path.is_file() or not _begins_as_index(path):
            return cls.of_texts(model, read_pieces(path))
        expect_model(model, "texts are in a model's tokens")
        texts = cls.read(path)
        texts.check(model)
        return texts

    @classmethod
    def read(cls, path: str | PathLike[str]) -> LookupTexts:
        """Map a file that ``write`` wrote.

        Places that are out of order, or none, find less, and nothing worse.

        Raises
        ------
        ModelFileError
            It cannot be read, or is something else.
        """
        path = take_path(path)
        with open_regular(path, fix=_HOW) as file:
            header = file.read(_HEADER.size)
            size = file.seek(0, 2)
            magic, tokenizer, n = (
                _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", b"", 0)
            )
            wanted = _HEADER.size + 8 * n
            if magic != _MAGIC or not 0 <= n <= _MOST or size != wanted or not tokenizer.isalnum():
                raise ModelFileError(
                    "not a whole lookup index",
                    where=str(path),
                    wanted=f"{wanted} bytes" if magic == _MAGIC else _MAGIC.decode(),
                    got=f"{size} bytes" if magic == _MAGIC else header[: len(_MAGIC)],
                    fix=_HOW,
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        texts = cls.__new__(cls)
        texts.tokenizer = tokenizer.decode("ascii")
        texts._tokens = np.frombuffer(mapped, "<i4", n, _HEADER.size)
        texts._places = np.frombuffer(mapped, "<i4", n, _HEADER.size + 4 * n)
        return texts

    def write(self, path: str | PathLike[str]) -> None:
        """Write a file; one that is there is replaced when the new one is whole.

        Raises
        ------
        ModelFileError
            It cannot be written; what was there still is.
        """
        path = take_path(path)
        try:
            with replacing(path) as part, open(part, "wb") as file:
                file.write(_HEADER.pack(_MAGIC, self.tokenizer.encode(), len(self)))
                for array in (self._tokens, self._places):
                    file.write(array.astype("<i4", copy=False).data)
        except OSError as error:
            raise ModelFileError(
                "cannot write the lookup index",
                where=str(path),
                got=error.strerror or error,
                fix="give another path: write(path), or -o FILE on the command line",
            ) from error

    def check(self, model: Model) -> None:
        """Check that these are tokens of a model.

        Raises
        ------
        LinkError
            They are another tokenizer's, or the model has fewer tokens.
        """
        expect_model(model, "texts are in a model's tokens")
        wanted, n_vocab = fingerprint(model), model.hparams.n_vocab
        largest = int(self._tokens.max(initial=-1))
        if self.tokenizer != wanted or largest >= n_vocab:
            raise LinkError(
                "the lookup index was made for another tokenizer",
                where=str(model.path),
                wanted=f"{wanted}, tokens up to {n_vocab - 1}",
                got=f"{self.tokenizer}, tokens up to {largest}",
                fix="make one for this model: mtpcore lookup MODEL FILE -o INDEX",
            )


def _begins_as_index(path: Path) -> bool:
    with closing(open_regular(path)) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _sort_places(tokens: I32) -> I32:
    """Return the places of a text by the last tokens up to there, read backwards.

    By prefix doubling: ranks by one token and those by the token before it give ranks by two, and
    so on. 32 bytes a token are needed meanwhile.
    """
    ranks = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    n_sorted = 1
    while n_sorted < _SORTED_BY:
        keys = ranks * (len(tokens) + 1)
        keys[n_sorted:] += ranks[:-n_sorted]  # before the first token there is 0
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        ranks[order] = np.cumsum(np.diff(keys, prepend=-1) != 0)
        n_sorted *= 2
    return np.argsort(ranks, kind="stable").astype(np.int32)
