"""Unigram vocabularies: from ``tokenizer.json`` or a SentencePiece model, as metadata."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

import msgspec
import numpy as np

from mtpcore.conversion.published import NO_FILE_HOLDS_IT, convert_json, tokenizer_error
from mtpcore.conversion.sentencepiece import read_sentencepiece
from mtpcore.conversion.tokenizer_json import TokenizerFile, TokenizerStep
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.vocabulary import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

__all__ = ["Unigram", "unigram_metadata", "unigram_of_json", "unigram_of_sentencepiece"]

_KEY = "tokenizer.ggml."
_UNUSED_SCORE = -1000.0
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Unigram(msgspec.Struct, frozen=True):
    """Texts, scores and kinds of all tokens, and how text is normalised."""

    texts: list[str]
    scores: list[float]
    types: list[int]
    charsmap: bytes
    adds_space: bool
    joins_spaces: bool


class _UnigramModel(msgspec.Struct, forbid_unknown_fields=True):
    """``model`` in ``tokenizer.json``."""

    type: str | None = None
    vocab: list[tuple[str, float]] | None = None
    unk_id: int | None = None
    byte_fallback: bool | None = False


def unigram_of_sentencepiece(path: Path) -> Unigram:
    """Read a SentencePiece model.

    Raises
    ------
    ModelFileError
        As ``read_sentencepiece``.
    """
    model = read_sentencepiece(path)
    return Unigram(
        [piece.text for piece in model.pieces],
        [piece.score for piece in model.pieces],
        [piece.kind for piece in model.pieces],
        model.charsmap,
        model.adds_space,
        model.joins_spaces,
    )


def unigram_of_json(source: TokenizerFile, path: Path) -> Unigram:
    """Read the unigram model of a ``tokenizer.json``.

    Raises
    ------
    ModelFileError
        It is malformed, or has steps that model files cannot hold.
    """
    model = convert_json(source.model, _UnigramModel, f"{path}: model")
    vocab = list(model.vocab or ())
    types = [BYTE if model.byte_fallback and _BYTE.fullmatch(text) else NORMAL for text, _ in vocab]
    for entry in sorted(source.added_tokens or (), key=lambda entry: entry.id):
        if entry.id > len(vocab):
            raise tokenizer_error(path, "ids of added tokens leave a gap", len(vocab), entry.id)
        if entry.id == len(vocab):
            vocab.append((entry.content, 0.0))
            types.append(NORMAL)
        elif vocab[entry.id][0] != entry.content:
            raise tokenizer_error(
                path, "two tokens have one id", repr(vocab[entry.id][0]), repr(entry.content)
            )
        types[entry.id] = CONTROL if entry.special else USER_DEFINED
    if model.unk_id is not None:
        if not 0 <= model.unk_id < len(vocab):
            raise tokenizer_error(
                path, "no token for what is unknown", f"below {len(vocab)}", model.unk_id
            )
        types[model.unk_id] = UNKNOWN
    if not vocab:
        raise tokenizer_error(path, "it has no tokens", "at least one", None)
    charsmap, joins_spaces = _normalization(source.normalizer, path)
    adds_space, splits = _cut(source.pre_tokenizer, path)
    strips = any(part.type == "Strip" for part in (source.normalizer or TokenizerStep()).parts)
    if strips and not (joins_spaces or splits):
        raise tokenizer_error(
            path,
            "spaces around a text are removed (Strip), and others kept",
            "a step that makes one of several spaces, or none that removes them",
            "Strip",
            NO_FILE_HOLDS_IT,
        )
    return Unigram(
        [text for text, _ in vocab],
        [score for _, score in vocab],
        types,
        charsmap,
        adds_space,
        joins_spaces or splits,
    )


def _normalization(step: TokenizerStep | None, path: Path) -> tuple[bytes, bool]:
    """Return the map of characters, and whether spaces in a row become one."""
    charsmap, joins_spaces = b"", False
    for part in step.parts if step is not None else ():
        if part.type == "Precompiled":
            try:
                charsmap = base64.b64decode(part.precompiled_charsmap or "", validate=True)
            except (binascii.Error, ValueError) as error:
                raise tokenizer_error(path, "no map of characters", "base64", error) from None
        elif part.type == "Replace" and _joins(part):
            joins_spaces = True
        elif part.type != "Strip":
            raise tokenizer_error(
                path,
                "an unknown step of its normalizer",
                "Precompiled, Strip, Replace of several spaces by one",
                part.type,
                NO_FILE_HOLDS_IT,
            )
    return charsmap, joins_spaces


def _joins(part: TokenizerStep) -> bool:
    """Say whether a step makes one of several spaces."""
    pattern = part.pattern.regex if part.pattern is not None else None
    return pattern == " {2,}" and part.content in (" ", SPACE)


def _cut(step: TokenizerStep | None, path: Path) -> tuple[bool, bool]:
    """Return whether a text gets a space in front, and whether spaces in a row are one."""
    adds_space = splits = False
    for part in step.parts if step is not None else ():
        if part.type == "WhitespaceSplit":
            splits = True
        elif part.type == "Metaspace" and part.replacement == SPACE:
            adds_space = part.prepend_scheme != "never" and part.add_prefix_space is not False
        else:
            raise tokenizer_error(
                path,
                "an unknown step of its pre-tokenizer",
                "WhitespaceSplit, Metaspace",
                part.type,
                NO_FILE_HOLDS_IT,
            )
    return adds_space, splits


def unigram_metadata(
    unigram: Unigram, n_tokens: int | None, path: Path
) -> dict[str, MetadataValue]:
    """Return the metadata of a vocabulary; ids without a token become unused ones.

    Raises
    ------
    ModelFileError
        There are more tokens than ``n_tokens``.
    """
    n = len(unigram.texts)
    more = 0 if n_tokens is None else n_tokens - n
    if more < 0:
        raise tokenizer_error(path, "more tokens than the model has", n_tokens, n)
    metadata: dict[str, MetadataValue] = {
        f"{_KEY}model": "t5",
        f"{_KEY}pre": "default",
        f"{_KEY}tokens": [*unigram.texts, *(f"[PAD{i}]" for i in range(n, n + more))],
        f"{_KEY}scores": np.array([*unigram.scores, *[_UNUSED_SCORE] * more], np.float32),
        f"{_KEY}token_type": np.array([*unigram.types, *[UNUSED] * more], np.int32),
        f"{_KEY}add_space_prefix": unigram.adds_space,
        f"{_KEY}remove_extra_whitespaces": unigram.joins_spaces,
        f"{_KEY}add_bos_token": False,
        f"{_KEY}add_eos_token": True,
    }
    if unigram.charsmap:
        metadata[f"{_KEY}precompiled_charsmap"] = np.frombuffer(unigram.charsmap, np.uint8)
    return metadata
