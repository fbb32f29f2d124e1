"""A published tokenizer as metadata, named and ordered as llama.cpp's converter does it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, SpecialVocab

from mtpcore.conversion.published import read_json
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import Value
from mtpcore.gguf.pretokenizers import name_pretokenizer
from mtpcore.gguf.vocabulary import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from mtpcore.gguf.writer import take_values

__all__ = ["tokenizer_metadata"]

_KEY = "tokenizer.ggml."
_KINDS = {"unknown": "unk", "padding": "pad"}
# Some checkpoints do not mark their control tokens as special.
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>|<pad>|<mask>", re.DOTALL)


def tokenizer_metadata(
    folder: Path, n_vocab: int | None, special_tokens: Iterable[tuple[str, str]] = ()
) -> dict[str, Value]:
    """Return the metadata of ``tokenizer.json`` and the files beside it.

    Parameters
    ----------
    folder : Path
    n_vocab : int or None
        Rows of the embedding table: ids without a token become unused ones.
    special_tokens : iterable of (str, str)
        Kinds and texts of tokens whose ids are named where the checkpoint does not.

    Raises
    ------
    ModelFileError
        The tokenizer is missing, malformed, or of a kind that model files cannot hold.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(
            "no tokenizer",
            where=str(path),
            fix="write it with transformers: AutoTokenizer, from_pretrained, then save_pretrained",
        )
    source = read_json(path)
    model = source.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, Mapping) else model
        raise _error(path, "no byte-pair encoding", "model.type BPE", kind)
    texts, added = _texts(source, model, path)
    pieces = bool(model.get("byte_fallback"))
    n_tokens = n_vocab if n_vocab is not None else max(texts, default=-1) + 1
    if texts and max(texts) >= n_tokens:
        raise _error(path, "more tokens than the model has", n_tokens, max(texts) + 1)
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(n_tokens)]
    types = [
        _type(i, texts, added, model.get("unk_token") if pieces else None, pieces)
        for i in range(n_tokens)
    ]
    made: dict[str, Value] = {
        f"{_KEY}model": "llama" if pieces else "gpt2",
        f"{_KEY}pre": "default" if pieces else _pretokenizer(source, model, path),
        f"{_KEY}tokens": [*tokens],
        f"{_KEY}token_type": np.array(types, np.int32),
    }
    if pieces:
        made[f"{_KEY}scores"] = _scores(tokens, model, path)
        made[f"{_KEY}add_space_prefix"] = _adds_space(source)
    made.update(_special(folder, path, n_tokens, special_tokens, texts, merges=not pieces))
    return made


def _error(path: Path, what: str, wanted: object, got: object) -> ModelFileError:
    return ModelFileError(
        f"the tokenizer cannot be converted: {what}", where=str(path), wanted=wanted, got=got
    )


def _texts(
    source: Mapping[str, Any], model: Mapping[str, Any], path: Path
) -> tuple[dict[int, str], dict[int, bool]]:
    """Return token texts by id, and which are added ones, with whether they are special."""
    vocab, entries = model.get("vocab"), source.get("added_tokens") or []
    try:
        texts = {int(token): str(text) for text, token in dict(vocab or {}).items()}
        added = {int(one["id"]): bool(one.get("special")) for one in entries}
        texts.update({int(one["id"]): str(one["content"]) for one in entries})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _error(path, f"malformed vocabulary ({error!r})", "texts and ids", None) from error
    if any(token < 0 for token in texts):
        raise _error(path, "a negative token id", "0 and up", min(texts))
    return texts, added


def _type(
    token: int, texts: dict[int, str], added: dict[int, bool], unknown: object, pieces: bool
) -> int:
    text = texts.get(token)
    if text is None:
        return UNUSED
    if pieces and text == unknown:
        return UNKNOWN
    if token in added:
        special = added[token] or _LOOKS_SPECIAL.fullmatch(text)
        return CONTROL if special else USER_DEFINED
    if pieces and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
        return BYTE
    return NORMAL


def _pretokenizer(source: Mapping[str, Any], model: Mapping[str, Any], path: Path) -> str:
    """Name how text is cut into words."""
    steps = source.get("pre_tokenizer") or {}
    parts = steps.get("pretokenizers", [steps]) if isinstance(steps, Mapping) else []
    patterns: list[str] = []
    for part in parts:
        kind = part.get("type")
        if kind == "Split" and "Regex" in (part.get("pattern") or {}):
            patterns.append(str(part["pattern"]["Regex"]))
        elif kind == "ByteLevel" and part is parts[-1]:
            if part.get("add_prefix_space"):
                raise _error(path, "a space is put before the text", "none", kind)
            if part.get("use_regex", True):
                patterns.append("")  # the expression that this step brings along
        else:
            raise _error(path, "an unknown step of its pre-tokenizer", "Split, ByteLevel", kind)
    name = name_pretokenizer(tuple(patterns), bool(model.get("ignore_merges")))
    if name is None:
        raise _error(path, "no model file has a name for its pre-tokenizer", None, patterns)
    return name


def _scores(tokens: list[str], model: Mapping[str, Any], path: Path) -> np.ndarray:
    """Return a score for each piece: the rank of the merge that makes it, negated.

    Joining the neighbours whose piece scores best then makes the same pieces as the merges do. A
    piece that no merge makes scores worst.
    """
    ranks: dict[str, int] = {}
    merges = _merges(model, path)
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    return np.array([-float(ranks.get(text, len(merges))) for text in tokens], np.float32)


def _merges(model: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    pairs = [
        tuple(one.split(" ")) if isinstance(one, str) else tuple(one)
        for one in model.get("merges") or []
    ]
    if any(len(pair) != 2 for pair in pairs):
        raise _error(path, "a merge is not a pair", 2, next(p for p in pairs if len(p) != 2))
    return pairs  # type: ignore[return-value]


def _adds_space(source: Mapping[str, Any]) -> bool:
    """Say whether a text gets a space in front."""
    step = source.get("normalizer") or {}
    steps = [*step.get("normalizers", [step])]
    if any(one.get("type") == "Prepend" and one.get("prepend") == SPACE for one in steps):
        return True
    cut = source.get("pre_tokenizer") or {}
    return cut.get("type") == "Metaspace" and cut.get("prepend_scheme", "always") != "never"


def _special(
    folder: Path,
    path: Path,
    n_tokens: int,
    special_tokens: Iterable[tuple[str, str]],
    texts: Mapping[int, str],
    *,
    merges: bool,
) -> dict[str, Value]:
    """Return merges, special ids and chat template, as the ``gguf`` package finds them."""
    ids = {text: token for token, text in texts.items()}
    writer = GGUFWriter(None, "none")
    try:
        found = SpecialVocab(folder, load_merges=merges, n_vocab=n_tokens)
        for kind, text in special_tokens:
            if text in ids:
                found.special_token_ids.setdefault(_KINDS.get(kind, kind), ids[text])
        found.add_to_gguf(writer, quiet=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _error(path, f"malformed ({error!r})", None, None) from error
    return {k: v for k, v in take_values(writer).items() if k.startswith("tokenizer.")}
