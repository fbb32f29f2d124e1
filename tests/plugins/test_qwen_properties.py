"""What holds for every family, for three hybrids: dense, with experts, and Qwen3-Next's."""

import msgspec
import numpy as np
import pytest
from harness.every_trunk import write_trunk
from harness.fixtures import model_file
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Sampling
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_broken_rows,
    check_drafts,
    check_graphs,
    check_layouts,
    check_rows,
    check_texts,
    check_ties,
    cover_texts,
)
from mtpcore.testing.machine import machine_of

TREES = (
    TreeShape(depth=4, width=4, n_nodes=14),
    TreeShape(paths=((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0))),
)


LEAST = {"qwen35moe-17": 0.2, "qwen35-16": 0.2, "qwen3next": 0.0}
"""The share of drafts that are accepted at least; the third model has random weights."""
COMPUTED = {
    "qwen35moe-17": (("f16", 1), ("f32", 2)),
    "qwen35-16": (("f32", 2),),
    "qwen3next": (("f16", 1),),
}
"""With which keys and values and how many threads graphs are held against their definition."""


@pytest.fixture(scope="module", params=LEAST)
def family(request, tmp_path_factory):
    name = request.param
    is_trained = name != "qwen3next"
    path = model_file(name) if is_trained else write_trunk(tmp_path_factory.mktemp(name), name)
    return Subject(name, str(path), drafter="qwen_mtp")


def test_rows_do_not_depend_on_their_company(family):
    check_rows(family, Batching(neighbours=2), "f16")
    check_rows(family, Batching(chunk=40, n_batch=5, threads=2), "f32")
    check_rows(family, Batching(chunk=96, n_batch=64, threads=2, neighbours=2), "q8_0")


def test_graphs_are_their_definition(family):
    for kv_dtype, threads in COMPUTED[family.name]:
        assert check_graphs(family, kv_dtype=kv_dtype, threads=threads) > 700


def test_drafts_are_those_of_the_definition(family):
    n_tokens = 6 * len(COMPUTED[family.name])
    assert check_drafts(family, n_tokens=n_tokens) == 6 * n_tokens


def test_texts_do_not_depend_on_drafts(family):
    rates = [check_texts(family, texts) for texts in cover_texts()]
    assert max(rates) > LEAST[family.name], "hardly a draft is accepted: the comparison says little"


@pytest.mark.parametrize("tree", TREES, ids=["grown", "fixed"])
def test_texts_do_not_depend_on_trees(family, tree):
    """Rows of a tree go on from the state that their own path left."""
    shaped = msgspec.structs.replace(family.spec, shape="tree", tree=tree)
    for temperature, n_batch in ((0.0, 512), (0.8, 40)):
        sampling = Sampling(temperature=temperature, seed=5)
        check_texts(family, Texts(k=4, sampling=sampling, n_batch=n_batch), shaped)


def test_texts_do_not_depend_on_a_draft_vocabulary(family):
    n_vocab = family.model.hparams.n_vocab
    tokens = np.random.default_rng(2).permutation(n_vocab)[: n_vocab * 2 // 3]
    few = DraftVocabulary(tokens, tokenizer="")
    texts = Texts(k=3, sampling=Sampling.greedy(), n_batch=512)
    assert check_texts(family, texts, None, few) >= LEAST[family.name] / 2


@pytest.mark.hypothesis
def test_state_does_not_depend_on_what_was_rejected(family):
    """With keys and values of another type for each model: their stores are the same code."""
    kv_dtype = dict(zip(LEAST, ("q8_0", "f32", "f16"), strict=True))[family.name]
    few = searching(8, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(family, kv_dtype=kv_dtype), settings=few)


def test_rows_that_are_not_finite(family):
    assert check_broken_rows(family, 0) == 0
    assert check_broken_rows(family, 20, Sampling(temperature=0.8, seed=3)) > 0


def test_files_with_and_without_the_head(family, tmp_path):
    check_layouts(family, tmp_path)


def test_tied_weights_are_those_they_are_tied_to(family, tmp_path):
    assert check_ties(family, tmp_path) > 0
