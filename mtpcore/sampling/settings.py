"""Sampler settings of one sequence."""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Callable, Mapping

import msgspec

from mtpcore.errors import SamplingError

__all__ = ["Sampling"]

FINITE = (math.isfinite, "a finite number")
REALS: dict[str, tuple[Callable[[float], bool], str]] = {
    # 1 / temperature times any logit must be finite.
    "temperature": (lambda x: x == 0 or 1e-30 <= x < math.inf, "0, or a finite number >= 1e-30"),
    "top_p": (lambda x: 0 < x <= 1, "a number in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "a number in [0, 1]"),
    "repetition_penalty": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "frequency_penalty": FINITE,
    "presence_penalty": FINITE,
}
LARGEST = {"top_k": 2**31 - 1, "seed": 2**64 - 1, "stream": 2**64 - 1, "token id": 2**31 - 1}


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen from logits.

    The order is: `logit_bias`, penalties, then the cuts `top_k`, `top_p`, `min_p` by the
    probabilities at temperature 1, which are not normalised again in between, then `temperature`.
    Ties go to the lowest token id.

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
    repetition_penalty : float
        Divides positive and multiplies negative logits of tokens that occur in prompt or text.
    frequency_penalty : float
        Subtracted from a token's logit for each of its occurrences in the text.
    presence_penalty : float
        Subtracted from a token's logit if it occurs in the text.
    logit_bias : mapping of int to float, optional
        Added to the logits of these token ids; ``-inf`` forbids a token.
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
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stream: int = 0

    def __post_init__(self) -> None:
        """Check every field and store it as a plain Python number."""
        checked: dict[str, object] = {
            name: real(name, getattr(self, name), *rule) for name, rule in REALS.items()
        }
        seed = secrets.randbits(53) if self.seed is None else self.seed  # JSON keeps 53 bits
        checked["seed"] = whole("seed", seed)
        checked["top_k"] = whole("top_k", self.top_k)
        checked["stream"] = whole("stream", self.stream)
        checked["logit_bias"] = biases(self.logit_bias)
        for name, value in checked.items():
            msgspec.structs.force_setattr(self, name, value)

    @classmethod
    def greedy(cls) -> Sampling:
        """Return settings that always take the largest logit."""
        return cls(temperature=0.0, seed=0)


def real(name: str, value: object, allows: Callable[[float], bool], wanted: str) -> float:
    """Return a checked number as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not allows(float(value)):
        raise SamplingError(f"bad {name}", where="Sampling", wanted=wanted, got=repr(value))
    return float(value)


def whole(name: str, value: object) -> int:
    """Return a checked whole number as an int."""
    number = int(value) if isinstance(value, numbers.Integral) else -1
    if isinstance(value, bool) or not 0 <= number <= LARGEST[name]:
        wanted = f"a whole number from 0 to {LARGEST[name]}"
        raise SamplingError(f"bad {name}", where="Sampling", wanted=wanted, got=repr(value))
    return number


def biases(value: object) -> dict[int, float] | None:
    """Return a checked copy of the biases, in the order of token ids; None if there are none."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        wanted = "a mapping of token ids to numbers"
        raise SamplingError("bad logit_bias", where="Sampling", wanted=wanted, got=repr(value))
    checked = {
        whole("token id", token_id): real(
            f"logit_bias[{token_id}]", bias, lambda x: x < math.inf, "a finite number or -inf"
        )
        for token_id, bias in value.items()
    }
    return dict(sorted(checked.items())) or None
