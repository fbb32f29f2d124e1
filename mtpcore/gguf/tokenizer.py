"""Text to tokens and back, as the model file defines it."""

from __future__ import annotations

import codecs
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import cached_property

from mtpcore.acts.guards import holding
from mtpcore.boundary.arguments import Flag, Whole64, read, read_below
from mtpcore.boundary.forks import give_lock
from mtpcore.errors import ModelFileError, MtpcoreError, spell
from mtpcore.gguf.encoder import TextEncoder, build_encoder
from mtpcore.gguf.header import Metadata
from mtpcore.gguf.vocabulary import ADDED, SPECIAL, Vocabulary, read_vocabulary

__all__ = ["TextStream", "Tokenizer", "read_tokenizer"]

log = logging.getLogger("mtpcore")

_MOST = 1 << 24
"""Tokens of a text; an array with strides of 0 may claim to have any number."""

_REPOSITORY, _FILE = "myproject\n", "filename\n"
"""What stands for names that nobody gives, where a prompt to fill in has such; llama.cpp's."""
_SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before another text where there is no token for files; llama.cpp's."""


class Tokenizer:
    """Encodes text and decodes tokens, byte for byte.

    ``decode_bytes(encode(text))`` is ``text`` in UTF-8 for every text that is valid Unicode
    (vocabularies of the SentencePiece kind turn U+2581 into a space, as they spell spaces so), but
    for a unigram vocabulary, which normalises text and knows some characters only.
    Safe to use from several threads.

    Attributes
    ----------
    vocabulary : Vocabulary
    n_vocab : int
    bos, eos : int or None
    end_tokens : frozenset of int
        Every token that ends a generation.
    suppressed : tuple of int
        Tokens that no text gets unless its caller allows them.
    """

    _lock: threading.Lock

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.n_vocab = len(vocabulary.tokens)
        self.bos, self.eos, self.end_tokens = vocabulary.bos, vocabulary.eos, vocabulary.ends
        self.suppressed = vocabulary.suppressed
        give_lock(self, "_lock", threading.Lock)
        self._has_warned = False

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        # A copy has a lock of its own, and builds its encoder when it is first used.
        return Tokenizer, (self.vocabulary,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary.kind}, n_vocab={self.n_vocab})"

    @cached_property
    def _encoder(self) -> TextEncoder:
        # Built on first use: it takes longer than the rest of loading a model.
        try:
            return build_encoder(self.vocabulary)
        except Exception as error:  # the library's own kinds, all derived from this only
            raise ModelFileError(
                "the tokenizer cannot be built", where="tokenizer", got=error
            ) from error

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """The control tokens as ``decode(special=True)`` spells them, in the order of their ids."""
        vocabulary = self.vocabulary
        return tuple(
            text
            for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
            if kind in SPECIAL and text
        )

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        text : str
        add_special : bool
            Put BOS before and EOS after where the file asks for them.
        parse_special : bool
            Whether control tokens written in the text stand for themselves; leave this off for
            text from outside.

        Raises
        ------
        MtpcoreError
            If the text is not valid Unicode.
        """
        text = read(text, str, "no text", where="encode", wanted="a text", error=MtpcoreError)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MtpcoreError("text is not valid Unicode", where="encode", got=error) from None
        add_special, parse_special = _flag(add_special), _flag(parse_special)
        tokens = holding(self._lock, self._encoder.encode, text, parse_special=parse_special)
        if add_special and self.vocabulary.add_bos and self.bos is not None:
            tokens.insert(0, self.bos)
        if add_special and self.vocabulary.add_eos and self.eos is not None:
            tokens.append(self.eos)
        return tokens

    @property
    def fills_in(self) -> bool:
        """Whether the model knows how to write what stands between two texts."""
        return not any(_missing_of(self.vocabulary))

    def encode_infill(
        self,
        prefix: str,
        suffix: str,
        *,
        begun: str = "",
        files: Sequence[tuple[str, str]] = (),
    ) -> list[int]:
        """Return a prompt whose continuation is what stands between two texts.

        The order is llama.cpp's: other files, prefix, what was begun, suffix; with the tokens for
        repositories where a model has such (arXiv:2409.12186, section 3). Nothing is cut.

        Parameters
        ----------
        prefix, suffix : str
            Control tokens written in them are text.
        begun : str
            The beginning of what is to be written.
        files : sequence of tuple of str
            Names and texts to know of.

        Raises
        ------
        MtpcoreError
            The model has no tokens for it, or something is no text that is valid Unicode.
        """
        infill = self.vocabulary.infill
        others: list[tuple[str, str]] = read(
            files, list[tuple[str, str]], "other texts have names", error=MtpcoreError
        )
        if missing := [*_missing_of(self.vocabulary)]:
            raise MtpcoreError(
                "the model does not fill in the middle of texts",
                where="tokenizer",
                got=f"no token for {', '.join(missing)}",
                fix="let it continue a text",
            )

        def plain(text: str) -> list[int]:
            return self.encode(text, add_special=False)

        tokens: list[int] = []
        if "fim_rep" in infill:
            tokens += [infill["fim_rep"], *plain(_REPOSITORY)]
        separator = infill.get("fim_sep")
        for name, text in others:
            head = plain(_SNIPPET) if separator is None else [separator, *plain(f"{name}\n")]
            tokens += [*head, *plain(text)]
        if separator is not None:
            tokens += [separator, *plain(_FILE)]
        if self.vocabulary.add_bos and self.bos is not None:
            tokens.append(self.bos)
        tokens += [infill["fim_pre"], *plain(prefix)]
        tokens += self.encode(begun, add_special=False, parse_special=True)
        return [*tokens, infill["fim_suf"], *plain(suffix), infill["fim_mid"]]

    def decode_bytes(self, tokens: Iterable[int], special: bool = False) -> bytes:
        """Turn the tokens of a whole text into its bytes.

        Parameters
        ----------
        tokens : iterable of int
        special : bool
            Whether control tokens are shown.

        Raises
        ------
        MtpcoreError
            If an id is not in the vocabulary.
        """
        pieces, after_added, special = [], True, _flag(special)
        for token in _each(tokens):
            pieces.append(self._shown_bytes(token, after_added, special))
            after_added = self.vocabulary.types[self._checked(token)] in ADDED
        return b"".join(pieces)

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """Turn the tokens of a whole text into it; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens, special).decode("utf-8", "replace")

    def stream(self, special: bool = False, start: bool = False) -> TextStream:
        """Return a decoder that is fed token by token.

        Parameters
        ----------
        special : bool
            Whether control tokens are shown.
        start : bool
            Whether a text starts here; False where the tokens continue a prompt.
        """
        return TextStream(self, _flag(special), _flag(start))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that one token stands for.

        Raises
        ------
        MtpcoreError
            If the id is not in the vocabulary.
        """
        return self.vocabulary.token_bytes(self._checked(token))

    def shown_bytes(self, token: int, special: bool = False) -> bytes:
        """Return the bytes that a token adds to a text: none for a control token that is not shown.

        Raises
        ------
        MtpcoreError
            If the id is not in the vocabulary.
        """
        return self._shown_bytes(token, after_added=False, special=_flag(special))

    def warn_of(self, token: int) -> None:
        """Warn of the first token that the vocabulary does not have."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the tokenizer has %d entries and the model more rows: token %d is no text "
                "(said once)",
                self.n_vocab,
                token,
            )

    def _checked(self, token: int) -> int:
        return read_below(
            token, self.n_vocab, "no such token", where="tokenizer", error=MtpcoreError
        )

    def _shown_bytes(self, token: int, after_added: bool, special: bool) -> bytes:
        """Return the bytes of a token where it stands.

        ``encode`` puts a space before each text that starts or follows an added token, so the
        first token there has one too many.
        """
        piece, kind = self.token_bytes(token), self.vocabulary.types[self._checked(token)]
        if kind in SPECIAL and not special:
            return b""
        if after_added and kind not in ADDED and self.vocabulary.add_space_prefix:
            return piece.removeprefix(b" ")
        return piece


