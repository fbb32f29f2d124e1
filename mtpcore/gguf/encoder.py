"""Building an encoder from a vocabulary.

The ``tokenizers`` library finds added tokens, normalises a text, and cuts it into words and
letters, which are joined here (``Joiner``): to join them itself it would have to be told what every
two tokens make, half a million pairs, which takes seconds. Unigram models are all its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

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

__all__ = ["Encoder", "build_encoder"]

log = logging.getLogger("mtpcore")

_NO_PIECE = " "  # stands for what is unknown: a normalised text spells its spaces otherwise
_BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


class Encoder:
    """A tokenizer of the library, and what makes the vocabulary's tokens of its own.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    n_tokens : int
        Of the vocabulary; those from there on stand for what it does not know.
    unknown : int or None
        The token for all of that; None: it is left out.
    joiner : Joiner, optional
        How the library's tokens are joined.
    ids : sequence of int, optional
        The vocabulary's token of each of the library's, where they differ.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_tokens: int,
        unknown: int | None,
        joiner: Joiner | None = None,
        ids: Sequence[int] | None = None,
    ) -> None:
        self._tokenizer, self._joiner = tokenizer, joiner
        self._n_tokens, self._unknown = n_tokens, unknown
        self._ids = None if ids is None else np.array(ids, np.int64)
        self._said: set[str] = set()

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text; special ones in it only where they are to be parsed."""
        self._tokenizer.encode_special_tokens = not parse_special
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        letters: list[int] = encoding.ids
        if self._ids is not None:
            letters = self._ids[letters].tolist()
        tokens = letters
        if self._joiner is not None:
            tokens = self._joiner.join(letters, encoding.word_ids)
            if self._joiner.missed is not None:
                self._say("the tokenizer's merge of %r makes no token", self._joiner.missed)
        if max(tokens, default=0) < self._n_tokens:
            return tokens
        places = zip(letters, encoding.offsets, strict=True)
        lost = "".join(text[slice(*at)] for token, at in places if token >= self._n_tokens)
        self._say(
            "the tokenizer has no token for %r, which texts lose", "".join(dict.fromkeys(lost))
        )
        known = (token if token < self._n_tokens else self._unknown for token in tokens)
        return [token for token in known if token is not None]

    def _say(self, what: str, text: str) -> None:
        """Warn of what a text met in the vocabulary; of each kind once."""
        if what not in self._said:
            self._said.add(what)
            log.warning(f"{what} (said once)", text[:40])


def build_encoder(vocabulary: Vocabulary) -> Encoder:
    """Build the encoder; special tokens are known to it, BOS and EOS are not added by it."""
    ids, n_tokens = vocabulary.ids, len(vocabulary.tokens)
    if not _is_text("".join(vocabulary.tokens)):
        # The library holds text only; other tokens can be decoded all the same.
        ids = {text: token for text, token in ids.items() if _is_text(text)}
    found = np.flatnonzero(np.isin(vocabulary.types, ADDED)).tolist()
    added = {text: i for i in found if ids.get(text := vocabulary.tokens[i]) == i and text}
    if vocabulary.kind == "unigram":
        plain = {
            text: token
            for text, token in ids.items()
            if vocabulary.types[token] in (NORMAL, BYTE) and text
        }
        tokenizer, own_ids = (
            _unigram(vocabulary, plain),
            [n_tokens, *plain.values(), *added.values()],
        )
        encoder = Encoder(tokenizer, n_tokens, vocabulary.unknown, ids=own_ids)
    elif vocabulary.kind == "bytes":
        letters = {
            letter: ids.get(letter, n_tokens + byte) for letter, byte in byte_alphabet().items()
        }
        tokenizer = Tokenizer(models.BPE(vocab=added | letters, merges=[]))
        tokenizer.pre_tokenizer = vocabulary.pretokenizer.build()
        spelt = sorted(letters, key=byte_alphabet().__getitem__)
        encoder = Encoder(tokenizer, n_tokens, None, _joiner(vocabulary, ids, spelt))
    else:
        letters = {text: token for text, token in ids.items() if len(text) == 1}
        letters |= {text: ids[text] for text in _BYTE_PIECES if text in ids}
        tokenizer = _pieces(vocabulary, added | letters | {_NO_PIECE: n_tokens})
        joiner = _joiner(vocabulary, ids, [_NO_PIECE])
        encoder = Encoder(tokenizer, n_tokens, vocabulary.unknown, joiner)
    tokenizer.add_tokens(
        [
            AddedToken(text, special=vocabulary.types[token] in SPECIAL, normalized=False)
            for text, token in added.items()
        ]
    )
    return encoder


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joiner(vocabulary: Vocabulary, ids: dict[str, int], unknown: list[str]) -> Joiner:
    """Make what joins letters; those that no token is for are numbered behind the tokens."""
    texts, scores = [*vocabulary.tokens, *unknown], vocabulary.scores
    excluded = (*ADDED, BYTE) if scores else SPECIAL
    joinable = np.zeros(len(texts), np.uint8)
    joinable[: len(vocabulary.tokens)] = ~np.isin(vocabulary.types, excluded)
    if scores:
        return Joiner(texts, ids, joinable, np.array([*scores, *[0.0] * len(unknown)]))
    ranks = dict(zip(vocabulary.merges, range(len(vocabulary.merges)), strict=True))
    return Joiner(
        texts, ids, joinable, ranks=ranks, whole_words=vocabulary.pretokenizer.whole_words
    )


def _pieces(vocabulary: Vocabulary, letters: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(vocab=letters, merges=[], unk_token=_NO_PIECE, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    return tokenizer


def _unigram(vocabulary: Vocabulary, plain: dict[str, int]) -> Tokenizer:
    """Make the pieces that are likeliest together, as SentencePiece's unigram model does.

    The library numbers the pieces that a text may become, one for what is unknown before them.
    """
    scores = [vocabulary.scores[token] for token in plain.values()]
    encoder = Tokenizer(
        models.Unigram(
            [(_NO_PIECE, min(scores, default=0.0)), *zip(plain, scores, strict=True)],
            unk_id=0,
            byte_fallback=BYTE in vocabulary.types,
        )
    )
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.joins_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if vocabulary.add_space_prefix:
        steps.append(normalizers.Prepend(SPACE))
    encoder.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    return encoder
