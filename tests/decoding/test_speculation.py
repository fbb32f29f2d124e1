"""Drafting never changes a text: whatever drafts, however it is wrong, whoever else runs."""

import logging
from contextlib import suppress

import numpy as np
import pytest
from harness.hashed import N_VOCAB, HashModel, Planted
from harness.scripted import INVALID, SCRIPTS, TREES, Scripted, cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given, target
from hypothesis import strategies as st

from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.decoding import Generator
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampling

N_CTX = 90
requests = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
            "sampling": settings(),
            "draft": st.integers(0, 8),
            "max_tokens": st.integers(1, 24),
            "draft_sampler": st.sampled_from(["coupled", "argmax"]),
            "p_min": st.sampled_from([0.0, 0.1]),
        }
    ),
    min_size=1,
    max_size=6,
)
drafters = st.sampled_from(["head", "script", "both"])


@searching(250)
@given(
    wanted=requests,
    kind=drafters,
    script=st.sampled_from([*sorted(SCRIPTS), *sorted(TREES)]),
    skill=st.integers(0, 16),
    nan=st.sampled_from([0, 0, 4]),
    n_seq_max=st.integers(1, 4),
    occupied=st.sets(st.integers(0, 3), max_size=2),
    n_batch=st.sampled_from([1, 2, 5, 16]),
    raises=st.sampled_from([None, 0, 3]),
    fails=st.sampled_from([None, 7, 60]),
    later=st.integers(0, 5),
)
def test_texts_are_those_of_plain_decoding(
    wanted, kind, script, skill, nan, n_seq_max, occupied, n_batch, raises, fails, later
):
    """The noise of a position is the same whatever was drafted or rejected before it."""
    truths = [plain(w["prompt"], w["sampling"], w["max_tokens"]) for w in wanted]
    texts = [[*w["prompt"], *t] for w, t in zip(wanted, truths, strict=True)]
    scripted = Scripted((SCRIPTS | TREES)[script], texts, raises)
    roles = {"head": ["head"], "script": [scripted], "both": [scripted, "head"]}[kind]
    cross, backend = cross_of(
        *roles, skill=skill, nan=nan, n_ctx=N_CTX, n_seq_max=n_seq_max, n_batch=n_batch
    )
    taken = sorted(s for s in occupied if s < n_seq_max)[: n_seq_max - 1]
    for seq in taken:
        cross.llm.process(Batch.of([1, 2, 3], seq=seq))
    generator = Generator(cross)
    backend.fail_at = fails
    made = [generator.add(**w) for w in wanted[: later + 1]]
    for _ in range(min(later, 2)):
        with suppress(Planted):
            generator.step()
    made += [generator.add(**w) for w in wanted[later + 1 :]]
    run(generator)
    assert [r.tokens for r in made] == truths
    stats = generator.stats
    target(float(stats.accepted))
    assert stats.tokens == sum(map(len, truths))
    assert stats.prompt_tokens == sum(len(w["prompt"]) for w in wanted)
    assert stats.accepted == sum(stats.accepted_per_position)
    assert all(len(r.drafted) == len(r.tokens) for r in made)
    assert sum(sum(r.drafted) for r in made) == stats.accepted
    for seq in range(n_seq_max):
        assert cross.tokens(seq) == ([1, 2, 3] if seq in taken else [])
        assert cross.llm.length(seq) == (3 if seq in taken else 0)


