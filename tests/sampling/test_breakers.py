"""Texts that break repetitions for DRY, as tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore.errors import SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch, spell_breakers

TOKENIZER = mtpcore.load_model("demo").tokenizer


def spell(*breakers, tokenizer=TOKENIZER):
    return spell_breakers(Sampling(dry_multiplier=1, dry_sequence_breakers=breakers), tokenizer)


def test_tokens_with_the_text_break_alone():
    pieces = map(TOKENIZER.token_bytes, range(TOKENIZER.n_vocab))
    assert spell("\n") == tuple((i,) for i, piece in enumerate(pieces) if b"\n" in piece)
    assert spell(7, 9) == ((7,), (9,))


@given(st.text("ab:\nx é", min_size=1, max_size=6))
def test_a_text_breaks_however_it_is_spelled(text):
    """Where it is encoded by itself, one of the lists is in its tokens."""
    ids, lists = TOKENIZER.encode(text, add_special=False), spell(text)
    begins = [ids[at : at + len(each)] for each in lists for at in range(len(ids))]
    assert any([*each] in begins for each in lists)
    assert all(text.encode() in b"".join(map(TOKENIZER.token_bytes, each)) for each in lists)


def test_without_a_tokenizer_only_tokens_break():
    assert spell(3, tokenizer=None) == ((3,),)
    with pytest.raises(SamplingError, match="need a tokenizer"):
        spell("\n", tokenizer=None)
    assert spell_breakers(Sampling(), None) == ()


def test_a_list_of_tokens_ends_repetitions():
    """Four tokens are repeated, and the first of them may follow: unless too few are left."""
    history = np.array([3, 4, 1, 2, 3, 0, 3, 4, 1, 2], np.int32)
    logits = np.array([0, 0, 0, 1, 0.5], np.float32)
    sampling = Sampling(temperature=0, dry_multiplier=1, dry_allowed_length=3)
    goes_on, does_not = 3, 4
    for breakers, wanted in (
        ((), does_not),
        (((3, 4),), goes_on),
        (((4, 3),), does_not),
        (((2, 3),), does_not),
        (((1, 2),), goes_on),
        (((1, 2, 0),), does_not),
        (((4,),), goes_on),
        (((3,),), goes_on),
    ):
        sampler = Sampler(sampling, Scratch(5), breakers)
        assert sampler.choose(logits, history, 0, len(history)) == wanted, breakers
