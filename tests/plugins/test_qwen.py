"""Qwen3.5 against references that other engines computed, from the checkpoint on."""

import numpy as np
import pytest
from harness.fixtures import counts, references
from harness.reference_model import GREEDY, Published

from mtpcore import Batch, Generator, link
from mtpcore.graph.program import ConvLayer

F16_TIE = 0.02
"""Keys and values rounded to f16 may choose differently where the two best are as close."""
DENSE, SPARSE = Published("qwen35-16"), Published("qwen35moe-17")
both = pytest.mark.parametrize("family", [SPARSE, DENSE], ids=lambda one: one.name, scope="module")
backends = pytest.mark.parametrize("backend", ["cpu", "reference"])


@pytest.fixture(scope="module")
def model(family):
    with family.model() as made:
        yield made


@both
def test_declared_sizes(model, family):
    h = model.hparams
    n_layers = 4 if family is SPARSE else 8
    assert (h.n_layers, h.n_drafter_blocks, h.rotary_axes) == (n_layers, 1, 4)
    assert h.recurrent == {n for n in range(n_layers) if n % 4 != 3}
    assert (h.n_linear_keys, h.n_linear_values, h.linear_width) == (2, 4, 32)
    assert h.rope.axes == (0, 1, 2, 0)
    assert model.drafters[0].name == "qwen_mtp"


@both
@backends
def test_numbers(model, family, backend):
    family.check_numbers(model, backend)
    family._replace(tap="residual").check_numbers(model, backend)


@both
@backends
def test_every_layer(model, family, backend):
    refs = references(family.name)
    taps = [f"layer_input:{n}" for n in range(model.hparams.n_layers)]
    out = family.context(model, backend, taps=taps).process(Batch.of(refs["prompts"][0]))
    for n, tap in enumerate(taps):
        assert np.abs(out.tap(tap) - refs["layers"][n]).max() < 2e-4, tap


@both
@backends
def test_states(model, family, backend, monkeypatch):
    """States after the prompt; the checkpoint's V head h is number j of K head g, h = 2 g + j."""
    refs = references(family.name)
    llm = family.context(model, backend)
    llm.process(Batch.of(refs["prompts"][0]))
    store, settled = llm.runner.memory.recurrent.store, []
    settle = store.settle
    monkeypatch.setattr(store, "settle", lambda *slot: settled.append(settle(*slot)) or settled[0])
    llm.digest(0)
    layers = llm.runner.program.states
    sizes = [
        (s.kernel - 1) * s.channels
        if isinstance(s, ConvLayer)
        else s.n_heads * s.k_width * s.v_width
        for s in layers
    ]
    n_bytes = len(settled[0]) // sum(sizes)
    values = np.split(np.frombuffer(settled[0], f"f{n_bytes}"), np.cumsum(sizes)[:-1])
    states = [v for v, s in zip(values, layers, strict=True) if not isinstance(s, ConvLayer)]
    in_file = [j * 2 + g for g in range(2) for j in range(2)]
    for found, wanted in zip(states, refs["states"], strict=True):
        assert np.abs(found.reshape(wanted.shape)[in_file] - wanted).max() < 2e-4


@both
@pytest.mark.parametrize("draft", [0, 1, 3])
def test_texts_and_acceptance(model, family, draft):
    stats = family.check_texts(model, "cpu", draft)
    if draft:
        assert abs(stats.acceptance - family.rate(draft)) < 0.02


@both
def test_texts_on_the_reference(model, family):
    family.check_texts(model, "reference", 3, n=1)


@both
def test_drafts(model, family):
    table = family.draft_table(model)
    family.check_drafts(table)
    for k in range(1, table.shape[2] + 1):
        wanted = counts(family.name)[f"k={k}"]
        steps, per_position = family.count(table, k)
        assert abs(steps - wanted["verify_steps"]) <= 2
        differ = np.abs(np.array(per_position) - wanted["accepted_per_position"])
        assert differ.max() <= 2


@both
def test_drafts_on_the_reference(model, family):
    family.check_drafts(family.draft_table(model, "reference", n=1))


@both
def test_f16_keys_and_values(model, family):
    """The text of f32 ones up to the first choice between two that were nearly as good."""
    refs = references(family.name)
    generator = Generator(link(family.context(model, kv_dtype="f16")), sampling=GREEDY, draft=3)
    wanted = refs["greedy"][0]
    prompt = refs["prompts"][0].tolist()
    made = [*generator.generate(prompt, max_tokens=len(wanted), ignore_eos=True)]
    near = np.flatnonzero(refs["greedy_margin"][0] < F16_TIE)
    end = near[0] if len(near) else len(wanted)
    assert made[:end] == wanted[:end].tolist()
    assert end > 5
