"""``tokenizer.json``, as far as model files hold what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from mtpcore.gguf.vocabulary import SPACE

__all__ = ["AddedToken", "Pattern", "Processor", "Step", "TokenId", "TokenizerFile"]

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]


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


class Step(msgspec.Struct):
    """A step of a normalizer, a pre-tokenizer or a decoder, or several.

    Two fields count nowhere: ``trim_offsets``, of where tokens stand in a text, and ``split`` of
    Metaspace: no merge crosses a space unless the vocabulary has tokens with spaces inside.
    """

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
    pretokenizers: list[Step] | None = None
    normalizers: list[Step] | None = None
    decoders: list[Step] | None = None

    @property
    def parts(self) -> Sequence[Step]:
        """The steps of which this one consists, and of which these do, or itself."""
        lists = (self.normalizers, self.pretokenizers, self.decoders)
        inner = next((steps for steps in lists if steps is not None), None)
        return (self,) if inner is None else [part for step in inner for part in step.parts]


class Processor(msgspec.Struct):
    """What is put around a text: a template, or several processors."""

    type: str | None = None
    single: list[dict[str, dict[str, Any]]] | None = None
    processors: list[Processor] | None = None

    @property
    def parts(self) -> Sequence[Processor]:
        """The processors of which this one consists, or itself."""
        inner = self.processors
        return (self,) if inner is None else [part for one in inner for part in one.parts]


class TokenizerFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file; ``model`` is read by its kind.

    ``truncation`` and ``padding`` are a caller's choice: texts are processed whole.
    """

    model: dict[str, Any] | None = None
    added_tokens: list[AddedToken] | None = None
    normalizer: Step | None = None
    pre_tokenizer: Step | None = None
    post_processor: Processor | None = None
    decoder: Step | None = None
    version: Any = None
    truncation: Any = None
    padding: Any = None
