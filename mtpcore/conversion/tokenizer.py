"""A published tokenizer as metadata, named and ordered as llama.cpp's converter does it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from gguf import GGUFWriter, SpecialVocab
from tokenizers import models

from mtpcore.conversion.around import (
    check_around,
    check_settings,
    named_special,
    response_template_metadata,
    say_template,
)
from mtpcore.conversion.generation import generation_metadata
from mtpcore.conversion.published import (
    NO_FILE_HOLDS_IT,
    check_small_files,
    convert_json,
    tokenizer_error,
)
from mtpcore.conversion.tokenizer_json import (
    TokenId,
    TokenizerFile,
    TokenizerStep,
    read_tokenizer_json,
)
from mtpcore.conversion.unigram import (
    unigram_metadata,
    unigram_of_json,
    unigram_of_sentencepiece,
)
from mtpcore.conversion.vocabulary_files import VOCABULARY, read_vocabulary_files
from mtpcore.conversion.vocabulary_lines import LINES, special_of_lines, vocabulary_of_lines
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.pretokenizers import find_pretokenizer, name_pretokenizer
from mtpcore.gguf.vocabulary import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from mtpcore.gguf.writer import take_values

__all__ = ["tokenizer_metadata", "with_control_tokens"]

log = logging.getLogger("mtpcore")

_KEY = "tokenizer.ggml."
_KINDS = {"unknown": "unk", "padding": "pad"}
# Some checkpoints do not mark their control tokens as special.
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>|<pad>|<mask>", re.DOTALL)
# What matches is a word of its own; where all text matches, what does not may as well be removed.
_ISOLATING = (("Isolated", False), ("Removed", True))
_SPACE_BYTE = "\u0120"  # spells a space in byte-level vocabularies


class _Pairs(msgspec.Struct, forbid_unknown_fields=True):
    """Byte-pair encoding: ``model`` in that file.

    Every byte has a token in vocabularies that model files hold, so none is unknown, and whether
    unknown characters are fused makes no difference.
    """

    type: str | None = None
    dropout: float | None = None
    fuse_unk: bool | None = False
    vocab: dict[str, TokenId] | None = None
    merges: list[str | tuple[str, str]] | None = None
    byte_fallback: bool | None = False
    ignore_merges: bool | None = False
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


def tokenizer_metadata(
    folder: Path, n_vocab: int | None, special_tokens: Iterable[tuple[str, str]] = ()
) -> dict[str, MetadataValue]:
    """Return the metadata of ``tokenizer.json`` and the files beside it, or of those alone.

    Parameters
    ----------
    folder : Path
    n_vocab : int or None
        Rows of the embedding table: ids without a token become unused ones.
    special_tokens : iterable of (str, str)
        Kinds and texts of tokens whose ids are named where the checkpoint does not.

    Raises
    ------
    ModelFileError
        The tokenizer is missing, malformed, or of a kind that model files cannot hold.
    """
    path, pieces_path = folder / "tokenizer.json", folder / "spiece.model"
    if not os.path.lexists(path):
        if os.path.lexists(pieces_path):
            check_small_files(folder)
            check_settings(folder)
            unigram = unigram_of_sentencepiece(pieces_path)
            metadata = unigram_metadata(unigram, n_vocab, pieces_path)
            return _with_special(metadata, folder, pieces_path, special_tokens)
        if os.path.lexists(lines_path := folder / LINES):
            check_small_files(folder)
            check_settings(folder)
            metadata = vocabulary_of_lines(lines_path, n_vocab)
            special_tokens = (*special_of_lines(folder), *special_tokens)
            return _with_special(metadata, folder, lines_path, special_tokens)
        if not os.path.lexists(folder / VOCABULARY):
            raise ModelFileError(
                "no tokenizer",
                where=str(path),
                fix="write it with transformers: AutoTokenizer, from_pretrained, then "
                "save_pretrained",
            )
        path = folder / VOCABULARY
    check_small_files(folder)
    check_settings(folder)
    source = read_vocabulary_files(folder) if path.name == VOCABULARY else read_tokenizer_json(path)
    kind = (source.model or {}).get("type")
    if kind == "Unigram":
        check_around(source, path)
        metadata = unigram_metadata(unigram_of_json(source, path), n_vocab, path)
        return _with_special(metadata, folder, path, special_tokens, source)
    if kind != "BPE":
        raise tokenizer_error(
            path,
            "no byte-pair encoding or unigram model",
            "BPE, Unigram",
            repr(kind)[:80],
            NO_FILE_HOLDS_IT,
        )
    model = convert_json(source.model, _Pairs, f"{path}: model")
    affix = model.continuing_subword_prefix or model.end_of_word_suffix
    if affix:
        raise tokenizer_error(
            path, "parts of words have an affix", "none", repr(affix)[:80], NO_FILE_HOLDS_IT
        )
    if model.dropout:
        raise tokenizer_error(
            path,
            "merges are left out at random (dropout)",
            "none: set it to null, as for anything but training",
            model.dropout,
            "write null in its place",
        )
    check_around(source, path)
    texts, added = _texts(source, model, path)
    named = named_special(folder)
    added = {token: special or texts[token] in named for token, special in added.items()}
    pieces = bool(model.byte_fallback)
    if pieces:
        _check_cut(source, path)
    _check_normalizer(source.normalizer or TokenizerStep(normalizers=[]), pieces, path)
    n_tokens = n_vocab if n_vocab is not None else max(texts) + 1
    if max(texts) >= n_tokens:
        raise tokenizer_error(path, "more tokens than the model has", n_tokens, max(texts) + 1)
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(n_tokens)]
    unknown = model.unk_token if pieces else None
    types = [_type(i, texts, added, unknown, pieces) for i in range(n_tokens)]
    pairs = _split(model.merges or [], model, path)
    special = _find_special(folder, path, n_tokens, load_merges=not (pieces or pairs))
    metadata = {
        f"{_KEY}model": "llama" if pieces else "gpt2",
        f"{_KEY}pre": "default" if pieces else _pretokenizer(source, model, special, path),
        f"{_KEY}tokens": [*tokens],
        f"{_KEY}token_type": np.array(types, np.int32),
    }
    if pieces:
        metadata[f"{_KEY}scores"] = _scores(tokens, pairs)
        metadata[f"{_KEY}add_space_prefix"] = _adds_space(source)
    ids = {text: token for token, text in texts.items()}
    _name_special(special, special_tokens, ids)
    say_template(source, ids, special.special_token_ids, path)
    if not pieces:
        special.merges = _spell(pairs or _split(special.merges, model, path), path)
    return metadata | _of_folder(special, folder, path, n_tokens)


def with_control_tokens(
    metadata: Mapping[str, MetadataValue], texts: Sequence[str]
) -> dict[str, MetadataValue]:
    """Return the keys of a vocabulary that has these control tokens after its own."""
    tokens, types = metadata[f"{_KEY}tokens"], metadata[f"{_KEY}token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, np.ndarray)
    more: dict[str, MetadataValue] = {
        f"{_KEY}tokens": [*tokens, *texts],
        f"{_KEY}token_type": np.append(types, np.full(len(texts), CONTROL, types.dtype)),
    }
    if (scores := metadata.get(f"{_KEY}scores")) is not None:
        assert isinstance(scores, np.ndarray)
        more[f"{_KEY}scores"] = np.append(scores, np.zeros(len(texts), scores.dtype))
    return more


def _name_special(
    special: SpecialVocab, special_tokens: Iterable[tuple[str, str]], ids: Mapping[str, int]
) -> None:
    """Add ids of special tokens that the checkpoint itself does not say."""
    for kind, text in special_tokens:
        if text in ids:
            special.special_token_ids.setdefault(_KINDS.get(kind, kind), ids[text])


def _with_special(
    metadata: dict[str, MetadataValue],
    folder: Path,
    path: Path,
    special_tokens: Iterable[tuple[str, str]],
    source: TokenizerFile | None = None,
) -> dict[str, MetadataValue]:
    """Return the metadata of a vocabulary with scores, special ids and chat template included."""
    tokens = metadata[f"{_KEY}tokens"]
    assert isinstance(tokens, list)
    special = _find_special(folder, path, len(tokens), load_merges=False)
    ids = {str(text): token for token, text in enumerate(tokens)}
    _name_special(special, special_tokens, ids)
    if source is not None:
        say_template(source, ids, special.special_token_ids, path)
    return metadata | _of_folder(special, folder, path, len(tokens))


def _of_folder(
    special: SpecialVocab, folder: Path, path: Path, n_tokens: int
) -> dict[str, MetadataValue]:
    """Return what stands beside a vocabulary: special ids, templates, how texts are sampled."""
    end = special.special_token_ids.get("eos")
    more = generation_metadata(folder, n_tokens, end)
    return _stored(special, path) | response_template_metadata(folder) | more


def _check_normalizer(normalizer: TokenizerStep, pieces: bool, path: Path) -> None:
    """Refuse what changes a text before it is cut: a model file cannot say it.

    NFC leaves text alone whose accents are composed, as that of keyboards is, so it is only said to
    be missing. Two steps spell the spaces of pieces, which model files imply or have a key for.
    """
    for step in normalizer.parts:
        pattern = step.pattern.text if step.pattern is not None else None
        spells_spaces = (step.type, step.prepend) == ("Prepend", SPACE) or (
            step.type,
            pattern,
            step.content,
        ) == ("Replace", " ", SPACE)
        if pieces and spells_spaces:
            continue
        if step.type != "NFC":
            raise ModelFileError(
                "the tokenizer cannot be converted: a step of its normalizer is lost in a model "
                "file, and texts would have other tokens",
                where=f"{path}: normalizer",
                wanted="NFC, or those that spell spaces" if pieces else "none, or NFC",
                got=repr(step.type)[:80],
                fix="remove the step, and do to every text yourself what it does",
            )
        log.warning(
            "%s: a model file cannot say that texts are composed (NFC) before they are cut: give "
            "texts that are, as unicodedata.normalize('NFC', text) makes them",
            path,
        )


def _texts(
    source: TokenizerFile, model: _Pairs, path: Path
) -> tuple[dict[int, str], dict[int, bool]]:
    """Return token texts by id, and which are added ones, with whether they are special."""
    vocab, entries = model.vocab or {}, source.added_tokens or []
    plain = {token: text for text, token in vocab.items()}
    more = {entry.id: entry.content for entry in entries}
    if len(plain) < len(vocab):
        token, text = next((t, text) for text, t in vocab.items() if plain[t] != text)
        raise tokenizer_error(
            path, "two tokens have one id", f"{plain[token]!r} alone", f"{text!r} too"
        )
    if clash := [entry for entry in entries if more[entry.id] != entry.content]:
        entry = clash[0]
        raise tokenizer_error(
            path, "two tokens have one id", f"{more[entry.id]!r} alone", repr(entry.content)
        )
    if not plain and not more:
        raise tokenizer_error(path, "it has no tokens", "at least one", None)
    return plain | more, {entry.id: bool(entry.special) for entry in entries}


def _type(
    token: int, texts: dict[int, str], added: dict[int, bool], unknown: object, pieces: bool
) -> int:
    text = texts.get(token)
    if text is None:
        return UNUSED
    if pieces and text == unknown:
        return UNKNOWN
    if token in added:
        special = added[token] or _LOOKS_SPECIAL.fullmatch(text)
        return CONTROL if special else USER_DEFINED
    if pieces and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
        return BYTE
    return NORMAL


def _pretokenizer(source: TokenizerFile, model: _Pairs, special: SpecialVocab, path: Path) -> str:
    """Name how text is cut into words; where the name implies BOS, note it if there is none."""
    parts = (source.pre_tokenizer or TokenizerStep()).parts
    patterns: list[str] = []
    for part in parts:
        kind = part.type
        if kind == "Split" and part.pattern is not None and part.pattern.regex is not None:
            if (part.behavior, bool(part.invert)) not in _ISOLATING:
                raise tokenizer_error(
                    path,
                    "words are cut out otherwise than as they match",
                    "Isolated",
                    f"{part.behavior!r:.40}, inverted: {bool(part.invert)}",
                    NO_FILE_HOLDS_IT,
                )
            patterns.append(part.pattern.regex)
        elif kind == "Digits":
            patterns.append(r"\p{N}" if part.individual_digits else r"\p{N}+")
        elif kind == "ByteLevel" and part is parts[-1]:
            if part.add_prefix_space:
                raise tokenizer_error(
                    path, "a space is put before the text", "none", kind, NO_FILE_HOLDS_IT
                )
            if part.use_regex:
                patterns.append("")  # the expression that this step brings along
        else:
            known = "Split, Digits, ByteLevel"
            raise tokenizer_error(
                path, "an unknown step of its pre-tokenizer", known, kind, NO_FILE_HOLDS_IT
            )
    adds_bos = special.add_special_token.get("bos", False)
    name = _name(tuple(patterns), source, model, path, adds_bos=adds_bos)
    if name is None:
        raise tokenizer_error(
            path, "no model file has a name for its pre-tokenizer", None, patterns, NO_FILE_HOLDS_IT
        )
    if find_pretokenizer(name).add_bos:
        special.add_special_token["bos"] = adds_bos
    return name


def _name(
    patterns: tuple[str, ...], source: TokenizerFile, model: _Pairs, path: Path, *, adds_bos: bool
) -> str | None:
    """Return the name of the pre-tokenizer, by which the file will also tell how words are merged.

    A name may mean that words that are tokens are taken whole, whatever merges say, and the source
    not, or the other way round. Such a name is taken where none else fits, BOS included, if merges
    make every token, so that it makes no difference; or if it means whole words: tokens that no
    merges make were learnt so. Llama 3 was published without word of it, and with 588 such tokens.
    """
    whole_words = bool(model.ignore_merges)
    name, other = (
        name_pretokenizer(patterns, whole, adds_bos) for whole in (whole_words, not whole_words)
    )
    fits, other_fits = (
        of is not None and find_pretokenizer(of).add_bos == adds_bos for of in (name, other)
    )
    if fits or other is None or (name is not None and not other_fits):
        return name
    n_unmade = _count_unmade(source, model, path)
    if n_unmade and whole_words:
        return name
    if n_unmade:
        log.warning(
            "%s: its merges never make %d of its tokens, so that the model learnt words that are "
            "tokens whole: they are taken so, as %r says",
            path,
            n_unmade,
            other,
        )
    return other


def _count_unmade(source: TokenizerFile, model: _Pairs, path: Path) -> int:
    """Return how many tokens no text becomes unless words that are tokens are taken whole.

    Where there are none, to take such words whole makes no difference.
    """
    vocab = model.vocab or {}
    merged = models.BPE(vocab=vocab, merges=_split(model.merges or [], model, path))
    added = {entry.content for entry in source.added_tokens or ()}
    return sum(len(merged.tokenize(text)) != 1 for text in vocab if text not in added)


def _check_cut(source: TokenizerFile, path: Path) -> None:
    """Refuse what cuts pieces otherwise than at spaces: a model file cannot say it."""
    for step in (source.pre_tokenizer or TokenizerStep(pretokenizers=[])).parts:
        at_spaces = step.type == "Split" and step.pattern is not None and step.pattern.text == " "
        if not at_spaces and (step.type, step.replacement) != ("Metaspace", SPACE):
            raise tokenizer_error(
                path,
                "an unknown step of its pre-tokenizer",
                f"Metaspace, spaces as {SPACE!r}",
                f"{step.type!r:.40}",
                NO_FILE_HOLDS_IT,
            )


def _split(
    merges: Sequence[str | tuple[str, str]], model: _Pairs, path: Path
) -> list[tuple[str, str]]:
    """Return merges as pairs; the ``tokenizers`` package refuses those that name no tokens, too."""
    vocab, pairs = model.vocab or {}, []
    for merge in merges:
        pair = tuple(merge.split(" ")) if isinstance(merge, str) else merge
        if len(pair) != 2:
            raise tokenizer_error(path, "a merge is not a pair", 2, pair[:9])
        left, right = pair
        if not (left and right and left in vocab and right in vocab and left + right in vocab):
            raise tokenizer_error(path, "a merge names no tokens", "texts of the vocabulary", pair)
        pairs.append((left, right))
    return pairs


def _spell(pairs: list[tuple[str, str]], path: Path) -> list[str]:
    """Return merges as byte-level vocabularies of model files hold them."""
    if not pairs:
        raise tokenizer_error(path, "it has no merges", "at least one", None)
    return [" ".join(text.replace(" ", _SPACE_BYTE) for text in pair) for pair in pairs]


def _scores(tokens: list[str], merges: list[tuple[str, str]]) -> np.ndarray:
    """Return a score for each piece: the rank of the merge that makes it, negated.

    Joining the neighbours whose piece scores best then makes the same pieces as the merges do. A
    piece that no merge makes scores worst.
    """
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    return np.array([-float(ranks.get(text, len(merges))) for text in tokens], np.float32)


def _adds_space(source: TokenizerFile) -> bool:
    """Say whether a text gets a space in front."""
    steps = source.normalizer.parts if source.normalizer is not None else ()
    if any(step.type == "Prepend" and step.prepend == SPACE for step in steps):
        return True
    cut = source.pre_tokenizer
    return any(
        step.type == "Metaspace"
        and step.prepend_scheme != "never"
        and step.add_prefix_space is not False
        for step in (cut.parts if cut is not None else ())
    )


def _find_special(folder: Path, path: Path, n_tokens: int, *, load_merges: bool) -> SpecialVocab:
    """Return special ids and chat template, as the ``gguf`` package finds them.

    And merges from a file of their own, where they are wanted.
    """
    try:
        return SpecialVocab(folder, load_merges=load_merges, n_vocab=n_tokens)
    except Exception as error:  # whatever malformed files make of its parsers
        raise tokenizer_error(path, f"malformed ({repr(error)[:200]})", None, None) from error


def _stored(special: SpecialVocab, path: Path) -> dict[str, MetadataValue]:
    """Return merges, special ids and chat template as metadata."""
    writer = GGUFWriter(None, "none")
    try:
        special.add_to_gguf(writer, quiet=True)
        values = take_values(writer)
    except Exception as error:  # whatever is no template, or no id
        raise tokenizer_error(path, f"malformed ({repr(error)[:200]})", None, None) from error
    return {k: v for k, v in values.items() if k.startswith("tokenizer.")}
