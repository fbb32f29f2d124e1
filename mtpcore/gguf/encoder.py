"""Encoding text by a vocabulary.

A text is cut at added tokens, and what is left into words, whose letters ``Joiner`` joins, or into
the pieces of a unigram model, by ``Segmenter``. Only the expressions that cut words and the maps
that normalise texts are the ``tokenizers`` library's. To join letters it would have to be told what
every two tokens make, half a million pairs, which takes seconds, and it makes objects of each
letter; to know 250,000 pieces takes it a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np
from tokenizers import Regex, normalizers

from mtpcore._ext._cutting import Cutter, Segmenter
from mtpcore._ext._joining import Joiner
from mtpcore.gguf.vocabulary import (
    ADDED,
    BYTE,
    NORMAL,
    SPACE,
    SPECIAL,
    Vocabulary,
    byte_alphabet,
)

__all__ = ["TextEncoder", "build_encoder"]

log = logging.getLogger("mtpcore")

_PARTS, _UNKNOWN = 1e4, -1e7  # of PLaMo: how fine scores are, and what an unknown one scores
_SPACES = " \t\n\v\f\r"  # those of C, which llama.cpp drops


class TextEncoder(Protocol):
    """Turns text into tokens."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text; special ones in it only where they are to be parsed."""
        ...


class _Cutter(Protocol):
    """Cuts a text at added tokens, as ``mtpcore._ext._cutting.Cutter`` does."""

    def cut(self, text: str, special: bool) -> list[str | int]: ...


class _Stripper:
    """A cutter that drops the spaces after some tokens."""

    def __init__(self, cutter: _Cutter, tokens: frozenset[int]) -> None:
        self._cutter, self._tokens = cutter, tokens

    def cut(self, text: str, special: bool) -> list[str | int]:
        parts = list[str | int]()
        for part in self._cutter.cut(text, special):
            follows = bool(parts) and parts[-1] in self._tokens
            kept = part.lstrip(_SPACES) if follows and isinstance(part, str) else part
            if kept != "":
                parts.append(kept)
        return parts


class _Losses:
    """What to do about tokens that stand for what a vocabulary does not know.

    Parameters
    ----------
    n_tokens : int
        Of the vocabulary; those from there on stand for what it does not know.
    unknown : int or None
        The token for all of that; None: it is left out.
    """

    def __init__(self, n_tokens: int, unknown: int | None) -> None:
        self._n_tokens, self._unknown = n_tokens, unknown
        self._said: set[str] = set()

    def has(self, tokens: list[int]) -> bool:
        """Say whether one of the tokens stands for what is not known."""
        return max(tokens, default=0) >= self._n_tokens

    def settle(self, tokens: list[int], lost: Callable[[], str]) -> list[int]:
        """Return tokens of the vocabulary alone; ``lost`` says what text others stand for."""
        if not self.has(tokens):
            return tokens
        self.say(
            "the tokenizer has no token for %r, which texts lose", "".join(dict.fromkeys(lost()))
        )
        known = (token if token < self._n_tokens else self._unknown for token in tokens)
        return [token for token in known if token is not None]

    def say(self, what: str, text: str) -> None:
        """Warn of what a text met in the vocabulary; of each kind once."""
        if what not in self._said:
            self._said.add(what)
            log.warning(f"{what} (said once)", text[:40])


class _Joining:
    """Byte-pair encoding: added tokens, and the words between, whose letters are joined."""

    def __init__(
        self,
        cutter: _Cutter,
        words: Callable[[str], list[str]],
        joiner: Joiner,
        losses: _Losses,
        space: str,
    ) -> None:
        self._cutter, self._words, self._joiner = cutter, words, joiner
        self._losses, self._space = losses, space

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        parts, tokens = self._cutter.cut(text, parse_special), list[int]()
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self._joiner.join(self._words(part))
        if self._joiner.missed is not None:
            self._losses.say("the tokenizer's merge of %r makes no token", self._joiner.missed)
        return self._losses.settle(tokens, lambda: self._lost(parts))

    def _lost(self, parts: list[str | int]) -> str:
        """Return the characters that are no token."""
        text = "".join(part for part in parts if isinstance(part, str))
        tokens = {c: self._joiner.join([self._space if c == " " else c]) for c in set(text)}
        return "".join(c for c in text if self._losses.has(tokens[c]))


class _Segmenter(Protocol):
    """Cuts a text into pieces, as ``mtpcore._ext._cutting.Segmenter`` does."""

    def cut(self, text: str) -> list[str | int]: ...


class _BackwardSegmenter:
    """A segmenter of texts that are read from their end: of equal sums the longest first wins."""

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def cut(self, text: str) -> list[str | int]:
        pieces = reversed(self._segmenter.cut(text[::-1]))
        return [piece if isinstance(piece, int) else piece[::-1] for piece in pieces]


class _UnigramEncoder:
    """A unigram model: added tokens, and the likeliest pieces of the normalised text between."""

    def __init__(
        self,
        cutter: _Cutter,
        normalise: Callable[[str], str],
        segmenter: _Segmenter,
        of_bytes: dict[int, int],
        n_tokens: int,
        losses: _Losses,
    ) -> None:
        self._cutter, self._normalise, self._segmenter = cutter, normalise, segmenter
        self._of_bytes, self._n_tokens, self._losses = of_bytes, n_tokens, losses

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        tokens, lost = list[int](), list[str]()
        for part in self._cutter.cut(text, parse_special):
            pieces = [part] if isinstance(part, int) else self._segmenter.cut(self._normalise(part))
            for piece in pieces:
                if isinstance(piece, int):
                    tokens.append(piece)
                elif self._of_bytes.keys() >= set(spelt := piece.encode()):
                    tokens += [self._of_bytes[byte] for byte in spelt]
                else:
                    tokens.append(self._n_tokens)
                    lost.append(piece)
        return self._losses.settle(tokens, lambda: "".join(lost).replace(SPACE, " "))


