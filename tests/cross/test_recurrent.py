"""Speculation with recurrent layers, in the target and in the head, by the conformance kit."""

import msgspec
import numpy as np
import pytest
from harness import hybrid_family
from harness.checkpoints import watch
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Generator
from mtpcore.backends.cpu.states import slot_bytes_of
from mtpcore.declarations.spec import TreeShape
from mtpcore.errors import CapacityError
from mtpcore.sampling import Sampling
from mtpcore.testing import (
    Batching,
    Texts,
    check_drafts,
    check_graphs,
    check_rows,
    check_texts,
    cover_pairs,
    cover_texts,
)
from mtpcore.testing.machine import machine_of

BATCHINGS = cover_pairs(
    {"chunk": (1, 3, 8, 40, 96), "n_batch": (1, 5, 512), "threads": (1, 2), "neighbours": (0, 2)}
)
SAMPLING = Sampling(temperature=0.7, seed=2)
N_CTX = 128
TREE = TreeShape(depth=4, width=4, n_nodes=14)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return hybrid_family.subject(tmp_path_factory.mktemp("hybrid"))


def test_rows_do_not_depend_on_their_company(family):
    for point in BATCHINGS:
        check_rows(family, Batching(**point))


@pytest.mark.parametrize("threads", [1, 3])
def test_graphs_are_their_definition(family, threads):
    assert check_graphs(family, threads=threads) > 300


def test_drafts_are_those_of_the_definition(family):
    assert check_drafts(family, n_tokens=12) == 72


def test_texts_do_not_depend_on_drafts(family):
    rates = [check_texts(family, texts) for texts in cover_texts()]
    assert max(rates) > 0.1


def test_texts_do_not_depend_on_trees(family):
    spec = msgspec.structs.replace(family.spec, shape="tree", tree=TREE)
    for temperature, n_batch in ((0.0, 512), (0.8, 40)):
        sampling = Sampling(temperature=temperature, seed=5)
        check_texts(family, Texts(k=4, sampling=sampling, n_batch=n_batch), spec)


def slot_bytes(family):
    """Bytes of a slot, in the role whose slots are the larger ones."""
    programs = [one.program for one in family.link(N_CTX).contexts.values()]
    return max(slot_bytes_of(program.states) for program in programs)


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("backend", "n_checkpoints"), [("cpu", None), ("reference", None), ("cpu", 0), ("cpu", 2)]
)
def test_a_rejected_draft_leaves_no_trace(family, backend, n_checkpoints):
    n_bytes = None if n_checkpoints is None else n_checkpoints * slot_bytes(family)

    class Machine(machine_of(family, backend=backend, checkpoint_bytes=n_bytes)):
        def make(self, interrupter):
            cross = super().make(interrupter)
            for context in cross.contexts.values():
                most = (
                    n_bytes if n_bytes is None else n_bytes // slot_bytes_of(context.program.states)
                )
                watch(context.runner.memory, context.n_seq_max, most)
            return cross

    few = searching(12, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=few)


@pytest.mark.parametrize(("backend", "n_bytes"), [("cpu", None), ("reference", None), ("cpu", 0)])
def test_rollback_to_any_place(family, backend, n_bytes):
    """Near ones are cut, others computed again from a checkpoint; drafts and texts are the same."""
    tokens = family.text(71).tolist()
    for n in (70, 69, 60, 54, 53, 52, 40, 39, 24, 23, 22, 5, 1, 0):
        cross = family.link(N_CTX, backend=backend, checkpoint_bytes=n_bytes)
        fresh = family.link(N_CTX, backend=backend)
        for begin, end in ((0, 40), (40, 70)):
            cross.llm.process(Batch.of(tokens[begin:end], pos=begin))
        cross.pending(0, SAMPLING)
        cross.draft(0, 3, sampling=SAMPLING)
        cross.rollback(0, n)
        if n:
            fresh.llm.process(Batch.of(tokens[:n]))
        assert cross.tokens(0) == tokens[:n]
        assert cross.digest(0) == fresh.digest(0), n
        states = [one.speculation.states[0] for one in (cross, fresh)]
        assert states[0].n_prompt == states[1].n_prompt == n
        for one in (cross, fresh):
            one.llm.process(Batch.of(tokens[n : n + 1], pos=n))
            one.pending(0, SAMPLING)
        assert cross.draft(0, 5, sampling=SAMPLING) == fresh.draft(0, 5, sampling=SAMPLING)


@pytest.mark.parametrize("n_batch", [1, 3, 4])
def test_any_part_of_a_draft_is_accepted_in_whatever_parts_it_was_verified(family, n_batch):
    prompt, greedy = family.text(30).tolist(), Sampling.greedy()
    plain = Generator(family.context(N_CTX), sampling=greedy)
    truth = list(plain.generate(prompt, max_tokens=17, ignore_eos=True))
    for n in range(16):
        cross, fresh = (family.link(N_CTX, n_batch=n_batch, checkpoint_bytes=0) for _ in range(2))
        cross.llm.process(Batch.of(prompt))
        cross.pending(0, greedy)
        assert cross.verify({0: truth[1:16]}, greedy)[0].accepted == 15
        cross.accept(0, n)
        fresh.llm.process(Batch.of([*prompt, *truth[: n + 1]]))
        assert cross.digest(0) == fresh.digest(0)


