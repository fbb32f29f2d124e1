"""Weights are sent once, piece by piece, and what is left of them is counted."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from harness.families import FAMILIES
from harness.generated import FLOATS, QUANTISED, random_matrix

from mtpcore import Batch, Context, link, load_model
from mtpcore.backends.cuda import CudaBackend, packer, uploads
from mtpcore.backends.cuda.layout import pack
from mtpcore.backends.cuda.packer import Packer
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


def small_packer(device):
    """Return one whose ring is small, and goes round within a window."""
    return Packer(device, Ring(device, 1000, 2))


def packed(rows, kind, shape):
    """Return what the planes of a matrix are defined to hold."""
    wanted = pack(rows.reshape(-1), int(Type[kind]), shape)
    return [None if one is None else one.tobytes() for one in wanted.planes]


def random_bytes(kind, shape):
    """Return any bytes as rows of a matrix: codes, scales and factors of every value."""
    row = random_matrix(np.random.default_rng(0), kind, 1, shape[-1]).nbytes
    return np.random.default_rng(1).integers(0, 256, (*shape[:-1], row), np.uint8)


@pytest.mark.parametrize("kind", FLOATS + QUANTISED)
@pytest.mark.parametrize("n_rows", [16, 40, 1000])
@pytest.mark.parametrize("shape", [(37, 512), (5, 20, 256), (2, 32, 256)])
def test_windows_of_any_rows_are_packed_as_the_whole(device, kind, n_rows, shape, monkeypatch):
    """A part of a matrix, the rest of one, or several of a stack; not all fill a CTA's threads."""
    *n_of_axes, n_cols = shape
    if GGML_QUANT_SIZES[Type[kind]][0] < 256:
        shape = (*n_of_axes, n_cols - 32)
    rows = random_bytes(kind, shape)
    monkeypatch.setattr(uploads, "WINDOW", n_rows * rows.shape[-1])
    tensor = InFile(kind, rows)
    upload, way = Upload(device, [tensor], shape), small_packer(device)
    assert upload.bytes_left == rows.nbytes
    upload.send(way, lambda: None)
    upload.wait()
    assert upload.bytes_left == 0
    assert planes(device, upload.matrix) == packed(rows, kind, shape)
    ends = [end for _, end in tensor.released]
    assert [0, *ends[:-1]] == [begin for begin, _ in tensor.released]
    assert ends[-1] == np.prod(shape[:-1])
    assert max(np.diff([0, *ends])) <= n_rows
    upload.send(way, lambda: pytest.fail("sent a second time"))


def test_a_tile_of_more_than_a_window_finds_room(emulated, monkeypatch):
    """The first window has less."""
    monkeypatch.setattr(packer, "WINDOW", 100)
    way = small_packer(emulated)
    for n_cols in (32, 512, 64):
        rows = random_bytes("Q5_1", (16, n_cols))
        upload = Upload(emulated, [InFile("Q5_1", rows)], (16, n_cols))
        upload.send(way, lambda: None)
        upload.wait()
        assert planes(emulated, upload.matrix) == packed(rows, "Q5_1", (16, n_cols))


