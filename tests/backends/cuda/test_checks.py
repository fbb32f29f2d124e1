"""What a kernel would follow out of its arrays is an error before anything runs."""

import msgspec
import numpy as np
import pytest
from programs import random_tensors

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError, BatchError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory import make_memory
from mtpcore.testing import Runner, Weights


def int32(*values):
    return np.array(values, np.int32)


def change(batch, **parts):
    return msgspec.structs.replace(batch, **parts)


MISFITS = {
    "token too large": ("token id out of range", lambda b: change(b, tokens=int32(1, 99, 3))),
    "token below": ("token id out of range", lambda b: change(b, tokens=int32(1, -1, 3))),
    "seq of another length": ("rows do not fit", lambda b: change(b, seq=int32(0, 0))),
    "seq of another type": ("rows do not fit", lambda b: change(b, seq=np.zeros(3))),
    "seq below": ("below 0", lambda b: change(b, seq=int32(0, -1, 0))),
    "seq too large": ("sequence without memory", lambda b: change(b, seq=int32(0, 0, 7))),
    "place not reserved": ("not reserved", lambda b: change(b, place=int32(0, 1, 9))),
    "output too large": ("not a row", lambda b: change(b, outputs=int32(3))),
    "output below": ("not a row", lambda b: change(b, outputs=int32(-1))),
    "parent behind": ("earlier row", lambda b: change(b, parent=int32(-1, 2, 0))),
    "parent of another": (
        "earlier row",
        lambda b: change(b, seq=int32(0, 1, 0), place=int32(0, 0, 1), parent=int32(-1, 0, 0)),
    ),
    "span too long": ("span ends past", lambda b: change(b, until=int32(3, 3, 4))),
    "axes": ("positions do not fit", lambda b: change(b, positions=np.zeros((3, 2), np.int32))),
    "embeddings": ("no embedding rows", lambda b: change(b, embeddings=np.zeros((3, 4)))),
    "slot missing": ("slot rows do not fit", lambda b: change(b, slots={})),
    "slot too narrow": (
        "slot rows do not fit",
        lambda b: change(b, slots={"rows": np.zeros((3, 31), np.float32)}),
    ),
}


@pytest.fixture(scope="module")
def runner(emulated):
    tensors = random_tensors(3, embd=(20, 32), q=(16, 32))
    g = GraphBuilder("small", tensors, slots={"rows": 32})
    x = g.add(g.embed(g.inputs.tokens, "embd.weight"), g.inputs["rows"])
    q = g.split_heads(g.matmul(x, "q.weight"), 2)
    y = g.merge_heads(g.attention(q, q, q, layer=0, scale=0.1))
    program = g.finish(Outputs(y=y))
    made = Runner(CudaBackend(emulated), program, Weights(tensors), n_seq=2, n_ctx=128, n_batch=4)
    made.memory.reserve({0: (0, 3), 1: (0, 3)})
    return made


@pytest.fixture
def batch():
    place = np.arange(3, dtype=np.int32)
    return CheckedBatch(
        tokens=int32(1, 2, 3),
        positions=place[:, None],
        seq=np.zeros(3, np.int32),
        place=place,
        outputs=int32(2),
        slots={"rows": np.zeros((3, 32), np.float32)},
    )


@pytest.mark.parametrize("name", MISFITS)
def test_rows_that_do_not_fit(runner, batch, name):
    said, spoil = MISFITS[name]
    before = runner.plan.run(batch, runner.memory)["y"]
    digests = [runner.memory.digest(seq) for seq in range(2)]
    with pytest.raises(BatchError, match=said):
        runner.plan.run(spoil(batch), runner.memory)
    assert [runner.memory.digest(seq) for seq in range(2)] == digests
    again = runner.plan.run(batch, runner.memory)["y"]
    assert np.asarray(again).tobytes() == np.asarray(before).tobytes()


def test_more_rows_than_the_plan_has_room_for(runner):
    with pytest.raises(BatchError, match="at most 4 rows"):
        runner.plan.run(
            CheckedBatch(
                tokens=np.zeros(5, np.int32),
                positions=np.zeros((5, 1), np.int32),
                seq=np.zeros(5, np.int32),
                place=np.arange(5, dtype=np.int32),
                outputs=int32(),
                slots={"rows": np.zeros((5, 32), np.float32)},
            ),
            runner.memory,
        )


@pytest.mark.parametrize("spoiled", ["table", "first", "length"])
def test_memory_that_points_nowhere(runner, batch, spoiled):
    pages = runner.memory.groups[0].pages
    array = pages.tables if spoiled == "table" else getattr(pages, spoiled)
    kept = array.copy()
    array.flat[0] = {"table": 99, "first": -1, "length": 1000}[spoiled]
    try:
        with pytest.raises(BatchError, match=r"no page|longer than the plan's memory"):
            runner.plan.run(batch, runner.memory)
    finally:
        array[:] = kept


def test_memory_of_another_plan(runner, batch, emulated):
    with pytest.raises(BackendError, match="needs paged memory"):
        runner.plan.run(batch, None)
    layers = (MemoryLayer(0, 2, 8, 8), MemoryLayer(1, 2, 8, 8, window=5))
    other = make_memory(
        layers,
        lambda of, n: CudaBackend(emulated).store(of, n, "f32"),
        n_seq=2,
        n_ctx=128,
        n_batch=4,
    )
    with pytest.raises(BackendError, match="memory of another plan"):
        runner.plan.run(batch, other)


def test_stores_of_another_backend(runner, emulated):
    backend, options = CudaBackend(emulated), {"n_batch": 1, "n_ctx": 64, "threads": 1}
    program, source = runner.plan.program, Weights({})
    store = ReferenceBackend().store((), 1, "f32")
    with pytest.raises(BackendError, match="another backend"):
        backend.plan(program, source, stores=[store], **options)
    states = ReferenceBackend().state_store((), 1, Weights({}))
    with pytest.raises(BackendError, match="another backend"):
        backend.plan(program, source, stores=[], states=states, **options)