def test_text_stays_text_when_it_is_computed_again(family):
    """Penalties count what a text has, not what its prompt has."""
    cross = family.link(N_CTX)
    cross.llm.process(Batch.of(family.text(30).tolist()))
    cross.pending(0, SAMPLING)
    for _ in range(40):
        cross.verify({0: []}, SAMPLING)
        cross.accept(0)
    lost = next(n for n in range(35, 70) if cross.speculation.nearest(0, n) < n)
    text, digest = cross.tokens(0), cross.digest(0)
    cross.rollback(0, lost)
    assert cross.speculation.states[0].n_prompt == 30
    assert cross.tokens(0) == text[:lost]
    cross.llm.process(Batch.of(text[lost:], pos=lost))
    assert cross.digest(0) == digest


def test_embedding_rows_cannot_be_computed_again(family):
    cross = family.link(N_CTX)
    width = family.model.hparams.width
    rows = np.random.default_rng(0).normal(size=(50, width)).astype(np.float32)
    cross.llm.process(Batch(np.full(50, -1, np.int32), pos=0, embeddings=rows))
    before = cross.llm.digest(0)
    with pytest.raises(CapacityError, match="state of recurrent layers at this place is gone"):
        cross.rollback(0, 20)
    assert cross.llm.digest(0) == before
    cross.rollback(0, 45)
    assert cross.llm.length(0) == 45


@pytest.mark.parametrize(("n_checkpoints", "nearest"), [(0, 0), (1, 0), (8, 29)])
def test_a_budget_decides_how_far_back_states_are_kept(family, n_checkpoints, nearest):
    """A Cross goes back to any place; a context alone refuses those without a state."""
    tokens, n_bytes = family.text(110).tolist(), n_checkpoints * slot_bytes(family)
    cross = family.link(N_CTX, checkpoint_bytes=n_bytes)
    alone = family.context(N_CTX, checkpoint_bytes=n_bytes)
    for begin in range(0, 110, 10):
        for one in (cross.llm, alone):
            one.process(Batch.of(tokens[begin : begin + 10], pos=begin))
    fresh = family.link(N_CTX)
    fresh.llm.process(Batch.of(tokens[:29]))
    assert cross.speculation.nearest(0, 29) == nearest
    cross.rollback(0, 29)
    assert cross.digest(0) == fresh.digest(0)
    before = alone.digest(0)
    if nearest < 29:
        with pytest.raises(CapacityError, match="wanted the whole sequence"):
            alone.rewind(0, 29)
        assert alone.digest(0) == before
    else:
        alone.rewind(0, 29)
        assert alone.digest(0) == fresh.llm.digest(0)


@pytest.mark.parametrize("draft", [0, 3])
def test_kept_prefixes_begin_at_checkpoints(family, draft):
    """A second prompt that shares its beginning with the first goes on from the nearest state."""
    first = family.text(60).tolist()
    second = [*first[:50], *family.text(12, 1).tolist()]
    texts, cached = [], []
    for size, n_bytes in ((None, None), ("all", None), ("all", 0), ("all", 1 << 20)):
        cross = family.link(N_CTX, n_batch=16, checkpoint_bytes=n_bytes)
        generator = Generator(cross, draft=draft, sampling=SAMPLING, prefix_cache=size)
        texts.append(
            [
                list(generator.generate(prompt, max_tokens=20, ignore_eos=True))
                for prompt in (first, second)
            ]
        )
        cached.append(generator.stats.cached_tokens)
    assert texts == [texts[0]] * 4
    assert cached[0] == cached[2] == 0 < cached[1] <= cached[3]


def test_a_drafter_has_its_targets_budget(family):
    cross = family.link(N_CTX, checkpoint_bytes=12345)
    assert {one.checkpoint_bytes for one in cross.contexts.values()} == {12345}


@pytest.mark.parametrize("n_bytes", [-1, 1.5, "some", True, 1 << 54])
def test_a_budget_is_a_number_of_bytes(family, n_bytes):
    with pytest.raises(CapacityError, match="checkpoint_bytes"):
        family.context(N_CTX, checkpoint_bytes=n_bytes)


def test_a_head_whose_pass_did_not_run_leaves_nothing(tmp_path):
    """Room was made for its rows, and a state that nobody wrote."""
    family = hybrid_family.subject(tmp_path, n_heads=2)
    cross, plain = family.link(64), family.link(64)
    for one in (cross, plain):
        one.llm.process(Batch.of([3, 5, 8, 1, 9]))
        one.draft(0, 2)
        one.llm.process(Batch.of([4, 7, 3], pos=5))
    assert cross.draft(0, 2, p_min=1.0) == []
    for one in (cross, plain):
        one.llm.process(Batch.of([4, 7], pos=8))
    assert cross.draft(0, 2) == plain.draft(0, 2)
    assert cross.digest(0) == plain.digest(0)
