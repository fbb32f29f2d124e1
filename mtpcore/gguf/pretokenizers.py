"""How text is cut into words before byte-level BPE merges inside each.

The regular expressions are those that published tokenizers were trained with; the names are the
values of ``tokenizer.ggml.pre``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, pre_tokenizers

__all__ = ["Pretokenizer", "find_by_class", "find_pretokenizer", "name_pretokenizer"]

log = logging.getLogger("mtpcore")

_ENGLISH_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(
    digits: str, *, endings: str = f"{_ENGLISH_ENDINGS}|", spaces: str = _LINES_AND_SPACES
) -> str:
    """Words with at most one leading sign, ``digits``, signs, and space."""
    return (
        rf"{endings}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"
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
        """Build it; words stay text."""
        cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        return cuts[0] if len(cuts) == 1 else pre_tokenizers.Sequence(cuts)


_CAPITALS, _SMALL = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased_words(endings: str, digits: str, *, but: str = "", line_ends: str = r"[\r\n/]") -> str:
    """Words that end before a capital after a small letter, else as ``_words`` has them.

    ``but`` takes letters out, and ``line_ends`` may follow signs.
    """
    capital, small = f"[{_CAPITALS}{but}]", f"[{_SMALL}{but}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{capital}*{small}+{endings}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{capital}+{small}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{line_ends}*|{_LINES_AND_SPACES}"
    )


_GPT_2 = Pretokenizer(
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
)
_SMOLLM = Pretokenizer((r"\p{N}", *_GPT_2.patterns))
_FALCON = Pretokenizer((r"[\p{P}$+<=>^~|`]+", *_GPT_2.patterns, "[0-9]{3}"))
_UNNAMED = Pretokenizer((r"[\p{P}$+<=>^~|]+", *_GPT_2.patterns, r"\p{N}+", "[0-9]{3}"))
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
_UFAKZEKA = Pretokenizer((_words(r"\p{N}", endings=""),))
_LAGUNA = Pretokenizer(("[^\n]+|\n+", *_QWEN_2.patterns))
_MINICPM_5 = Pretokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True)
_HALVED_SPACES = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
_JAIS_2 = Pretokenizer(
    (_words(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+|{_HALVED_SPACES}|\s{{1,2}}(?!\S)|\s{{1}}"),)
)
_EXAONE_MOE = Pretokenizer(
    (
        rf"{_ENGLISH_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_CHAMELEON = Pretokenizer(
    (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        *_GPT_2.patterns,
    ),
    add_bos=True,
)
_BLOOM = Pretokenizer((" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",))
_VIKING = Pretokenizer((*_BLOOM.patterns, r"\p{N}"))
_GPT_4O = Pretokenizer((_cased_words(f"{_ENGLISH_ENDINGS}?", r"\p{N}{1,3}"),))
_GRANITE_97M = Pretokenizer(_GPT_4O.patterns, whole_words=True)
_TINY_AYA = Pretokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT_4O.patterns))
_SUPERBPE = Pretokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))
_TEKKEN = Pretokenizer((_cased_words("", r"\p{N}"),), whole_words=True, add_bos=True)
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# As DeepSeek-LLM lists the letters of alphabets that have capitals; not all are among them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = Pretokenizer(
    (
        "[\r\n]",
        rf"\s?[{_CASED}]+",
        r"\s?[!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIAN,
        r"\p{N}",
    )
)
_DEEPSEEK_CODER = Pretokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"))


def _lettered_words(cjk: str, digits: str, ends: str = "[\r\n]*|\\s*[\r\n]+") -> tuple[str, ...]:
    """Cut out ``digits``, then letters of East Asia, then words that marks are part of."""
    return (
        digits,
        cjk,
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        f"| ?[\\p{{P}}\\p{{S}}]+{ends}|\\s+(?!\\S)|\\s+",
    )


_DEEPSEEK_3 = Pretokenizer(_lettered_words(_HAN_AND_KANA, r"\p{N}{1,3}"))
_SPARK = Pretokenizer((*_lettered_words(_HAN_AND_KANA, r"\p{N}{1,3}", "|[\r\n]"), r"\p{N}"))
_AFMOE = Pretokenizer(
    _lettered_words(
        "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
        "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
        "\u1100-\u11ff]+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    )
)
_KIMI_2 = Pretokenizer(
    (
        r"[\p{Han}]+|"
        + _cased_words(
            f"{_ENGLISH_ENDINGS}?", r"\p{N}{1,3}", but=r"&&[^\p{Han}]", line_ends=r"[\r\n]"
        ),
    )
)
_SEED_CODER = Pretokenizer(
    (
        f"{_ENGLISH_ENDINGS}|[^\r\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|\\p{{N}}{{1}}"
        "| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    )
)
_YOUTU = Pretokenizer(
    (
        "[\uac00-\ud7a3\u3131-\u318e]+"  # Hangul
        "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+"  # Bopomofo
        f"|{_HAN_AND_KANA}",
        _cased_words(f"{_ENGLISH_ENDINGS}?", r"\p{N}"),
    ),
    whole_words=True,
)
_NAMES = (
    (
        _GPT_2,
        "gpt-2 phi-2 mpt olmo jais a.x-4.0 gigachat mellum trillion exaone4 granite-docling "
        "modern-bert roberta-bpe jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-de jina-es",
    ),
    (_SMOLLM, "smollm minerva-7b command-r starcoder refact codeshell exaone mellum2"),
    (_FALCON, "falcon"),
    (
        _LLAMA_BPE,
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 midm-2.0 pixtral lfm2 jina-v5-nano",
    ),
    (_GLM_4, "glm4 glm5"),
    (_CHATGLM, "chatglm-bpe dbrx smaug-bpe"),
    (_MINICPM_5, "minicpm5"),
    (_JAIS_2, "jais-2"),
    (
        _QWEN_2,
        "qwen2 deepseek-r1-qwen f2llmv2 kormo megrez solar-open stablelm2 hunyuan grok-2 "
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (_QWEN_35, "qwen35"),
    (_UFAKZEKA, "ufakzeka"),
    (_LAGUNA, "laguna"),
    (_SEED_CODER, "seed-coder"),
    (_EXAONE_MOE, "exaone-moe"),
    (_CHAMELEON, "chameleon"),
    (_BLOOM, "bloom poro-chat gpt3-finnish"),
    (_VIKING, "viking"),
    (_SUPERBPE, "superbpe"),
    (_GPT_4O, "gpt-4o kanana2 llama4 minimax-m2 talkie"),
    (_GRANITE_97M, "granite-embed-multi-97m"),
    (_TINY_AYA, "tiny_aya cohere2moe"),
    (_TEKKEN, "tekken"),
    (_KIMI_2, "kimi-k2"),
    (_YOUTU, "youtu"),
    (_DEEPSEEK_LLM, "deepseek-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (_DEEPSEEK_3, "deepseek-v3 joyai-llm hunyuan-dense hy_v4"),
    (_SPARK, "spark2_5"),
    (_AFMOE, "afmoe"),
)
"""Pre-tokenizers with their names in model files, that of the first model before others'.

