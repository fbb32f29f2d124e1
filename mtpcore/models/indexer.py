"""Sparse attention by an indexer that chooses for each token which others it sees.

DeepSeek-V3.2 (2025, arXiv 2512.02556), section 2.1. An indexer chooses ``top_k`` tokens: of a
context that is no longer it chooses all, and attention is dense. Longer ones are refused.
"""

from __future__ import annotations

from mtpcore.graph import GraphBuilder

__all__ = ["UNREAD_INDEXER", "limit_to_chosen"]

_WHY = "contexts are as long as what the indexer chooses, so that it chooses all"

UNREAD_INDEXER: tuple[tuple[str, str], ...] = (
    ("blk.{n}.indexer.*", _WHY),
    ("{arch}.attention.indexer.*", _WHY),
)
"""What a file holds of an indexer, and why no graph reads it."""


def limit_to_chosen(g: GraphBuilder, n: int) -> None:
    """Refuse contexts of more than ``n`` tokens, as many as the indexer chooses."""
    g.limit_context(n, "in a longer one the model chooses which tokens each one sees")
