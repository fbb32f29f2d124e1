"""P-EAGLE heads and PARD models, from their published layouts, against their formulas in NumPy."""

import numpy as np
import pytest
from harness import eagle3, peagle, trunks
from harness.eagle3 import N_VOCAB, layers_of
from harness.peagle import VARIANTS
from harness.restated import BACKENDS

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.testing import Runner, Subject, check_drafts

TOKENS = np.random.default_rng(7).integers(0, N_VOCAB - 5, 16).astype(np.int32)
K = 5


def seed_of(name):
    return list(VARIANTS).index(name)


def drafts_at_every_place(target, drafter, backend, scores):
    """Compare drafts of two lengths with those that have the best scores; near ties are few."""
    llm = Context(target, 64, kv_dtype="f32", threads=1, backend=backend)
    cross = link(llm, draft_model=drafter)
    rows, near = {}, 0
    for place, token in enumerate(TOKENS):
        made = llm.process(Batch.of([token], pos=place))
        for tap in map(str, llm.taps):
            rows.setdefault(tap, []).append(made.tap(tap)[0])
        pending = cross.pending(0, Sampling.greedy())
        logits = scores(np.append(TOKENS[: place + 1], pending), rows)
        second, first = np.sort(logits, axis=1)[:, -2:].T
        near += (first - second).min() < 1e-2
        if (first - second).min() >= 1e-2:
            assert cross.draft(0, K) == logits.argmax(axis=1).tolist()
            assert cross.draft(0, 2) == logits.argmax(axis=1).tolist()[:2]
    assert near < 8


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_formulas(name, backend, tmp_path):
    """Logits of a block's rows, behind entries of random rows."""
    c, (runs, kv_dtype, near) = VARIANTS[name], BACKENDS[backend]
    drafter = load_model(peagle.write_head(tmp_path, c, seed_of(name)))
    with load_model(eagle3.write_target(tmp_path)) as target:
        drafter.borrow_from(target)
        w = peagle.read_weights(c, seed_of(name), target)
        runner = Runner(runs, drafter.program("draft"), drafter, kv_dtype=kv_dtype)
        width = w["mask_hidden"].size
        taps = np.random.default_rng(3).normal(size=(len(TOKENS) - 1, width)).astype(np.float32)
        rows = np.concatenate([taps, np.repeat(w["mask_hidden"].reshape(1, -1), K - 1, axis=0)])
        text = np.append(TOKENS[1:], [peagle.MASK] * (K - 1))
        logits = runner.feed(text, place=1, taps=rows.astype(np.float32))["logits"][-K:]
    wanted = peagle.scores(c, w, TOKENS, taps.astype(np.float64), K)
    drafted = np.isfinite(wanted[0])
    wanted = wanted[:, drafted]
    assert np.abs(wanted).max() > 0.5
    assert np.abs(logits - wanted).max() < near * np.abs(wanted).max()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_drafts_of_a_head(name, backend, tmp_path):
    """At every place of a text: the first row is EAGLE-3's, the others know no token."""
    c = VARIANTS[name]
    drafter = load_model(peagle.write_head(tmp_path, c, seed_of(name)))
    with load_model(eagle3.write_target(tmp_path)) as target:
        w = peagle.read_weights(c, seed_of(name), target)
        taps = [f"layer_input:{n}" for n in layers_of(c.head)]

        def scores(tokens, rows):
            joined = np.concatenate([np.stack(rows[tap]) for tap in taps], axis=1)
            return peagle.scores(c, w, tokens, joined.astype(np.float64), K)

        drafts_at_every_place(target, drafter, backend, scores)


@pytest.mark.parametrize("family", ["llama", "llama 3.1 rotation", "qwen2, tied", "qwen3"])
def test_drafts_of_a_model(family, tmp_path):
    """It reads no rows of the target, whose width is another one."""
    c = trunks.CONFIGS[family]
    drafter = load_model(peagle.write_model(tmp_path, c))
    assert drafter.drafters[0].name == "pard"
    w = trunks.checkpoint(c, 0)
    with load_model(peagle.write_pard_target(tmp_path)) as target:
        drafts_at_every_place(
            target, drafter, "cpu", lambda tokens, rows: peagle.pard_scores(c, w, tokens, K)
        )


def test_the_conformance_kit_agrees_with_the_formulas(tmp_path):
    c = VARIANTS["two layers"]
    target, head = eagle3.write_target(tmp_path), peagle.write_head(tmp_path, c)
    with load_model(target) as model:
        w = peagle.read_weights(c, 0, model)
    taps = [f"layer_input:{n}" for n in layers_of(c.head)]

    def scores(tokens, rows, drafts):
        joined = np.concatenate([rows[tap] for tap in taps], axis=1).astype(np.float64)
        return peagle.scores(c, w, tokens, joined, len(drafts))

    subject = Subject("peagle", str(target), str(head))
    assert check_drafts(subject, scores, k=4, n_tokens=12) == 2 * 12 * 4
