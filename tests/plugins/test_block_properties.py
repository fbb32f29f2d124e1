"""What must hold for every family, for drafters that fill a block, on trunks of every kind."""

import pytest
from harness import dflash, eagle3, peagle, trunks
from harness.generated import FAMILIES
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Sampling
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_broken_rows,
    check_graphs,
    check_rows,
    check_texts,
)
from mtpcore.testing.machine import machine_of

DRAFTERS = ("z-lab", "windows", "dspark", "xpress", "peagle", "pard")
FED = DRAFTERS[:-1]
"""Those that read the target's rows."""
drafters = pytest.mark.parametrize("name", DRAFTERS)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """Return what makes the subject of a drafter and a trunk's family; each is made once."""
    made = {}

    def make(name, family="llama"):
        if (name, family) not in made:
            folder = tmp_path_factory.mktemp(family)
            if name == "pard":
                target = peagle.write_pard_target(folder)
                drafter = peagle.write_model(folder, trunks.CONFIGS["qwen3"])
            elif name == "peagle":
                target = eagle3.write_target(folder, family)
                drafter = peagle.write_head(folder, peagle.VARIANTS["two layers"])
            else:
                target = dflash.write_target(folder, family)
                drafter = dflash.write_drafter(folder, dflash.VARIANTS[name])
            made[name, family] = Subject(name, str(target), str(drafter))
        return made[name, family]

    return make


@drafters
@pytest.mark.parametrize("kv_dtype", ["f32", "q8_0"])
def test_every_graph_is_its_definition(subject, name, kv_dtype):
    check_graphs(subject(name), kv_dtype=kv_dtype)


@drafters
def test_rows_do_not_depend_on_their_company(subject, name):
    """But on those of their own block, where they see each other."""
    for batching in (
        Batching(chunk=96),
        Batching(chunk=7, n_batch=5, threads=2, neighbours=2),
        Batching(chunk=40, neighbours=1),
    ):
        check_rows(subject(name), batching)


@drafters
def test_texts_do_not_depend_on_drafts(subject, name):
    """Greedy and sampled, of several lengths; coupled drafts agree even by chance."""
    rates = []
    for k, temperature, n_batch in ((1, 1.5, 512), (2, 0.0, 4), (3, 0.8, 512), (8, 1.5, 4)):
        sampling = Sampling(temperature=temperature, seed=5)
        texts = Texts(k=k, sampling=sampling, n_batch=n_batch, n_tokens=24)
        rates.append(check_texts(subject(name), texts))
    assert max(rates) > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_trunks_of_every_kind_are_targets(subject, family):
    sampling = Sampling(temperature=0.8, seed=5)
    check_texts(subject("z-lab", family), Texts(k=4, sampling=sampling, n_tokens=12, n_texts=2))


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("place", [0, 9])
def test_broken_rows_end_drafts(subject, name, place):
    assert (check_broken_rows(subject(name), place) > 0) == (place > 0)


@drafters
def test_sequences_draft_together_as_alone(subject, name):
    """In one batch, of different lengths, with penalties and with a least probability."""
    settings = {
        0: Sampling.greedy(),
        1: Sampling(temperature=0.9, seed=3),
        2: Sampling(temperature=0.7, top_k=8, repetition_penalty=1.3, seed=4),
    }
    lengths, least = {0: 4, 1: 2, 2: 3}, {0: 0.0, 1: 0.01, 2: 0.0}
    cross = subject(name).link(64, n_seq_max=3)
    for seq in settings:
        cross.llm.process(Batch.of(subject(name).text(9 + 2 * seq, seq), seq=seq))
    together = cross.draft(lengths, sampling=settings, p_min=least)
    alone = {
        seq: cross.draft({seq: lengths[seq]}, sampling=settings, p_min=least)[seq]
        for seq in settings
    }
    assert together == alone
    assert [len(together[0]), len(together[2])] == [4, 3]


@drafters
def test_a_block_ends_with_the_context(subject, name):
    """Near its end there are fewer drafts, and none where the pending token is the last."""
    cross = subject(name).link(24)
    cross.llm.process(Batch.of(subject(name).text(20)))
    while (n := cross.llm.length(0)) < 24:
        drafts = cross.draft(0, 8)
        assert len(drafts) <= 24 - n - 1
        cross.verify({0: drafts})
        cross.accept(0, 0)
    assert cross.llm.length(0) == 24


@drafters
def test_a_least_probability_ends_drafts(subject, name):
    cross = subject(name).link(64)
    cross.llm.process(Batch.of(subject(name).text(12)))
    drafts, settings = cross.draft(0, 4), Sampling(temperature=1.0, seed=2)
    assert cross.draft(0, 4, p_min=1.0) == []
    assert cross.draft(0, 4, p_min=1e-6) == drafts
    sampled = cross.draft(0, 4, settings)
    assert cross.draft(0, 4, settings, p_min=1e-9) == sampled


@pytest.mark.hypothesis
@drafters
def test_no_trace_of_rejected_drafts(subject, name):
    few = searching(6, stateful_step_count=12, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject(name)), settings=few)
