"""What holds for every hybrid, for those whose layers have several states or none besides."""

import pytest
from harness.architectures import header, write_model
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore.conversion import quantize
from mtpcore.gguf import open_model_file
from mtpcore.testing import Batching, Subject, check_graphs, check_rows
from mtpcore.testing.machine import machine_of

HYBRIDS = (
    *("kimi-linear-moe", "falcon-h1-dense", "nemotron_h-dense", "plamo2-dense", "mamba2-dense"),
    *("mamba-dense", "jamba-dense"),
)


@pytest.fixture(scope="module", params=HYBRIDS)
def family(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("hybrid") / "model.gguf"
    return Subject(request.param, str(write_model(header(request.param), path)), drafter="lookup")


def test_rows_do_not_depend_on_their_company(family):
    check_rows(family, Batching(chunk=40, n_batch=5, threads=2, neighbours=2), "f32")


def test_graphs_are_their_definition(family):
    assert check_graphs(family, kv_dtype="f16", threads=2) > 200


@pytest.mark.hypothesis
def test_state_does_not_depend_on_what_was_rejected(family):
    few = searching(4, stateful_step_count=12, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(family, kv_dtype="f16"), settings=few)


def test_convolutions_stay_as_they_are(family, tmp_path):
    quantize(family.path, tmp_path / "model.gguf", outtype="q8_0")
    with open_model_file(tmp_path / "model.gguf") as file:
        types = {name: t.type_name for name, t in file.tensors.items() if "ssm_conv1d" in name}
    assert types
    assert {*types.values()} == {"F32"}
