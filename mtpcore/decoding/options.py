"""The options of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, cast

from mtpcore.boundary.options import find_unknown
from mtpcore.cross import DraftSampler
from mtpcore.runtime.adapters import AdapterChoice
from mtpcore.sampling import LogitsProcessor, Sampling

__all__ = ["REQUEST_DEFAULTS", "RequestOptions", "complete_options"]


class RequestOptions(TypedDict, total=False):
    """What the methods of ``Generator`` take by name; ``Generator.add`` documents it."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: int | Sequence[int]
    banned_strings: str | Sequence[str]
    special: bool
    ignore_eos: bool
    sampling: Sampling | None
    draft: int | Literal["auto"] | None
    drafters: Sequence[str] | None
    draft_sampler: DraftSampler | None
    p_min: float | None
    logprobs: int | None
    prompt_logprobs: int | None
    logits_processor: LogitsProcessor | None
    when_full: Literal["stop", "shift"]
    n_keep: int | None
    adapters: AdapterChoice | None


REQUEST_DEFAULTS = RequestOptions(
    max_tokens=128,
    min_tokens=0,
    stop=(),
    stop_token_ids=(),
    banned_strings=(),
    special=False,
    ignore_eos=False,
    sampling=None,
    draft=None,
    drafters=None,
    draft_sampler=None,
    p_min=None,
    logprobs=None,
    prompt_logprobs=None,
    logits_processor=None,
    when_full="stop",
    n_keep=None,
    adapters=None,
)
"""What an option is where it is left out. Where None is no value, it stands for the generator's."""


def complete_options(given: RequestOptions, own: RequestOptions) -> RequestOptions:
    """Return all options.

    Parameters
    ----------
    given : RequestOptions
        Those of a call.
    own : RequestOptions
        What None stands for.

    Raises
    ------
    TypeError
        A name that is unknown.
    """
    unknown = find_unknown(given, REQUEST_DEFAULTS)
    if unknown:
        raise TypeError("no such option: {!r}; the nearest is {}=".format(*unknown))
    options: dict[str, Any] = {**REQUEST_DEFAULTS, **given}
    for name, value in own.items():
        if options[name] is None:
            options[name] = value
    return cast(RequestOptions, options)
