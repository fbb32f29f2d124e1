"""``CudaDevice`` on packages that run launches on the CPU: what it asks of them, what it says."""

import threading
from itertools import count

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES

from mtpcore import Batch, Generator
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.select import select_backend
from mtpcore.discovery.registry import registry
from mtpcore.errors import BackendError
from mtpcore.sampling import Sampling

DEMO = FAMILIES[-1]
OFFERED = registry().backends


def context(backend):
    return msgspec.structs.replace(DEMO, backend=backend).context(64, n_batch=8)


def test_arrays_go_there_and_back(cuda):
    device = CudaBackend().device
    array = np.arange(24, dtype=np.int32).reshape(6, 4)
    there = device.upload(array)
    device.copy(there, 16, there, 80, 16)
    device.write(there, 0, np.array([7, 8], np.int32).tobytes())
    assert device.read(there, 4, 8) == np.array([8, 2], np.int32).tobytes()
    assert device.download(there, 6)[5].tolist() == [4, 5, 6, 7]
    assert device.download(device.empty((0, 3), np.float32), 0).shape == (0, 3)


def test_a_model_runs_as_on_the_emulated_device(cuda, emulated):
    logits = []
    for backend in ("cuda", CudaBackend(emulated)):
        output = context(backend).process(Batch.of(DEMO.text(5), outputs="all"))
        logits.append(output.logits.tobytes())
    assert logits[0] == logits[1]


def test_a_driver_that_does_not_load_what_is_compiled_is_refused(cuda):
    cuda.version = 12090
    with pytest.raises(BackendError, match=r"wanted a driver of CUDA 13 .*; got one of CUDA 12\.9"):
        context("cuda")


def test_rounds_are_graphs_with_conditions(cuda, emulated):
    texts = []
    for backend in ("cuda", CudaBackend(emulated)):
        cross = msgspec.structs.replace(DEMO, backend=backend).link(64, n_batch=16)
        generator = Generator(cross, sampling=Sampling(temperature=0.7, seed=5), draft=2)
        request = generator.add([3, 9, 4], max_tokens=12, p_min=0.1)
        while not request.done:
            generator.step()
        texts.append(request.tokens)
    assert texts[0] == texts[1]
    assert cuda.n_conditions > 0


def test_a_condition_that_nobody_sets_does_not_hold(cuda):
    """Whatever it was when the graph had been started before."""
    device, conditions = CudaBackend().device, []
    one, other = (device.upload(np.full(1, n, np.float32)) for n in (1, 2))

    def work():
        conditions.append(device.condition())
        device.when(conditions[0], lambda: device.copy(one, 0, other, 0, 4))

    graph = device.record(work)
    for _ in range(2):
        device.replay(graph)
        assert device.download(other, 1) == 2
        conditions[0].value.fill(1)


@pytest.mark.parametrize(("capability", "is_early"), [((8, 9), False), ((9, 0), True)])
def test_products_begin_early_where_the_architecture_can(
    cuda, emulated, monkeypatch, capability, is_early
):
    cuda.devices[0].compute_capability = capability
    launch, seen = emulated.launch, []

    def seeing(*given, is_early):
        seen.append(is_early)
        launch(*given, is_early=is_early)

    monkeypatch.setattr(emulated, "launch", seeing)
    context("cuda").process(Batch.of(DEMO.text(3)))
    assert any(seen) == is_early
    assert not all(seen)


def test_devices_are_chosen_by_number_and_each_call_finds_its_own(cuda):
    tokens, contexts = DEMO.text(3), [context("cuda:1"), context("cuda"), context("cuda:0")]
    second = select_backend("cuda:1", OFFERED)
    assert second is select_backend("cuda:1", OFFERED) is contexts[0].backend
    assert second.device.name == "Emulated GPU, device 1"
    rows = [one.process(Batch.of(tokens)).logits.tobytes() for one in contexts]
    assert len({*rows}) == 1
    found = []
    thread = threading.Thread(
        target=lambda: found.append(contexts[0].process(Batch.of([5], pos=3)).logits)
    )
    thread.start()
    thread.join()
    assert found[0].shape[0] == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cuda:2", "wanted GPU 2; got 2 GPUs"),
        ("cuda:", "a device has a number"),
        ("cuda:x", "a device has a number"),
        ("cpu:0", "without devices"),
        ("gpu", "wanted cpu, reference, cuda"),
    ],
)
def test_names_of_no_device_are_refused(cuda, name, said):
    with pytest.raises(BackendError, match=said):
        select_backend(name, OFFERED)


def test_a_device_without_room_says_how_much_is_wanted(cuda):
    backend = CudaBackend()
    cuda.free = 1000
    with pytest.raises(BackendError, match="no memory on the CUDA device") as caught:
        backend.device.empty((300, 4), np.float32)
    assert caught.value.wanted == "4,800 bytes more"
    assert caught.value.got.startswith("1,000 of 1,073,741,824 bytes free")
    assert "n_ctx" in caught.value.fix


def failure_of(call):
    """Return the BackendError that a call raises, or None."""
    try:
        call()
    except BackendError as error:
        return error
    return None


def test_a_call_that_fails_half_way_leaves_what_was_there(cuda):
    """At every call in turn; then the device answers again, and the text goes on."""
    tested, untouched = context("cuda"), context("cuda")
    for one in (tested, untouched):
        one.process(Batch.of(DEMO.text(4)))
    before = tested.digest(0)
    batch, made = Batch.of([9, 8], pos=4), []
    for n_calls in count(0, 7):
        cuda.calls_left = n_calls
        error = failure_of(lambda: made.append(tested.process(batch).logits))
        cuda.calls_left = None
        if error is None:
            break
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in str(error.got)
        assert error.where == "Emulated GPU, device 0"
        assert tested.length(0) == 4
        assert tested.digest(0) == before
    assert n_calls > 5 * 7
    assert made[0].tobytes() == untouched.process(batch).logits.tobytes()


def test_a_device_that_is_lost_while_memory_is_asked_for(cuda):
    backend = CudaBackend()
    cuda.calls_left = 0
    cuda.cuMemGetInfo = None
    with pytest.raises(BackendError, match=r"no memory on the CUDA device.*does not answer"):
        backend.device.empty((1,), np.float32)
