"""Philox4x32-10 against the known answers published with Random123, and its NumPy restatement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext import _sampling
from mtpcore.sampling import reference

# counter, key, result: Random123's kat_vectors for philox4x32 with 10 rounds
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        [0xFFFFFFFF] * 2,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
WORD = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    key64 = key[1] << 32 | key[0]
    assert list(_sampling.philox(counter, key64)) == words
    assert reference.philox(np.array(counter, np.uint32), key64).tolist() == words


@given(st.lists(WORD, min_size=4, max_size=4), st.integers(0, 2**64 - 1))
def test_equals_its_restatement(counter, key):
    words = reference.philox(np.array(counter, np.uint32), key)
    assert list(_sampling.philox(counter, key)) == words.tolist()
