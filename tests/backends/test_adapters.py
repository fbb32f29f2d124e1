"""Products that adapters change, row by row: alone, beside others, and without any."""

import numpy as np
import pytest
from harness.random_programs import Writer, adapt, random_batches
from harness.random_text import N_CTX, Text, feed
from harness.search import searching
from hypothesis import assume, given, note
from hypothesis import strategies as st
from programs import Tensor

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.graph import JOINT, GraphBuilder, Outputs, adapt_products
from mtpcore.testing import Runner, Weights


@searching(40)
@given(st.data(), st.sampled_from([1, 3]), st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_without_adapters_are_those_of_the_program_itself(data, threads, is_reference, seed):
    """Whatever the rows beside them have."""
    plain = Writer(data.draw).write()
    assume(not plain.sees_batch)
    adapted = adapt(data.draw, plain)
    assume(adapted is not plain)
    note(str(adapted.program))
    text, weights = Text(adapted, seed), Weights(plain.tensors)
    without = text.adapters[0]
    without[:], text.adapter_scales[0] = -1, 0  # of sequence 0; the others have some
    backend = ReferenceBackend() if is_reference else CpuBackend()
    batches = data.draw(random_batches(adapted))
    n_batch = max(len(batch.seq) for batch in batches)
    size = {"n_seq": 3, "n_ctx": N_CTX, "n_batch": n_batch, "threads": threads}
    with_adapters, alone = (
        Runner(backend, drawn.program, weights, **size) for drawn in (adapted, plain)
    )
    for batch in batches:
        mine = batch.seq == 0
        made = feed(with_adapters, text, batch)
        wanted = feed(alone, text, batch)  # whose rows of other sequences have no adapters
        of_outputs = mine[batch.outputs]
        for name, rows in wanted.items():
            own = of_outputs if name == "logits" else mine
            is_number = ~np.isnan(rows[own])
            assert np.array_equal(made[name][own][is_number], rows[own][is_number]), name
    assert with_adapters.memory.digest(0) == alone.memory.digest(0)


@searching(40)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_what_is_added_is_the_sum_of_scaled_products(data, seed):
    """One product, in float64: W x + sum of scale * B (A x)."""
    rng = np.random.default_rng(seed)
    n_in, n_out, rank, n, n_used = (data.draw(st.integers(1, most)) for most in (40, 40, 9, 4, 3))
    tensors = {"w.weight": Tensor(rng.normal(size=(n_out, n_in)))}
    for suffix, shape in ((".a", (rank, n_in)), (".b", (n_out, rank))):
        stack = rng.normal(size=(n + 1, *shape))
        stack[n] = 0
        tensors[f"w.weight{suffix}"] = Tensor(stack)
    g = GraphBuilder("one", tensors, slots={"x": n_in})
    program = g.finish(Outputs(y=g.matmul(g.inputs["x"], "w.weight")))
    program = adapt_products(program, {"w.weight": rank}, n, n_used, (".a", ".b"))
    x = rng.normal(size=(7, n_in)).astype(np.float32)
    ids = rng.integers(-1, n + 2, (7, n_used)).astype(np.int32)
    scales = rng.normal(size=(7, n_used)).astype(np.float32)
    w, a, b = (t.array().astype(np.float64) for t in tensors.values())
    wanted = x @ w.T
    for t in range(7):
        for k, scale in zip(ids[t], scales[t], strict=True):
            if 0 <= k < n:
                wanted[t] += float(scale) * (b[k] @ (a[k] @ x[t]))
    for backend in (CpuBackend(), ReferenceBackend()):
        runner = Runner(backend, program, Weights(tensors))
        made = runner.feed([0] * 7, x=x, adapters=ids, adapter_scales=scales)["y"]
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4)


