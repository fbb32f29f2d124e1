"""What a run's statistics say, as lines and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mtpcore.cli.session import Session
from mtpcore.decoding import Generator, Stats

__all__ = [
    "compare",
    "describe",
    "describe_settings",
    "first_difference",
    "name_drafter",
    "plain_stats",
]


def describe_settings(session: Session, generator: Generator) -> dict[str, Any]:
    """Return the settings in effect."""
    llm = session.llm
    return {
        "model": str(session.model.path),
        "drafter": ", ".join(session.names) or None,
        "draft": session.draft_or_auto,
        "tree": msgspec.to_builtins(session.drafter.tree) if session.drafter else None,
        "draft_sampler": generator.draft_sampler,
        "p_min": generator.p_min,
        "sampling": msgspec.to_builtins(generator.sampling),
        "n_ctx": llm.n_ctx,
        "n_batch": llm.n_batch,
        "threads": llm.threads,
        "kv_dtype": llm.kv_dtype,
        "checkpoint_bytes": llm.checkpoint_bytes,
        "backend": llm.backend.name,
        "guarantee": llm.guarantee,
    }


def name_drafter(settings: dict[str, Any]) -> str:
    """Return a drafter's name, with the shape of its trees."""
    if not settings["drafter"]:
        return ""
    tree = settings["tree"]
    if not tree:
        return str(settings["drafter"])
    numbers = "{depth},{width},{n_nodes}".format_map(tree)
    shape = f"{len(tree['paths'])} fixed paths" if tree["paths"] else numbers
    return f"{settings['drafter']}, tree {shape}"


def plain_stats(stats: Stats) -> dict[str, Any]:
    """Return counts, times and what follows from them."""
    return {
        **msgspec.to_builtins(stats),
        "tokens_per_pass": stats.tokens_per_pass,
        "prefill_tokens_per_second": stats.prefill_tokens_per_second,
        "acceptance": stats.acceptance,
        "acceptance_per_position": stats.acceptance_per_position,
        "tokens_per_second": stats.tokens_per_second,
    }


def describe(stats: Stats, drafter: str, *, verbose: bool = False) -> str:
    """Return the report after a text: two lines, or more.

    Parameters
    ----------
    stats : Stats
        Of one text, or of several.
    drafter : str
        As ``name_drafter`` has it; "" where nothing could be drafted.
    verbose : bool
        Whether to say more: acceptance by position, lengths of drafts, and where the time went.
    """
    lines = [_speeds(stats), _rounds(stats, drafter)]
    return "\n".join([*lines, *(_details(stats) if verbose else ())])


def _speeds(stats: Stats) -> str:
    prompt = f"prompt {_count(stats.prefill_tokens, 'token')}"
    if stats.prefill_seconds:
        prompt += f" at {stats.prefill_tokens_per_second:,.1f} tokens/s"
    text = f"text {_count(stats.tokens, 'token')}"
    if stats.passes:
        text += f" at {stats.tokens_per_second:,.1f} tokens/s"
    return f"{prompt}; {text}"


def _rounds(stats: Stats, drafter: str) -> str:
    rounds = _count(stats.passes, "round")
    if stats.passes:
        rounds += f" of {stats.tokens_per_pass:.2f} tokens"
    if not stats.drafted:
        return f"{rounds}; nothing was drafted{f' by {drafter}' if drafter else ''}"
    counts = f"{stats.accepted:,} of {stats.drafted:,} drafts by {drafter}"
    return f"{rounds}; acceptance rate {stats.acceptance:.2f}, {counts}"


def _details(stats: Stats) -> list[str]:
    lines = []
    if stats.verify_steps:
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_per_position)
        lines.append(f"acceptance rate by position of the draft: {rates}")
    if stats.decisions:
        lengths = ", ".join(f"{k} in {n}" for k, n in sorted(stats.lengths.items()))
        lines.append(f"drafts for a round: {lengths}; lastly {stats.decisions[-1].reason}")
    if stats.shifts:
        lines.append(f"the context was full and was shifted: {_count(stats.shifts, 'time')}")
    if stats.invalid:
        lines.append(f"{_count(stats.invalid, 'drafted id')} stood for no token")
    parts = {
        "prefill": stats.prefill_seconds,
        "draft": stats.draft_seconds,
        "verify": stats.verify_seconds,
        "sampling": stats.choose_seconds + stats.commit_seconds,
        "draft length": stats.length_seconds,
    }
    if stats.shifts:
        parts["context shift"] = stats.shift_seconds
    total = sum(parts.values())
    if total:
        split = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items())
        lines.append(f"time {total:.2f} s: {split}")
    return lines


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def first_difference(first: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first place where two texts differ, or None where they do not."""
    if list(first) == list(other):
        return None
    pairs = enumerate(zip(first, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(other)))


def compare(difference: int | None, drafted: Stats, plain: Stats, guarantee: str) -> str:
    """Return what ``--compare`` says."""
    speeds = (
        f"drafted {drafted.tokens_per_second:.1f}, plain {plain.tokens_per_second:.1f} tokens/s"
    )
    ratio = drafted.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else 0.0
    if difference is None:
        texts = "the texts are equal"
    else:
        texts = f"the texts differ from token {difference} on"
        if guarantee.startswith("exact"):
            texts += f", which the guarantee {guarantee!r} forbids: please report it"
    if not drafted.drafted:
        return f"compare: {texts}; nothing was drafted, so there are no speeds to compare"
    return f"compare: {texts}; {speeds}: {ratio:.2f} times as fast"
