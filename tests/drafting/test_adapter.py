"""Drafts of an adapter: the target's graph with it on rows of noise, in the target's KV cache."""

import types

import numpy as np
import pytest
from harness.adapters import write_adapter
from harness.draft_adapters import KNOWN, SPEC, subject_of, write_for
from harness.every_trunk import FAMILIES, write_trunk
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from mtpcore import (
    LM,
    Batch,
    Context,
    DraftVocabulary,
    LinkError,
    ModelFileError,
    Sampling,
    TreeShape,
    link,
    load_adapter,
    load_model,
)
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import registry
from mtpcore.drafting.adapter import NoiseTokens
from mtpcore.errors import PluginError
from mtpcore.plugin import Block, DrafterSpec, Feed, Fit, Heads, Noise
from mtpcore.testing import Texts, check_drafts, check_texts
from mtpcore.testing.machine import machine_of

TREE = TreeShape(depth=3, width=3, n_nodes=6)
GREEDY, RANDOM = Sampling.greedy(), Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return subject_of(tmp_path_factory.mktemp("adapter"), "demo:small")


def tree_of(subject):
    return replace(subject.spec, tree=TREE)


def test_drafts_are_those_of_the_definition(subject):
    assert check_drafts(subject, k=5, n_tokens=10) > 80
    assert check_drafts(subject, k=3, n_tokens=5, drafter=tree_of(subject)) > 50


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
def test_drafts_change_no_text(subject, sampling, branches):
    texts = Texts(k=5, sampling=sampling, n_tokens=24)
    rate = check_texts(subject, texts, tree_of(subject) if branches else None)
    assert 0.1 < rate < 0.6  # of every draft the first is the target's own choice


@pytest.mark.hypothesis
def test_nothing_stays_of_a_block(subject):
    few = searching(3, stateful_step_count=12, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject), settings=few)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_the_first_draft_is_what_the_target_chooses(subject, sampling):
    """Its row has the target's bits, beside rows with the adapter."""
    cross, plain = subject.link(), subject.link()
    tokens = subject.text(9)
    for place, token in enumerate(tokens.tolist()):
        for one in (cross, plain):
            one.llm.process(Batch.of([token], pos=place))
        first, *others = cross.draft(0, 4, sampling=sampling)
        assert len(others) == 3
        pending = plain.pending(0, sampling)
        assert cross.pending(0, sampling) == pending
        plain.llm.process(Batch.of([pending], pos=place + 1))
        assert plain.pending(0, sampling) == first
        plain.rollback(0, place + 1)
        assert cross.llm.digest(0) == plain.llm.digest(0)


# Hybrids, windows, experts, scaled rows, spans: whatever a trunk stores is as it was.
@pytest.mark.parametrize("family", FAMILIES)
def test_on_every_trunk(tmp_path, family):
    path = write_trunk(tmp_path, family)
    with load_model(path, mtp=False) as model:
        program = model.program()
        if program.n_codes or program.whole_slot is not None:
            pytest.skip("reads more than tokens")
    subject = subject_of(tmp_path, path)
    assert check_drafts(subject, k=4, n_tokens=4) > 20
    assert check_texts(subject, Texts(k=4, sampling=RANDOM, n_texts=2, n_tokens=12)) > 0.1


def test_a_text_has_its_own_adapters_too(subject, tmp_path):
    with load_model(subject.path) as model:
        own = {n: load_adapter(write_for(tmp_path / f"{n}.gguf", model, seed=ord(n))) for n in "ab"}
    options = {"n_ctx": 96, "adapters": own, "n_seq_max": 3}
    choices = ([], ["a"], {"b": 0.5, "a": -1.0})
    texts, rates = [], []
    for draft in (0, 4):
        lm = LM(subject.model, draft=draft, drafter=SPEC.name, **options)
        made = [
            lm.generate("abc", max_tokens=16, temperature=0, adapters=choice) for choice in choices
        ]
        texts.append([one.tokens for one in made])
        rates += [one.stats.acceptance for one in made if draft]
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts[0]))) == 3
    assert min(rates) > 0.2  # the first row has the text's own adapters
    tokens, drafts = Batch.of(subject.text(9)), []
    for adapters, choice in ((None, []), (own, []), (own, ["a"])):
        cross = link(Context(subject.model, 96, adapters=adapters), SPEC.name)
        cross.adapt(0, choice)
        cross.llm.process(tokens)
        drafts.append(cross.draft(0, 5, sampling=RANDOM))
    assert drafts[0] == drafts[1] != drafts[2]


