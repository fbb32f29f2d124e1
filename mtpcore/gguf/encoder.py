"""Building an encoder of the ``tokenizers`` library from a vocabulary."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

from mtpcore.gguf.joining import join_pieces
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

_IN_UTF_8 = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
_NO_PIECE = "\U0010ffff"  # a character that no text has: what is unknown stands for itself
_LONGEST_PIECE = 256  # characters; finding how a piece is merged takes the square of its length


class Encoder:
    """A tokenizer of the library, with the vocabulary's ids.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    ids : sequence of int, optional
        The vocabulary's token of each of the library's, where they differ.
    joints : mapping, optional
        How its tokens are joined after it, as ``join_pieces`` reads it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: Sequence[int] | None = None,
        joints: Mapping[tuple[int, int], tuple[float, int]] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = None if ids is None else np.array(ids, np.int64)
        self._joints = joints

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text; special ones in it only where they are to be parsed."""
        self._tokenizer.encode_special_tokens = not parse_special
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._joints is not None:
            return join_pieces(ids, self._joints)
        return ids if self._ids is None else self._ids[ids].tolist()


def build_encoder(vocabulary: Vocabulary) -> Encoder:
    """Build the encoder; special tokens are known to it, BOS and EOS are not added by it."""
    tokens = vocabulary.tokens
    ids = dict(zip(reversed(tokens), reversed(range(len(tokens))), strict=True))  # first wins
    if not _is_text("".join(tokens)):
        # The library holds text only; other tokens can be decoded all the same.
        ids = {text: token for text, token in ids.items() if _is_text(text)}
    added = {
        text: token for text, token in ids.items() if vocabulary.types[token] in ADDED and text
    }
    own_ids = joints = None
    if vocabulary.kind == "unigram":
        plain = {
            text: token
            for text, token in ids.items()
            if vocabulary.types[token] in (NORMAL, BYTE) and text
        }
        encoder = _unigram(vocabulary, plain)
        unknown = 0 if vocabulary.unknown is None else vocabulary.unknown
        own_ids = [unknown, *plain.values(), *added.values()]
    elif vocabulary.kind == "bytes":
        encoder = _byte_level(vocabulary, ids)
    elif not vocabulary.scores:
        encoder = _pieces(vocabulary, ids, _ranked_merges(vocabulary, ids))
    else:
        found = _joints(vocabulary, ids)
        if len({joint.rank for joint in found}) < len({joint.token for joint in found}):
            # The library gives each merge a rank of its own; of equal ones the leftmost is first.
            joints = {(ids[joint.left], ids[joint.right]): joint[:2] for joint in found}
            found = []
        encoder = _pieces(vocabulary, ids, [(joint.left, joint.right) for joint in found])
    encoder.add_tokens(
        [
            AddedToken(text, special=vocabulary.types[token] in SPECIAL, normalized=False)
            for text, token in added.items()
        ]
    )
    return Encoder(encoder, own_ids, joints)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> Tokenizer:
    merges = _ranked_merges(vocabulary, ids)
    missing = [
        byte for char, byte in byte_alphabet().items() if char not in ids and byte in _IN_UTF_8
    ]
    if missing:
        log.warning("the tokenizer has no token for %d bytes: they are lost", len(missing))
    encoder = Tokenizer(
        models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pretokenizer.whole_words)
    )
    encoder.pre_tokenizer = vocabulary.pretokenizer.build()
    return encoder


def _ranked_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges that the file has, as far as they name tokens."""
    pairs = [pair.partition(" ") for pair in vocabulary.merges]
    merges = [
        (left, right)
        for left, _, right in pairs
        if left and right and left + right in ids and left in ids and right in ids
    ]
    if len(merges) < len(pairs):
        n_bad = len(pairs) - len(merges)
        log.warning("%d merges of the tokenizer name no tokens: they are left out", n_bad)
    return merges


def _pieces(
    vocabulary: Vocabulary, ids: dict[str, int], merges: list[tuple[str, str]]
) -> Tokenizer:
    unknown = vocabulary.tokens[vocabulary.unknown] if vocabulary.unknown is not None else None
    encoder = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=unknown if unknown in ids else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
    encoder.normalizer = normalizers.Sequence([*prefix, spaces])
    return encoder


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


class _Joint(NamedTuple):
    """A piece that two others make; the best ``rank`` is the lowest."""

    rank: float
    token: int
    left: str
    right: str


def _joints(vocabulary: Vocabulary, ids: dict[str, int]) -> list[_Joint]:
    """Return every way to make a piece of two others, the piece with the best score first.

    SentencePiece's BPE joins the neighbours whose joint piece scores best, the leftmost of those
    that score alike; ranked merges do the same with the score as rank, where no two are equal.
    """
    plain = {
        text: token for text, token in ids.items() if vocabulary.types[token] not in (*ADDED, BYTE)
    }
    return sorted(
        _Joint(-vocabulary.scores[token], token, text[:cut], text[cut:])
        for text, token in plain.items()
        if len(text) <= _LONGEST_PIECE
        for cut in range(1, len(text))
        if text[:cut] in plain and text[cut:] in plain
    )
