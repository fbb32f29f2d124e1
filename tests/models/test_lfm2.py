"""LFM2 against its published formulas, and what holds for every hybrid."""

import numpy as np
import pytest
from harness import lfm2
from harness.published import tokenizer, write_checkpoint
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

import mtpcore
from mtpcore import Sampling
from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts
from mtpcore.testing.machine import machine_of


@pytest.fixture(scope="module", params=lfm2.SHAPES)
def family(request, tmp_path_factory):
    folder, shape = tmp_path_factory.mktemp("lfm2"), lfm2.SHAPES[request.param]
    write_checkpoint(
        folder / "hf", lfm2.configuration(shape), lfm2.weights(shape), tokenizer(lfm2.N_VOCAB)
    )
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return Subject(request.param, str(folder / "model.gguf"), drafter="lookup")


def test_a_converted_checkpoint_computes_what_it_should(family):
    shape = lfm2.SHAPES[family.name]
    tokens = family.text(40, seed=1)
    wanted = lfm2.witness(shape, lfm2.weights(shape), tokens)
    context = family.context(64, kv_dtype="f32", threads=1)
    found = context.process(mtpcore.Batch.of(tokens, outputs="all")).logits
    assert np.abs(found - wanted).max() < 1e-3


def test_rows_do_not_depend_on_their_company(family):
    check_rows(family, Batching(neighbours=2), "f16")
    check_rows(family, Batching(chunk=40, n_batch=5, threads=2), "f32")


def test_graphs_are_their_definition(family):
    assert check_graphs(family, kv_dtype="f16", threads=1) > 500


def test_texts_do_not_depend_on_drafts(family):
    """Of few tokens, so that texts repeat themselves and lookup finds drafts."""
    few = dict.fromkeys(range(4), 8.0)
    for k, temperature in ((4, 0.0), (3, 0.7)):
        sampling = Sampling(temperature=temperature, seed=5, logit_bias=few)
        rate = check_texts(family, Texts(k=k, sampling=sampling, n_tokens=80))
        assert 0 < rate < 1, "all or no drafts are accepted: the comparison says little"


@pytest.mark.hypothesis
def test_state_does_not_depend_on_what_was_rejected(family):
    few = searching(8, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(family, kv_dtype="f16"), settings=few)


def test_a_kernel_of_another_length_is_refused(family, tmp_path):
    with open_model_file(family.path) as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        metadata = file.metadata | {f"{file.architecture}.shortconv.l_cache": 4}
        write_model_file(tmp_path / "other.gguf", file.architecture, metadata, tensors)
    with pytest.raises(ModelFileError, match="is of another length"):
        mtpcore.load_model(tmp_path / "other.gguf")
