"""mtpcore beside llama.cpp: the same files and batches, in turn.

``python benchmarks/vs_llama_cpp.py`` generates the files (``files.py``) and measures every cell of
each; ``--files`` and ``--cells`` select a part, which is added to one file of results: JSON, and
beside it a table and a chart of what n rows cost. ``--show`` only renders them again.

Cells: ``decode`` (64 tokens after 512), ``verify`` (1 to 8 rows of one sequence after 512, all
logits, then removed), ``prefill`` (512 tokens), ``accuracy`` (logits against exact weights in
float64, on few layers of the same types), ``load`` (file to first token, weights packed after
it and never), ``speculation`` (three drafts, 2.8 tokens a round by simulated acceptance, against
mtpcore without drafts; only files with a head; of hybrids also what llama.cpp gains with its own;
the same from a draft vocabulary of 32,768 tokens where there are more).

llama.cpp (``llama-cpp-python``) runs at the best of {weights repacked or not} x {flash attention or
not}, determined for every cell. Without the package mtpcore is measured alone.

``--llama-bench PATH`` runs llama.cpp's own programs instead, each turn in a process of its own
(``versus/apart.py``); the results are kept in a file of their own. Further cells there: ``depth``
(16 tokens, and 4 rows, after 4,096 and 8,192) and ``sequences`` (1 to 32 generate at once). Drafts,
loading and accuracy are measured in one process only.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from files import FILES, OURS, default_folder, generate
from shapes import SHAPES, HybridShape
from timing import Reader, bandwidth
from versus import apart
from versus.accuracy import measure_error
from versus.cells import Arena, measure
from versus.hold import Hold
from versus.loading import measure_loading
from versus.machine import Watch, describe
from versus.plot import draw
from versus.results import Found, Results
from versus.speculation import measure_speculation
from versus.table import render

from mtpcore.discovery.loading import find_model

CELLS = ("decode", "verify", "prefill", "speculation", "load", "accuracy")
RESULTS = Path(__file__).parent / "results" / "vs_llama_cpp.json"
RESULTS_APART = RESULTS.with_name("vs_llama_bench.json")


def main() -> None:
    """Measure what was asked for, one file after the other."""
    given = _parse()
    for name in () if given.show else given.files:
        cells = [cell for cell in given.cells if given.llama_bench or applies(name, cell)]
        if cells:
            _measure(name, cells, given)
    if given.results.exists():
        show(given.results)


def applies(name: str, cell: str) -> bool:
    """Return whether a file has this cell."""
    if name == "demo":
        return cell == "decode"
    if cell == "load":
        return name in ("qwen2-1.5b-q4_k_m", "llama-1b-q8_0")  # of about 1 GB
    shape = name.rsplit("-", 1)[0]
    if cell == "speculation":
        return SHAPES[shape].n_nextn > 0
    return shape not in OURS


def show(path: Path) -> None:
    """Write table and picture beside the results."""
    results = Results.read(path)
    path.with_suffix(".md").write_text(render(results), "utf-8")
    try:
        draw(results, path.with_suffix(".png"))
    except ImportError:
        print("matplotlib is not installed: no picture")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", default=[*FILES, "demo"], metavar="FILE")
    parser.add_argument("--cells", nargs="+", choices=dict.fromkeys((*CELLS, *apart.CELLS)))
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", default="", help="command to hold while measuring, see hold.py")
    parser.add_argument("--no-peer", action="store_true", help="mtpcore alone")
    parser.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's own program")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    given = parser.parse_args()
    known = apart.CELLS if given.llama_bench else CELLS
    given.cells = given.cells or known
    if unknown := set(given.cells) - set(known):
        parser.error(
            f"not measured {'with' if given.llama_bench else 'without'} --llama-bench: "
            f"{', '.join(sorted(unknown))}"
        )
    given.results = given.results or (RESULTS_APART if given.llama_bench else RESULTS)
    return given


def _measure(name: str, cells: Sequence[str], given: argparse.Namespace) -> None:
    """Measure cells of a file and keep each as it is found."""
    watch, hold = Watch(), Hold(given.alone)
    path = find_model("demo") if name == "demo" else generate(name, given.folder)
    with hold:
        read = Reader.fastest(given.threads)
        speed = bandwidth(read)
    hold.release()
    results = Results.read(given.results)
    results.machine = describe()
    run = {**watch.note(sys.argv), "bandwidth": speed, "pages": read.pages}
    results.runs.append(run)
    for found in _cells(name, path, cells, given, hold, read):
        hold.release()
        run |= watch.note(sys.argv)
        results.add(found)
        results.write(given.results)
        _say(found)


def _cells(
    name: str,
    path: Path,
    cells: Sequence[str],
    given: argparse.Namespace,
    hold: Hold,
    read: Reader,
) -> Iterator[Found]:
    """Yield what was found."""
    threads, pairs = given.threads, given.pairs
    if given.llama_bench:
        program = given.llama_bench.resolve()
        yield from apart.measure_apart(name, path, cells, threads, pairs, program, hold, read)
        return
    peer = not given.no_peer and _has_peer()
    plain = [cell for cell in cells if cell in ("prefill", "decode", "verify")]
    if plain:
        arena = Arena(name, path, threads, peer=peer, hold=hold)
        for cell in plain:
            yield from measure(arena, cell, pairs, read)
        arena.close()
    if "speculation" in cells:
        has_mtp = peer and isinstance(SHAPES[name.rsplit("-", 1)[0]], HybridShape)
        yield from measure_speculation(name, path, threads, pairs, hold, peer=has_mtp)
    if "load" in cells:
        yield from measure_loading(name, path, threads, pairs, hold, peer=peer)
    if "accuracy" in cells:
        small = generate(name, given.folder, small=True)
        yield measure_error(name, small, threads, peer=peer)


def _say(found: Found) -> None:
    ratio = f"ratio {found.ratio} to {found.best}" if found.ratio else ""
    more = " ".join(f"{name} {value:.4g}" for name, value in found.more.items())
    print(f"{found.file} {found.cell}: {found.seconds:.5g} {ratio} {more}", flush=True)


def _has_peer() -> bool:
    if importlib.util.find_spec("llama_cpp"):
        return True
    print("llama-cpp-python is not installed: no comparison")
    return False


if __name__ == "__main__":
    main()