The names are those that llama.cpp knows (``llama_vocab::impl::load``). The expressions are spelt as
in ``tokenizer.json`` as far as that is known, Kimi's as in its source, others as in llama.cpp.
DeepSeek's and Seed-Coder's have the characters that end lines themselves.
"""

_BY_NAME = {name: known for known, names in _NAMES for name in names.split()}

_BY_CLASS = {"GPT2Tokenizer": (_GPT_2, None), "Qwen2Tokenizer": (_QWEN_2, "NFC")}
"""Classes that need no ``tokenizer.json`` for it, with how they normalise text before."""


def find_pretokenizer(name: str) -> Pretokenizer:
    """Return the pre-tokenizer of that name; for an unknown one warn and return ``gpt-2``'s.

    "default" is how old files say that they do not know: these are cut as llama.cpp cuts them, with
    a warning, too.
    """
    if name == "default":
        log.warning(
            "the file does not name its pre-tokenizer: texts may not be cut as it was trained"
        )
        return _UNNAMED
    if name not in _BY_NAME:
        near = " or ".join(get_close_matches(name[:80], _BY_NAME))
        log.warning(
            "pre-tokenizer %r is not known%s: gpt-2's is used, tokens may differ",
            name[:80],
            f" (is it {near}?)" if near else "",
        )
    return _BY_NAME.get(name, _GPT_2)


def find_by_class(name: str) -> tuple[Pretokenizer, str | None] | None:
    """Return how a class of transformers cuts and normalises text; None where that is not known."""
    return _BY_CLASS.get(name.removesuffix("Fast"))


def name_pretokenizer(patterns: tuple[str, ...], whole_words: bool, adds_bos: bool) -> str | None:
    """Return the name of the pre-tokenizer that cuts by these patterns; None for an unknown one.

    An empty pattern stands for GPT-2's. Of two that differ in nothing else the one is taken whose
    texts begin with BOS, or do not, as ``adds_bos`` says. Granite's is never the answer: gpt-oss's
    tokenizer does the same, and is known as GPT-4o's.
    """
    patterns = tuple(pattern or _GPT_2.patterns[0] for pattern in patterns)
    alike = [
        (known.add_bos != adds_bos, names.split()[0])
        for known, names in _NAMES
        if (known.patterns, known.whole_words) == (patterns, whole_words)
        and known is not _GRANITE_97M
    ]
    return min(alike)[1] if alike else None
