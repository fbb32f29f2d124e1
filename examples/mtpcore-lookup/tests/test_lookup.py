"""What is proposed, and that the plugin is found."""

import numpy as np
import pytest
from mtpcore_lookup import LOOKUP, Lookup

from mtpcore.discovery.registry import describe_plugins
from mtpcore.plugin import Proposer


def propose(text, k, **sizes):
    return Lookup(**sizes).propose(0, np.array([ord(c) for c in text], np.int32), k)


def spelled(ids):
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "k", "wanted"),
    [
        ("abcdeab", 3, "cde"),
        ("abcdeab", 9, "cdeab"),
        ("abxabyab", 2, "ya"),  # the latest place
        ("zabcx abyyabc", 2, "x "),  # the longest match, though a shorter one is nearer
        ("aaaa", 2, "a"),  # a match may touch what it matches
        ("abcdef", 4, ""),
        ("a", 4, ""),
        ("", 4, ""),
        ("abab", 0, ""),
    ],
)
def test_copies_what_followed(text, k, wanted):
    assert spelled(propose(text, k)) == wanted


def test_length_of_a_match_is_bounded():
    assert spelled(propose("qa..a", 2)) == ""
    assert spelled(propose("qa..a", 2, shortest=1)) == ".."
    with pytest.raises(ValueError, match="shortest"):
        Lookup(longest=1, shortest=2)


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "lookup")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-lookup 0.1.0",)
    assert [spec.name for spec in plugin.drafters] == ["ngram"]
    assert isinstance(LOOKUP.proposer(None), Proposer)