@searching(40)
@given(st.data(), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_norms_have_the_weights_that_adapters_add_up_to(data, is_layer, has_heads, seed):
    """In float64, of whole rows and of heads."""
    rng = np.random.default_rng(seed)
    width, n_heads, n, n_used = (data.draw(st.integers(1, most)) for most in (40, 4, 4, 3))
    n_heads = n_heads if has_heads else 1
    gain, bias, changes = (rng.normal(size=shape) for shape in (width, width, (n + 1, width)))
    changes[n] = 0
    table = JOINT.join(["gain"] * n_heads) + ".a"
    tensors = {"gain": Tensor(gain), "bias": Tensor(bias)}
    g = GraphBuilder("one", tensors, slots={"x": n_heads * width})
    x = g.split_heads(g.inputs["x"], n_heads) if has_heads else g.inputs["x"]
    y = g.layer_norm(x, "gain", "bias", 1e-5) if is_layer else g.rms_norm(x, "gain", 1e-5)
    program = g.finish(Outputs(y=g.merge_heads(y) if has_heads else y))
    program = adapt_products(program, {"gain": 1}, n, n_used, (".a", ".b"))
    tensors[table] = Tensor(np.tile(changes, n_heads))
    x = rng.normal(size=(7, n_heads, width)).astype(np.float32)
    ids = rng.integers(-1, n + 2, (7, n_used)).astype(np.int32)
    scales = rng.normal(size=(7, n_used)).astype(np.float32)
    of_rows = np.where((ids >= 0) & (ids < n), ids, n)
    gains = gain + (scales[:, :, None].astype(np.float64) * changes[of_rows]).sum(axis=1)
    whole = x.astype(np.float64)
    if is_layer:
        whole -= whole.mean(axis=-1, keepdims=True)
    whole /= np.sqrt(np.square(whole).mean(axis=-1, keepdims=True) + 1e-5)
    wanted = whole * gains[:, None] + (bias if is_layer else 0)
    for backend in (CpuBackend(), ReferenceBackend()):
        runner = Runner(backend, program, Weights(tensors))
        rows = {"x": x.reshape(7, -1), "adapters": ids, "adapter_scales": scales}
        made = runner.feed([0] * 7, **rows)["y"]
        np.testing.assert_allclose(made, wanted.reshape(7, -1), rtol=0, atol=1e-3)


@searching(25)
@given(st.data(), st.sampled_from(["matmul", "expert_matmul"]), st.integers(0, 2**32 - 1))
def test_infinite_rows_without_adapters_stay_what_they_are(data, op, seed):
    """Of products by zeros they would become what is no number."""
    rng = np.random.default_rng(seed)
    n_in, n_out, rank, n, n_used = (data.draw(st.integers(1, most)) for most in (40, 40, 9, 4, 3))
    stack = (5,) if op == "expert_matmul" else ()
    tensors = {"w.weight": Tensor(rng.normal(size=(*stack, n_out, n_in)))}
    tensors["r.weight"] = Tensor(np.ones((5, 1)))
    g = GraphBuilder("one", tensors, slots={"x": n_in, "r": 1})
    if stack:
        ids, _ = g.route(g.inputs["r"], "r.weight", n_used=2)
        y = g.merge_heads(g.expert_matmul(g.inputs["x"], ids, "w.weight"))
    else:
        y = g.matmul(g.inputs["x"], "w.weight")
    plain = g.finish(Outputs(y=y))
    adapted = adapt_products(plain, {"w.weight": rank}, n, n_used, (".a", ".b"))
    for suffix, shape in ((".a", (rank, n_in)), (".b", (n_out, rank))):
        values = rng.normal(size=(n * (stack or (1,))[0] + 1, *shape))
        values[-1] = 0
        tensors[f"w.weight{suffix}"] = Tensor(values)
    x = rng.normal(size=(6, n_in)).astype(np.float32)
    x[np.arange(6), rng.integers(0, n_in, 6)] = rng.choice([np.inf, -np.inf, 1e38], 6)
    ids = rng.integers(0, n, (6, n_used)).astype(np.int32)
    ids[::2] = -1
    rows = {"x": x, "r": np.ones((6, 1), np.float32)}
    for backend in (CpuBackend(), ReferenceBackend(), ReferenceBackend(quantise_activations=True)):
        runners = (Runner(backend, program, Weights(tensors)) for program in (plain, adapted))
        scales = np.ones(ids.shape, np.float32)
        (wanted, made) = (
            runner.feed([0] * 6, **rows, **given)["y"]
            for runner, given in zip(
                runners, ({}, {"adapters": ids, "adapter_scales": scales}), strict=True
            )
        )
        assert not np.isnan(wanted).any()
        assert made[::2].tobytes() == wanted[::2].tobytes()


@pytest.mark.parametrize("case", ["by its own ids", "by other ids", "as it is", "as the sum"])
def test_the_last_matrix_is_left_out_only_where_nobody_reads_its_products(case):
    rng = np.random.default_rng(1)
    tensors = {"up.weight": Tensor(rng.normal(size=(3, 8, 5)))}
    g = GraphBuilder("one", tensors, slots={"x": 5, "y": 8, "shares": 2})
    ids, others = (g.given_ids(g.inputs.codes(2), n) for n in (2, 5))
    y, shares = g.inputs["y"], g.inputs["shares"]
    up = g.expert_matmul(g.inputs["x"], ids, "up.weight")
    made = g.add_chosen(y, up, others if case == "by other ids" else ids, shares)
    more = {}
    if case == "as it is":
        more["also"] = g.merge_heads(up)
    elif case == "as the sum":
        made = g.add_chosen(g.mix(up, shares), up, ids, shares)
    program = g.finish(Outputs(made=made, **more))
    rows = {name: rng.normal(size=(9, n)).astype(np.float32) for name, n in
            (("x", 5), ("y", 8), ("shares", 2))}  # fmt: skip
    codes = np.tile(np.arange(-1, 5, dtype=np.int32), 3).reshape(9, 2)
    found = [
        Runner(backend, program, Weights(tensors)).feed([0] * 9, codes=codes, **rows)
        for backend in (CpuBackend(), ReferenceBackend(quantise_activations=True))
    ]
    for name, wanted in found[1].items():
        assert found[0][name].tobytes() == wanted.tobytes()
