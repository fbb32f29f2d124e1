"""The vocabulary of a model file: tokens, their kinds and bytes, and the special ids."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
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


EncoderKind = Literal["bytes", "pieces", "unigram", "verbatim"]


class _VocabularyKind(NamedTuple):
    """What ``tokenizer.ggml.model`` says of a vocabulary, and what holds where a file is silent.

    The defaults are llama.cpp's (``llama_vocab::impl::load``), and none where a vocabulary is too
    small for one. But in byte-level vocabularies llama.cpp takes token 11 for BOS and EOS, which is
    Falcon's; in others it is a comma, and ends nothing here.

    One that is ``named_by_pre`` is known by its pre-tokenizer, whatever else a file calls it.
    """

    kind: EncoderKind
    has_scores: bool = False  # in place of merges
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    adds_bos: bool = False  # or where the pre-tokenizer says so
    adds_eos: bool = False
    adds_space: bool = False  # before a text
    named_by_pre: bool = False
    needs_bos: bool = False


_MODELS = {
    "gpt2": _VocabularyKind("bytes"),
    "llama": _VocabularyKind(
        "pieces", True, bos=1, eos=2, unknown=0, adds_bos=True, adds_space=True
    ),
    # Ollama's files call it llama, others gpt2. The first ones deny BOS, and the models write
    # nonsense without (llama.cpp's pull request 21500).
    "gemma4": _VocabularyKind("pieces", named_by_pre=True, needs_bos=True),
    "granite-embed-multi-311m": _VocabularyKind("pieces", named_by_pre=True, needs_bos=True),
    "sarvam-moe": _VocabularyKind("pieces", named_by_pre=True),
    "t5": _VocabularyKind("unigram", True, eos=1, unknown=2, adds_eos=True),
    "plamo2": _VocabularyKind("verbatim", True, bos=1, eos=2, unknown=0),
}
# What is missing for other models that llama.cpp knows.
_NOT_HERE = {
    "bert": "WordPiece, the longest pieces of each word",
    "rwkv": "the longest tokens, of any bytes",
    "hybriddna": "byte-level BPE with letters of DNA in sixes",
    "whitespace": "BPE of words without the spaces between",
}

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_ID = 2**32 - 1  # -1, as converters store it in a key of 32 bits without a sign
_END_KEYS = ("eos", "eot", "eom")
# Names of control tokens, whatever type a file gives them: converters often record only one of
# several ends, and some type these as ordinary text. The lists are llama.cpp's.
_END_NAMES = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>"),
    *("<|flush|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>"),
    *("<|tool_response>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOT>"),
    *("_<EOT>", "[EOT]", "[EOS]", "<eos>", "[e~["),
)
_STRIKE_END = "</s>"  # an end where a file says so; else the end of what is struck through in HTML
# Of models that fill in the middle: the key of each, an older one, and names.
_FIM_NAMES = {
    ("fim_pre", "prefix"): (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>"),
        *("<PRE>", "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>"),
    ),
    ("fim_suf", "suffix"): (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>"),
        *("<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>"),
    ),
    ("fim_mid", "middle"): (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>"),
        *("<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>"),
    ),
    ("fim_pad",): ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    ("fim_rep",): ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ("fim_sep",): ("<|file_sep|>",),
}
_FIM_ENDS = ("fim_pad", "fim_rep", "fim_sep")


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
    kind : "bytes", "pieces", "unigram" or "verbatim"
        Byte-level BPE; SentencePiece-like BPE with tokens for single bytes; SentencePiece's
        unigram model; or PLaMo's, which takes a text as it is.
    tokens : list of str
        As stored; bytes that are not UTF-8 as surrogate escapes.
    ids : dict
        The token of each text, the first where several have it.
    types : list of int
        One of NORMAL .. BYTE for each token; names of control tokens are CONTROL.
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
    rstrip : frozenset of int
        Added tokens that take the spaces after them.
    infill : dict
        Tokens of models that fill in the middle of a text: ``fim_pre``, ``fim_suf``, ``fim_mid``,
        ``fim_pad``, ``fim_rep``, ``fim_sep``, as far as there are any.
    add_bos, add_eos, add_space_prefix : bool
    charsmap : bytes
        How characters are normalised, of ``unigram``; empty: not at all.
    joins_spaces : bool
        Whether spaces at both ends are dropped, and several in a row are one; of ``unigram``.
    """

    kind: EncoderKind
    tokens: list[str]
    ids: dict[str, int]
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
    rstrip: frozenset[int] = frozenset()
    infill: dict[str, int] = field(default_factory=dict)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        text, kind = self.tokens[token], self.types[token]
        if kind not in ADDED:
            if self.kind == "bytes":
                return b"".join([_SPELT.get(c) or _encode(c) for c in text])
            if kind == BYTE and (byte := _BYTE_TOKEN.fullmatch(text)):
                return bytes.fromhex(byte[1])
            if self.kind != "verbatim":
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
            missing = _NOT_HERE.get(name, "nothing is known of it")
            log.warning("%s: no tokenizer %r here (%s): give token ids", file, name[:80], missing)
        return None
    is_bytes, is_unigram = model.kind == "bytes", model.kind == "unigram"
    tokens = fields.require(_key("tokens"), list[str])
    if not tokens:
        raise fields.error(_key("tokens"), "an empty vocabulary")
    n = len(tokens)
    ids = dict(zip(reversed(tokens), reversed(range(n)), strict=True))  # first wins
    types = _types(fields, tokens, is_bytes)
    eos = _token_id(fields, "eos", n, model.eos)
    infill, named = _find_infill(fields, ids, n)
    ends, control = _find_ends(fields, ids, types, eos)
    ends |= {infill[name] for name in _FIM_ENDS if name in infill}
    control |= named
    _retype(fields.file, tokens, types, control)
    pretokenizer = find_pretokenizer(pre if is_bytes else "gpt-2")
    adds_bos = model.adds_bos or (is_bytes and pretokenizer.add_bos)
    return Vocabulary(
        kind=model.kind,
        tokens=tokens,
        ids=ids,
        types=types,
        scores=_one_a_token(fields, "scores", n, float) if model.has_scores else [],
        merges=[] if model.has_scores else fields.require(_key("merges"), list[str]),
        pretokenizer=pretokenizer,
        bos=_token_id(fields, "bos", n, model.bos),
        eos=eos,
        unknown=_token_id(fields, "unknown", n, model.unknown),
        ends=ends,
        add_bos=fields.get(_key("add_bos_token"), bool, adds_bos) or model.needs_bos,
        add_eos=fields.get(_key("add_eos_token"), bool, model.adds_eos),
        add_space_prefix=model.has_scores  # with merges llama.cpp passes over the key
        and fields.get(_key("add_space_prefix"), bool, model.adds_space),
        charsmap=_charsmap(fields) if is_unigram else b"",
        joins_spaces=is_unigram and fields.get(_key("remove_extra_whitespaces"), bool, False),
        suppressed=tuple(sorted(_token_ids(fields, "suppress_tokens", n))),
        rstrip=_find_rstrip(fields, tokens, types),
        infill=infill,
    )


