"""``tokenizer.json``, as far as model files hold what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

__all__ = ["AddedToken", "Step", "TokenId", "TokenizerFile"]

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]


class AddedToken(msgspec.Struct):
    """A token beside the vocabulary."""

    id: TokenId
    content: str
    special: bool | None = False


class Pattern(msgspec.Struct):
    """What a step looks for."""

    regex: str | None = msgspec.field(name="Regex", default=None)
    text: str | None = msgspec.field(name="String", default=None)


class Step(msgspec.Struct):
    """A step of a normalizer or a pre-tokenizer, or several."""

    type: str | None = None
    pattern: Pattern | None = None
    content: str | None = None
    prepend: str | None = None
    add_prefix_space: bool | None = None
    use_regex: bool | None = True
    individual_digits: bool | None = False
    prepend_scheme: str | None = "always"
    precompiled_charsmap: str | None = None
    pretokenizers: list[Step] | None = None
    normalizers: list[Step] | None = None

    @property
    def parts(self) -> Sequence[Step]:
        """The steps of which this one consists, and of which these do, or itself."""
        inner = self.pretokenizers if self.normalizers is None else self.normalizers
        return (self,) if inner is None else [part for step in inner for part in step.parts]


class TokenizerFile(msgspec.Struct):
    """The file; ``model`` is read by its kind."""

    model: dict[str, Any] | None = None
    added_tokens: list[AddedToken] | None = None
    normalizer: Step | None = None
    pre_tokenizer: Step | None = None
