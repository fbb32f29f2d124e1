"""Matchers: which tokens may follow a text in a given form, and which must."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.draft_tree import Draft, DraftTree
from mtpcore.errors import SamplingError, spell
from mtpcore.gguf.tokenizer import Tokenizer
from mtpcore.gguf.vocabulary import SPECIAL
from mtpcore.sampling.grammar import Grammar
from mtpcore.sampling.trial import may_take_long, try_grammar
from mtpcore.system.processors import count_processors

__all__ = ["GrammarCompiler", "GrammarMatcher", "fill_masks"]

I32 = NDArray[np.int32]
U32 = NDArray[np.uint32]

log = logging.getLogger("mtpcore")

_MOST_COMPILED = 64
_MOST_THREADS = 8
_SPECIAL_BYTE = b"\xff"  # by which llguidance tells control tokens from text
_ALL = np.uint32(0xFFFFFFFF)


class GrammarCompiler:
    """Makes matchers for one vocabulary, by llguidance; the latest grammars are kept compiled.

    Parameters
    ----------
    tokenizer : Tokenizer
    n_vocab : int
        Tokens of the model, which may be more than the tokenizer knows.

    Raises
    ------
    SamplingError
        llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer, self._n_vocab = tokenizer, n_vocab
        self._library = _import("llguidance")
        self._compiled: dict[Grammar, Any] = {}

    @cached_property
    def _vocabulary(self) -> Any:
        """All tokens as llguidance keeps them; for 150,000 that takes a second."""
        spelling = _SpelledTokens(self._tokenizer, self._n_vocab)
        wrapped = self._library.TokenizerWrapper(spelling)
        return self._library.LLTokenizer(
            wrapped, n_vocab=len(spelling.tokens), eos_token=spelling.ends
        )

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """Return a matcher that has read nothing.

        Raises
        ------
        SamplingError
            The grammar cannot be parsed, describes no text, or exceeds a limit of llguidance.
        """
        start = self._compiled.get(grammar)
        if start is None:
            start = self._compile(grammar)
            if len(self._compiled) >= _MOST_COMPILED:
                self._compiled.pop(next(iter(self._compiled)), None)
            self._compiled[grammar] = start
        n_words = (self._vocabulary.vocab_size + 31) // 32
        return GrammarMatcher(start, self._tokenizer.end_tokens, n_words)

    def _compile(self, grammar: Grammar) -> Any:
        limits = self._library.LLParserLimits(verbose_errors=False)
        sources = [*self._sources(grammar)]
        source = json.dumps({"grammars": sources})
        if any(may_take_long(one["lark_grammar"]) for one in sources):
            try_grammar(source)
        start = self._library.LLMatcher(self._vocabulary, source, log_level=0, limits=limits)
        if start.is_error():
            raise SamplingError(
                "the grammar cannot be used", where="grammar", got=spell(start.get_error(), str)
            )
        return start

    def _sources(self, grammar: Grammar, name: str = "start") -> Iterator[dict[str, str]]:
        """Yield a grammar and its parts as llguidance takes them, the whole one first."""
        source = grammar.source
        if grammar.is_gbnf:
            source = self._translate(source)
        yield {"name": name, "lark_grammar": source}
        for part, one in grammar.parts.items():
            yield from self._sources(one, part)

    def _translate(self, source: str) -> str:
        try:
            lark: str = _import("llguidance.gbnf_to_lark").gbnf_to_lark(source)
        except MemoryError:
            raise
        except Exception as error:  # all that its parser meets, depth included
            raise SamplingError(
                "the grammar is no GBNF", where="grammar", got=spell(error, str)
            ) from error
        return lark


