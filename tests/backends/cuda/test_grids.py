"""No batch asks for more CTAs than a grid takes, however many rows it has. No kernel runs here."""

from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.cuda_steps import leave_alone
from harness.random_graphs import random_graphs
from harness.random_programs import random_programs
from harness.random_text import N_CTX
from harness.search import searching
from hypothesis import given, note
from hypothesis import strategies as st

from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.fusion import fuse
from mtpcore.backends.cuda.launch import LAUNCHERS, passes, tokens
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.launch.recurrent import StepStates, settle
from mtpcore.backends.cuda.launch.rows import copy_rows, mark_not_finite
from mtpcore.backends.cuda.launch.step import Step
from mtpcore.backends.cuda.visible import MOST_PLACES, Visible
from mtpcore.errors import BackendError
from mtpcore.graph.program import DeltaLayer
from mtpcore.testing import Runner, Weights

NO_BIAS = {"max_distance": 0, "max_alibi_bias": 0.0, "softcap": 0.0}
ROWS = (1, (1 << 16) - 1, 1 << 16, 1 << 20)
N_VOCAB = 1 << 18


def array(*shape, dtype=np.float32):
    return DeviceArray(shape, np.dtype(dtype), None)


class Paper:
    """A device without memory, on which nothing runs."""

    name, dlpack_device, stream = "paper", (1, 0), None

    def empty(self, shape, dtype):
        return array(*shape, dtype=dtype)

    def upload(self, values, into=None):
        return into or self.empty(values.shape, values.dtype)

    def load(self, kernel):
        return kernel


def check(launches):
    for launch in launches:
        first, *others = launch.grid
        assert 0 < first < 1 << 31, str(launch.kernel)
        assert all(0 < n < 1 << 16 for n in others), str(launch.kernel)


@searching(60)
@given(
    random_programs() | random_graphs(),
    st.sampled_from(ROWS),
    st.booleans(),
    st.sampled_from(["f16", "q8_0"]),
)
def test_random_programs(drawn, n_rows, is_fused, kv_dtype):
    note(str(drawn.program))
    with pytest.MonkeyPatch.context() as patch:
        way = fuse if is_fused else leave_alone
        patch.setattr("mtpcore.backends.cuda.plan.fuse", way)
        options = {"n_batch": n_rows, "n_ctx": N_CTX, "n_seq": 3, "kv_dtype": kv_dtype}
        runner = Runner(CudaBackend(Paper()), drawn.program, Weights(drawn.tensors), **options)
    for launcher, step, _ in runner.plan._steps:
        check(launcher(step, n_rows))


def step_of(inputs, weights, outputs, memory=None, **attrs):
    def scratch(name, shape, dtype):
        return array(*shape, dtype=dtype)

    return Step(inputs, weights, outputs, attrs, scratch, lambda values: None, None, memory)


def stack(kind, *shape):
    n_matrices, n_rows, n_cols = (1, *shape)[-3:]
    return DeviceMatrix(int(Type[kind]), n_matrices, n_rows, n_cols, *[array(1)] * 4)


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_large_matrices_and_stacks(kind, n_rows):
    """A large vocabulary, many heads, and many experts, all of which a row may use."""
    x = array(n_rows, 512)
    w = stack(kind, 5 * N_VOCAB, 512)
    check(LAUNCHERS["matmul"](step_of((x,), (w,), (array(n_rows, N_VOCAB),)), n_rows))
    heads, w = array(n_rows, 128, 512), stack(kind, 128, 512, 512)
    check(LAUNCHERS["head_matmul"](step_of((heads,), (w,), (heads,)), n_rows))
    for n_used in (1, 8, 64):
        ids, w = array(n_rows, n_used, dtype=np.int32), stack(kind, 64, 512, 512)
        y = array(n_rows, n_used, 512)
        for given_rows in (x, y):
            step = step_of((given_rows, ids), (w,), (y,))
            check(LAUNCHERS["expert_matmul"](step, n_rows))
    tokens_of, w = array(n_rows, dtype=np.int32), stack(kind, N_VOCAB, 1 << 16)
    step = step_of((tokens_of,), (w,), (array(n_rows, 1 << 16),), scale=1.0, absent=-1)
    check(LAUNCHERS["embed"](step, n_rows))


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize("n_ctx", [512, MOST_PLACES])
def test_many_heads_of_long_contexts(n_rows, n_ctx):
    q, k = array(n_rows, 256, 128), array(n_rows, 8, 128)
    layer = SimpleNamespace(
        dtype="f16", n_heads=8, kept_width=128, rows=array(64, 4096, dtype=np.uint8), v_begin=2048
    )
    numbers = array(n_rows, dtype=np.int32)
    rows = SimpleNamespace(seq=numbers, place=numbers, parent=numbers)
    visible = Visible(Paper(), n_batch=n_rows, n_ctx=n_ctx, mask="causal", window=0)
    visible.n_ranges = visible.most_ranges
    tables = SimpleNamespace(array=array(1, n_ctx // 64, dtype=np.int32))
    memory = SimpleNamespace(layer=layer, rows=rows, tables=tables, visible=visible)
    step = step_of((q, k, k), (), (q,), memory, scale=1.0, **NO_BIAS)
    check(LAUNCHERS["attention"](step, n_rows))


def test_longer_contexts_are_refused():
    with pytest.raises(BackendError, match="context too long"):
        Visible(Paper(), n_batch=1, n_ctx=MOST_PLACES + 1, mask="causal", window=0)


@pytest.mark.parametrize("n_rows", ROWS)
def test_recurrent_layers_of_many_sequences(n_rows):
    layer = DeltaLayer(0, 256, 64, 128, 128, "tiled")
    arrays = (array(1), array(1), array(1, dtype=np.int32))
    states = StepStates(layer, *arrays, n_seq=n_rows, n_rows=n_rows)
    x = array(n_rows, 64)
    check(LAUNCHERS["delta_rule"](step_of((x,) * 5, (), (x,), states), n_rows))
    check([settle(states)])


@pytest.mark.parametrize("n", ROWS)
def test_choices_and_passes(n):
    logits, numbers = array(n, N_VOCAB), array(n, dtype=np.int32)
    winners = array(n, tokens.n_parts(N_VOCAB), dtype=tokens.WINNER)
    choosers = array(n, dtype=tokens.CHOOSER)
    cuts = tokens.Cuts(array(n, dtype=tokens.CUT), numbers, array(n, 256, dtype=tokens.TALLY))
    rows, listed = array(n, dtype=tokens.ADJUSTED), array(n, dtype=tokens.ADJUSTMENT)
    check(tokens.adjust(logits, tokens.Adjustments(rows, listed, None), n))
    check(tokens.find_tops(logits, choosers, winners, numbers, n))
    check(tokens.cut(logits, choosers, cuts, winners, n))
    check(tokens.choose(logits, choosers, None, winners, numbers, n, cuts))
    rows = array(n, 1 << 16)
    check([passes.place(rows, numbers, rows, n, 1 << 16)])
    check([passes.weigh(logits, passes.Odds(choosers, numbers, numbers, numbers), n)])
    check([copy_rows(rows, rows, n, to_row=0), mark_not_finite(rows, numbers, 0, n)])
