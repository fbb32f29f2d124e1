"""Weights are sent once, piece by piece, and what is left of them is counted."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.families import FAMILIES
from harness.generated import FLOATS, QUANTISED, random_matrix

from mtpcore import Batch, Context, link, load_model
from mtpcore.backends.cuda import CudaBackend, uploads
from mtpcore.backends.cuda.layout import pack
from mtpcore.backends.cuda.ring import Ring
from mtpcore.backends.cuda.uploads import MatrixRoom, Upload
from mtpcore.errors import BackendError

DEMO = FAMILIES[-1]


class InFile:
    """A tensor of a file, whose pages somebody may let the system reclaim."""

    offset = None

    def __init__(self, kind, rows):
        self.type, self.rows, self.released = int(Type[kind]), rows, []

    def raw(self):
        return self.rows

    def release(self, begin, end):
        self.released.append((begin, end))


def planes(device, matrix):
    """Return what a matrix holds on a device."""
    arrays = matrix.low, matrix.high, matrix.factors, matrix.scales
    return [None if one is None else device.download(one, one.shape[0]).tobytes() for one in arrays]


@pytest.mark.parametrize("kind", FLOATS + QUANTISED)
@pytest.mark.parametrize("shape", [(37, 512), (3, 20, 256)])
def test_pieces_are_packed_as_the_whole(emulated, kind, shape, monkeypatch):
    monkeypatch.setattr(uploads, "_WINDOW", 16 * 512)
    rows = random_matrix(np.random.default_rng(0), kind, *shape)
    tensor = InFile(kind, rows)
    upload = Upload(emulated, [tensor], shape)
    assert upload.bytes_left == rows.nbytes
    ring = Ring(emulated, 1000, 2)
    upload.send(ring, lambda: None)
    upload.wait()
    assert upload.bytes_left == 0
    wanted = pack(rows.reshape(-1), int(Type[kind]), shape)
    assert planes(emulated, upload.matrix) == [
        None if one is None else one.tobytes() for one in wanted.planes
    ]
    assert tensor.released[-1][1] == np.prod(shape[:-1])
    assert len(tensor.released) > 2
    upload.send(ring, lambda: pytest.fail("sent a second time"))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_a_matrix_behind_a_stack_is_packed_as_one_more_of_it(emulated, kind, monkeypatch):
    """Each part is released where it is; one that is cut off between them is begun anew."""
    monkeypatch.setattr(uploads, "_WINDOW", 16 * 256)
    rows = random_matrix(np.random.default_rng(0), kind, 4, 20, 256).reshape(4 * 20, -1)
    tensors = InFile(kind, rows[:60]), InFile(kind, rows[60:])
    upload, ring = Upload(emulated, tensors, (4, 20, 256)), Ring(emulated, 1000, 2)
    n_left = iter(range(7))
    with pytest.raises(StopIteration):
        upload.send(ring, lambda: next(n_left))
    assert upload.bytes_left == rows.nbytes
    for tensor in tensors:
        tensor.released.clear()
    uploads.send_all(emulated, [upload], 1)
    assert upload.bytes_left == 0
    wanted = pack(rows.reshape(-1), int(Type[kind]), (4, 20, 256))
    assert planes(emulated, upload.matrix) == [
        None if one is None else one.tobytes() for one in wanted.planes
    ]
    of_matrix = [(0, 16), (16, 20)]
    stack = [(20 * i + begin, 20 * i + end) for i in range(3) for begin, end in of_matrix]
    assert [tensor.released for tensor in tensors] == [stack, of_matrix]


def test_a_matrix_without_kernel_is_refused_before_there_is_room(emulated, monkeypatch):
    monkeypatch.setattr(emulated, "empty", lambda *given: pytest.fail("made room"))
    with pytest.raises(BackendError, match="no CUDA kernel for a matrix"):
        MatrixRoom(emulated, int(Type.Q4_K), (16, 128))


def test_a_sending_that_is_cut_off_is_begun_anew(emulated):
    rows = random_matrix(np.random.default_rng(1), "Q8_0", 40, 64)
    upload, ring = Upload(emulated, [InFile("Q8_0", rows)], (40, 64)), Ring(emulated)

    def cut():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upload.send(ring, cut)
    assert upload.bytes_left == rows.nbytes
    uploads.send_all(emulated, [upload], 2)
    assert planes(emulated, upload.matrix)[0] == pack(rows, int(Type.Q8_0), (40, 64)).low.tobytes()


@pytest.fixture
def context(emulated):
    """A context of a model whose weights are on no device yet."""
    model = load_model("demo")
    return lambda **sizes: Context(model, 64, n_batch=8, backend=CudaBackend(emulated), **sizes)


def test_prepare_sends_all_at_once_or_nothing(context):
    one = context(threads=2)
    assert one.bytes_to_pack == 0
    one.prepare(pack=False)
    left = one.bytes_to_pack
    assert left > 0
    one.prepare()
    assert one.bytes_to_pack == 0
    other = context()
    other.prepare(pack=False)
    assert other.bytes_to_pack == 0


def test_a_run_sends_what_is_left_and_is_not_warm(context):
    text, one, other = DEMO.text(4), context(), context()
    for each in (one, other):
        each.prepare(pack=False)
    assert one.bytes_to_pack == other.bytes_to_pack > 0
    first = one.process(Batch.of(text)).logits
    assert not one.runner.is_warm
    assert one.bytes_to_pack == other.bytes_to_pack == 0
    one.process(Batch.of(text, pos=4))
    assert one.runner.is_warm
    other.prepare()
    assert other.process(Batch.of(text)).logits.tobytes() == first.tobytes()
    assert msgspec.structs.replace(DEMO, backend="cpu").context(64)  # the model goes on elsewhere


def test_weights_can_be_sent_after_the_model_was_closed(emulated):
    model = load_model("demo")
    one = Context(model, 64, n_batch=8, backend=CudaBackend(emulated))
    one.prepare(pack=False)
    model.close()
    assert np.isfinite(one.process(Batch.of([1, 2, 3])).logits).all()


def test_a_weight_that_two_graphs_read_is_sent_once(emulated, monkeypatch):
    cross = link(Context(load_model("demo"), 64, n_batch=8, backend=CudaBackend(emulated)))
    sent, send = [], emulated.send
    monkeypatch.setattr(
        emulated, "send", lambda *given: (sent.append(given[0].nbytes), send(*given))
    )
    cross.prepare(pack=False)
    assert not sent
    left = cross.bytes_to_pack
    cross.prepare()
    assert cross.bytes_to_pack == 0
    assert 0 < sum(sent) <= left


def test_contexts_in_several_threads_send_together(context):
    several = [context(threads=2) for _ in range(4)]
    for one in several:
        one.prepare(pack=False)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Context.prepare, several))
    assert len({one.process(Batch.of([1, 2, 3])).logits.tobytes() for one in several}) == 1
