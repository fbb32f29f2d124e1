"""NextN heads of tiny random models: llama.cpp's logits, and texts that drafts do not change."""

import numpy as np
import pytest
from harness.architectures import DATA, N_ROWS, tokens
from harness.headed import HEADED, write_headed

from mtpcore import Batch, Context, load_model
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts

NEAR = 1e-9
"""Mean square of the differences, beside that of the logits."""


@pytest.mark.parametrize("architecture", HEADED)
def test_logits_are_those_of_llama_cpp(architecture, tmp_path):
    model, text = load_model(write_headed(architecture, tmp_path / "model.gguf")), tokens(128)
    spec = next(one for one in model.drafters if not one.variant_of)
    (tap,) = spec.feeds[0].taps
    trunk = Context(model, 64, kv_dtype="f32", threads=1, taps=[tap])
    rows = trunk.process(Batch.of(text)).tap(tap)
    head = Context(model, 64, kv_dtype="f32", threads=1, graph_type="draft")
    slots = {"hidden": np.ascontiguousarray(rows[:-1])}
    made = head.process(Batch(text[1:], pos=1, slots=slots, outputs="all")).logits[-N_ROWS:]
    with np.load(DATA.parent / "heads.npz") as kept:
        wanted = kept[architecture].astype(np.float64)
    assert np.square(made - wanted).mean() < NEAR * np.square(wanted).mean()


OF_ANOTHER = dict.fromkeys(("deepseek32", "glm-dsa"), "deepseek_mtp")
"""Heads that several architectures share."""


@pytest.fixture
def subject(request, tmp_path):
    path = write_headed(request.param, tmp_path / "model.gguf")
    drafter = OF_ANOTHER.get(request.param, f"{request.param}_nextn")
    return Subject(request.param, path, drafter=drafter)


@pytest.mark.parametrize("subject", HEADED, indirect=True)
def test_texts_do_not_depend_on_drafts(subject):
    check_rows(subject, Batching(chunk=5, neighbours=2, threads=2, n_tokens=40))
    check_texts(subject, Texts(n_texts=2, n_tokens=24))
    assert check_graphs(subject) > 0
