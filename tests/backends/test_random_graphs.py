"""Random graphs of any verbs: the planned way of everything against the definition, bit for bit."""

import numpy as np
import pytest
from harness.draft_runs import DraftRun, run_drafts
from harness.random_graphs import random_drafters, random_graphs
from harness.random_programs import N_VOCAB, Batch, random_batches
from harness.random_text import N_CTX, Text, assert_same_bits, feed
from harness.search import searching
from hypothesis import given, note
from hypothesis import strategies as st

from mtpcore._ext._cpu import available_isas, use_isa
from mtpcore._ext._plan import ORDERS, use_order
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

DEFINITION = ReferenceBackend(quantise_activations=True)
SAMPLINGS = [
    Sampling.greedy(),
    Sampling(temperature=1.3, seed=5),
    Sampling(temperature=0.8, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
]
ways = st.tuples(st.sampled_from(available_isas()), st.sampled_from([1, 2, 3, 5]),
                 st.sampled_from(ORDERS), st.booleans())  # fmt: skip


class Pair:
    """A program on the fast backend, in some way, and on the definition."""

    def __init__(self, drawn, way, kv_dtype, n_batch):
        isa, threads, order, repack = way
        use_isa(isa)
        use_order(order)
        self.fast, self.written = (
            Runner(
                backend, drawn.program, Weights(drawn.tensors, repack=repack), n_seq=3,
                n_ctx=N_CTX, n_batch=n_batch, threads=threads, kv_dtype=kv_dtype,
            )
            for backend in (CpuBackend(), DEFINITION)
        )  # fmt: skip

    def __iter__(self):
        return iter((self.fast, self.written))


@searching(200)
@given(
    st.data(),
    random_graphs(),
    ways,
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.integers(0, 2**32 - 1),
)
def test_outputs_are_those_of_the_definition(data, drawn, way, kv_dtype, seed):
    note(str(drawn.program))
    batches = data.draw(random_batches(drawn, most=10))
    pair, text = Pair(drawn, way, kv_dtype, max(len(b.seq) for b in batches)), Text(drawn, seed)
    is_finite = True
    for batch in batches:
        wanted = feed(pair.written, text, batch)
        assert_same_bits(feed(pair.fast, text, batch), wanted, str(way))
        is_finite &= all(np.isfinite(rows).all() for rows in wanted.values())
    if is_finite:
        for seq in range(3):
            assert pair.fast.memory.digest(seq) == pair.written.memory.digest(seq)


@searching(125)
@given(
    st.data(),
    random_drafters(),
    ways,
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.integers(0, 2**32 - 1),
)
def test_drafts_are_those_of_the_definition(data, drafter, way, kv_dtype, seed):
    drawn, recycle = drafter
    note(f"{drawn.program}\nrecycle {recycle}")
    sequences = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 4),
                           st.sampled_from(SAMPLINGS), st.sampled_from([0.0, 0.0, 0.05])),
                 min_size=1, max_size=3, unique_by=lambda one: one[0])
    )  # fmt: skip
    pair, text = Pair(drawn, way, kv_dtype, 16), Text(drawn, seed)
    found = [
        run_drafts(runner.plan, draft_run(runner, text, sequences, recycle), runner.memory)
        for runner in pair
    ]
    assert found[0] == found[1]


def draft_run(runner, text, sequences, recycle):
    """Return the run of [(sequence, rows to catch up, k, sampling, p_min)]; reserve its places."""
    seq = np.repeat([s for s, *_ in sequences], [n for _, n, *_ in sequences]).astype(np.int32)
    place = np.concatenate([np.arange(n, dtype=np.int32) for _, n, *_ in sequences])
    ends = (np.cumsum([n for _, n, *_ in sequences]) - 1).astype(np.int32)
    runner.memory.reserve({s: (0, n + max(k - 1, 0)) for s, n, k, *_ in sequences})
    scratch = Scratch(N_VOCAB)
    return DraftRun(
        batch=text.rows(Batch(seq, place, ends)),
        samplers=[Sampler(sampling, scratch) for *_, sampling, _ in sequences],
        history=[np.maximum(text.tokens[s, :n], 0) for s, n, *_ in sequences],
        n_prompt=[1] * len(sequences),
        k=[k for _, _, k, *_ in sequences],
        p_min=[p_min for *_, p_min in sequences],
        recycle=recycle,
    )