def test_matrices_go_side_by_side_and_take_a_few_windows(emulated, monkeypatch):
    kinds = QUANTISED * 2
    shapes = [(40, 256 * (1 + i % 3)) for i in range(len(kinds))]
    rows = [random_bytes(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]
    sent = [
        Upload(emulated, [InFile(*each)], shape)
        for *each, shape in zip(kinds, rows, shapes, strict=True)
    ]
    monkeypatch.setattr(uploads, "WINDOW", 1 << 12)
    monkeypatch.setattr(packer, "WINDOW", 1 << 14)  # some tiles have so much
    pinned, made, pin, empty = [], [], emulated.pin, emulated.empty
    monkeypatch.setattr(emulated, "pin", lambda n: (pinned.append(n), pin(n))[1])
    monkeypatch.setattr(emulated, "empty", lambda *given: (made.append(given), empty(*given))[1])
    uploads.send_all(emulated, sent, 100)
    assert {*made} == {((1 << 14,), np.uint8)}
    assert {*pinned} == {1 << 23}
    assert len(made) <= 8
    assert len(pinned) <= 16
    for kind, shape, given, upload in zip(kinds, shapes, rows, sent, strict=True):
        assert planes(emulated, upload.matrix) == packed(given, kind, shape), kind


def test_a_device_that_fails_half_way_is_sent_all_of_it_again(cuda, monkeypatch):
    """At every call in turn: those that copy, wait and launch."""
    shape = 3, 20, 256
    rows = random_bytes("Q6_K", shape)
    monkeypatch.setattr(uploads, "WINDOW", 16 * rows.shape[-1])
    monkeypatch.setattr(packer, "WINDOW", 16 * rows.shape[-1])
    device, n_calls, is_sent = CudaBackend().device, 0, False
    while not is_sent:
        upload = Upload(device, [InFile("Q6_K", rows)], shape)
        cuda.calls_left = n_calls
        with contextlib.suppress(BackendError):
            upload.send(small_packer(device), lambda: None)
            is_sent = True
        cuda.calls_left = None
        assert upload.bytes_left == (0 if is_sent else rows.nbytes)
        uploads.send_all(device, [upload], 1)
        assert planes(device, upload.matrix) == packed(rows, "Q6_K", shape)
        n_calls += 1
    assert n_calls > 6 * 5  # windows, and what each asks for


@pytest.mark.parametrize("kind", FLOATS)
def test_rows_that_are_no_whole_fours_are_filled_up(emulated, kind):
    rows = random_matrix(np.random.default_rng(0), kind, 5, 7)
    upload = Upload(emulated, [InFile(kind, rows)], (5, 7))
    upload.send(small_packer(emulated), lambda: None)
    upload.wait()
    assert planes(emulated, upload.matrix) == packed(rows, kind, (5, 7))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_a_matrix_behind_a_stack_is_packed_as_one_more_of_it(emulated, kind, monkeypatch):
    """Each part is released where it is; one that is cut off between them is begun anew."""
    rows = random_bytes(kind, (4, 20, 256)).reshape(4 * 20, -1)
    monkeypatch.setattr(uploads, "WINDOW", 16 * rows.shape[1])
    tensors = InFile(kind, rows[:60]), InFile(kind, rows[60:])
    upload = Upload(emulated, tensors, (4, 20, 256))
    n_left = iter(range(7))
    with pytest.raises(StopIteration):
        upload.send(small_packer(emulated), lambda: next(n_left))
    assert upload.bytes_left == rows.nbytes
    for tensor in tensors:
        tensor.released.clear()
    uploads.send_all(emulated, [upload], 1)
    assert upload.bytes_left == 0
    assert planes(emulated, upload.matrix) == packed(rows, kind, (4, 20, 256))
    of_matrix = [(0, 16), (16, 20)]
    stack = [(20 * i + begin, 20 * i + end) for i in range(3) for begin, end in of_matrix]
    assert [tensor.released for tensor in tensors] == [stack, of_matrix]


def test_a_matrix_without_kernel_is_refused_before_there_is_room(emulated, monkeypatch):
    monkeypatch.setattr(emulated, "empty", lambda *given: pytest.fail("made room"))
    with pytest.raises(BackendError, match="no CUDA kernel for a matrix"):
        MatrixRoom(emulated, int(Type.Q4_K), (16, 128))


def test_a_sending_that_is_cut_off_is_begun_anew(emulated):
    rows = random_matrix(np.random.default_rng(1), "Q8_0", 40, 64)
    upload = Upload(emulated, [InFile("Q8_0", rows)], (40, 64))

    def cut():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upload.send(small_packer(emulated), cut)
    assert upload.bytes_left == rows.nbytes
    uploads.send_all(emulated, [upload], 2)
    assert planes(emulated, upload.matrix) == packed(rows, "Q8_0", (40, 64))


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
