"""Verifications that run after drafts: on a CPU's plans, which are let do what a GPU's do."""

import functools
from contextlib import contextmanager

import msgspec
import pytest
from harness.fixtures import model_file
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Context, Cross, link, load_model
from mtpcore.backends.cpu.backend import CpuBackend, CpuPlan
from mtpcore.cross.ahead import VerificationAhead
from mtpcore.decoding import Generator
from mtpcore.sampling import Sampling

PROMPTS = [3, 9], [3, 9, 4], [3, 9, 4, 8]
SAMPLING = Sampling(temperature=0.8, seed=3)


@contextmanager
def plans_that_join(change=lambda told: None):
    """Let every schedule end with the verification it is given; yield what was made of these.

    ``change`` may say afterwards that it was another one.
    """
    run, take, taken = CpuPlan.run_schedule, VerificationAhead.take, []

    def draft_and_verify(plan, schedule):
        drafted = run(plan, msgspec.structs.replace(schedule, verification=None))
        made, told = schedule.by_text(drafted.tokens), schedule.verification
        if told is not None and min(drafted.tokens, default=0) >= 0:
            tokens = told.batch.tokens.copy()
            for first, ids in zip(told.first, made, strict=True):
                tokens[first + 1 : first + 1 + len(ids)] = ids
            rows = msgspec.structs.replace(told.batch, tokens=tokens)
            told.arrays = told.plan.run(rows, told.memory)
            change(told)
        return drafted

    def note(ahead, admitted):
        taken.append(take(ahead, admitted))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CpuBackend, "on_host", False)
        patched.setattr(CpuPlan, "run_schedule", draft_and_verify)
        patched.setattr(VerificationAhead, "take", note)
        yield taken


def texts_of(cross, lengths, p_min):
    """Return what three requests make; memory holds what its sequences have, after each round."""
    generator = Generator(cross, sampling=SAMPLING)
    wanted = zip(PROMPTS, lengths, p_min, strict=True)
    requests = [
        generator.add(prompt, max_tokens=14, draft=k, p_min=p, ignore_eos=True)
        for prompt, k, p in wanted
    ]
    while generator.active:
        generator.step()
        for runner in filter(lambda one: one.memory, cross.speculation.runners.values()):
            held = [runner.memory.length(seq) for seq in range(len(PROMPTS))]
            assert held == [*runner.lengths]
    return [request.tokens for request in requests]


@pytest.fixture(scope="module", params=["demo", "demo:mimo2", "demo:eagle3", "qwen35moe-17"])
def model(request):
    """The last one is a hybrid."""
    name = request.param
    return load_model(name if name.startswith("demo") else model_file(name))


@pytest.fixture(scope="module")
def plain(model):
    """Return what makes the texts without drafts, by the size of batches; each once."""
    return functools.cache(
        lambda n_batch: texts_of(
            link(Context(model, 60, n_seq_max=3, n_batch=n_batch)), [0, 0, 0], [0.0, 0.0, 0.0]
        )
    )


@searching(15)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    p_min=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=3, max_size=3),
    n_batch=st.sampled_from([5, 8, 11, 64]),
)
def test_no_trace_is_left_of_them(model, plain, lengths, p_min, n_batch):
    """Where drafts are made in one run, or in several; where all are made, or some are not."""
    wanted = plain(n_batch)
    with plans_that_join():
        cross = link(Context(model, 60, n_seq_max=3, n_batch=n_batch))
        assert texts_of(cross, lengths, p_min) == wanted


@pytest.mark.parametrize("field", ["positions", "indices"])
def test_what_ran_for_other_rows_is_not_used(field):
    """They are computed again: texts stay the same."""

    def change(told):
        batch, fused = told.batch, told.batch.fused_sampling
        if field == "indices":
            fused = msgspec.structs.replace(fused, indices=[0, *fused.indices[1:]])
            told.batch = msgspec.structs.replace(batch, fused_sampling=fused)
        else:
            told.batch = msgspec.structs.replace(batch, positions=batch.positions - 1)

    def made():
        llm = Context(load_model("demo"), 60, n_seq_max=3)
        return texts_of(link(llm), [3, 3, 3], [0.0, 0.0, 0.0])

    with plans_that_join(change) as taken:
        changed = made()
    assert changed == made()
    assert taken
    assert not any(taken)


def test_drafts_that_take_several_runs_are_verified_for_themselves():
    """Without any of the first run's, the last of the second's would pass for those of all."""
    model = load_model("demo")
    with plans_that_join():
        llm = Context(model, 60, n_seq_max=3, n_batch=64)
        draft = Context(model, 60, n_seq_max=3, n_batch=2, graph_type="draft")
        texts_of(Cross(llm=llm, draft=draft), [3, 3, 3], [1.0, 1.0, 0.0])


def test_they_are_used():
    with plans_that_join() as taken:
        texts_of(link(Context(load_model("demo"), 60, n_seq_max=3)), [3, 3, 3], [0.0, 0.0, 0.0])
    assert sum(one is not None for one in taken) > 3
