"""What a plan made stays on the device until somebody asks, and so do rows that wait."""

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES

from mtpcore import Batch
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.outputs import DeviceRowBuffer, DeviceRows
from mtpcore.backends.finite import find_not_finite
from mtpcore.backends.host_rows import HostRows
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Weights

DEMO = FAMILIES[-1]


def rows(n, width, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def on(device, values):
    return DeviceRows(device, device.upload(values), 0, len(values))


def test_rows_of_a_slice_stay_there(device, monkeypatch):
    values = rows(7, 3)
    there = on(device, values)
    part = there[2:6][1:]
    assert isinstance(part, DeviceRows)
    assert (len(part), part.shape, part.ndim, part.dtype) == (3, (3, 3), 2, np.float32)
    assert np.asarray(part).tobytes() == values[3:6].tobytes()
    assert len(there[5:2]) == 0
    assert np.array_equal(there[[4, 0]], values[[4, 0]])
    assert np.array_equal(there[::2], values[::2])
    assert there[-1].tolist() == values[-1].tolist()
    assert np.asarray(there, np.float64).dtype == np.float64
    monkeypatch.setattr(device, "read", lambda *given: pytest.fail("copied a second time"))
    assert np.concatenate([there, there]).shape == (14, 3)


def test_a_buffer_holds_what_one_on_the_host_holds(device):
    tested, wanted = DeviceRowBuffer(device, 9, 5), HostRows(9, 5)
    assert len(tested) == 9
    whole, left, right = rows(4, 5), rows(3, 2, 1), rows(3, 3, 2)
    left[1, 1], right[2, 0], whole[0, 4] = np.nan, -np.inf, np.inf
    tested.write(0, (on(device, whole),))
    wanted.write(0, (whole,))
    tested.write(5, (on(device, np.vstack([left, left]))[3:], right))
    wanted.write(5, (left, right))
    tested.write(4, (rows(0, 5),))
    for begin, end in ((0, 4), (5, 8), (6, 7), (2, 2)):
        assert np.asarray(tested.read(begin, end)).tobytes() == wanted.read(begin, end).tobytes()
        assert find_not_finite([tested.read(begin, end)]) == find_not_finite(
            [wanted.read(begin, end)]
        )
    copied = tested.read(0, 2)
    tested.write(0, (rows(4, 5, 7),))
    assert np.asarray(copied).tobytes() == whole[:2].tobytes()


def test_rows_of_all_parts_are_looked_at_with_one_wait(device, monkeypatch):
    left, right = rows(9, 300), rows(9, 7, 1)
    left[4, 299], right[6, 0], right[0, 3] = np.nan, np.inf, np.inf
    parts, on_host = [on(device, left)[1:8], on(device, right)[1:8]], rows(7, 2, 2)
    on_host[6, 1] = -np.inf
    waits, download = [], device.download
    monkeypatch.setattr(
        device, "download", lambda *given: (waits.append(given), download(*given))[1]
    )
    assert find_not_finite(parts) == [3, 5]
    assert len(waits) == 1
    assert find_not_finite([*parts, on_host]) == [3, 5, 6]
    assert find_not_finite([part[0:0] for part in parts]) == []
    assert len(waits) == 2


def test_rows_of_all_sequences_are_looked_at_at_once(emulated, monkeypatch):
    """Of a pass with three sequences, whose rows wait in one inbox each."""
    cross = msgspec.structs.replace(DEMO, backend=CudaBackend(emulated)).link(
        64, n_batch=16, n_seq_max=3
    )
    looked, launch = [], emulated.launch
    not_finite = emulated.load(Kernel("not_finite"))

    def counting(loaded, *given, **options):
        looked.append(loaded is not_finite)
        launch(loaded, *given, **options)

    monkeypatch.setattr(emulated, "launch", counting)
    batch = Batch(DEMO.text(9), seq=[0, 0, 0, 1, 1, 1, 2, 2, 2])
    cross.llm.process(batch)
    assert sum(looked) == 1
    inbox = cross.links.inboxes("draft")["hidden"]
    assert [inbox.length(seq) for seq in range(3)] == [3, 3, 3]


def test_rows_reach_the_drafter_without_the_host(emulated, monkeypatch):
    """Of the target's pass logits alone come home, once; what the drafter reads never does."""
    subject = msgspec.structs.replace(DEMO, backend=CudaBackend(emulated))
    cross = subject.link(64, n_batch=8)
    came = []
    read = type(emulated).read
    monkeypatch.setattr(
        emulated, "read", lambda *given: (came.append(given[2]), read(emulated, *given))[1]
    )
    output = cross.llm.process(Batch.of(DEMO.text(6), outputs="all"))
    assert not output.logits.flags.writeable
    assert came == [4 * 6, output.logits.nbytes]  # which rows are finite, and the logits
    inbox = cross.links.inboxes("draft")["hidden"]
    assert isinstance(inbox.get(0, 2, 5), DeviceRows)
    assert len(came) == 2


def test_a_plan_reads_a_slice_of_rows_where_they_are(device):
    g = GraphBuilder("double", {}, slots={"a": 3})
    program = g.finish(Outputs(y=g.scale(g.inputs["a"], 2.0)))
    backend, values = CudaBackend(device), rows(6, 3)
    plan = backend.plan(program, Weights({}), n_batch=4, n_ctx=64, threads=1, stores=())
    place = np.arange(3, dtype=np.int32)
    batch = CheckedBatch(
        tokens=place,
        positions=place[:, None],
        seq=np.zeros(3, np.int32),
        place=place,
        outputs=place[:0],
        slots={"a": on(device, values)[2:5]},
    )
    first = plan.run(batch, None)["y"]
    plan.run(msgspec.structs.replace(batch, slots={"a": values[:3]}), None)
    assert np.array_equal(first, 2 * values[2:5])