def build_encoder(vocabulary: Vocabulary) -> TextEncoder:
    """Build the encoder; special tokens are known to it, BOS and EOS are not added by it."""
    ids, n_tokens = vocabulary.ids, len(vocabulary.tokens)
    if not _is_text("".join(vocabulary.tokens)):
        # Texts have no others; such tokens can be decoded all the same.
        ids = {text: token for text, token in ids.items() if _is_text(text)}
    found = np.flatnonzero(np.isin(vocabulary.types, ADDED)).tolist()
    added = {text: i for i in found if ids.get(text := vocabulary.tokens[i]) == i and text}
    special = np.isin([vocabulary.types[token] for token in added.values()], SPECIAL)
    cutter: _Cutter = Cutter([*added], [*added.values()], special.astype(np.uint8))
    if vocabulary.rstrip:
        cutter = _Stripper(cutter, vocabulary.rstrip)
    if vocabulary.kind in ("unigram", "verbatim"):
        return _unigram(vocabulary, ids, cutter)
    if vocabulary.kind == "bytes":
        letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
        of_bytes = [ids.get(letter, n_tokens + byte) for byte, letter in enumerate(letters)]
        joiner = _joiner(vocabulary, ids, letters, of_bytes, None)
        cut = vocabulary.pretokenizer.build().pre_tokenize_str
        losses = _Losses(n_tokens, None)
        return _Joining(cutter, lambda text: [word for word, _ in cut(text)], joiner, losses, " ")
    of_bytes = [ids.get(f"<0x{byte:02X}>", -1) for byte in range(256)]
    joiner = _joiner(vocabulary, ids, [""], of_bytes, n_tokens)
    before = SPACE if vocabulary.add_space_prefix else ""
    losses = _Losses(n_tokens, vocabulary.unknown)
    return _Joining(cutter, lambda text: [before + text.replace(" ", SPACE)], joiner, losses, SPACE)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joiner(
    vocabulary: Vocabulary,
    ids: dict[str, int],
    lacking: list[str],
    of_bytes: list[int],
    unknown: int | None,
) -> Joiner:
    """Make what joins letters; those that no token is for are numbered after the tokens."""
    texts, scores = [*vocabulary.tokens, *lacking], vocabulary.scores
    excluded = (*ADDED, BYTE) if scores else SPECIAL
    joinable = np.zeros(len(texts), np.uint8)
    joinable[: len(vocabulary.tokens)] = ~np.isin(vocabulary.types, excluded)
    letters = np.array(of_bytes, np.int32)
    if scores:
        given = np.array([*scores, *[0.0] * len(lacking)])
        return Joiner(texts, ids, joinable, letters, unknown, scores=given)
    merges, whole_words = vocabulary.merges, vocabulary.pretokenizer.whole_words
    return Joiner(texts, ids, joinable, letters, unknown, merges=merges, whole_words=whole_words)


def _unigram(vocabulary: Vocabulary, ids: dict[str, int], cutter: _Cutter) -> TextEncoder:
    """Make the pieces that are likeliest together, as SentencePiece's model does, or PLaMo's.

    Control tokens are no pieces. llama.cpp takes them for pieces of PLaMo's texts, which so might
    end a turn.
    """
    types, n_tokens = vocabulary.types, len(vocabulary.tokens)
    plain = [token for text, token in ids.items() if types[token] == NORMAL and text]
    texts = [vocabulary.tokens[token] for token in plain]
    scores = np.array(vocabulary.scores, np.float64)[plain]
    is_verbatim = vocabulary.kind == "verbatim"
    segmenter: _Segmenter
    if is_verbatim:
        backwards = [text[::-1] for text in texts]
        rounded = np.copysign(np.floor(np.abs(scores) * _PARTS + 0.5), scores)
        segmenter = _BackwardSegmenter(Segmenter(backwards, plain, rounded, _UNKNOWN))
    else:
        segmenter = Segmenter(texts, plain, scores)
    spelt = {byte: ids.get(f"<0x{byte:02X}>") for byte in range(256)}
    of_bytes = {
        byte: token for byte, token in spelt.items() if token is not None and types[token] == BYTE
    }
    normalise = _without_mark if is_verbatim else _normaliser(vocabulary)
    losses = _Losses(n_tokens, vocabulary.unknown)
    return _UnigramEncoder(cutter, normalise, segmenter, of_bytes, n_tokens, losses)


def _without_mark(text: str) -> str:
    """Return a text without a mark of byte order before it."""
    return text.removeprefix("\ufeff")


def _normaliser(vocabulary: Vocabulary) -> Callable[[str], str]:
    """Return what SentencePiece does to a text before it is cut."""
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.joins_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if vocabulary.add_space_prefix:
        steps.append(normalizers.Prepend(SPACE))
    normalise: Callable[[str], str] = normalizers.Sequence(
        [*steps, normalizers.Replace(" ", SPACE)]
    ).normalize_str
    return normalise
