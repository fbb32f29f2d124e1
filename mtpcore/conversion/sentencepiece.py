"""Reads SentencePiece models: the parts of their protocol buffer that a model file needs.

The format is ``sentencepiece_model.proto`` of the SentencePiece project.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mtpcore.boundary.paths import read_regular
from mtpcore.conversion.published import NO_FILE_HOLDS_IT, tokenizer_error
from mtpcore.errors import ModelFileError

__all__ = ["SentencePiece", "SentencePieceModel", "read_sentencepiece"]

_MOST_BYTES = 1 << 25
_MOST_PIECES = 1 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_UNIGRAM = 1

FieldValue = int | float | memoryview
"""Of a field: a number, or bytes."""


class SentencePiece(msgspec.Struct, frozen=True):
    """A token: ``kind`` is normal (1), unknown, control, user-defined, unused or a byte (6)."""

    text: str
    score: float
    kind: int


class SentencePieceModel(msgspec.Struct, frozen=True):
    """A vocabulary, and how text is normalised before it is cut into pieces."""

    pieces: tuple[SentencePiece, ...]
    charsmap: bytes
    adds_space: bool
    joins_spaces: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a unigram model.

    Raises
    ------
    ModelFileError
        The file cannot be read, is no such model, or one of another kind.
    """
    data = read_regular(path, _MOST_BYTES, fix="take it from the published model")
    try:
        return _parse(memoryview(data), path)
    except ModelFileError:
        raise
    except (IndexError, UnicodeDecodeError, struct.error, ValueError) as error:
        raise tokenizer_error(path, "malformed", None, str(error)[:80]) from error


def _parse(data: memoryview, path: Path) -> SentencePieceModel:
    pieces: list[SentencePiece] = []
    trainer: dict[int, FieldValue] = {}
    normalizer: dict[int, FieldValue] = {}
    for field, value in _fields(data):
        if field == _PIECES:
            pieces.append(_piece(dict(_fields(_bytes(value)))))
        elif field in (_TRAINER, _NORMALIZER):
            (trainer if field == _TRAINER else normalizer).update(_fields(_bytes(value)))
        if len(pieces) > _MOST_PIECES:
            raise tokenizer_error(path, "more pieces than any vocabulary has", _MOST_PIECES, "more")
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise tokenizer_error(
            path, "no unigram model", f"model_type {_UNIGRAM}", trainer[3], NO_FILE_HOLDS_IT
        )
    if trainer.get(24, 0):
        raise tokenizer_error(path, "spaces are at the end of words", None, None, NO_FILE_HOLDS_IT)
    if not normalizer.get(5, 1):
        raise tokenizer_error(path, "spaces are not spelt as U+2581", None, None, NO_FILE_HOLDS_IT)
    if not pieces:
        raise tokenizer_error(path, "it has no pieces", "at least one", None)
    return SentencePieceModel(
        tuple(pieces),
        bytes(_bytes(normalizer.get(2, memoryview(b"")))),
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
    )


def _piece(fields: dict[int, FieldValue]) -> SentencePiece:
    text = bytes(_bytes(fields.get(1, memoryview(b"")))).decode()
    score, kind = fields.get(2, 0.0), fields.get(3, 1)
    if not isinstance(score, float) or score != score or kind not in range(1, 7):
        raise ValueError(f"piece {text[:40]!r} of kind {kind} with score {score}")
    return SentencePiece(text, score, int(kind))


def _bytes(value: FieldValue) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError(f"a number in place of bytes: {value}")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, FieldValue]]:
    """Yield number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        n = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            n, at = _varint(data, at)
        elif not n:
            raise ValueError(f"a field of kind {kind}")
        value = data[at : at + n]
        if len(value) < n:
            raise ValueError("a field is cut short")
        yield key >> 3, struct.unpack("<f", value)[0] if kind == _FIXED32 else value
        at += n


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
