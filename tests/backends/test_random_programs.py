"""Random programs: the fast way of everything against portable C on one thread, row by row."""

import numpy as np
import pytest
from harness.random_programs import random_batches, random_programs
from harness.random_text import N_CTX, Text, assert_same_bits, feed
from harness.search import searching
from hypothesis import given, note
from hypothesis import strategies as st

from mtpcore._ext._cpu import available_fetches, available_isas, use_fetch, use_isa
from mtpcore._ext._plan import ORDERS, use_order
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")


def pick(batch, mine):
    """Return the batch of these rows alone."""
    renamed = {int(row): i for i, row in enumerate(mine)}
    parent = batch.parent
    return type(batch)(
        batch.seq[mine],
        batch.place[mine],
        np.array([renamed[row] for row in batch.outputs.tolist() if row in renamed], np.int32),
        None
        if parent is None
        else np.array([renamed.get(above, -1) for above in parent[mine].tolist()], np.int32),
    )


def feed_in_parts(runner, text, batch, by_sequence):
    """Feed a batch row by row, or each sequence's rows alone, and put the rows together again."""
    parts = (
        [np.flatnonzero(batch.seq == seq) for seq in np.unique(batch.seq)]
        if by_sequence
        else [np.array([i]) for i in range(len(batch.seq))]
    )
    found = [feed(runner, text, pick(batch, mine)) for mine in parts]
    order = np.argsort(np.concatenate(parts))
    is_wanted = np.isin(np.concatenate(parts), batch.outputs)
    order_of_wanted = np.argsort(np.concatenate(parts)[is_wanted])
    return {
        name: np.concatenate([made[name] for made in found])[
            order_of_wanted if name == "logits" else order
        ]
        for name in found[0]
    }


@searching(60)
@given(
    st.data(),
    random_programs(),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.sampled_from(available_isas()),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from(ORDERS),
    st.sampled_from(available_fetches()),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_fast_way_is_the_plain_way(
    data, drawn, kv_dtype, isa, threads, order, fetch, repack, seed
):
    note(str(drawn.program))
    batches = data.draw(random_batches(drawn))
    text = Text(drawn, seed)
    weights, own = Weights(drawn.tensors), Weights(drawn.tensors, repack=repack)
    n_batch = max(len(batch.seq) for batch in batches)

    def runner(threads, made=None, weights=weights):
        one = Runner(
            made or CpuBackend(), drawn.program, weights, n_seq=3, n_ctx=N_CTX,
            n_batch=n_batch, threads=threads, kv_dtype=kv_dtype,
        )  # fmt: skip
        if made is None:
            for group in one.memory.groups:
                group.store.data[:] = 0xFF  # what is stored nowhere yet is not a number
            if one.memory.recurrent:
                one.memory.recurrent.store.data[:] = 0xFF
        return one

    plain, fast = runner(1), runner(threads, weights=own)
    written = None
    if sum(len(batch.seq) for batch in batches) < 12:
        written = runner(1, ReferenceBackend(quantise_activations=True))
    is_finite = True
    for batch in batches:
        use_isa("base")
        wanted = feed_in_parts(plain, text, batch, drawn.sees_batch or batch.parent is not None)
        is_finite &= all(np.isfinite(rows).all() for rows in wanted.values())
        use_isa(isa)
        use_order(order)
        use_fetch(fetch)
        way = f"{isa}, {threads} threads {order}, {fetch=}, {repack=}"
        assert_same_bits(feed(fast, text, batch), wanted, way)
        if written:
            assert_same_bits(feed(written, text, batch), wanted, "as written down")
    if is_finite:
        for seq in range(3):
            assert fast.memory.digest(seq) == plain.memory.digest(seq)
