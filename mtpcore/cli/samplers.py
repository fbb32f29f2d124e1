"""Options of the sampler, spelled as llama.cpp spells them where it has the same."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mtpcore.cli.options import text_of
from mtpcore.cli.terminal import note
from mtpcore.errors import SamplingError
from mtpcore.lm import recommend_sampling
from mtpcore.runtime.model import Model
from mtpcore.sampling import USUAL, Sampling

__all__ = [
    "FIELDS",
    "add_sampling_options",
    "given_sampling",
    "sampling_of",
    "spell_sampling",
    "spell_settings",
]

_SAMPLERS = (
    (("--temp", "--temperature"), "temperature", "0 takes the most probable token"),
    (("--dynatemp-range",), "dynatemp_range", "how far the temperature moves; 0: it does not"),
    (
        ("--dynatemp-exp", "--dynatemp-exponent"),
        "dynatemp_exponent",
        "above 1 it is lower where probabilities are neither even nor all of one token",
    ),
    (
        ("--top-nsigma", "--top-n-sigma"),
        "top_n_sigma",
        "keep logits at most X standard deviations below the largest; 0 keeps all",
    ),
    (("--top-k",), "top_k", "keep the N most probable tokens; 0 keeps all"),
    (
        ("--typical", "--typical-p"),
        "typical_p",
        "keep tokens of average surprise that sum to this probability; 1 keeps all",
    ),
    (("--top-p",), "top_p", "keep the most probable tokens that sum to this probability"),
    (("--min-p",), "min_p", "keep tokens of at least this share of the largest probability"),
    (
        ("--xtc-probability",),
        "xtc_probability",
        "how often the most probable tokens are left out; 0: never",
    ),
    (
        ("--xtc-threshold",),
        "xtc_threshold",
        "leave out tokens of this probability, but for the least probable of them",
    ),
    (
        ("--repeat-penalty", "--repetition-penalty"),
        "repetition_penalty",
        "penalty on tokens of prompt and text; 1: none",
    ),
    (("--frequency-penalty",), "frequency_penalty", "for each occurrence in the text"),
    (("--presence-penalty",), "presence_penalty", "for any occurrence in the text"),
    (
        ("--repeat-last-n",),
        "penalty_last_n",
        "latest tokens that these penalties look at; -1: all",
    ),
    (
        ("--dry-multiplier",),
        "dry_multiplier",
        "DRY: penalty on a token that goes on with a repetition; 0: none",
    ),
    (("--dry-base",), "dry_base", "how much more it is for each further token"),
    (("--dry-allowed-length",), "dry_allowed_length", "shorter repetitions are allowed"),
    (("--dry-penalty-last-n",), "dry_penalty_last_n", "latest tokens that DRY looks at; -1: all"),
)
"""Options of the sampler: their names, the field of ``Sampling``, and what it does."""


FIELDS = {name.lstrip("-"): field for names, field, _ in _SAMPLERS for name in names}
"""By name of a setting: the field of ``Sampling``."""
_NAMES = {field: names[0].lstrip("-") for names, field, _ in _SAMPLERS}
_NEUTRAL = Sampling(seed=0)


def token_bias(text: str) -> tuple[int, float]:
    """Read the bias of a token as llama.cpp spells it: ``42+1.5``, ``42-inf``."""
    parts = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        return int(parts[1]), float(parts[2])  # type: ignore[index]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"wanted ID+BIAS or ID-BIAS, got {text!r}") from None


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the sampler's settings; ``given_sampling`` and ``sampling_of`` read them."""
    group = parser.add_argument_group(
        "sampling", "what is not given is as the file recommends, else as in llama.cpp"
    )
    for names, field, text in _SAMPLERS:
        neutral = getattr(_NEUTRAL, field)
        kind = type(neutral)
        default = f"the file's, else {USUAL[field]}" if field in USUAL else neutral
        group.add_argument(
            *names,
            dest=field,
            type=kind,
            metavar="N" if kind is int else "X",
            help=f"{text} (default: {default})",
        )
    group.add_argument(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        type=text_of,
        action="append",
        metavar="TEXT",
        help="no repetition reaches over it, for DRY; repeatable; none: there are no such texts "
        '(default: a new line, :, " and *)',
    )
    group.add_argument(
        "-l",
        "--logit-bias",
        type=token_bias,
        action="append",
        metavar="ID(+/-)BIAS",
        help="add to the logit of a token: 42+1.5, or 42-inf, which forbids it; repeatable",
    )
    group.add_argument(
        "-s",
        "--seed",
        type=int,
        metavar="N",
        help="the same seed gives the same text (default, or -1: drawn at random and shown)",
    )
    group.add_argument(
        "--stream",
        type=int,
        default=0,
        metavar="N",
        help="different streams give different texts from one seed (default: 0)",
    )


def given_sampling(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sampler's settings that were given.

    Exits with code 2 where one is out of range.
    """
    if options.seed == -1:
        options.seed = None
    for name in ("top_k", "top_n_sigma"):  # which -1 switches off in llama.cpp
        if (getattr(options, name) or 0) < 0:
            setattr(options, name, 0)
    if options.dry_sequence_breakers == ["none"]:
        options.dry_sequence_breakers = []
    if options.logit_bias is not None:
        options.logit_bias = dict(options.logit_bias)
    given = {
        name: value
        for name in Sampling.__struct_fields__
        if (value := getattr(options, name, None)) is not None
    }
    try:
        Sampling(**{"seed": 0, **given})
    except SamplingError as error:
        refuse: Callable[[str], NoReturn] = options.parser.error
        refuse(str(error))
    return given


def sampling_of(given: Mapping[str, Any], model: Model) -> Sampling:
    """Return the sampler's settings: those that were given, and else what the file recommends."""
    recommended = recommend_sampling(model)
    settings = {**recommended.defaults, **given}
    taken = {name: value for name, value in recommended.settings.items() if name not in given}
    if taken:
        note(f"sampling as the file recommends: {spell_sampling(taken)}")
    if settings["temperature"] == 0:
        settings.setdefault("seed", 0)  # greedy text needs no noise
    return Sampling(**settings)


def spell_sampling(settings: Mapping[str, Any]) -> str:
    """Return settings of the sampler as their options are called: ``temp 0.8, top-k 40``."""
    return ", ".join(f"{_NAMES[name]} {value:g}" for name, value in settings.items())


def spell_settings(sampling: Sampling) -> str:
    """Return the settings that a file may recommend, and those that change something."""
    values = {field: getattr(sampling, field) for field in _NAMES}
    shown = {f: v for f, v in values.items() if f in USUAL or v != getattr(_NEUTRAL, f)}
    return spell_sampling(shown)
