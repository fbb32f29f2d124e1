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


_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_words(endings: str, digits: str) -> str:
    """Words that end before a capital behind a small letter, else as ``_words`` has them."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{endings}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
    )


_GPT_2 = Pretokenizer(
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
)
_SMOLLM = Pretokenizer((r"\p{N}", *_GPT_2.patterns))
_THREE_DIGITS = _words(r"\p{N}{1,3}")
_LLAMA_BPE = Pretokenizer((_THREE_DIGITS,), whole_words=True, add_bos=True)
_GLM_4 = Pretokenizer((_THREE_DIGITS,), whole_words=True)
_CHATGLM = Pretokenizer((_THREE_DIGITS,))
_QWEN_2 = Pretokenizer((_words(r"\p{N}"),))
_QWEN_35 = Pretokenizer(
    (
        rf"{_ENGLISH_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}",
    )
)
_GPT_4O = Pretokenizer((_cased_words(f"{_ENGLISH_ENDINGS}?", r"\p{N}{1,3}"),))
_TEKKEN = Pretokenizer((_cased_words("", r"\p{N}"),), whole_words=True, add_bos=True)
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = Pretokenizer(
    (
        r"[\r\n]",
        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
        r"\s?[!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIAN,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"))
_DEEPSEEK_3 = Pretokenizer(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",  # Han, Hiragana, Katakana
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
        rf"""|{_LINES_AND_SPACES}""",
    )
)
_NAMES = (
    (_GPT_2, ("gpt-2", "a.x-4.0", "gigachat", "mellum", "trillion")),
    (_SMOLLM, ("smollm", "minerva-7b")),
    (_LLAMA_BPE, ("llama-bpe", "llama3", "llama-v3", "falcon3", "midm-2.0", "pixtral")),
    (_GLM_4, ("glm4", "glm5")),
    (_CHATGLM, ("chatglm-bpe", "dbrx", "smaug-bpe")),
    (_QWEN_2, ("qwen2", "deepseek-r1-qwen", "f2llmv2", "kormo", "megrez")),
    (_QWEN_35, ("qwen35",)),
    (_GPT_4O, ("gpt-4o", "kanana2", "llama4")),
    (_TEKKEN, ("tekken",)),
    (_DEEPSEEK_LLM, ("deepseek-llm",)),
    (_DEEPSEEK_CODER, ("deepseek-coder",)),
    (_DEEPSEEK_3, ("deepseek-v3", "joyai-llm")),
)
"""Pre-tokenizers with their names in model files, that of the first model before others'.

DeepSeek's first two are as llama.cpp has them; the others as ``tokenizer.json`` has them.
"""

_BY_NAME = {name: known for known, names in _NAMES for name in names}

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


def name_pretokenizer(patterns: tuple[str, ...], whole_words: bool, adds_bos: bool) -> str | None:
    """Return the name of the pre-tokenizer that cuts by these patterns; None for an unknown one.

    An empty pattern stands for GPT-2's. Of two that differ in nothing else the one is taken whose
    texts begin with BOS, or do not, as ``adds_bos`` says.
    """
    patterns = tuple(pattern or _GPT_2.patterns[0] for pattern in patterns)
    alike = [
        (known.add_bos != adds_bos, names[0])
        for known, names in _NAMES
        if (known.patterns, known.whole_words) == (patterns, whole_words)
    ]
    return min(alike)[1] if alike else None
