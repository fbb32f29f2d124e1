"""Every variant of EAGLE-3 heads, from its published layout, against its formulas in NumPy."""

import numpy as np
import pytest
from harness import eagle3
from harness.eagle3 import N_VOCAB, VARIANTS, layers_of
from harness.every_trunk import write_trunk

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import ModelFileError
from mtpcore.testing import Runner

TOKENS = np.random.default_rng(7).integers(0, N_VOCAB, 16).astype(np.int32)
variants = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with load_model(eagle3.write_target(tmp_path_factory.mktemp("target"))) as model:
        yield model


def weights(c, name, target):
    """The witness's weights."""
    return borrowed(eagle3.weights_of(c, seed=list(VARIANTS).index(name)), target)


def borrowed(made, target):
    """Add the target's tables where the head borrows."""
    made.setdefault("embed_tokens", target.tensors["token_embd.weight"].array())
    if "lm_head" not in made:
        made["lm_head"] = target.tensors["output.weight"].array()
    return {n: w.astype(np.float64) if w.dtype.kind == "f" else w for n, w in made.items()}


def head_of(name, target, folder):
    head = load_model(eagle3.write_head(folder, VARIANTS[name], list(VARIANTS).index(name)))
    head.borrow_from(target)
    return head


def check_formulas(c, w, head, target, kind):
    """Compare fused rows, logits and recycled rows, over a text and two steps after it."""
    (feed,) = (feed for feed in head.drafters[0].feeds if feed.graph == "fusion")
    assert feed.taps == tuple(f"layer_input:{n}" for n in layers_of(c))
    exact = kind == "reference"
    backend = ReferenceBackend("f64") if exact else CpuBackend()
    near = (1e-5 if c.scaling else 1e-9) if exact else 2e-4  # factors are stored in float32

    def runner(model, graph_type, taps=()):
        program = model.program(graph_type, taps=taps)
        return Runner(backend, program, model, kv_dtype="f64" if exact else "f32")

    made = runner(target, "llm", feed.taps).feed(TOKENS)
    taps = np.concatenate([made[tap] for tap in feed.taps], axis=1)
    fusion = Runner(backend, head.program("fusion", drafter="eagle3"), head)
    fused = fusion.feed(TOKENS, taps=taps)["fused"]
    wanted = eagle3.fuse(c, w, taps.astype(np.float64))
    assert np.abs(fused - wanted).max() < near * np.abs(wanted).max()

    drafter = runner(head, "draft")
    rows, text = wanted[:-1], TOKENS[1:]
    found = drafter.feed(text, place=1, fused=rows.astype(np.float64 if exact else np.float32))
    for _ in range(3):
        logits, outputs = eagle3.draft_rows(c, w, text, rows)
        n = len(found["logits"])
        assert np.abs(logits).max() > 1
        assert np.abs(found["logits"] - logits[-n:]).max() < near * np.abs(logits).max()
        assert np.abs(found["recycled"] - outputs[-n:]).max() < near * np.abs(outputs).max()
        rows = np.concatenate([rows, outputs[-1:]])
        text = np.append(text, np.int32(5))
        found = drafter.feed(text[-1:], fused=found["recycled"][-1:])


@variants
@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_formulas(name, kind, target, tmp_path):
    head = head_of(name, target, tmp_path)
    check_formulas(VARIANTS[name], weights(VARIANTS[name], name, target), head, target, kind)


@pytest.mark.parametrize("family", ["gemma4", "gpt_oss"])
@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_formulas_on_other_trunks(family, kind, tmp_path):
    """Gemma 4 scales the rows of its table; a head reads them as they lie there."""
    with load_model(write_trunk(tmp_path, family)) as target:
        h = target.hparams
        c = VARIANTS["3.1"]._replace(
            layers=(0, 1, h.n_layers),
            width=h.width,
            target_width=h.width,
            n_vocab=h.n_vocab,
            n_layers=h.n_layers,
        )
        head = load_model(eagle3.write_head(tmp_path / "eagle3", c))
        head.borrow_from(target)
        check_formulas(c, borrowed(eagle3.weights_of(c), target), head, target, kind)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "cpu") for name in VARIANTS), ("3.1", "reference")]
)
def test_drafts_of_a_linked_head(name, backend, target, tmp_path):
    """At every place of a text, through links and the draft loop."""
    c, head = VARIANTS[name], head_of(name, target, tmp_path)
    w = weights(c, name, target)
    taps = [f"layer_input:{n}" for n in layers_of(c)]
    llm = Context(target, 64, kv_dtype="f32", threads=1, backend=backend)
    cross = link(llm, draft_model=head)
    rows, near = [], 0
    for place, token in enumerate(TOKENS):
        made = llm.process(Batch.of([token], pos=place))
        rows.append(np.concatenate([made.tap(tap)[0] for tap in taps]))
        pending = cross.pending(0, Sampling.greedy())
        text = np.append(TOKENS[: place + 1], pending)
        fused = eagle3.fuse(c, w, np.array(rows, np.float64))
        wanted, margin = eagle3.drafts(c, w, text, fused, 4)
        near += margin < 1e-2
        if margin >= 1e-2:
            assert cross.draft(0, 4) == wanted
    assert near < 8


def test_norms_of_taps_are_as_many_as_the_configuration_says(tmp_path, monkeypatch):
    config_of = eagle3.config_of
    monkeypatch.setattr(eagle3, "config_of", lambda c: config_of(c) | {"fc_norm": True})
    with pytest.raises(ModelFileError, match=r"fc_norm\.0"):
        eagle3.write_head(tmp_path, eagle3.Variant())
    assert not (tmp_path / "head.gguf").exists()
