"""How fast a GPU decodes, against its own copy bandwidth.

    python benchmarks/gpu.py [--backend cuda] [--small]

measures how fast the device copies, then for each of two sizes of model, in Q4_K_M and Q8_0: one
row after 1,024 places, eight rows, a round of three drafts and their verification (all of it, and
what the host does while it waits for no answer), and a prompt of 512; and the time from a closed
file to the first token. Medians of ``TIMES``, printed as they are made. The files are as large as
real ones, with nothing in them: weights of zero take as many bytes and instructions as others, but
less power. ``--small`` writes few layers, to try the script out on any backend.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np
from hollow import MODELS, write_hollow
from shapes import scaled_down

from mtpcore import Batch, Context, Generator, Sampling, link, load_model
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.device import Device
from mtpcore.backends.select import select_backend
from mtpcore.discovery.registry import registry

DEPTH = 1024
WEIGHTS = ("Q4_K_M", "Q8_0")
TIMES, WARMING = 15, 3
"""Graphs are recorded when launches come for the second time."""
COPIED = 1 << 30
WANTED = "wanted: one row at 80% of a copy's bandwidth, eight rows in 1.05 of it, a round in 2.0"


class Waits:
    """How long the host has waited for answers of a device."""

    def __init__(self, device: Device) -> None:
        self.seconds = 0.0
        for name in ("download", "read"):
            setattr(device, name, self._timed(getattr(device, name)))

    def _timed(self, answer: Callable[..., object]) -> Callable[..., object]:
        def wait(*given: object) -> object:
            begin = perf_counter()
            try:
                return answer(*given)
            finally:
                self.seconds += perf_counter() - begin

        return wait


def median_of(work: Callable[[], object], waits: Waits | None = None) -> float:
    """Return seconds that work takes, less waits, once it was done a few times."""
    taken = []
    for _ in range(WARMING + TIMES):
        waited, begin = waits.seconds if waits else 0.0, perf_counter()
        work()
        end = perf_counter()
        taken.append(end - begin - (waits.seconds - waited if waits else 0.0))
    return statistics.median(taken[WARMING:])


def copied(backend: CudaBackend) -> float:
    """Return bytes a second that the device copies within itself, read and written together."""
    device = backend.device
    source, target = (device.empty((COPIED,), np.uint8) for _ in range(2))

    def copy() -> None:
        device.copy(source, 0, target, 0, COPIED)
        device.read(target, COPIED - 1, 1)

    return 2 * COPIED / median_of(copy)


def measure(path: Path, backend: str, waits: Waits | None) -> dict[str, float]:
    """Return seconds of each pass, by name."""
    begin = perf_counter()
    with load_model(path) as model:
        llm = Context(model, n_ctx=DEPTH + 1024, backend=backend)
        llm.process(Batch([1])).logits.sum()
        found = {"to the first token": perf_counter() - begin}

        def read() -> None:
            llm.remove(0)
            llm.process(Batch([1] * 512)).logits.sum()

        found["512 rows"] = median_of(read)
        cross = link(Context(model, n_ctx=DEPTH + 1024, backend=backend))
        cross.verify({}, prefill={0: [1] * DEPTH})

        def verify(drafts: list[int]) -> None:
            cross.verify({0: drafts})
            cross.accept(0, 0)

        found["one row"] = median_of(lambda: verify([]))
        found["eight rows"] = median_of(lambda: verify([2] * 7))
        cross.remove(0)
        generator = Generator(cross, sampling=Sampling.greedy(), draft=3)
        generator.add([1] * DEPTH, max_tokens=1000, ignore_eos=True)
        found["a round"] = median_of(generator.step)
        if waits:
            found["the host's part of it"] = median_of(generator.step, waits)
    return found


def main() -> None:
    """Measure, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    backend, rate, waits = select_backend(options.backend, registry().backends), 0.0, None
    if isinstance(backend, CudaBackend):
        rate, waits = copied(backend), Waits(backend.device)
        print(f"{backend.device.name}: copies at {rate / 1e12:.2f} TB/s; {WANTED}", flush=True)
    for (size, shape), kind in product(MODELS.items(), WEIGHTS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_hollow(path, scaled_down(shape, n_nextn=1) if options.small else shape, kind)
            n_bytes, found = path.stat().st_size, measure(path, options.backend, waits)
        cells = [f"{name} {1e3 * seconds:.2f} ms" for name, seconds in found.items()]
        one = found["one row"]
        cells += [f"{name} {found[name] / one:.2f} of one" for name in ("eight rows", "a round")]
        cells += [f"the file at {n_bytes / one / rate:.0%} of a copy"] if rate else []
        print(f"{size} {kind}: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
