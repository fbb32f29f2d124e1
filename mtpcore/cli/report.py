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
    """Return what is in force, wherever it came from."""
    llm = session.llm
    return {
        "model": str(session.model.path),
        "drafter": session.drafter.name if session.drafter else None,
        "draft": "auto" if session.auto else session.draft,
        "tree": msgspec.to_builtins(session.drafter.tree) if session.drafter else None,
        "draft_sampler": generator.draft_sampler,
        "p_min": generator.p_min,
        "sampling": msgspec.to_builtins(generator.sampling),
        "n_ctx": llm.n_ctx,
        "n_batch": llm.n_batch,
        "threads": llm.threads,
        "kv_dtype": llm.kv_dtype,
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
        "acceptance": stats.acceptance,
        "acceptance_per_position": stats.acceptance_per_position,
        "tokens_per_second": stats.tokens_per_second,
    }


def describe(stats: Stats, drafter: str) -> str:
    """Return the report after a text."""
    sampling = stats.choose_seconds + stats.commit_seconds
    parts = {
        "prefill": stats.prefill_seconds,
        "draft": stats.draft_seconds,
        "verify": stats.verify_seconds,
        "sampling": sampling,
        "draft length": stats.length_seconds,
    }
    total = sum(parts.values())
    split = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items() if total)
    lines = [
        f"{stats.tokens} tokens, {stats.tokens_per_pass:.2f} per pass, "
        f"{stats.tokens_per_second:.1f} tokens/s after a prompt of {stats.prompt_tokens}"
    ]
    if stats.verify_steps:
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_per_position)
        lines.append(
            f"{drafter}: {stats.accepted} of {stats.drafted} drafts accepted "
            f"({stats.acceptance:.2f}); by position {rates}"
        )
    if stats.choices:
        lengths = ", ".join(f"{k} in {n}" for k, n in sorted(stats.lengths.items()))
        lines.append(f"drafts for a pass: {lengths} passes; lastly {stats.choices[-1].reason}")
    if stats.invalid:
        lines.append(f"{drafter}: {stats.invalid} drafts were no tokens")
    if total:
        lines.append(f"time {total:.2f} s: {split}")
    return "\n".join(lines)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first place where two texts differ, or None where they do not."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


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
