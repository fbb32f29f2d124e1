"""``tokenizer.json``, as far as model files hold what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mtpcore.conversion.published import (
    NO_FILE_HOLDS_IT,
    convert_json,
    read_json,
    tokenizer_error,
)
from mtpcore.gguf.vocabulary import SPACE

__all__ = [
    "READ",
    "STEPS",
    "AddedToken",
    "Pattern",
    "Processor",
    "TokenizerStep",
    "TokenId",
    "TokenizerFile",
    "read_tokenizer_json",
]

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]

READ = ""
"""In place of a reason why a field counts nowhere: it is read, or refused by its value."""

_PLACES = "of where tokens stand in a text"
_CUT = "of cutting, which the pre-tokenizer says"
_SPACED = {"replacement": READ, "str_rep": "replacement says it"}

STEPS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "normalizer": {
        "Sequence": {"normalizers": READ},
        "NFC": {},
        "Prepend": {"prepend": READ},
        "Replace": {"pattern": READ, "content": READ},
        "Precompiled": {"precompiled_charsmap": READ},
        "Strip": dict.fromkeys(
            ("strip_left", "strip_right"), "spaces around a text go where several become one"
        ),
    },
    "pre_tokenizer": {
        "Sequence": {"pretokenizers": READ},
        "ByteLevel": {"add_prefix_space": READ, "use_regex": READ, "trim_offsets": _PLACES},
        "Digits": {"individual_digits": READ},
        "Split": {"pattern": READ, "behavior": READ, "invert": READ},
        "WhitespaceSplit": {},
        "Metaspace": {
            **_SPACED,
            "prepend_scheme": READ,
            "add_prefix_space": READ,
            "split": "no merge crosses a space unless the vocabulary has tokens with spaces inside",
        },
    },
    "post_processor": {
        "Sequence": {"processors": READ},
        "ByteLevel": dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _PLACES),
        "TemplateProcessing": {
            "single": READ,
            "special_tokens": READ,
            "pair": "of two texts at once, which there are not",
        },
        "RobertaProcessing": {
            "cls": READ,
            "sep": READ,
            "trim_offsets": _PLACES,
            "add_prefix_space": _PLACES,
        },
    },
    "decoder": {
        "Sequence": {"decoders": READ},
        "ByteLevel": dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _CUT),
        "ByteFallback": {},
        "Fuse": {},
        "Metaspace": {
            **_SPACED,
            **dict.fromkeys(("prepend_scheme", "add_prefix_space", "split"), _CUT),
        },
        "Strip": {"content": READ, "start": READ, "stop": READ},
        "Replace": {"pattern": READ, "content": READ},
    },
}
"""Steps that pass, by part of the file, and what becomes of each field: ``READ``, or why not."""


class AddedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token beside the vocabulary.

    ``normalized`` says whether it is looked for in normalised text, which makes no difference with
    the normalizers that pass: those that spell spaces, and NFC.
    """

    id: TokenId
    content: str
    special: bool | None = False
    lstrip: bool | None = False
    rstrip: bool | None = False
    single_word: bool | None = False
    normalized: bool | None = False


class Pattern(msgspec.Struct):
    """What a step looks for."""

    regex: str | None = msgspec.field(name="Regex", default=None)
    text: str | None = msgspec.field(name="String", default=None)


class TokenizerStep(msgspec.Struct):
    """A step of a normalizer, a pre-tokenizer or a decoder, or several; ``STEPS`` says of what."""

    type: str | None = None
    pattern: Pattern | None = None
    content: str | None = None
    prepend: str | None = None
    add_prefix_space: bool | None = None
    use_regex: bool | None = True
    individual_digits: bool | None = False
    prepend_scheme: str | None = "always"
    behavior: str | None = "Isolated"
    invert: bool | None = False
    replacement: str | None = SPACE
    precompiled_charsmap: str | None = None
    start: int | None = 0
    stop: int | None = 0
    pretokenizers: list[TokenizerStep] | None = None
    normalizers: list[TokenizerStep] | None = None
    decoders: list[TokenizerStep] | None = None

    @property
    def parts(self) -> Sequence[TokenizerStep]:
        """The steps of which this one consists, and of which these do, or itself."""
        lists = (self.normalizers, self.pretokenizers, self.decoders)
        inner = next((steps for steps in lists if steps is not None), None)
        return (self,) if inner is None else [part for step in inner for part in step.parts]


class Processor(msgspec.Struct):
    """What is put around a text: a template, two tokens, or several processors."""

    type: str | None = None
    single: list[dict[str, dict[str, Any]]] | None = None
    special_tokens: dict[str, dict[str, Any]] | None = None
    cls: list[Any] | None = None
    sep: list[Any] | None = None
    processors: list[Processor] | None = None

    @property
    def parts(self) -> Sequence[Processor]:
        """The processors of which this one consists, or itself."""
        inner = self.processors
        return (self,) if inner is None else [part for one in inner for part in one.parts]

    @property
    def around(self) -> tuple[list[str], list[str]]:
        """The texts of the tokens that are put before a text, and after it."""
        if self.type == "RobertaProcessing":
            before, after = ([str(one[0])] if one else [] for one in (self.cls, self.sep))
            return before, after
        pieces = self.single or []
        texts = [str(piece.get("SpecialToken", {}).get("id")) for piece in pieces]
        at = next((n for n, piece in enumerate(pieces) if "Sequence" in piece), len(pieces))
        return texts[:at], texts[at + 1 :]


class TokenizerFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file; ``model`` is read by its kind.

    ``truncation`` and ``padding`` are a caller's choice: texts are processed whole.
    """

    model: dict[str, Any] | None = None
    added_tokens: list[AddedToken] | None = None
    normalizer: TokenizerStep | None = None
    pre_tokenizer: TokenizerStep | None = None
    post_processor: Processor | None = None
    decoder: TokenizerStep | None = None
    version: Any = None
    truncation: Any = None
    padding: Any = None


def read_tokenizer_json(path: Path) -> TokenizerFile:
    """Read the file.

    Raises
    ------
    ModelFileError
        It is malformed, or a step has a field that nothing is known of.
    """
    raw: dict[str, Any] = read_json(path)
    for part, known in STEPS.items():
        for step in _steps(raw.get(part)):
            kind = step.get("type")
            fields = known.get(kind) if isinstance(kind, str) else None
            if fields is not None and (lost := sorted(_names(step) - {"type", *fields})):
                raise tokenizer_error(
                    path,
                    f"a step of its {part} has fields that are not known",
                    ", ".join(fields) or "none",
                    f"{kind}: {', '.join(lost)}",
                    NO_FILE_HOLDS_IT,
                )
    return convert_json(raw, TokenizerFile, str(path))


def _steps(value: object) -> Iterator[dict[str, Any]]:
    """Yield a step, and those of which it consists, whatever else the file has in their places."""
    pending = [value]
    while pending:
        step = pending.pop()
        if isinstance(step, dict):
            yield step
            for name in ("normalizers", "pretokenizers", "processors", "decoders"):
                inner = step.get(name)
                pending += inner if isinstance(inner, list) else []


def _names(step: dict[str, Any]) -> set[str]:
    """Return the fields of a step that say something; of a pattern those that it may not have."""
    pattern = step.get("pattern")
    strange = pattern.keys() - {"Regex", "String"} if isinstance(pattern, dict) else ()
    said = {str(name) for name, value in step.items() if value is not None}
    return said | {f"pattern.{name}" for name in strange}
