"""What must hold for every family of drafters, by the kit that authors of plugins use."""

import msgspec
import numpy as np
import pytest
from harness.families import DRAFT_MODEL, FAMILIES
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore.declarations.spec import TreeShape
from mtpcore.discovery.registry import describe_plugins
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.sampling import Sampling
from mtpcore.testing import (
    Batching,
    Texts,
    check_broken_rows,
    check_drafts,
    check_graphs,
    check_layouts,
    check_rows,
    check_texts,
    check_ties,
    cover_pairs,
    cover_texts,
)
from mtpcore.testing.machine import machine_of

BATCHINGS = cover_pairs(
    {
        "chunk": (1, 3, 8, 40, 96),
        "n_batch": (1, 5, 512),
        "threads": (1, 2),
        "neighbours": (0, 2),
        "kv_dtype": ("f16", "f32", "q8_0"),
    }
)
SAMPLED = tuple(
    (Sampling(temperature=temperature, seed=5), n_batch)
    for temperature, n_batch in ((0.0, 512), (0.8, 40), (1.5, 7))
)
TREES = (
    TreeShape(depth=4, width=4, n_nodes=14),
    TreeShape(paths=((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0))),
)
families = pytest.mark.parametrize("family", FAMILIES, ids=str)
drafters = pytest.mark.parametrize("family", [*FAMILIES, DRAFT_MODEL], ids=str)


def test_every_plugin_that_comes_along_is_a_subject():
    plugins = {p.name for p in describe_plugins() if p.first_party and p.drafters}
    assert len(plugins) >= 5
    # Hybrids and Gemma 4 have no model in the package, and a model's drafter in a block is not its
    # first one: tests/plugins/test_qwen_properties.py, test_gemma4_assistant.py,
    # test_block_properties.py and tests/models/test_variant_heads.py.
    others = {"dflash", "gemma4", "peagle", "qwen_mtp", "trunks"}
    assert plugins - {family.spec.plugin for family in FAMILIES} == others


@families
def test_rows_do_not_depend_on_their_company(family):
    for point in BATCHINGS:
        batching = {name: value for name, value in point.items() if name != "kv_dtype"}
        check_rows(family, Batching(**batching), point["kv_dtype"])


@families
@pytest.mark.parametrize(("kv_dtype", "threads"), [("f16", 1), ("f32", 2), ("q8_0", 3)])
def test_graphs_are_their_definition(family, kv_dtype, threads):
    assert check_graphs(family, kv_dtype=kv_dtype, threads=threads) > 700


@families
def test_drafts_are_those_of_the_definition(family):
    assert check_drafts(family, n_tokens=12) == 72


@drafters
def test_texts_do_not_depend_on_drafts(family):
    """Lengths 0 to 8, every kind of setting; every two values of two kinds meet."""
    rates = [check_texts(family, texts) for texts in cover_texts()]
    assert max(rates) > 0.2, "hardly a draft is accepted: the comparison says little"


@families
def test_texts_do_not_depend_on_broken_rows(family):
    """Rows of the prompt, of the prompt's end and of the text; greedy and sampled."""
    if family.spec.build is None:
        pytest.skip("drafts without a graph")
    assert check_broken_rows(family, 0) == 0
    check_broken_rows(family, 7)
    assert check_broken_rows(family, 20, Sampling(temperature=0.8, seed=3)) > 0


@drafters
def test_texts_do_not_depend_on_trees(family):
    """The families' chains as trees, grown and fixed."""
    if family.spec.shape not in ("chain", "tree") or family.spec.heads.order != "repeated":
        pytest.skip("drafts are made in one pass, by a head for each step, or without a graph")
    for tree in TREES:
        shaped = msgspec.structs.replace(family.spec, shape="tree", tree=tree)
        for sampling, n_batch in SAMPLED:
            check_texts(family, Texts(k=4, sampling=sampling, n_batch=n_batch), shaped)


@drafters
def test_texts_do_not_depend_on_a_draft_vocabulary(family):
    """Own and tied matrices, maps of their own, heads for each step, trees: a part of each."""
    if family.spec.build is None:
        pytest.skip("drafts without a graph")
    n_vocab = family.model.hparams.n_vocab
    tokens = np.random.default_rng(2).permutation(n_vocab)[: n_vocab * 2 // 3]
    few = DraftVocabulary(tokens, tokenizer="")
    rates = [
        check_texts(family, Texts(k=3, sampling=sampling, n_batch=n_batch), None, few)
        for sampling, n_batch in SAMPLED
    ]
    assert max(rates) > 0.1, "hardly a draft is accepted: the comparison says little"
    if family.spec.shape == "chain" and family.spec.heads.order == "repeated":
        shaped = msgspec.structs.replace(family.spec, shape="tree", tree=TREES[0])
        check_texts(family, Texts(k=4, sampling=SAMPLED[1][0]), shaped, few)


@pytest.mark.hypothesis
@drafters
def test_state_does_not_depend_on_what_was_rejected(family):
    few = searching(16, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(family), settings=few)


@pytest.mark.parametrize("family", [one for one in FAMILIES if one.draft_path is None], ids=str)
def test_files_with_and_without_the_head(family, tmp_path):
    check_layouts(family, tmp_path)


@families
def test_tied_weights_are_those_they_are_tied_to(family, tmp_path):
    assert check_ties(family, tmp_path) > 0
