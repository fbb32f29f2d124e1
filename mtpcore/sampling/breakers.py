"""What breaks repetitions for DRY: texts, as the tokens and lists of tokens that spell them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mtpcore.errors import SamplingError
from mtpcore.gguf import Tokenizer
from mtpcore.sampling.settings import Sampling

__all__ = ["spell_breakers"]

_MOST_TOKENS = 20
"""Tokens of a breaker after its first, at most, as in llama.cpp."""


def spell_breakers(sampling: Sampling, tokenizer: Tokenizer | None) -> Sequence[tuple[int, ...]]:
    """Return what breaks repetitions, as lists of tokens; none where repetitions are allowed.

    A token that contains a text breaks alone. One that ends with the beginning of a text does so
    together with the tokens that follow where the rest of it is written.

    Raises
    ------
    SamplingError
        There are texts among the breakers, and no tokenizer.
    """
    if not sampling.dry_multiplier > 0:
        return ()
    ids = [(one,) for one in sampling.dry_sequence_breakers if isinstance(one, int)]
    texts = tuple(one for one in sampling.dry_sequence_breakers if isinstance(one, str))
    if texts and tokenizer is None:
        raise SamplingError(
            "texts that break repetitions need a tokenizer, and the model file has none",
            where="dry_sequence_breakers",
            fix="give token ids, or dry_sequence_breakers=()",
        )
    return (*ids, *(_spell(texts, tokenizer) if tokenizer is not None else ()))


@lru_cache(8)
def _spell(texts: tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    tails, found = [_tails(text, tokenizer) for text in texts], dict[tuple[int, ...], None]()
    for token in range(tokenizer.n_vocab):
        piece = tokenizer.token_bytes(token)
        for text, after in zip(texts, tails, strict=True):
            if text.encode() in piece:
                found[(token,)] = None
            else:
                ends = (begin for begin in after if piece.endswith(begin))
                found |= {(token, *after[begin]): None for begin in ends}
    return tuple(found)


def _tails(text: str, tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """Return by the beginning of a text the tokens of its rest.

    A rest that begins within a character is there only where the text's own tokens are cut there.
    """
    whole, tokens = text.encode(), tokenizer.encode(text, add_special=False)
    tails = {}
    for i in range(1, len(tokens)):
        tails[b"".join(map(tokenizer.token_bytes, tokens[:i]))] = tokens[i:]
    for n in range(1, len(text)):
        tails[text[:n].encode()] = tokenizer.encode(text[n:], add_special=False)
    return {begin: ids[:_MOST_TOKENS] for begin, ids in tails.items() if whole.startswith(begin)}
