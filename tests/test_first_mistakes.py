"""What newcomers get wrong at first is answered at once, in words that help."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mtpcore


@pytest.fixture(scope="module")
def model():
    return mtpcore.load_model("demo")


def test_a_path_in_place_of_a_model():
    with pytest.raises(mtpcore.BatchError, match="load_model"):
        mtpcore.Context("demo")  # type: ignore[arg-type]


def test_a_model_in_place_of_a_cross(model):
    with pytest.raises(mtpcore.LinkError, match="Context"):
        mtpcore.Generator(model)


def test_a_number_in_place_of_a_drafter(model):
    with pytest.raises(mtpcore.LinkError, match="a name"):
        mtpcore.link(mtpcore.Context(model), drafter=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [0.8, {"temperature": 0.8}])
def test_settings_that_are_no_sampling_are_refused_before_they_run(model, sampling):
    generator = mtpcore.Generator(mtpcore.Context(model))
    with pytest.raises(mtpcore.SamplingError, match="Sampling"):
        generator.add([1, 2], sampling=sampling)
    assert not generator.active


def test_a_request_shows_how_far_it_is(model):
    generator = mtpcore.Generator(mtpcore.Context(model))
    request = generator.add([719, 590], max_tokens=1)
    assert repr(request) == "Request(2 prompt tokens, 0 tokens, finish_reason=None)"
    generator.step()
    assert repr(request) == "Request(2 prompt tokens, 1 tokens, finish_reason='length')"


def test_the_source_folder_without_compiled_modules_says_so(tmp_path):
    copy = tmp_path / "mtpcore"
    shutil.copytree(Path(mtpcore.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so"))
    ran = subprocess.run(
        [sys.executable, "-c", "from mtpcore import Context"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "pip install -e ." in ran.stderr.splitlines()[-1]
