"""What drafts of the sequences of a round gain, by their lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Offer", "Option", "best_of", "lengths_of", "options"]


class Offer(NamedTuple):
    """Drafts that some sequences of a round may have.

    Attributes
    ----------
    reach : mapping of seq to sequence of float
        The share of rounds in which draft 1, 2, ... is accepted.
    rows : callable
        ``rows(seq, k)``: how many rows a draft of k tokens adds to a pass.
    seconds : callable, optional
        ``seconds(n, longest)``: what it takes to make drafts for n sequences, and what it may take
        at least; None: they are made.
    reading : mapping of seq to (float, float)
        Seconds to add for what has to be read before a first draft: as the rounds to come share
        it, and all at once.
    """

    reach: Mapping[int, Sequence[float]]
    rows: Callable[[int, int], float]
    seconds: Callable[[int, int], tuple[float, float]] | None = None
    reading: Mapping[int, tuple[float, float]] = {}


class Option(NamedTuple):
    """Drafts of a round, and the tokens that they gain.

    ``n`` are the likeliest ones. ``hope`` is what they gain if all costs as little as it may;
    ``price`` what they lose at most by what is known, reading included.
    """

    n: int
    gain: float
    hope: float
    price: float


def options(
    offer: Offer, n_rows: float, pass_seconds: Callable[[float], tuple[float, float]], worth: float
) -> list[Option]:
    """Return what drafts gain, from none on, the likeliest first.

    A gain is the tokens that drafts bring less those that would be written in the seconds that they
    take: ``worth`` tokens a second. (Of rounds that differ the fastest one by one are not the
    fastest in all; Dinkelbach 1967, "On nonlinear fractional programming".)

    Drafts are added one by one, to whichever sequence they belong; a row more costs the same
    wherever it is. All of these steps are compared, for the price of rows has jumps: five rows may
    be expensive, and eight cheap.

    Parameters
    ----------
    offer : Offer
    n_rows : float
        Rows of the pass without these drafts.
    pass_seconds : callable
        The price of a pass by its rows, and what it may be at least.
    worth : float
    """
    lengths = dict.fromkeys(offer.reach, 0)
    rows, begun, longest, tokens = n_rows, 0, 0, 0.0
    shared = at_once = drafting = least_drafting = 0.0
    plain, least_plain = pass_seconds(n_rows)
    found = [Option(0, 0.0, 0.0, 0.0)]
    for n, (share, seq) in enumerate(_steps(offer), 1):
        k = lengths[seq] = lengths[seq] + 1
        rows += offer.rows(seq, k) - offer.rows(seq, k - 1)
        tokens += share
        if k == 1:
            begun += 1
            one, all_ = offer.reading.get(seq, (0.0, 0.0))
            shared, at_once = shared + one, at_once + all_
        longest = max(longest, k)
        seconds, least = pass_seconds(rows)
        if offer.seconds is not None:
            drafting, least_drafting = offer.seconds(begun, longest)
        gain = tokens - worth * (seconds - plain + drafting + shared)
        hope = tokens - worth * (least - least_plain + least_drafting + shared)
        found.append(Option(n, gain, hope, worth * (at_once - shared) - gain))
    return found


def best_of(found: Sequence[Option], tries: float) -> tuple[Option, float]:
    """Return the option to take, and the tokens that it may lose against the best one.

    That is the cheapest one of those that promise at least half of what any promises more than the
    best one, if it loses no more than ``tries``, which are saved up for it; else the best one.
    """
    best = max(found, key=lambda option: option.gain)
    most = max(option.hope for option in found)
    if most <= best.hope:
        return best, 0.0
    promising = [option for option in found if 2 * option.hope >= best.hope + most]
    tried = min(promising, key=lambda option: option.price)
    loses = max(best.gain + tried.price, 0.0)
    return (tried, loses) if loses <= tries else (best, 0.0)


def lengths_of(offer: Offer, option: Option) -> dict[int, int]:
    """Return the length of each sequence's draft."""
    lengths = dict.fromkeys(offer.reach, 0)
    for _, seq in _steps(offer)[: option.n]:
        lengths[seq] += 1
    return lengths


def _steps(offer: Offer) -> list[tuple[float, int]]:
    steps = [(share, seq) for seq, shares in offer.reach.items() for share in shares]
    return steps if len(offer.reach) < 2 else sorted(steps, reverse=True)
