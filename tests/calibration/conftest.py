"""What the tests of calibration share: reading chunks without a text."""

from contextlib import contextmanager

import numpy as np
import pytest

from mtpcore import load_model
from mtpcore.calibration.collecting import shapes_of
from mtpcore.calibration.reader import ChunkReader
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import TotalSums


def _read(model, chunks, **settings):
    reader = ChunkReader(
        model, ImportanceSettings(chunk_size=chunks.shape[1], **settings), threads=1
    )
    total = TotalSums(shapes_of(model))
    for begin in range(0, len(chunks), reader.together):
        for sums, _ in reader.read(chunks[begin : begin + reader.together]):
            total.add(sums)
    return total


@pytest.fixture(scope="session")
def read():
    """Read chunks int32[n, size] with an open model; return the sums."""
    return _read


@pytest.fixture(scope="session")
def read_file():
    """Read random chunks with a model file; yield the model and the sums."""

    @contextmanager
    def reading(path, n_chunks=3, size=16, **settings):
        with load_model(path, sidecars=False) as model:
            rng = np.random.default_rng(0)
            chunks = rng.integers(0, model.hparams.n_vocab, (n_chunks, size)).astype(np.int32)
            yield model, _read(model, chunks, **settings)

    return reading
