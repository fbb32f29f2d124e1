"""How text is cut into words before byte-level BPE merges inside each.

The regular expressions are those that published tokenizers were trained with; the names are the
values of ``tokenizer.ggml.pre``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

__all__ = ["Pretokenizer", "find_by_class", "find_pretokenizer", "name_pretokenizer"]

log = logging.getLogger("mtpcore")

_ENGLISH_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Words with at most one leading sign, ``digits``, signs, and space."""
    return (
        rf"{_ENGLISH_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
    )


@dataclass(frozen=True)
class Pretokenizer:
    """One way of cutting text.

    Attributes
    ----------
    patterns : tuple of str
        Applied one after the other; each cuts its matches out of the pieces before.
    whole_words : bool
        A word that is a token is taken as it is, whatever the merges say.
    add_bos : bool
        Whether a file that does not say so starts texts with its BOS token.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Build it, with the byte-level alphabet behind."""
        cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, bytes_])


_GPT_2 = Pretokenizer(
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
)
_THREE_DIGITS = _words(r"\p{N}{1,3}")
_QWEN_35 = Pretokenizer(
    (
        rf"{_ENGLISH_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}",
    )
)
_LLAMA_BPE = Pretokenizer((_THREE_DIGITS,), whole_words=True, add_bos=True)
_GLM_4 = Pretokenizer((_THREE_DIGITS,))
_QWEN_2 = Pretokenizer((_words(r"\p{N}"),))
_DEEPSEEK_3 = Pretokenizer(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",  # Han, Hiragana, Katakana
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
        rf"""|{_LINES_AND_SPACES}""",
    )
)
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT_4O = Pretokenizer(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{_ENGLISH_ENDINGS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{_ENGLISH_ENDINGS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",
    )
)
_BY_NAME = {
    "default": _GPT_2,
    "gpt-2": _GPT_2,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "qwen35": _QWEN_35,
    "chatglm-bpe": _GLM_4,
    "glm4": _GLM_4,
    "deepseek-v3": _DEEPSEEK_3,
    "gpt-4o": _GPT_4O,
}

_BY_CLASS = {"GPT2Tokenizer": _GPT_2, "Qwen2Tokenizer": _QWEN_2}
"""Classes that need no ``tokenizer.json`` for it."""


def find_pretokenizer(name: str) -> Pretokenizer:
    """Return the pre-tokenizer of that name; for an unknown one warn and return ``gpt-2``'s."""
    if name not in _BY_NAME:
        known = ", ".join(_BY_NAME)
        log.warning(
            "pre-tokenizer %r is not known (known: %s): gpt-2's is used, tokens may differ",
            name[:80],
            known,
        )
    return _BY_NAME.get(name, _GPT_2)


def find_by_class(name: str) -> Pretokenizer | None:
    """Return how a class of transformers cuts text; None where that is not known."""
    return _BY_CLASS.get(name.removesuffix("Fast"))


def name_pretokenizer(patterns: tuple[str, ...], whole_words: bool) -> str | None:
    """Return the name of the pre-tokenizer that cuts by these patterns; None for an unknown one.

    An empty pattern stands for GPT-2's.
    """
    patterns = tuple(pattern or _GPT_2.patterns[0] for pattern in patterns)
    for name in ("qwen2", "llama-bpe", "glm4", "deepseek-v3", "qwen35", "gpt-4o", "gpt-2"):
        known = _BY_NAME[name]
        if (known.patterns, known.whole_words) == (patterns, whole_words):
            return name
    return None
