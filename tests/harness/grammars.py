"""Regular languages by Brzozowski's derivatives, and a vocabulary of pieces over their letters."""

import functools

import numpy as np
from hypothesis import strategies as st

from harness.hashed import N_VOCAB, START, HashModel, advance, logits_of
from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.gguf.vocabulary import CONTROL, NORMAL
from mtpcore.runtime.model import Model
from mtpcore.sampling import fill_masks, reference, spell_breakers

PIECES = ("a", "b", "c", "d", "ab", "abc", "ba", "cd", "dd", "aa", "e", "")
END = N_VOCAB - 1
"""The end-of-text token; the one before it spells nothing."""


class Word(str):
    """A word, as a language of its own."""


@functools.cache
def nullable(language):
    """Whether a language has the empty word."""
    if isinstance(language, str):
        return language == ""
    kind, *parts = language
    if kind == "star":
        return True
    return (any if kind == "or" else all)(nullable(one) for one in parts)


@functools.cache
def derive(language, letter):
    """What may follow ``letter`` in a language (Brzozowski 1964); None: nothing begins so."""
    if isinstance(language, str):
        return language[1:] if language[:1] == letter else None
    kind, *parts = language
    if kind == "or":
        left = [found for one in parts if (found := derive(one, letter)) is not None]
        return either(left)
    first, rest = (parts[0], language) if kind == "star" else (parts[0], then(parts[1:]))
    found = derive(first, letter)
    ways = [] if found is None else [then([found, rest])]
    if kind == "then" and nullable(first) and (after := derive(rest, letter)) is not None:
        ways.append(after)
    return either(ways)


def either(languages):
    several = tuple(dict.fromkeys(languages))
    return several[0] if len(several) == 1 else ("or", *several) if several else None


def then(languages):
    several = [one for one in languages if one != ""]
    return several[0] if len(several) == 1 else ("then", *several) if several else ""


def spell(language):
    """The language as a regular expression."""
    if isinstance(language, str):
        return language
    kind, *parts = language
    if kind == "star":
        return f"({spell(parts[0])})*"
    return f"({('|' if kind == 'or' else '').join(map(spell, parts))})"


def languages():
    """Languages over a, b, c, d: some with words alone, some with words of any length."""
    words = st.text("abcd", min_size=1, max_size=5)

    def more(inner):
        several = st.lists(inner, min_size=2, max_size=3)
        return several.map(either) | several.map(then) | inner.map(lambda one: ("star", one))

    return st.recursive(words, more, max_leaves=5).filter(lambda one: one is not None)


def allowed(language, tokens):
    """bool[n_vocab]: the tokens that may follow, by definition; after the end all may."""
    mask = np.zeros(N_VOCAB, bool)
    for token in tokens:
        if token == END:
            return ~mask if nullable(language) else mask
        language = consume(language, token)
        if language is None:
            return mask
    for token in range(END):
        mask[token] = consume(language, token) is not None
    mask[END] = nullable(language)
    return mask


def consume(language, token):
    if token >= len(PIECES) or not PIECES[token]:
        return None
    for letter in PIECES[token]:
        language = derive(language, letter)
        if language is None:
            return None
    return language


def is_forced(language, tokens):
    """Whether one letter alone may follow, and no end.

    Then llguidance allows of all tokens that begin so the one that mostly spells what must follow.
    """
    for token in tokens:
        language = None if language is None or token == END else consume(language, token)
    if language is None or nullable(language):
        return False
    return sum(consume(language, letter) is not None for letter in range(4)) == 1


def bits(mask):
    """bool[n_vocab] of a mask."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:N_VOCAB].astype(bool)


def formed(prompt, sampling, n, compiler):
    """The hashed model's text in a form, token by token, each masked by a new matcher."""
    state, tokens, breakers = START, [], spell_breakers(sampling, None)
    for token in prompt:
        state = advance(state, token)
    while len(tokens) < n:
        history = np.asarray([*prompt, *tokens], np.int32)
        mask = None
        if sampling.grammar is not None:
            asked = compiler.matcher(sampling.grammar), np.asarray(tokens, np.int32), ()
            mask = bits(fill_masks([asked])[0][0])
        given = sampling, logits_of(state), history, len(prompt), len(history)
        token = reference.choose(*given, allowed=mask, breakers=breakers)
        if token == NO_TOKEN:
            break
        tokens.append(token)
        if token == END:
            break
        state = advance(state, token)
    return tokens


class Pieces:
    """A tokenizer of ``PIECES`` that takes the longest first; one token ends a text."""

    n_vocab, suppressed, special_texts = N_VOCAB, (), ("<end>",)

    def __init__(self, ends=(END,)):
        self.end_tokens = frozenset(ends)
        self.vocabulary = self
        self.types = [NORMAL] * END + [CONTROL]

    def token_bytes(self, token):
        return b"<end>" if token == END else PIECES[token].encode()

    def encode(self, text, add_special=True, parse_special=False):
        ids = []
        while text:
            found = [
                token for token, piece in enumerate(PIECES) if piece and text.startswith(piece)
            ]
            best = max(found, key=lambda token: len(PIECES[token]), default=None)
            if best is not None:
                ids.append(best)
            text = text[len(PIECES[best]) if best is not None else 1 :]
        return ids

    def stream(self, special=False, start=False):
        return self

    def push(self, token):
        return "" if token == END else PIECES[token]

    def flush(self):
        return ""

    def decode(self, tokens, special=False):
        return "".join(map(self.push, tokens))


class FormedModel(HashModel):
    """The hashed model with a tokenizer of pieces, so that its texts can have a form."""

    grammars = functools.cached_property(Model.grammars.func)

    def __init__(self, spec=None, ends=(END,)):
        super().__init__(*[] if spec is None else [spec])
        self.tokenizer = Pieces(ends)


FormedModel.grammars.__set_name__(FormedModel, "grammars")