def _find_rstrip(fields: Fields, tokens: list[str], types: list[int]) -> frozenset[int]:
    """Find added tokens that take the spaces after them.

    No key says so; those of Phi-3 do (``rstrip`` in its ``tokenizer.json``), which is known by the
    model's name, as in llama.cpp.
    """
    if not re.search("phi-?3", str(fields.metadata.get("general.name")), re.IGNORECASE):
        return frozenset()
    return frozenset(
        token
        for token, kind in enumerate(types)
        if kind in ADDED and tokens[token] not in ("<unk>", "<s>", "<|endoftext|>")
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


def _one_a_token(fields: Fields, name: str, n: int, kind: Any) -> list[Any]:
    """Read a list with one entry for each token."""
    key = _key(name)
    values: list[Any] = fields.require(key, list[kind])
    if len(values) != n:
        raise fields.error(key, "not one entry a token", wanted=n, got=len(values))
    if np.isnan(values).any():
        raise fields.error(key, "an entry is not a number")
    return values


def _types(fields: Fields, tokens: list[str], is_bytes: bool) -> list[int]:
    """Read the tokens' types; where a file has none, only spellings of bytes are not NORMAL."""
    if _key("token_type") in fields:
        return _one_a_token(fields, "token_type", len(tokens), int)
    is_byte = (lambda text: None) if is_bytes else _BYTE_TOKEN.fullmatch
    return [BYTE if is_byte(text) else NORMAL for text in tokens]


def _token_id(fields: Fields, name: str, n: int, default: int | None = None) -> int | None:
    key = _key(f"{name}_token_id")
    if fields.get(key, int, _NO_ID) != _NO_ID:
        return _checked(fields, key, fields.require(key, int), n)
    return default if default is not None and default < n else None


def _token_ids(fields: Fields, name: str, n: int) -> set[int]:
    key = _key(name)
    return {_checked(fields, key, token, n) for token in fields.get(key, list[int], [])}


def _checked(fields: Fields, key: str, token: int, n: int) -> int:
    """Return a token's id; raise ModelFileError where there is no such token."""
    if not 0 <= token < n:
        raise fields.error(key, "no such token", wanted=f"0..{n - 1}", got=token)
    return token


def _find_ends(
    fields: Fields, ids: dict[str, int], types: list[int], eos: int | None
) -> tuple[frozenset[int], set[int]]:
    """Find every token that ends a generation, and all that are control tokens by their names."""
    n = len(types)
    ends = {eos, *(_token_id(fields, name, n) for name in _END_KEYS)}
    ends |= _token_ids(fields, "eos_token_ids", n)
    control = {ids[name] for name in _END_NAMES if name in ids}
    strike = ids.get(_STRIKE_END)
    if "<|tool_response>" in ids or (eos is not None and ids.get("<|plamo:eos|>") == eos):
        ends.discard(strike)
    elif strike is not None and (strike in ends or types[strike] in ADDED):
        control.add(strike)
    ends |= control
    if ids.keys() & {"<|call|>", "<|calls|>"} and ids.keys() & {"<|return|>", "<|flush|>"}:
        ends.discard(ids.get("<|end|>"))  # there it ends a message, and another follows
    return frozenset(token for token in ends if token is not None), control


def _find_infill(fields: Fields, ids: dict[str, int], n: int) -> tuple[dict[str, int], set[int]]:
    """Find the tokens of models that fill in, and those of them that only their names tell."""
    found: dict[str, int] = {}
    named: set[int] = set()
    for keys, names in _FIM_NAMES.items():
        given = [token for key in keys if (token := _token_id(fields, key, n)) is not None]
        by_name = [] if given else [ids[name] for name in names if name in ids][:1]
        named.update(by_name)
        if given or by_name:
            found[keys[0]] = (given or by_name)[0]
    return found, named


def _retype(file: str, tokens: list[str], types: list[int], control: set[int]) -> None:
    """Make tokens CONTROL; say so of those that the file takes for ordinary text."""
    ordinary = [token for token in sorted(control) if types[token] not in ADDED]
    for token in control:
        types[token] = CONTROL
    if ordinary:
        log.warning(
            "%s: control tokens by their names, which the file has as ordinary text, are read as "
            "control tokens: %s",
            file,
            ", ".join(f"{tokens[token]!r} ({token})" for token in ordinary),
        )
