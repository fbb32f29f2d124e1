"""Sampler settings of one sequence."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mtpcore.boundary.arguments import (
    Bias,
    Growth,
    LastTokens,
    Penalty,
    Probability,
    Repetition,
    Share,
    Temperature,
    Unsigned,
    Whole31,
    Whole64,
    read,
)
from mtpcore.errors import SamplingError, spell
from mtpcore.sampling.grammar import Grammar, read_grammar

__all__ = ["Sampling", "check_no_grammar", "check_sampling"]

_Breakers = Annotated[
    tuple[Annotated[str, Meta(min_length=1)] | Whole31, ...],
    Meta(description="a sequence of texts, none of them empty, and token ids"),
]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen from logits.

    The order is llama.cpp's: `logit_bias`, penalties, DRY, the mask of the `grammar`, then the cuts
    `top_n_sigma`, `top_k`, `typical_p`, `top_p`, `min_p` and XTC by the probabilities at
    temperature 1, which are not normalised again in between, then `temperature`. Ties go to the
    lowest token id. ``mtpcore/sampling/reference.py`` has the formulas.

    Parameters
    ----------
    temperature : float
        Divides the logits of the tokens that pass the cuts; 0 takes the largest logit.
    top_k : int
        Keep the ``top_k`` likeliest tokens; 0 keeps all.
    top_p : float
        Of these, keep the likeliest up to the one at which their probabilities sum up to
        ``top_p``, in (0, 1].
    min_p : float
        Of these, keep tokens with at least ``min_p`` times the largest probability, in [0, 1].
    top_n_sigma : float
        Keep tokens whose logit is at most this many standard deviations of all logits below the
        largest; 0 keeps all.
    typical_p : float
        Of what ``top_k`` leaves, keep the tokens whose surprise, -log p, is nearest to the mean
        surprise, until their probabilities sum up to ``typical_p``, in (0, 1] (locally typical
        sampling).
    xtc_probability : float
        How often XTC leaves out the likeliest tokens, in [0, 1].
    xtc_threshold : float
        XTC leaves out tokens of at least this probability, except for the least likely of them.
    dynatemp_range : float
        The temperature is between ``temperature - dynatemp_range``, where one token is certain, and
        ``temperature + dynatemp_range``, where all are equally likely; 0: always ``temperature``.
        Temperature 0 stays 0.
    dynatemp_exponent : float
        Shapes that: above 1 the temperature is lower in between.
    repetition_penalty : float
        Divides positive and multiplies negative logits of tokens that occur in prompt or text.
    frequency_penalty : float
        Subtracted from a token's logit for each of its occurrences in the text.
    presence_penalty : float
        Subtracted from a token's logit if it occurs in the text.
    penalty_last_n : int
        How many of the latest tokens of prompt and text these three penalties look at; -1: all.
    dry_multiplier : float
        DRY ("don't repeat yourself") lowers the logit of a token that would go on with a repetition
        of n tokens by ``dry_multiplier * dry_base ** (n - dry_allowed_length)``; 0: it does not.
    dry_base : float
        1 or more.
    dry_allowed_length : int
        Repetitions of fewer tokens are allowed.
    dry_penalty_last_n : int
        How many of the latest tokens of prompt and text DRY looks at; -1: all.
    dry_sequence_breakers : sequence of str or int
        Texts and token ids over which no repetition reaches. Texts need a tokenizer.
    logit_bias : mapping of int to float, optional
        Added to the logits of these token ids; ``-inf`` forbids a token.
    grammar : Grammar or str, optional
        The form that the text is to have, from its first token on: others are never chosen. Needs
        the extra ``grammar``.
    seed : int, optional
        Key of the noise, 0 .. 2**64 - 1. One is drawn and recorded here if none is given.
    stream : int
        Tells apart sequences that share a seed, 0 .. 2**64 - 1.

    Raises
    ------
    SamplingError
        A value is out of range.

    Examples
    --------
    >>> Sampling(temperature=0.8, top_k=40, seed=7).top_k
    40
    >>> Sampling().seed is None
    False
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str | int] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] | None = None
    grammar: Grammar | None = None
    seed: int | None = None
    stream: int = 0

    def __post_init__(self) -> None:
        """Check every field and store it as a plain Python number."""
        drawn = {"seed": secrets.randbits(53)} if self.seed is None else {}  # JSON keeps 53 bits
        given = msgspec.structs.asdict(self) | drawn
        checked = {name: _read(name, given[name], kind) for name, kind in _KINDS.items()}
        checked["logit_bias"] = _read_biases(self.logit_bias)
        checked["grammar"] = read_grammar(self.grammar)
        for name, value in checked.items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def has_penalties(self) -> bool:
        """Whether what was chosen before changes what is chosen."""
        penalties = self.repetition_penalty, self.frequency_penalty, self.presence_penalty
        return penalties != (1, 0, 0) or self.dry_multiplier > 0

    @property
    def is_for_hosts(self) -> bool:
        """Whether devices cannot choose by it: their logits are sent to the host, which does."""
        cuts = self.top_n_sigma, self.typical_p, self.xtc_probability, self.dynatemp_range
        windows = self.penalty_last_n >= 0 or self.dry_multiplier > 0
        return (self.temperature > 0 and cuts != (0, 1, 0, 0)) or (self.has_penalties and windows)

    @classmethod
    def greedy(cls) -> Sampling:
        """Return settings that always take the largest logit."""
        return cls(temperature=0.0, seed=0)


def check_sampling(sampling: object) -> Sampling:
    """Return settings; raise SamplingError where they are something else."""
    if isinstance(sampling, Sampling):
        return sampling
    raise SamplingError(
        "settings are a Sampling",
        got=spell(sampling),
        fix="make one: Sampling(temperature=0.8, seed=7)",
    )


def check_no_grammar(sampling: object) -> Sampling:
    """Return settings for codes; raise SamplingError where they have a grammar."""
    settings = check_sampling(sampling)
    if settings.grammar is not None:
        raise SamplingError(
            "a grammar is of text, and the model writes codes",
            where="Sampling",
            got=repr(settings.grammar),
            fix="leave grammar out",
        )
    return settings


_KINDS = {
    "temperature": Temperature,
    "top_k": Whole31,
    "top_p": Share,
    "min_p": Probability,
    "top_n_sigma": Unsigned,
    "typical_p": Share,
    "xtc_probability": Probability,
    "xtc_threshold": Probability,
    "dynatemp_range": Unsigned,
    "dynatemp_exponent": Unsigned,
    "repetition_penalty": Repetition,
    "frequency_penalty": Penalty,
    "presence_penalty": Penalty,
    "penalty_last_n": LastTokens,
    "dry_multiplier": Unsigned,
    "dry_base": Growth,
    "dry_allowed_length": Whole31,
    "dry_penalty_last_n": LastTokens,
    "dry_sequence_breakers": _Breakers,
    "seed": Whole64,
    "stream": Whole64,
}


def _read(name: str, value: object, kind: Any) -> Any:
    return read(value, kind, f"bad {name}", where="Sampling", error=SamplingError)


def _read_biases(given: object) -> dict[int, float] | None:
    """Return a checked copy of the biases, in the order of token ids; None if there are none."""
    wanted = "a mapping of token ids to numbers"
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SamplingError("bad logit_bias", where="Sampling", wanted=wanted, got=spell(given))
    try:
        pairs = list(given.items())
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's mapping raises
        raise SamplingError(
            "bad logit_bias", where="Sampling", wanted=wanted, got=spell(error)
        ) from error
    checked = {
        _read("token id", token, Whole31): _read(f"logit_bias[{spell(token)}]", bias, Bias)
        for token, bias in pairs
    }
    return dict(sorted(checked.items())) or None