@pytest.mark.parametrize("k", range(9))
def test_acceptance_follows_the_script(k):
    """Equal text for one seed and every k; what is always right is always accepted."""
    prompt, sampling = [3, 1, 4], Sampling(temperature=0.9, seed=11, stream=5)
    truth = plain(prompt, sampling, 40)
    for name in ("right", "wrong", "right for three", "NumPy"):
        cross, _ = cross_of(Scripted(SCRIPTS[name], [[*prompt, *truth]]))
        generator = Generator(cross, sampling=sampling, draft=k)
        assert list(generator.generate(prompt, max_tokens=40)) == truth
        stats = generator.stats
        wanted = {"wrong": 0, "right for three": min(3, k)}.get(name, k)
        full = 39 // (wanted + 1)  # the first token comes with the prompt
        assert stats.accepted_per_position[:wanted] == [stats.verify_steps] * wanted or (
            stats.passes == full + (39 % (wanted + 1) > 0)
        )
        assert not any(stats.accepted_per_position[wanted:])
        assert (stats.verify_steps > 0) == (k > 0)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_drafts_are_cut_counted_and_warned_of_once(name, caplog):
    prompt, sampling = [3, 1, 4], Sampling(seed=11)
    truth = plain(prompt, sampling, 30)
    cross, _ = cross_of(Scripted(SCRIPTS[name], [[*prompt, *truth]]))
    generator = Generator(cross, sampling=sampling, draft=4)
    with caplog.at_level(logging.WARNING, logger="mtpcore"):
        assert list(generator.generate(prompt, max_tokens=30)) == truth
    assert generator.stats.invalid == generator.stats.verify_steps > 5
    assert generator.stats.drafted == generator.stats.accepted == generator.stats.verify_steps
    assert len(caplog.records) == 1
    assert "draft" in caplog.text


