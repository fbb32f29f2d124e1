"""What must hold wherever a wheel is installed: ``python installed.py``.

It needs nothing but the installed wheel and what that requires: no compiler, no test runner, no
other file of the sources.
"""

import importlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_features__ as processor

import mtpcore
from mtpcore._ext import MODULES, _cpu

PROMPT = "def read_config(path):"
NEEDED = {
    "avx2": ("AVX2", "FMA3", "F16C"),
    "avx512": ("AVX512_ICL",),
    "neon": ("ASIMDDP",),
}
"""Features by NumPy's names, which has none for the others: a processor with them has the set."""


def check_files():
    """The package and its plugins come from the wheel, and all compiled modules from one file."""
    site = Path(sysconfig.get_path("platlib")).resolve()
    assert Path(mtpcore.__file__).resolve().is_relative_to(site), mtpcore.__file__
    installed = distribution("mtpcore")
    compiled = [file for file in installed.files if file.suffix in {".so", ".pyd"}]
    assert [file.name.split(".")[0] for file in compiled] == ["_native"], compiled
    for name in MODULES:
        importlib.import_module(f"mtpcore._ext.{name}")
    plugins = [point for point in installed.entry_points if point.group == "mtpcore"]
    assert plugins
    for point in plugins:
        assert Path(point.load().__file__).resolve().is_relative_to(site), point


def check_instruction_sets():
    """A processor's instruction sets are there, the portable one too, and the best is used."""
    sets = _cpu.available_isas()
    assert sets[0] == "base"
    for name, features in NEEDED.items():
        if all(processor.get(feature) for feature in features):
            assert name in sets, (name, sets)
    if "MTPCORE_ISA" not in os.environ:
        assert _cpu.isa() == sets[-1], (_cpu.isa(), sets)


def text(backend, **drafts):
    """Continue the prompt by 24 tokens; return them, and how many drafts were accepted."""
    model = mtpcore.load_model("demo")
    context = mtpcore.Context(model, 64, backend=backend)
    source = mtpcore.link(context) if drafts else context
    generator = mtpcore.Generator(source, sampling=mtpcore.Sampling.greedy(), **drafts)
    tokens = list(generator.generate(model.tokenizer.encode(PROMPT), max_tokens=24))
    return tokens, generator.stats.accepted


def check_texts():
    """Each instruction set writes, drafted and not, what the definition in NumPy writes."""
    wanted, _ = text("reference")
    assert len(wanted) == 24
    for isa in _cpu.available_isas():
        before = _cpu.use_isa(isa)
        assert text("cpu") == (wanted, 0), isa
        drafted, accepted = text("cpu", draft=3)
        assert drafted == wanted, isa
        assert accepted > 0, isa
        _cpu.use_isa(before)


def check_command():
    """The command drafts, and finds that the text is the same without."""
    command = shutil.which("mtpcore", path=sysconfig.get_path("scripts"))
    assert command
    options = ("-p", PROMPT, "--draft", "3", "-n", "16", "--seed", "1", "--compare")
    done = subprocess.run([command, "run", "demo", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the texts are equal" in done.stderr, done.stderr
    assert "drafts by glm_nextn" in done.stderr, done.stderr


def main():
    """Run all checks in an empty folder, where nothing but what is installed can be imported."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path[:] = [name for name in sys.path if name != str(Path(__file__).parent)]
        os.chdir(folder)
        checks = [check_files, check_instruction_sets, check_texts, check_command]
        for check in checks:
            check()
            print(f"{check.__name__.removeprefix('check_')}: {check.__doc__}")
        os.chdir(os.sep)
    sets = ", ".join(_cpu.available_isas())
    print(f"mtpcore {mtpcore.__version__} on {platform.platform()}, instruction sets {sets}")


if __name__ == "__main__":
    main()
