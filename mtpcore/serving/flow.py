"""Contexts, links between them, and counts of what flowed through them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mtpcore.drafting.drafters import Drafter
from mtpcore.runtime.context import Context
from mtpcore.serving.answers import Service
from mtpcore.serving.replies import reply

__all__ = ["show_cross"]


async def show_cross(service: Service, request: Request) -> Response:
    """Show contexts, drafters, links, and what they did since the server began.

    All numbers are counts: who asks twice knows what flowed meanwhile. They are read while a round
    may be running, and can be a round apart.
    """
    cross, stats = service.lm.generator.cross, service.lm.generator.stats
    drafters = {
        role: _drafter(drafter, cross.speculation.names[role], stats.drafters)
        for role, drafter in cross.drafters.items()
    }
    links = [
        {
            "src": link.src,
            "tap": link.tap,
            "dst": link.dst,
            "slot": link.slot,
            "pairing": link.pairing,
            "rows": cross.links.n_delivered(link),
        }
        for link in cross.links
    ]
    return reply(
        {
            "contexts": {role: _context(context) for role, context in cross.contexts.items()},
            "drafters": drafters,
            "links": links,
            "stats": {
                "tokens": stats.tokens,
                "passes": stats.passes,
                "drafts": stats.verify_steps,
                "drafted": stats.drafted,
                "accepted": stats.accepted,
                "accepted_per_position": stats.accepted_per_position,
            },
        }
    )


def _context(context: Context) -> dict[str, Any]:
    runner = context.runner
    return {
        "graph": runner.graph_type.name,
        "program": runner.program.name,
        "file": runner.model.path.name,
        "tokens": sum(runner.lengths),
        "n_ctx": runner.n_ctx,
        "n_seq_max": runner.n_seq_max,
    }


def _drafter(
    drafter: Drafter, name: str, counts: dict[str, tuple[int, int, int]]
) -> dict[str, Any]:
    """Return what a drafter is and made; drafters of one name are counted together."""
    drafts, drafted, accepted = counts.get(name, (0, 0, 0))
    return {
        "name": name,
        "shape": drafter.spec.shape if drafter.spec else "proposer",
        "roles": list(drafter.runners),
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
    }
