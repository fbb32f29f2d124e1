"""Random graphs of any verbs: bit for bit what is written down of the CUDA kernels' arithmetic."""

from harness.cuda_definition import definition
from harness.random_graphs import random_graphs
from harness.random_programs import random_batches
from harness.random_text import N_CTX, Text, assert_same_bits, feed
from harness.search import searching
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from mtpcore.backends.cuda import CudaBackend
from mtpcore.testing import Runner, Weights


@searching(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.data(),
    random_graphs(),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.integers(0, 2**32 - 1),
)
def test_outputs_are_those_of_the_definition(emulated, data, drawn, kv_dtype, seed):
    note(str(drawn.program))
    batches = data.draw(random_batches(drawn, most=10))
    text, n_batch = Text(drawn, seed), max(len(batch.seq) for batch in batches)
    weights = Weights(drawn.tensors)
    options = {"n_seq": 3, "n_ctx": N_CTX, "n_batch": n_batch, "kv_dtype": kv_dtype}
    made, written = (
        Runner(backend, drawn.program, weights, **options)
        for backend in (CudaBackend(emulated), definition())
    )
    for batch in batches:
        assert_same_bits(feed(made, text, batch), feed(written, text, batch), str(batch))
    for seq in range(3):
        assert made.memory.digest(seq) == written.memory.digest(seq)