def test_a_saved_text_goes_on(subject):
    before, after = subject.link(), subject.link()
    before.llm.process(Batch.of(subject.text(12)))
    before.draft(0, 4)
    after.load(0, before.save(0))
    assert after.draft(0, 4) == before.draft(0, 4)
    assert after.llm.digest(0) == before.llm.digest(0)


@pytest.mark.parametrize(("n", "first"), [(40, 0), (40, 7), (1, 0)])
def test_noise_is_by_place_and_of_tokens_that_are_used(subject, n, first):
    model = types.SimpleNamespace(
        hparams=types.SimpleNamespace(n_vocab=n + 5),
        metadata={"tokenizer.ggml.token_type": [1] * (n - 1) + [6] + [5] * 4},
        path="a file",
    )
    masks = NoiseTokens(Noise(first=first), model)
    made = [masks.at(place) for place in range(4000)]
    assert {*made} == {*range(first, n)}
    assert made[:50] == [NoiseTokens(Noise(first=first), model).at(place) for place in range(50)]
    counts = np.bincount(made, minlength=n)[first:]
    assert counts.max() < 2 * 4000 / (n - first)
    assert {NoiseTokens(n + 4, model).at(place) for place in range(9)} == {n + 4}
    with pytest.raises(LinkError, match="no such mask token"):
        NoiseTokens(Noise(first=n), model)
    with pytest.raises(LinkError, match="no such mask token"):
        NoiseTokens(n + 5, model)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("build", lambda *_: None),
        ("graphs", (("more", lambda *_: None),)),
        ("heads", Heads(count=2)),
        ("feeds", (Feed(slot="x", graph="", taps=("hidden",), mask="m"),)),
        ("vocabulary", "d2t"),
        ("hparams", lambda *_: None),
        ("standalone", True),
        ("fit", Fit(sidecars=("uno-*.gguf",))),
        ("fit", Fit(targets=frozenset({"llama"}))),
        ("block", Block(size=4, mask=3, from_pending=False)),
        ("block", Block(size=4, mask=3, passes=2)),
    ],
)
def test_what_the_targets_graph_decides_is_not_declared(field, value):
    check_spec(SPEC)
    check_spec(replace(SPEC, block=Block(size=4, mask=3)))
    with pytest.raises(PluginError):
        check_spec(replace(SPEC, **{field: value}))


def test_other_shapes_and_other_drafters_noise_are_refused():
    with pytest.raises(PluginError, match="an adapter drafts a block"):
        check_spec(replace(SPEC, shape="chain", block=None))
    with pytest.raises(PluginError, match="noise stands for masks where an adapter drafts"):
        check_spec(replace(SPEC, adapter=False, build=lambda *_: None, fit=Fit(tensors=("x",))))
    with pytest.raises(PluginError, match="nothing reads these fields"):
        check_spec(DrafterSpec(name="p", fit=Fit(), shape="proposer", proposer=print, adapter=True))


def test_an_adapter_without_a_plugin_that_drafts_with_it(subject):
    with pytest.raises(ModelFileError, match="no plugin drafts with an adapter of 'llama'"):
        load_model(subject.path, mtp_path=subject.mtp_path, plugins=registry())


def test_an_adapter_of_another_model(subject, tmp_path):
    other = tmp_path / "other.gguf"
    write_adapter(other, "llama", {"blk.0.attn_q.weight": (8, 8)})
    with load_model(subject.path, mtp_path=other, plugins=KNOWN) as model:
        llm = Context(model, 64)
        with pytest.raises(LinkError, match="another shape"):
            link(llm, SPEC.name)
        assert llm.owner is None
    write_adapter(other, "qwen3", {"blk.0.attn_q.weight": (8, 8)})
    model = load_model(subject.path, mtp_path=other, plugins=KNOWN)
    with model, pytest.raises(LinkError, match="another architecture"):
        link(Context(model, 64), SPEC.name)


def test_what_does_not_fit_an_adapter_is_refused(subject):
    model = subject.model
    few = DraftVocabulary.of_tokens(model, np.arange(9))
    with pytest.raises(LinkError, match="of the whole vocabulary"):
        link(Context(model, 64), SPEC.name, draft_vocabulary=few)
    for options in ({}, {"host": Context(model, 64), "adapters": {"a": model.draft_adapter}}):
        with pytest.raises(LinkError, match="in its target's memory"):
            Context(model, 64, graph_type="draft", drafter=SPEC.name, **options)
    with load_model(subject.path) as plain, pytest.raises(LinkError, match=SPEC.name):
        link(Context(plain, 64), SPEC.name)
