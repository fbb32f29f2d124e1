"""Texts of hybrids where other programs corrupt them; ``scripts/identity`` writes many more."""

import os

import pytest
from harness.tool_calls import FAMILIES, converse

N_REQUESTS = int(os.environ.get("MTPCORE_IDENTITY", "200"))
FIRST = int(os.environ.get("MTPCORE_IDENTITY_FIRST", "0"))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_states_are_those_of_cold_contexts(family):
    counts = converse(family, N_REQUESTS // len(FAMILIES), FIRST)
    print(f"{family}: {counts}")
    if counts.requests >= 100:  # of all that may go wrong enough has happened
        assert 0.15 < counts.accepted / counts.drafted < 0.8
        assert counts.cached_tokens > 0.2 * counts.prompt_tokens
        assert counts.forks > 0.1 * counts.requests
        assert counts.cancelled > 0.02 * counts.requests
        assert counts.digests > 0.2 * counts.requests
