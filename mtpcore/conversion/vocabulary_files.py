"""Tokenizers published as ``vocab.json`` and ``merges.txt``: what ``tokenizer.json`` would hold."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mtpcore.boundary.paths import read_regular
from mtpcore.conversion.published import convert_json, read_json
from mtpcore.conversion.tokenizer_json import (
    AddedToken,
    Pattern,
    TokenId,
    TokenizerFile,
    TokenizerStep,
)
from mtpcore.errors import ModelFileError
from mtpcore.gguf.pretokenizers import find_by_class

__all__ = ["MERGES", "VOCABULARY", "read_vocabulary_files"]

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_LONGEST = 64 << 20  # bytes of merges
_FIX = "write tokenizer.json with transformers: AutoTokenizer, from_pretrained, save_pretrained"


class _Added(msgspec.Struct):
    """A token beside the vocabulary."""

    content: str
    special: bool | None = False
    lstrip: bool | None = False
    rstrip: bool | None = False
    single_word: bool | None = False


class _TokenizerConfig(msgspec.Struct):
    """``tokenizer_config.json``, as far as it is needed here."""

    tokenizer_class: str | None = None
    added_tokens_decoder: dict[str, _Added] | None = None


def read_vocabulary_files(folder: Path) -> TokenizerFile:
    """Return the tokenizer of a folder with ``vocab.json``, ``merges.txt`` and its settings.

    How text is normalised and cut into words follows from the class that the settings name.

    Raises
    ------
    ModelFileError
        A file is missing or malformed, or the class is not known.
    """
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path, _TokenizerConfig)
    known = find_by_class(settings.tokenizer_class or "")
    if known is None:
        raise ModelFileError(
            "how this tokenizer cuts words is not known",
            where=f"{settings_path}: tokenizer_class",
            got=repr(settings.tokenizer_class)[:80],
            fix=_FIX,
        )
    path = folder / MERGES
    try:
        lines = read_regular(path, _LONGEST, fix=_FIX).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ModelFileError("not text", where=str(path), got=str(error)[:80], fix=_FIX) from error
    merges = [line for line in lines if line and not line.startswith("#version")]
    added = {
        convert_json(_number(token), TokenId, f"{settings_path}: added_tokens_decoder"): one
        for token, one in (settings.added_tokens_decoder or {}).items()
    }
    cut, normalizer = known
    steps = [TokenizerStep(type="Split", pattern=Pattern(regex=regex)) for regex in cut.patterns]
    steps.append(TokenizerStep(type="ByteLevel", add_prefix_space=False, use_regex=False))
    vocabulary: dict[str, object] = read_json(folder / VOCABULARY)
    return TokenizerFile(
        model={"type": "BPE", "vocab": vocabulary, "merges": merges},
        added_tokens=[AddedToken(id, **msgspec.structs.asdict(one)) for id, one in added.items()],
        normalizer=None if normalizer is None else TokenizerStep(type=normalizer),
        pre_tokenizer=TokenizerStep(type="Sequence", pretokenizers=steps),
    )


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 10 else text