@pytest.mark.parametrize("k", range(7))
def test_a_tree_is_walked_as_far_as_it_is_right(k):
    """Whichever branch holds the truth; drafted counts nodes, positions count tokens in a row."""
    prompt, sampling = [3, 1, 4], Sampling(temperature=0.9, seed=11, stream=5)
    truth = plain(prompt, sampling, 40)
    for name, script in TREES.items():
        cross, _ = cross_of(Scripted(script, [[*prompt, *truth]]), n_batch=64)
        generator = Generator(cross, sampling=sampling, draft=k)
        assert list(generator.generate(prompt, max_tokens=40)) == truth
        stats = generator.stats
        wanted = {"tree, wrong": 0, "tree, empty": 0, "tree, right for one": min(1, k)}.get(
            name, min(k, 3) if "last" in name else min(k, 1) if "many" in name else k
        )
        assert stats.passes == -(-39 // (wanted + 1))  # the first token comes with the prompt
        assert stats.accepted == 39 - stats.passes == sum(stats.accepted_per_position)
        if k and name == "tree, right":
            assert stats.drafted > 2 * stats.verify_steps * min(k, 2)
            assert len(stats.accepted_per_position) == k


def test_trees_that_are_not_to_be_trusted(caplog):
    """Invalid ids are counted and cut with what follows them; all is warned of once."""
    prompt, sampling = [3, 1, 4], Sampling(seed=11)
    truth = plain(prompt, sampling, 30)
    for name in ("tree, invalid ids", "tree, too deep"):
        caplog.clear()
        cross, _ = cross_of(Scripted(TREES[name], [[*prompt, *truth]]), n_batch=64)
        generator = Generator(cross, sampling=sampling, draft=3)
        with caplog.at_level(logging.WARNING, logger="mtpcore"):
            assert list(generator.generate(prompt, max_tokens=30)) == truth
        stats = generator.stats
        assert stats.invalid == (2 * stats.verify_steps if "invalid" in name else 0)
        assert stats.drafted <= (3 if "invalid" in name else 6) * stats.verify_steps
        assert len(caplog.records) == 1
        assert "draft" in caplog.text


def test_siblings_alike_are_the_error_of_who_makes_the_tree():
    """It comes out of step(); the request is as before, and goes on."""
    prompt, sampling = [3, 1, 4], Sampling(seed=11)
    calls = []

    def twins(truth, k):
        calls.append(k)
        return DraftTree([1, 2, 1], [-1, -1, -1]) if len(calls) == 3 else DraftTree(truth[:1], [-1])

    cross, _ = cross_of(Scripted(twins, [[*prompt, *plain(prompt, sampling, 20)]]))
    generator = Generator(cross, sampling=sampling, draft=3)
    request = generator.add(prompt, max_tokens=20)
    with pytest.raises(BatchError, match="siblings"):
        run(generator)
    run(generator)
    assert request.tokens == plain(prompt, sampling, 20)


@pytest.mark.parametrize("name", ["empty", "too long", "endless"])
def test_empty_and_too_long_drafts(name, caplog):
    prompt, sampling = [3, 1, 4], Sampling(seed=12)
    truth = plain(prompt, sampling, 30)
    cross, _ = cross_of(Scripted(SCRIPTS[name], [[*prompt, *truth]]), n_batch=2)
    generator = Generator(cross, sampling=sampling, draft=4)
    with caplog.at_level(logging.WARNING, logger="mtpcore"):
        assert list(generator.generate(prompt, max_tokens=30)) == truth
    if name == "empty":
        assert generator.stats.drafted == 0
        assert generator.stats.passes == 29
        assert not caplog.records
    else:
        assert generator.stats.drafted <= 4 * generator.stats.verify_steps
        assert len(caplog.records) == 1
        assert "4" in caplog.text


@pytest.mark.parametrize("k", [1, 3])
def test_a_head_that_is_always_right_is_accepted(k):
    """Its noise is the target's, so that it agrees at every temperature."""
    cross, _ = cross_of("head", skill=16)
    for temperature in (0.0, 0.7, 1.5):
        generator = Generator(cross, sampling=Sampling(temperature=temperature, seed=3), draft=k)
        assert len(list(generator.generate([1, 2, 3], max_tokens=60))) == 60
        assert generator.stats.acceptance == 1.0


@pytest.mark.parametrize("kind", ["head", "script"])
def test_acceptance_does_not_depend_on_how_rows_are_batched(kind):
    prompt = np.random.default_rng(0).integers(0, N_VOCAB, 64).tolist()
    sampling = Sampling(temperature=0.8, seed=9)
    truth = plain(prompt, sampling, 60)
    found = []
    for n_batch in (1, 7, 64, 512):
        script = Scripted(SCRIPTS["right for three"], [[*prompt, *truth]])
        drafter = "head" if kind == "head" else script
        cross, _ = cross_of(drafter, skill=10, n_ctx=200, n_batch=n_batch)
        generator = Generator(cross, sampling=sampling, draft=4)
        request = generator.add(prompt, max_tokens=60)
        run(generator)
        assert request.tokens == truth
        found.append((request.drafted, generator.stats.accepted_per_position))
    assert all(one == found[0] for one in found)
    assert sum(found[0][0]) > 20


def test_drafting_switched_mid_sequence():
    """On, off and on again through one Cross: text, state and drafts as without the pause."""
    sampling, prompt = Sampling(temperature=0.7, seed=21), [5, 6]
    truth = plain(prompt, sampling, 40)
    cross, _ = cross_of("head", skill=12)
    cross.llm.process(Batch.of(prompt))
    made = []
    for k in (3, 3, 0, 0, 5, 0, 8, 1, 0, 2):
        drafts = cross.draft(0, k, sampling)
        verdict = cross.verify({0: drafts}, sampling)[0]
        made += verdict.committed
        cross.accept(0)
    assert made == truth[: len(made)]
    fresh, _ = cross_of("head", skill=12)
    fresh.llm.process(Batch.of([*prompt, *made]))
    assert cross.digest(0) == fresh.digest(0)
    again = {c: c.draft({0: 4}, sampling=sampling)[0] for c in (cross, fresh)}
    assert again[cross] == again[fresh]


def test_a_bare_context_decodes_plainly_and_can_be_used_again():
    cross, _ = cross_of()
    context = cross.llm
    sampling = Sampling(seed=2)
    for _ in range(2):
        generator = Generator(context, sampling=sampling, draft=3)
        assert list(generator.generate([1, 2], max_tokens=9)) == plain([1, 2], sampling, 9)
        assert generator.stats.drafted == 0


def test_a_model_without_tokenizer_has_no_text():
    assert HashModel.tokenizer is None
    cross, _ = cross_of("head")
    generator = Generator(cross, sampling=Sampling(seed=2), draft=2)
    request = generator.add([1], max_tokens=3)
    run(generator)
    assert request.text == ""
    assert request.finish_reason == "length"
