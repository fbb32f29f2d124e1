"""How the calling thread rounds never shows in a result, and is as before after every call.

Libraries switch subnormal numbers off (``-ffast-math`` did so at load) or round otherwise.
"""

import ctypes
import platform
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from harness.matrices import N_COLS, TYPES, assert_same_bits, random_rows, random_tokens
from programs import random_tensors

import mtpcore
from mtpcore import Batch, Sampling
from mtpcore._ext import _matmul
from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.ops import ACTIVATIONS
from mtpcore.testing import Runner, Weights

SOURCE = """
#include <xmmintrin.h>
unsigned get_control(void) { return _mm_getcsr(); }
void set_control(unsigned control) { _mm_setcsr(control); }
"""
ORDINARY, STATUS = 0x1F80, 0x3F  # status: which exceptions there were
MODES = {
    "subnormals are zero": 0x8040,
    "down": 0x2000,
    "up": 0x4000,
    "towards zero": 0x6000,
    "up, subnormals are zero": 0xC040,
}

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the control word is x86's"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to set the mode with"),
]


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    folder = tmp_path_factory.mktemp("control")
    (folder / "control.c").write_text(SOURCE)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", "control.so", "control.c"], cwd=folder, check=True
    )
    library = ctypes.CDLL(str(folder / "control.so"))
    library.get_control.restype = ctypes.c_uint
    library.set_control.argtypes = [ctypes.c_uint]
    return library


@pytest.fixture(params=MODES)
def mode(request, control):
    """Return a context in which this thread rounds otherwise; it must do so until its end."""
    wanted = ORDINARY | MODES[request.param]

    @contextmanager
    def other():
        control.set_control(wanted)
        try:
            yield
            assert control.get_control() & ~STATUS == wanted
        finally:
            control.set_control(ORDINARY)

    return other


def subnormal(seed, *shape):
    """Values of which many are subnormal, or become so."""
    rng = np.random.default_rng(seed)
    return (rng.normal(0, 1, shape) * 2.0 ** rng.integers(-140, -100, shape)).astype(np.float32)


def test_the_modes_are_felt(mode):
    """Else the tests below say nothing."""
    tiny = np.full(64, 1e-40, np.float32)
    third = np.array([1, -1], np.float32) / np.float32(3)
    with mode():
        felt = (tiny * np.float32(1)).tolist(), (np.array([1, -1], np.float32) / 3).tolist()
    assert felt != (tiny.tolist(), third.tolist())


@pytest.mark.parametrize("threads", [1, 2])
def test_programs(mode, threads, monkeypatch):
    monkeypatch.setattr(backend, "WORTH_SHARING", 0.0)
    tensors = random_tensors(3, w=(40,))
    g = GraphBuilder("test", tensors, slots={"a": 40, "b": 40})
    a, b = g.inputs["a"], g.inputs["b"]
    heads = g.split_heads(a, 2)
    made = {
        "sum": g.add(a, b),
        "product": g.mul(a, b),
        "scaled": g.scale(a, 0.3),
        "scaled_by": g.scale_by(a, "w.weight"),
        "shifted_by": g.shift_by(a, "w.weight"),
        "normed": g.rms_norm(a, None, 0.0),
        "of_length_one": g.l2_norm(a, 0.0),
        "attended": g.merge_heads(g.attention(heads, heads, heads, layer=0, scale=1e30)),
        **{kind: g.gated(b, a, kind) for kind in ACTIVATIONS},
    }
    program = g.finish(Outputs(**made))
    rows = {"a": subnormal(1, 20, 40), "b": np.random.default_rng(2).normal(0, 40, (20, 40))}
    rows["b"] = rows["b"].astype(np.float32)

    one, other = (
        Runner(CpuBackend(), program, Weights(tensors), threads=threads, n_batch=20)
        for _ in range(2)
    )
    wanted = one.feed(np.zeros(20, np.int32), **rows)
    with mode():
        found = other.feed(np.zeros(20, np.int32), **rows)
    for name in wanted:
        assert_same_bits(found[name], wanted[name])
    assert other.memory.digest(0) == one.memory.digest(0)


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_packing_and_products(mode, type_):
    blocks, x = random_rows(type_, 40, N_COLS[type_]), random_tokens(5, N_COLS[type_])

    def multiply():
        packed = _matmul.pack(blocks, type_, 40, N_COLS[type_])
        return _matmul.matmul(packed, x), packed.row(3)

    wanted = multiply()
    with mode():
        found = multiply()
    for one, other in zip(found, wanted, strict=True):
        assert_same_bits(one, other)


def test_choices(mode):
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 8, (40, 300)).astype(np.float32)
    history = rng.integers(0, 300, 20).astype(np.int32)

    def choose():
        scratch, found = Scratch(300, 300), []
        for i, row in enumerate(logits):
            sampler = Sampler(
                Sampling(temperature=0.7, top_p=0.95, repetition_penalty=1.1, seed=i), scratch
            )
            found.append(sampler.choose_with_probability(row, history, 5, i))
            found.append([part.tolist() for part in sampler.rank(row, history, 5, i, 4)])
        return found

    wanted = choose()
    with mode():
        found = choose()
    assert found == wanted


def test_drafts_and_texts(mode):
    sampling = Sampling(temperature=0.8, seed=3)
    with mtpcore.load_model("demo") as model:
        cross, other = (mtpcore.link(mtpcore.Context(model, 64, threads=2)) for _ in range(2))

        def step(cross):
            cross.llm.process(Batch.of([5, 6, 7]))
            drafts = cross.draft(0, 4, sampling=sampling)
            verdict = cross.verify({0: drafts}, sampling)[0]
            cross.accept(0)
            return drafts, verdict.accepted, verdict.next_token, cross.digest(0)

        wanted = step(cross)
        with mode():
            found = step(other)
    assert found == wanted
