"""What must hold for every family, for EAGLE-3 heads on trunks of every kind."""

import pytest
from harness import eagle3, fixtures
from harness.eagle3 import VARIANTS
from harness.generated import FAMILIES
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Sampling, load_model
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts
from mtpcore.testing.machine import machine_of


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """Return what makes the subject of a trunk's family and a head's variant."""

    def make(family="llama", name="reference", kind="F32"):
        folder = tmp_path_factory.mktemp(family)
        target = eagle3.write_target(folder, family, kind)
        head = eagle3.write_head(folder, VARIANTS[name])
        return Subject(f"eagle3-{family}", str(target), str(head))

    return make


NORMED = ("norm_output", "3.1")
"""What EAGLE-3.1 adds, the recycled row alone and all of it; plain heads lie in the package."""


@pytest.mark.parametrize(("name", "kv_dtype"), [("norm_output", "f32"), ("3.1", "q8_0")])
def test_every_graph_is_its_definition(subject, name, kv_dtype):
    check_graphs(subject(name=name), kv_dtype=kv_dtype)


@pytest.mark.parametrize("name", ["reference", "both norms", "another width", *NORMED])
def test_rows_do_not_depend_on_their_company(subject, name):
    """Every graph, the fusion among them, bit by bit."""
    family = subject(name=name)
    for batching in (
        Batching(chunk=96),
        Batching(chunk=7, n_batch=5, threads=2, neighbours=2),
        Batching(chunk=40, neighbours=1),
    ):
        check_rows(family, batching)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_do_not_depend_on_drafts(subject, family):
    """Greedy and sampled, chains of several lengths; coupled drafts agree even by chance."""
    pair, rates = subject(family), []
    for k, temperature, n_batch in ((1, 1.5, 512), (2, 0.0, 4), (3, 0.8, 512), (5, 1.5, 4)):
        sampling = Sampling(temperature=temperature, seed=5)
        texts = Texts(k=k, sampling=sampling, n_batch=n_batch, n_tokens=24)
        rates.append(check_texts(pair, texts))
    assert max(rates) > 0.1


@pytest.mark.parametrize("name", ["ds-12", "glm-11", "mimo-14", "mimo2-15"])
def test_trunks_of_plugins_are_targets(name, tmp_path):
    """Trained models of other families, with a head of random weights."""
    path = fixtures.model_file(name)
    with load_model(path) as model:
        h = model.hparams
        sizes = {"target_width": h.width, "n_vocab": h.n_vocab, "n_layers": h.n_layers}
    head = eagle3.write_head(tmp_path, eagle3.Variant(width=h.width, n_draft=1024, **sizes))
    pair = Subject(f"eagle3-{name}", str(path), str(head))
    assert pair.spec.name == "eagle3"
    sampling = Sampling(temperature=0.8, seed=5)
    check_texts(pair, Texts(k=3, sampling=sampling, n_tokens=12, n_texts=2))


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", ["reference", "every token", *NORMED])
def test_no_trace_of_rejected_drafts(subject, name):
    few = searching(8, stateful_step_count=15, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject(name=name)), settings=few)