class _SpelledTokens:
    """The tokens of a vocabulary as llguidance asks for them.

    It wants an end-of-text token: one beyond the vocabulary stands for it where a file has none.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        types = tokenizer.vocabulary.types
        self.tokens = [
            (_SPECIAL_BYTE if types[token] in SPECIAL else b"") + tokenizer.token_bytes(token)
            for token in range(min(tokenizer.n_vocab, n_vocab))
        ]
        self.tokens += [b""] * (n_vocab - len(self.tokens))
        self.ends = sorted(token for token in tokenizer.end_tokens if token < n_vocab)
        if not self.ends:
            self.tokens.append(_SPECIAL_BYTE + b"end")
            self.ends = [n_vocab]
        self.eos_token_id, self.bos_token_id = self.ends[0], None
        self._tokenizer = tokenizer
        # A line break goes before each text, as some vocabularies begin every text with a space.
        self._begin = tokenizer.encode("\n", add_special=False)

    def __call__(self, text: bytes) -> list[int]:
        ids = self._tokenizer.encode("\n" + text.decode("utf-8", "replace"), add_special=False)
        n = len(self._begin)
        if ids[:n] == self._begin:
            return ids[n:]
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special=False)


class GrammarMatcher:
    """Says which tokens may follow a text, for one grammar.

    What it says depends on the text alone: it goes wherever a text is, also backwards, from where
    it was. So nobody needs to tell it of drafts that are rejected, of rounds that fail, or of a
    sequence that is forked.

    After an end-of-text token all tokens are allowed; after a token that the grammar forbids, none.

    Parameters
    ----------
    start : LLMatcher
        Has read nothing, and is not changed.
    ends : frozenset of int
        The end-of-text tokens.
    n_words : int
        Words of 32 tokens in a mask.
    """

    def __init__(self, start: Any, ends: frozenset[int], n_words: int) -> None:
        self._start, self._ends, self.n_words = start, ends, n_words
        self._state = start.deep_copy()
        self._read: I32 = np.zeros(0, np.int32)  # what the state has consumed
        self._stray: int | None = None  # the first token of the text that it has not

    def _follow(self, text: I32) -> bool:
        """Go to the end of a text; return whether the grammar goes on there."""
        n = _n_common(self._read, text)
        if self._state.is_error() or not self._state.rollback(len(self._read) - n):
            self._state, n = self._start.deep_copy(), 0
        rest = self._before_end(text[n:].tolist())
        n += self._state.try_consume_tokens(rest)
        self._read = text[:n].copy()
        self._stray = int(text[n]) if n < len(text) else None
        return self._stray is None

    def _before_end(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens before the first end-of-text token."""
        n = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        return list(tokens[:n])

    @property
    def _is_over(self) -> bool:
        """Whether the text that was followed last has ended, in its form."""
        return self._stray in self._ends and self._state.is_accepting()

    def cut(self, text: I32, draft: Draft) -> Draft:
        """Return what of a draft the grammar allows, up to an end-of-text token.

        Parameters
        ----------
        text : int32[n]
        draft : sequence of int, or DraftTree
        """
        if not isinstance(draft, DraftTree):
            if not self._follow(text):
                return draft if self._is_over else []
            return draft[: self._state.validate_tokens(self._before_end(draft))]
        kept = np.zeros(len(draft), bool)
        for node, path in enumerate(_paths(text, draft)):
            above = int(draft.parent[node])
            if above < 0 or kept[above]:
                kept[node] = self._follow(path) or self._is_over
        return draft.select(kept)

    def forced(self, text: I32, k: int) -> list[int]:
        """Return up to ``k`` tokens that spell what must follow a text; another spelling may do.

        Parameters
        ----------
        text : int32[n]
        k : int
        """
        if not self._follow(text):
            return []
        tokens = self._before_end(self._state.compute_ff_tokens())[:k]
        return tokens[: self._state.validate_tokens(tokens)]

    def begin_chain(self, text: I32, draft: Sequence[int], masks: U32) -> list[int] | None:
        """Preset the masks of a text and a chain of drafts, where no grammar is asked.

        Returns
        -------
        list of int or None
            The drafts after which it is; None: after none, nor after the text.
        """
        if not self._follow(text):
            masks[:] = _ALL if self._is_over else 0
            return None
        before = self._before_end(draft)
        masks[len(before) + 1 :] = _ALL
        return before

    def fill_rows(self, texts: Sequence[I32], masks: U32) -> None:
        """Fill the mask of each text by itself.

        Parameters
        ----------
        texts : sequence of int32[n]
        masks : uint32[n_texts, n_words]
        """
        for text, mask in zip(texts, masks, strict=True):
            if self._follow(text):
                mask[:] = 0
                self._state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            else:
                mask[:] = _ALL if self._is_over else 0
            if self._state.is_error():
                log.warning("a grammar allows no token here: %s", self._state.get_error())
                mask[:] = 0

    @property
    def state(self) -> Any:
        """The state after the text that was followed last."""
        return self._state


def fill_masks(asked: Sequence[tuple[GrammarMatcher, I32, Draft]]) -> list[U32]:
    """Return which tokens may follow texts, and each token of their drafts.

    Chains are done in one call, in parallel; of trees each path is walked.

    Parameters
    ----------
    asked : sequence of (GrammarMatcher, int32[n], Draft)
        Matchers of one vocabulary with their texts, each another one.

    Returns
    -------
    list of uint32[1 + n_drafts, n_words]
        Bit ``id % 32`` of word ``id // 32`` allows a token. Row 0 is for what follows the text, row
        1 + i for what follows draft i.
    """
    if not asked:
        return []
    ends = np.cumsum([1 + len(draft) for *_, draft in asked])
    table = np.zeros((int(ends[-1]), asked[0][0].n_words), np.uint32)
    masks = np.split(table, ends[:-1])
    chains, alone = [], []
    for (matcher, text, draft), mask, end in zip(asked, masks, ends.tolist(), strict=True):
        if isinstance(draft, DraftTree):
            matcher.fill_rows([text, *_paths(text, draft)], mask)
        elif drafts := matcher.begin_chain(text, draft, mask):
            chains.append((matcher.state, end - len(mask), drafts))
        elif drafts is not None:
            alone.append((matcher.state, end - len(mask)))
    where = table.ctypes.data, table.strides[0], len(table)
    if chains:
        _executor().unsafe_compute_mask_ptr_with_draft_token(chains, *where)
    if alone:
        _executor().unsafe_compute_mask_ptr(alone, *where)
    for (matcher, text, draft), mask in zip(asked, masks, strict=True):
        if matcher.state.is_error():  # a limit was met: each row by itself takes least
            matcher.fill_rows([text, *_paths(text, draft)], mask)
    return masks


def _paths(text: I32, draft: Draft) -> list[I32]:
    """Return the text up to each draft, with it."""
    paths: list[I32] = []
    if isinstance(draft, DraftTree):
        for above, token in zip(draft.parent.tolist(), draft.tokens, strict=True):
            paths.append(np.append(text if above < 0 else paths[above], token))
    else:
        for token in draft:
            paths.append(np.append(paths[-1] if paths else text, np.int32(token)))
    return paths


def _n_common(one: I32, other: I32) -> int:
    """Return with how many equal tokens two texts begin."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n


_executors: dict[int, Any] = {}
"""By process: the threads of one are not those of its child."""


def _executor() -> Any:
    process = os.getpid()
    if process not in _executors:
        _executors.clear()
        threads = min(count_processors(), _MOST_THREADS)
        _executors[process] = _import("llguidance").LLExecutor(threads)
    return _executors[process]


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SamplingError(
            "grammars need llguidance, which is not installed",
            where="grammar",
            fix="pip install 'mtpcore[grammar]'",
        ) from error
