"""PLaMo's vocabularies, published as lines of JSON: text, score and kind of each token."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from mtpcore.boundary.paths import read_regular
from mtpcore.conversion.published import convert_json, read_json, tokenizer_error
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED

__all__ = ["LINES", "special_of_lines", "vocabulary_of_lines"]

LINES = "tokenizer.jsonl"
_KEY = "tokenizer.ggml."
_LONGEST = 64 << 20  # bytes
_KINDS = {"NORMAL": NORMAL, "UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}
_UNUSED_SCORE = -1000.0
_SPECIAL = {"bos": "bos", "eos": "eos", "padding": "pad", "sep": "sep", "unknown": "unk"}


class _SpecialTexts(msgspec.Struct):
    """``tokenizer_config.json``, as far as it is needed here."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    sep_token: str | None = None
    unk_token: str | None = None


def vocabulary_of_lines(path: Path, n_vocab: int | None) -> dict[str, MetadataValue]:
    """Return the metadata of a vocabulary.

    Parameters
    ----------
    path : Path
    n_vocab : int or None
        Ids without a token become unused ones.

    Raises
    ------
    ModelFileError
        The file is malformed, or there are more tokens than ``n_vocab``.
    """
    data = read_regular(path, _LONGEST, fix="take it from the published model")
    tokens = [_token(line, path, n) for n, line in _lines(data)]
    more = 0 if n_vocab is None else n_vocab - len(tokens)
    if not tokens or more < 0:
        raise tokenizer_error(path, "not as many tokens as the model has", n_vocab, len(tokens))
    tokens += [(f"[PAD{i}]", _UNUSED_SCORE, UNUSED) for i in range(1, more + 1)]
    return {
        f"{_KEY}model": "plamo2",
        f"{_KEY}pre": "default",
        f"{_KEY}tokens": [text for text, _, _ in tokens],
        f"{_KEY}scores": np.array([score for _, score, _ in tokens], np.float32),
        f"{_KEY}token_type": np.array([kind for _, _, kind in tokens], np.int32),
        f"{_KEY}add_space_prefix": False,
    }


def special_of_lines(folder: Path) -> list[tuple[str, str]]:
    """Return kinds and texts of the special tokens that the settings beside the file name.

    Raises
    ------
    ModelFileError
        The settings cannot be read.
    """
    settings = msgspec.structs.asdict(read_json(folder / "tokenizer_config.json", _SpecialTexts))
    named = ((kind, settings[f"{name}_token"]) for kind, name in _SPECIAL.items())
    return [(kind, text) for kind, text in named if text is not None]


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    return [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]


def _token(line: bytes, path: Path, n: int) -> tuple[str, float, int]:
    """Return text, score and kind of a token; a line may hold more, which no text needs."""
    try:
        values = msgspec.json.decode(line, type=list)
    except msgspec.DecodeError:
        values = None  # which is no list of anything
    where = f"{path}: line {n}"
    text, score, kind = convert_json((values or [])[:3], tuple[str, float, str], where)
    if kind not in _KINDS:
        what = f"line {n} has a token of a kind that nobody knows"
        raise tokenizer_error(path, what, ", ".join(_KINDS), kind)
    is_control = kind == "NORMAL" and text.startswith("<|plamo:") and text.endswith("|>")
    return text, score, CONTROL if is_control else _KINDS[kind]
