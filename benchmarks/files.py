"""Generate model files of realistic shapes with random weights: for speed only, texts are noise.

``python benchmarks/files.py --folder FOLDER [llama-1b-q8_0 ...]`` writes those that are not there
yet (default: all that ``vs_llama_cpp.py`` measures). The same name gives the same values.

An eighth of each matrix's rows is written in F16 and quantised by llama.cpp
(``llama-cpp-python``; by mtpcore where llama.cpp does not know the architecture), which also
chooses each tensor's type; then the rows are repeated. Quantising all of them would take an hour
and change nothing about speed. ``--small`` writes few layers, and all of their rows: for accuracy.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from shapes import SHAPES, Shape, scaled_down, spread

from mtpcore.gguf import StreamedFile, StreamedTensor, Tensor, open_model_file, stream_model_files
from mtpcore.gguf.writer import encode

__all__ = ["FILES", "default_folder", "generate"]

OURS = ("mimo-1b",)  # llama.cpp does not know the architecture
FILES = (
    *(f"llama-1b-{kind}" for kind in ("q8_0", "q4_0", "q4_k_m", "q6_k", "iq4_xs")),
    *(f"qwen2-1.5b-{kind}" for kind in ("q8_0", "q4_k_m")),
    *(f"glm-moe-1b-{kind}" for kind in ("q8_0", "q4_k_m")),
    *(f"mimo-1b-{kind}" for kind in ("q8_0", "q4_0")),
    *(f"qwen35-0.8b-{kind}" for kind in ("q8_0", "q4_0")),
    "qwen35-2b-q4_0",
    *(f"qwen35-{size}-248k-q4_0" for size in ("0.8b", "2b")),
    "qwen35moe-1b-q4_0",
)
EXACT = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")
F32, F16 = Type.F32, Type.F16
PIECE = 1 << 22  # values made at once
TIMES = 8


def default_folder() -> Path:
    """Return where files are kept if no folder is given."""
    return Path(tempfile.gettempdir()) / "mtpcore-benchmarks"


def generate(name: str, folder: Path, *, small: bool = False, by: str = "llama.cpp") -> Path:
    """Return the path of file ``name``, ``<shape>-<type>``; written if it is not there yet.

    ``by`` is who quantises: ``llama.cpp`` or ``mtpcore``, which has fewer types.
    """
    shape_name, kind = name.rsplit("-", 1)
    path = folder / f"{name}{'-small' if small else ''}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape, times = (scaled_down(SHAPES[shape_name]), 1) if small else (SHAPES[shape_name], TIMES)
    plain, thin = path.with_suffix(".f16"), path.with_suffix(".thin")
    _write_plain(plain, shape, times)
    if by == "mtpcore" or shape_name in OURS:
        _quantise(plain, thin, shape, kind)
    else:
        _quantise_by_llama_cpp(plain, thin, kind)
    plain.unlink()
    _repeat(thin, path, shape, times)
    thin.unlink()
    return path


def _thin(size: tuple[int, ...], times: int) -> tuple[int, ...]:
    return (size[0] // times, *size[1:]) if len(size) > 1 else size


def _is_exact(name: str, size: tuple[int, ...]) -> bool:
    """Return whether a tensor stays F32 in all files."""
    return len(size) == 1 or name.split(".", 2)[-1] in EXACT


def _write_plain(path: Path, shape: Shape, times: int) -> None:
    """Write matrices in F16, of their rows one in ``times``; the rest in F32."""
    tensors = []
    for number, (name, size) in enumerate(shape.tensors()):
        exact = _is_exact(name, size)
        wanted, dtype = (size, np.float32) if exact else (_thin(size, times), np.float16)

        def blocks(
            number: int = number,
            spread: tuple[float, float] = spread(name, size),
            left: int = math.prod(wanted),
            dtype: type = dtype,
        ) -> Iterator[np.ndarray]:
            rng, (mean, deviation) = np.random.default_rng([7, number]), spread
            while left:
                values = rng.standard_normal(n := min(left, PIECE), np.float32)
                yield (values * np.float32(deviation) + np.float32(mean)).astype(dtype)
                left -= n

        tensors.append(StreamedTensor(name, wanted, F32 if exact else F16, blocks))
    stream_model_files([StreamedFile(path, shape.architecture, shape.metadata(), tensors)])


def _repeat(thin: Path, path: Path, shape: Shape, times: int) -> None:
    """Write a file whose matrices are those of another, one after the other."""
    file = open_model_file(thin)
    tensors = []
    for name, size in shape.tensors():
        tensor, n = file.tensors[name], 1 if _is_exact(name, size) else times

        def blocks(tensor: Tensor = tensor, n: int = n) -> Iterator[np.ndarray]:
            for _ in range(n):
                yield tensor.raw()

        tensors.append(StreamedTensor(name, size, int(tensor.type), blocks))
    stream_model_files([StreamedFile(path, shape.architecture, file.metadata, tensors)])
    file.close()


def _quantise(source: Path, path: Path, shape: Shape, kind: str) -> None:
    """Quantise with mtpcore."""
    file, tensors = open_model_file(source), []
    for name, tensor in file.tensors.items():
        code = int(tensor.type) if _is_exact(name, tensor.shape) else int(Type[kind.upper()])

        def blocks(name: str = name, tensor: Tensor = tensor, code: int = code) -> Iterator[Any]:
            values = tensor.array()
            yield values if code == F32 else encode(name, values, code)[0]

        tensors.append(StreamedTensor(name, tensor.shape, code, blocks))
    stream_model_files([StreamedFile(path, shape.architecture, file.metadata, tensors)])
    file.close()


def _quantise_by_llama_cpp(source: Path, path: Path, kind: str) -> None:
    """Let llama.cpp write the mixture of types that it calls by this name."""
    import llama_cpp
    from versus.peer import quiet_logs

    quiet_logs()
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    options.nthread = 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), options):
        raise RuntimeError(f"llama.cpp did not quantise {source} to {kind}")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=FILES, help="<shape>-<type>")
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--small", action="store_true", help="few layers")
    given = parser.parse_args()
    for name in given.names:
        path = generate(name, given.folder, small=given.small)
        print(f"{path} ({path.stat().st_size / 1e9:.2f} GB)", flush=True)


if __name__ == "__main__":
    main()
