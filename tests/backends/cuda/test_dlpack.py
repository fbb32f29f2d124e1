"""Rows of a device go to other libraries, and come from them, without the host."""

import gc
import weakref

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES
from harness.foreign import Foreign, rows

from mtpcore import Batch, Context, load_model
from mtpcore._ext._dlpack import Taken
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.outputs import DeviceRowBuffer, DeviceRows
from mtpcore.boundary.arrays import rows_of
from mtpcore.errors import BatchError

DEMO = FAMILIES[-1]
V1 = (1, 0)
DEMO_WIDTH = load_model("demo").hparams.width


def on(device, values):
    return DeviceRows(device, device.upload(values), 0, len(values))


def test_another_library_sees_the_very_rows(emulated):
    values = rows(7, 3)
    there = on(emulated, values)
    assert there.__dlpack_device__() == (1, 0)
    for part, wanted in ((there, values), (there[2:5], values[2:5]), (there[4:4], values[4:4])):
        taken = np.from_dlpack(part)
        assert taken.tobytes() == wanted.tobytes()
        assert taken.shape == wanted.shape
        assert not len(wanted) or np.shares_memory(taken, there.array.memory)
    whole = np.from_dlpack(on(emulated, np.arange(6, dtype=np.int32)))
    assert whole.tolist() == list(range(6))


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="older NumPy has no read-only DLPack"
)
def test_nobody_writes_to_them(emulated):
    there = on(emulated, rows(2, 3))
    assert not np.from_dlpack(there).flags.writeable
    copied = np.from_dlpack(there, copy=True)
    copied[:] = 0
    assert np.asarray(there).any()


def test_torch_sees_them(emulated):
    torch = pytest.importorskip("torch")
    values = rows(5, 4)
    assert torch.from_dlpack(on(emulated, values)[1:]).numpy().tobytes() == values[1:].tobytes()


def test_the_memory_lives_as_long_as_somebody_reads_it(emulated):
    there = on(emulated, rows(4, 3))
    memory = weakref.ref(there.array.memory)
    taken = np.from_dlpack(there[1:])
    wanted = taken.copy()
    del there
    gc.collect()
    assert memory() is not None
    assert np.array_equal(taken, wanted)
    del taken
    gc.collect()
    assert memory() is None


def test_before_dlpack_1_there_is_a_copy(emulated):
    there = on(emulated, rows(4, 3))
    taken = Taken(there.__dlpack__())
    assert taken.address != there.array.memory.ctypes.data
    assert taken.shape == (4, 3)
    with pytest.raises(BufferError, match="copied"):
        there.__dlpack__(copy=False)


def test_what_cannot_be_had_is_a_buffer_error(emulated, cuda):
    for there in (on(emulated, rows(2, 3)), on(CudaBackend().device, rows(2, 3))):
        with pytest.raises(BufferError, match="not to"):
            there.__dlpack__(max_version=V1, dl_device=(2, 5))
        with pytest.raises(BufferError, match="no stream"):
            there.__dlpack__(max_version=V1, stream=0)
    with pytest.raises(BufferError, match="no stream"):
        on(emulated, rows(2, 3)).__dlpack__(max_version=V1, stream=1)
    with pytest.raises(BufferError, match="copied"):
        there.__dlpack__(max_version=V1, dl_device=(1, 0), copy=False)


@pytest.mark.parametrize(("stream", "waits"), [(None, 1), (1, 1), (2, 2), (77, 77), (-1, None)])
def test_the_consumers_stream_waits_for_the_rows(cuda, stream, waits):
    device = CudaBackend().device
    there = on(device, rows(4, 3))
    taken = Taken(there[1:].__dlpack__(stream=stream, max_version=V1))
    assert taken.device == there.__dlpack_device__() == (2, 0)
    assert taken.address == device.address(there.array) + 12
    assert cuda.waits == ([] if waits is None else [(waits, device.stream)])
    cuda.waits.clear()
    del taken
    gc.collect()  # the memory is given away behind what the consumer began, where that can be known
    assert cuda.waits == ([(device.stream, 1)] if waits == 1 else [])


def test_a_lost_device_lets_go_of_what_it_lent(cuda):
    taken = Taken(on(CudaBackend().device, rows(2, 3)).__dlpack__(max_version=V1))
    cuda.calls_left = 0
    del taken
    gc.collect()


