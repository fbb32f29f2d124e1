"""Pages on the device: bytes in the order that every store has."""

import numpy as np
import pytest

from mtpcore.backends.cuda.store import CudaStore
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory.base import PAGE

LAYERS = (
    MemoryLayer(2, n_heads=3, k_width=5, v_width=7),
    MemoryLayer(0, n_heads=1, k_width=70, v_width=64, latent=True),
    MemoryLayer(5, n_heads=2, k_width=64, v_width=8),
)


@pytest.fixture(params=["f32", "f16", "q8_0"])
def stores(device, request):
    return [
        CudaStore(device, LAYERS, 3, request.param),
        ReferenceStore(LAYERS, 3, request.param),
    ]


def places(store, n, seed=0):
    drawn = np.random.default_rng(seed).integers(0, 255, n * store.place_bytes)
    return drawn.astype(np.uint8).tobytes()


def test_places_are_written_copied_and_moved(stores):
    cuda, reference = stores
    assert cuda.place_bytes == reference.place_bytes
    assert cuda.n_bytes == 3 * PAGE * cuda.place_bytes
    assert set(cuda.layers) == {0, 2, 5}
    for store in stores:
        for page in range(3):
            store.write(page, 0, memoryview(places(store, PAGE, page)))
        store.write(1, 9, memoryview(places(store, 4, 99)))
        store.copy(1, 2)
        store.move(1, 10, 0, 63)
        store.move(2, 11, 2, 0)
    for page, row, n in ((0, 0, PAGE), (1, 0, PAGE), (2, 0, PAGE), (1, 8, 6)):
        assert cuda.read(page, row, n) == reference.read(page, row, n)


def test_unknown_type_is_refused(emulated):
    with pytest.raises(BackendError, match="unknown type of memory"):
        CudaStore(emulated, LAYERS, 1, "q4_0")


def test_memory_without_layers(emulated):
    store = CudaStore(emulated, (), 2, "f16")
    assert (store.n_bytes, store.place_bytes, store.read(0, 0, 3)) == (0, 0, b"")
