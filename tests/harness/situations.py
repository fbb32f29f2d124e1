"""Settings of the sampler and rows of logits, with everything that its chain can meet."""

import math

import msgspec
import numpy as np
from hypothesis import strategies as st

from mtpcore.sampling import Sampling


@st.composite
def situations(draw):
    """Settings that devices choose by and one row, with everything that the chain can meet."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_vocab = draw(st.one_of(st.integers(1, 20), st.integers(21, 700)))
    logits = rng.normal(size=n_vocab) * draw(st.sampled_from([0.01, 1.0, 4.0, 30.0]))
    if draw(st.booleans()):
        logits = np.round(logits)  # many ties
    logits = logits.astype(np.float32)
    odd = draw(
        st.lists(
            st.tuples(
                st.integers(0, n_vocab - 1), st.sampled_from([math.nan, -math.inf, math.inf])
            ),
            max_size=3,
        )
    )
    for row, value in odd:
        logits[row] = value
    n_ids = n_vocab
    token_ids = None
    if draw(st.booleans()):
        n_ids = n_vocab + draw(st.integers(0, 50))
        token_ids = np.sort(rng.permutation(n_ids)[:n_vocab]).astype(np.int32)
    history = rng.integers(-2, n_ids + 2, draw(st.integers(0, 40))).astype(np.int32)
    allowed = rng.random(n_ids) < 0.7 if draw(st.booleans()) else None
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5, 20.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 7, 40, 1000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.999999, 0.95, 0.5, 1e-9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-13, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        logit_bias=draw(
            st.one_of(
                st.none(),
                st.dictionaries(
                    st.integers(0, n_ids + 2),
                    st.sampled_from([-math.inf, -2.0, 0.5, 3.0]),
                    max_size=6,
                ),
            )
        ),
        seed=draw(st.integers(0, 2**64 - 1)),
        stream=draw(st.integers(0, 2**64 - 1)),
    )
    n_prompt = draw(st.integers(0, len(history)))
    return sampling, logits, history, n_prompt, n_ids, token_ids, allowed


@st.composite
def host_situations(draw):
    """The same with settings that only hosts choose by, and what breaks repetitions."""
    sampling, logits, _, _, *others = draw(situations())
    changed = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "top_n_sigma": st.sampled_from([1e-3, 0.5, 1.0, 3.0, 100.0]),
                "typical_p": st.sampled_from([1e-9, 0.2, 0.5, 0.9, 0.999999]),
                "xtc_probability": st.sampled_from([0.5, 1.0]),
                "xtc_threshold": st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5]),
                "dynatemp_range": st.sampled_from([0.1, 0.7, 5.0]),
                "dynatemp_exponent": st.sampled_from([0.0, 0.5, 1.0, 2.5]),
                "penalty_last_n": st.integers(-1, 8),
                "dry_multiplier": st.sampled_from([0.3, 0.8, 30.0]),
                "dry_base": st.sampled_from([1.0, 1.1, 1.75, 1e20]),
                "dry_allowed_length": st.integers(0, 3),
                "dry_penalty_last_n": st.integers(-1, 20),
            },
        )
    )
    history = np.array(draw(st.lists(st.integers(-1, 4), max_size=40)), np.int32)
    n_prompt = draw(st.integers(0, len(history)))
    breakers = draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=3))
    situation = (msgspec.structs.replace(sampling, **changed), logits, history, n_prompt, *others)
    return situation, breakers
