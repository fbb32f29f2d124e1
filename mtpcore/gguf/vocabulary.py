"""The vocabulary of a model file: tokens, their kinds and bytes, and the special ids."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from mtpcore.gguf.charsmap import fault_of
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.metadata import Fields
from mtpcore.gguf.pretokenizers import Pretokenizer, find_pretokenizer

__all__ = [
    "ADDED",
    "BYTE",
    "CONTROL",
    "NORMAL",
    "SPACE",
    "SPECIAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Vocabulary",
    "byte_alphabet",
    "read_vocabulary",
]

log = logging.getLogger("mtpcore")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL = (UNKNOWN, CONTROL)  # parsed in text only on request, not shown as text
ADDED = (*SPECIAL, USER_DEFINED)  # stored as plain text, matched before the text is cut
SPACE = "\u2581"  # spells a space in vocabularies of the SentencePiece kind


class _Model(NamedTuple):
    """What ``tokenizer.ggml.model`` says of a vocabulary.

    One ``of_sentencepiece`` has scores in place of merges, and a space before a text. One that is
    ``named_by_pre`` is known by its pre-tokenizer, whatever else a file calls it.
    """

    kind: Literal["bytes", "pieces", "unigram"]
    of_sentencepiece: bool = False
    named_by_pre: bool = False
    needs_bos: bool = False


_MODELS = {
    "gpt2": _Model("bytes"),
    "llama": _Model("pieces", of_sentencepiece=True),
    # Ollama's files call it llama, others gpt2. The first ones deny BOS, and the models write
    # nonsense without (llama.cpp's pull request 21500).
    "gemma4": _Model("pieces", named_by_pre=True, needs_bos=True),
    "t5": _Model("unigram", of_sentencepiece=True),
}

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_END_KEYS = ("eos", "eot", "eom")
# Converters often record only one of several ends of generation; these names are ends wherever
# they are control tokens.
_END_NAMES = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "</s>",
    )
)


def byte_alphabet() -> dict[str, int]:
    """Map the characters that spell bytes in byte-level vocabularies to those bytes.

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_SPELT = {character: bytes((byte,)) for character, byte in byte_alphabet().items()}


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens, checked.

    Attributes
    ----------
    kind : "bytes", "pieces" or "unigram"
        Byte-level BPE; SentencePiece-like BPE with tokens for single bytes; or SentencePiece's
        unigram model.
    tokens : list of str
        As stored; bytes that are not UTF-8 as surrogate escapes.
    types : list of int
        One of NORMAL .. BYTE for each token.
    scores : list of float
        Empty where there are merges.
    merges : list of str
        Pairs, joined by a space, best first; empty where pieces have scores.
    pretokenizer : Pretokenizer
    bos, eos, unknown : int or None
    ends : frozenset of int
        Every token that ends a generation.
    suppressed : tuple of int
        Tokens that no text gets unless its caller allows them.
    add_bos, add_eos, add_space_prefix : bool
    charsmap : bytes
        How characters are normalised, of ``unigram``; empty: not at all.
    joins_spaces : bool
        Whether spaces at both ends are dropped, and several in a row are one; of ``unigram``.
    """

    kind: Literal["bytes", "pieces", "unigram"]
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    pretokenizer: Pretokenizer
    bos: int | None
    eos: int | None
    unknown: int | None
    ends: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    charsmap: bytes = b""
    joins_spaces: bool = False
    suppressed: tuple[int, ...] = ()

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        text, kind = self.tokens[token], self.types[token]
        if kind not in ADDED:
            if self.kind == "bytes":
                return b"".join([_SPELT.get(c) or _encode(c) for c in text])
            if kind == BYTE and (byte := _BYTE_TOKEN.fullmatch(text)):
                return bytes.fromhex(byte[1])
            text = text.replace(SPACE, " ")
        return _encode(text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def read_vocabulary(metadata: Metadata, file: str = "metadata") -> Vocabulary | None:
    """Read the vocabulary; None where there is none, or one of an unsupported kind (warned of).

    Raises
    ------
    ModelFileError
        Naming the key that is missing or wrong.
    """
    fields = Fields(metadata, "", file)
    name, pre = fields.get(_key("model"), str, "none"), fields.get(_key("pre"), str, "default")
    by_pre = _MODELS.get(pre)
    model = by_pre if by_pre is not None and by_pre.named_by_pre else _MODELS.get(name)
    if model is None:
        if name not in ("none", "no_vocab"):
            log.warning("%s: tokenizer %r is not supported: give token ids", file, name[:80])
        return None
    is_bytes, is_unigram = model.kind == "bytes", model.kind == "unigram"
    has_scores = model.of_sentencepiece
    tokens = fields.require(_key("tokens"), list[str])
    if not tokens:
        raise fields.error(_key("tokens"), "an empty vocabulary")
    types = _one_a_token(fields, "token_type", len(tokens), int, NORMAL)
    pretokenizer = find_pretokenizer(pre if is_bytes else "gpt-2")
    adds_bos = fields.get(
        _key("add_bos_token"), bool, pretokenizer.add_bos if is_bytes else not is_unigram
    )
    return Vocabulary(
        kind=model.kind,
        tokens=tokens,
        types=types,
        scores=_one_a_token(fields, "scores", len(tokens), float, None) if has_scores else [],
        merges=[] if has_scores else fields.require(_key("merges"), list[str]),
        pretokenizer=pretokenizer,
        bos=_token_id(fields, "bos", len(tokens)),
        eos=_token_id(fields, "eos", len(tokens)),
        unknown=_token_id(fields, "unknown", len(tokens)),
        ends=_ends(fields, tokens, types),
        add_bos=adds_bos or model.needs_bos,
        add_eos=fields.get(_key("add_eos_token"), bool, is_unigram),
        add_space_prefix=not is_bytes
        and fields.get(_key("add_space_prefix"), bool, model.of_sentencepiece),
        charsmap=_charsmap(fields) if is_unigram else b"",
        joins_spaces=is_unigram and fields.get(_key("remove_extra_whitespaces"), bool, False),
        suppressed=tuple(sorted(_token_ids(fields, "suppress_tokens", len(tokens)))),
    )


def _charsmap(fields: Fields) -> bytes:
    """Read how characters are normalised; bytes are stored with or without a sign."""
    values = fields.get(_key("precompiled_charsmap"), list[int], [])
    if values and not (min(values) >= -128 and max(values) <= 255):
        raise fields.error(_key("precompiled_charsmap"), "not a list of bytes")
    charsmap = bytes(value & 0xFF for value in values)
    if charsmap and (fault := fault_of(charsmap)):
        raise fields.error(_key("precompiled_charsmap"), f"no map of characters: {fault}")
    return charsmap


def _key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def _one_a_token(fields: Fields, name: str, n: int, kind: Any, default: Any) -> list[Any]:
    """Read a list with one entry for each token."""
    key = _key(name)
    if default is not None and key not in fields:
        return [default] * n
    values: list[Any] = fields.require(key, list[kind])
    if len(values) != n:
        raise fields.error(key, "not one entry a token", wanted=n, got=len(values))
    if np.isnan(values).any():
        raise fields.error(key, "an entry is not a number")
    return values


def _token_id(fields: Fields, name: str, n: int) -> int | None:
    key = _key(f"{name}_token_id")
    return _checked(fields, key, fields.require(key, int), n) if key in fields else None


def _token_ids(fields: Fields, name: str, n: int) -> set[int]:
    key = _key(name)
    return {_checked(fields, key, token, n) for token in fields.get(key, list[int], [])}


def _checked(fields: Fields, key: str, token: int, n: int) -> int:
    """Return a token's id; raise ModelFileError where there is no such token."""
    if not 0 <= token < n:
        raise fields.error(key, "no such token", wanted=f"0..{n - 1}", got=token)
    return token


def _ends(fields: Fields, tokens: list[str], types: list[int]) -> frozenset[int]:
    given = (_token_id(fields, name, len(tokens)) for name in _END_KEYS)
    listed = _token_ids(fields, "eos_token_ids", len(tokens))
    named = {
        text: token
        for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if text in _END_NAMES and kind in ADDED
    }
    if "<|return|>" in named and "<|call|>" in named:
        named.pop("<|end|>", None)  # there it ends a message, and another follows
    if "<|tool_response>" in named:
        named.pop("</s>", None)  # there it ends what is struck through
    return frozenset(token for token in (*given, *listed, *named.values()) if token is not None)