def _missing_of(vocabulary: Vocabulary) -> Iterator[str]:
    """Yield what a vocabulary lacks of the tokens without which no model fills in."""
    for name, said in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
        if name not in vocabulary.infill:
            yield said


def _flag(value: bool) -> bool:
    return read(value, Flag, "yes or no", where="tokenizer", error=MtpcoreError)  # type: ignore[no-any-return]


def _each(tokens: Iterable[int]) -> Iterator[int]:
    """Go through tokens; whatever a caller's object raises becomes an error of ours."""
    try:
        if isinstance(tokens, Sized) and len(tokens) > _MOST:
            raise ValueError(f"more than {_MOST} tokens")
        yield from tokens
    except MemoryError:
        raise
    except Exception as error:
        raise MtpcoreError(
            "no sequence of tokens", where="tokenizer", got=spell(error, str)
        ) from error


class TextStream:
    """Decodes token by token, holding characters back until all their bytes are there.

    A copy goes on from the same place. Ids beyond the vocabulary are no text: models may have more
    rows than their tokenizer has entries.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool, start: bool) -> None:
        self._tokenizer, self._special, self._after_added = tokenizer, special, start
        self._held = b""

    def __copy__(self) -> TextStream:
        copy = TextStream(self._tokenizer, self._special, self._after_added)
        copy._held = self._held
        return copy

    def push(self, token: int) -> str:
        """Take one token and return the text that is certain now.

        Raises
        ------
        MtpcoreError
            If this is no id at all.
        """
        tokenizer = self._tokenizer
        token = read(token, Whole64, "no such token", where="tokenizer", error=MtpcoreError)
        if token >= tokenizer.n_vocab:
            tokenizer.warn_of(token)
            return ""
        piece = tokenizer._shown_bytes(token, self._after_added, self._special)
        self._after_added = tokenizer.vocabulary.types[token] in ADDED
        return self._decode(piece, final=False)

    def flush(self) -> str:
        """Return the bytes held back, as U+FFFD; the stream can be used further."""
        return self._decode(b"", final=True)

    def _decode(self, piece: bytes, final: bool) -> str:
        data = self._held + piece if self._held else piece
        text, n = codecs.utf_8_decode(data, "replace", final)
        self._held = data[n:]
        return text


def read_tokenizer(metadata: Metadata, file: str = "metadata") -> Tokenizer | None:
    """Make the tokenizer of a model file.

    Parameters
    ----------
    metadata : dict
    file : str
        For errors.

    Returns
    -------
    Tokenizer or None
        None where the file has no tokenizer, or one that is not supported (a warning says so).

    Raises
    ------
    ModelFileError
        Naming the metadata key that is missing or wrong.
    """
    vocabulary = read_vocabulary(metadata, file)
    return None if vocabulary is None else Tokenizer(vocabulary)
