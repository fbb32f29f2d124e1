"""Whole models, and drafting with them, on the emulated device: the conformance kit.

Texts with drafts of the models in the package are compared in ``test_rounds.py``, and of all
families of heads in ``test_speculation.py``.
"""

import msgspec
import numpy as np
import pytest
from harness.cuda_definition import definition
from harness.families import FAMILIES
from harness.fixtures import model_file

from mtpcore import Batch, DraftTree, Generator
from mtpcore.backends.base import CHOSEN
from mtpcore.backends.cuda.backend import CudaBackend
from mtpcore.backends.cuda.plan import CudaPlan
from mtpcore.memory import LOG
from mtpcore.sampling import Sampling
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_drafts,
    check_graphs,
    check_rows,
    check_texts,
)
from mtpcore.testing.texts import decode

HYBRID = Subject("qwen35moe", str(model_file("qwen35moe-17")), drafter="qwen_mtp")
families = pytest.mark.parametrize("family", [*FAMILIES, HYBRID], ids=str)


@pytest.fixture
def on_device(family, backend):
    return msgspec.structs.replace(family, backend=backend, definition=definition())


@families
def test_graphs_are_their_definition(on_device):
    """Outputs and memory, to the last bit."""
    assert check_graphs(on_device, kv_dtype="f16") > 700


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_drafts_are_those_of_the_definition(on_device):
    assert check_drafts(on_device, n_tokens=4) == 24


@pytest.mark.parametrize("family", FAMILIES[:1], ids=str)
@pytest.mark.parametrize("kv_dtype", ["f32", "q8_0"])
def test_graphs_on_memory_of_every_type(on_device, kv_dtype):
    assert check_graphs(on_device, kv_dtype=kv_dtype) > 700


@pytest.mark.parametrize(
    ("family", "batching"),
    [
        (FAMILIES[0], Batching(chunk=40, n_batch=64, neighbours=1, n_tokens=48)),
        (HYBRID, Batching(chunk=7, n_batch=16, neighbours=1, n_tokens=LOG + 3)),
    ],
    ids=str,
)
def test_rows_do_not_depend_on_their_company(on_device, batching):
    """Those of a hybrid for longer than the log of its states is."""
    check_rows(on_device, batching)


@pytest.mark.parametrize("family", [HYBRID], ids=str)
def test_texts_do_not_depend_on_drafts(on_device):
    sampling = Sampling(temperature=0.9, seed=3)
    texts = Texts(k=3, sampling=sampling, n_texts=2, n_tokens=8, n_batch=64)
    assert 0 <= check_texts(on_device, texts) <= 1


samplings = pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.9, seed=3),
        Sampling(temperature=1.2, seed=4, top_p=0.9, min_p=0.01, logit_bias={5: 2.0}),
        Sampling(temperature=1.0, seed=5, repetition_penalty=1.3, frequency_penalty=4),
    ],
    ids=["race", "cuts", "penalties"],
)


@pytest.mark.parametrize("family", FAMILIES[:1], ids=str)
@samplings
def test_texts_are_those_of_choices_at_home(on_device, monkeypatch, sampling):
    """With drafts, of several requests, and with no token chosen on the device."""
    texts = Texts(k=2, sampling=sampling, n_texts=2, n_tokens=8, n_batch=64)

    def decoded():
        return decode(on_device.link(n_seq_max=2, n_batch=64), on_device, texts)[0]

    run, run_schedule, n_chosen = CudaPlan.run, CudaPlan.run_schedule, []

    def count(made):
        n_chosen.append((made[CHOSEN] >= 0).sum() if made and CHOSEN in made else 0)
        return made

    def draft_and_count(plan, schedule):
        made = run_schedule(plan, schedule)
        count(schedule.verification and schedule.verification.arrays)
        return made

    def run_at_home(plan, batch, memory):
        return run(plan, msgspec.structs.replace(batch, fused_sampling=None), memory)

    def draft_at_home(plan, schedule):
        return run_schedule(plan, msgspec.structs.replace(schedule, verification=None))

    monkeypatch.setattr(CudaPlan, "run", lambda *given: count(run(*given)))
    monkeypatch.setattr(CudaPlan, "run_schedule", draft_and_count)
    made = decoded()
    assert sum(n_chosen) >= sum(map(len, made)) - texts.n_texts  # all but those after prompts
    monkeypatch.setattr(CudaBackend, "on_host", True)
    monkeypatch.setattr(CudaPlan, "run", run_at_home)
    monkeypatch.setattr(CudaPlan, "run_schedule", draft_at_home)
    assert decoded() == made


@pytest.mark.parametrize("family", FAMILIES[:1], ids=str)
def test_rounds_that_end_early_change_no_text(on_device, monkeypatch):
    """Passes that nobody goes on to are parts of a graph with conditions."""
    device, n_conditions = on_device.backend.device, []
    condition = device.condition
    monkeypatch.setattr(device, "condition", lambda: n_conditions.append(1) or condition())
    texts = []
    for k in (0, 2):
        sampling = Sampling(temperature=0.7, seed=5)
        generator = Generator(on_device.link(n_batch=64), sampling=sampling, draft=k)
        request = generator.add(on_device.text(5), max_tokens=24, p_min=0.1, ignore_eos=True)
        while not request.done:
            generator.step()
        texts.append(request.tokens)
    assert texts[0] == texts[1]
    assert n_conditions


@pytest.mark.parametrize("family", FAMILIES[:1], ids=str)
@samplings
def test_a_tree_is_verified_as_its_path_is_decoded(on_device, sampling):
    """Each row is chosen on the device, with penalties of the tokens above it alone."""
    prompt = on_device.text(6)
    first, *path = Generator(on_device.link(n_batch=64), sampling=sampling, draft=0).generate(
        prompt, max_tokens=5, ignore_eos=True
    )
    assert len({*path[:3]}) == 3
    beside = path[1], path[2]  # which no other row may count
    tree = DraftTree([path[0], *beside, path[1], path[2]], [-1, -1, 0, 0, 3])
    cross = on_device.link(n_batch=64)
    cross.llm.process(Batch.of(prompt))
    assert cross.pending(0, sampling) == first
    verdicts = cross.verify({0: tree}, sampling)
    assert verdicts[0].tokens == tuple(path)
    assert (verdicts.output.chosen >= 0).all()


def test_text_is_the_cpu_s_where_no_two_tokens_are_close(backend):
    """Both backends compute the same formulas; only orders of sums differ."""
    demo = FAMILIES[-1]
    logits = []
    for chosen in ("cpu", backend):
        context = msgspec.structs.replace(demo, backend=chosen).context(64)
        logits.append(context.process(Batch.of(demo.text(30), outputs="all")).logits)
    spread = np.std(logits[0])
    assert np.abs(logits[0] - logits[1]).max() < 0.05 * spread
