"""What matrices are multiplied with, handed out by a device as by the CPU."""

import numpy as np

from mtpcore import load_model
from mtpcore.backends.cuda import CudaBackend
from mtpcore.calibration.collecting import shapes_of
from mtpcore.calibration.reader import ChunkReader
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import TotalSums


def test_sums_and_routes_are_the_cpu_s(emulated):
    """Of a trunk with experts and its head; what the backends round otherwise is far below 1 %."""
    found = []
    with load_model("demo") as model:
        chunk = np.random.default_rng(2).integers(5, 2000, (1, 4)).astype(np.int32)
        for backend in ("cpu", CudaBackend(emulated)):
            settings = ImportanceSettings(chunk_size=4, rows=4, perplexity=True)
            reader = ChunkReader(model, settings, threads=1, backend=backend)
            total = TotalSums(shapes_of(model))
            ((sums, said),) = reader.read(chunk)
            total.add(sums)
            found.append((total, said.surprise))
    (wanted, surprise), (total, also) = found
    assert total.sums.keys() == wanted.sums.keys()
    assert abs(also - surprise) < 1e-2 * surprise
    for name, sums in wanted.sums.items():
        np.testing.assert_array_equal(total.counts[name], wanted.counts[name])
        np.testing.assert_allclose(total.sums[name], sums, rtol=2e-2, atol=1e-2 * sums.max())