def test_rows_go_to_the_host_as_a_copy(cuda):
    values = rows(4, 3)
    there = on(CudaBackend().device, values)
    taken = Taken(there.__dlpack__(max_version=V1, dl_device=(1, 0), stream=7))
    assert taken.device == (1, 0)
    assert not cuda.waits  # the host has waited
    assert np.array_equal(rows_of(there, "rows"), values)


def test_rows_of_another_library_on_the_device_do_not_pass_the_host(cuda, monkeypatch):
    device, values = CudaBackend().device, rows(6, 3)
    buffer = DeviceRowBuffer(device, 8, 5)
    right = on(device, rows(6, 2, 1))
    source = Foreign(values.copy())
    gone = weakref.ref(source)
    given = rows_of(source, "rows")
    monkeypatch.setattr(device, "upload", lambda *given: pytest.fail("by way of the host"))
    buffer.write(1, (given, right))
    assert source.asked[-1]["stream"] == device.stream
    source.values[:] = 0  # they are its own again
    del source, given
    gc.collect()
    assert gone() is None
    read = np.asarray(buffer.read(1, 7))
    assert read.tobytes() == np.hstack([values, rows(6, 2, 1)]).tobytes()


@pytest.mark.parametrize("device", [(2, 0), (2, 1), (10, 0)])
@pytest.mark.parametrize("backend", ["cuda", "cpu", "reference"])
def test_rows_wait_for_a_drafter_wherever_they_come_from(cuda, backend, device):
    values, inboxes = rows(5, DEMO_WIDTH), []
    for given in (values, Foreign(values, device)):
        cross = msgspec.structs.replace(DEMO, backend=backend).link(64, n_batch=8)
        cross.feed("llm", "hidden", 0, 0, given)
        box = cross.links.inboxes("draft")["hidden"]
        inboxes.append(np.asarray(box.get(0, 0, 5)).tobytes())
    assert inboxes[0] == inboxes[1] == values.tobytes()


def test_a_batch_reads_them_where_they_are(cuda):
    values, batches = rows(3, DEMO_WIDTH), []
    context = Context(load_model("demo"), 64, n_batch=8, backend="cuda")
    source = Foreign(values)
    batch = Batch(embeddings=source)
    batches.append(context.process(batch).logits.tobytes())
    assert "dl_device" not in {key for asked in source.asked for key in asked}
    assert batch.embeddings.device == (2, 0)  # the caller's batch is what it was
    context.rewind(0, 0)
    batches.append(context.process(Batch(embeddings=values)).logits.tobytes())
    context.rewind(0, 0)
    batches.append(context.process(Batch(embeddings=Foreign(values, (2, 1)))).logits.tobytes())
    assert len(set(batches)) == 1


def test_rows_that_are_not_finite_are_found_on_the_device(cuda):
    values = rows(3, DEMO_WIDTH)
    values[1, 2] = np.nan
    cross = msgspec.structs.replace(DEMO, backend="cuda").link(64, n_batch=8)
    with pytest.raises(BatchError, match="embedding row is not finite") as caught:
        cross.llm.process(Batch(embeddings=Foreign(values)))
    assert caught.value.where == "row 1"
    with pytest.raises(BatchError, match="fed rows are finite"):
        cross.feed("llm", "hidden", 0, 0, Foreign(values))
    assert cross.llm.length(0) == 0
    assert cross.links.inboxes("draft")["hidden"].length(0) == 0


def test_what_one_model_made_another_one_reads(cuda):
    """Rows leave a context by DLPack and come into another one; no byte of them comes home."""
    made = msgspec.structs.replace(DEMO, backend="cuda").link(64, n_batch=8)
    reads = msgspec.structs.replace(DEMO, backend="cuda").link(64, n_batch=8)
    output = made.llm.process(Batch.of(DEMO.text(5)))
    hidden = output.as_computed("hidden")
    assert isinstance(hidden, DeviceRows)
    device, came = hidden.device, []
    read = type(device).read
    device.read = lambda *given: (came.append(given[2]), read(device, *given))[1]
    reads.feed("llm", "hidden", 0, 0, hidden)
    assert not came
    box = reads.links.inboxes("draft")["hidden"]
    assert np.asarray(box.get(0, 0, 5)).tobytes() == output.tap("hidden").tobytes()
