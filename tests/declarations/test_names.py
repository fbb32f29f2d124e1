"""Names that an author gives: none means something of mtpcore's own, or it is refused by name."""

import msgspec
import pytest
import toy

from mtpcore import Context, Generator, GraphError, PluginError, Sampling, TreeShape, link
from mtpcore.backends.base import CHOSEN
from mtpcore.declarations.checks import check_spec
from mtpcore.declarations.spec import INPUTS, Tap
from mtpcore.graph import GraphBuilder
from mtpcore.plugin import Feed, Outputs

TENSORS = toy.trunk_tensors() | toy.head_tensors()
WORDS = ["chosen", "slot", "nodes", "drafts", "probabilities", "token_ids", "llm", "draft", "head1"]
"""Taps, outputs and slots may be called so, as arrays, roles and fields of mtpcore's own are."""


def trunk_of(name):
    """The toy's trunk, which also offers its last rows as a tap of this name."""

    def trunk(g, inputs, h):
        made = toy.trunk(g, inputs, h)
        g.tap(name, g.embed(inputs.tokens, "token_embd.weight", embeddings=True))
        return made

    return msgspec.structs.replace(toy.TRUNK, build=trunk)


def head_of(name):
    """The toy's head, which reads that tap, and calls its slot and what it recycles so."""

    def head(g, inputs, h):
        token = g.embed(inputs.tokens, "blk.{n}.embed.weight")
        x = g.matmul(g.concat(token, inputs[name]), "blk.{n}.join.weight")
        x = g.rms_norm(x, "blk.{n}.norm.weight", toy.EPS)
        return Outputs(g.matmul(g.output_rows(x), "blk.{n}.head.weight"), **{name: x})

    feeds = (Feed(slot=name, taps=(name,), recycle=name),)
    return msgspec.structs.replace(toy.HEAD, name="renamed", build=head, feeds=feeds)


def drafts_of(folder, monkeypatch, name, backend, tree):
    with monkeypatch.context() as changed:
        changed.setattr(toy, "TRUNK", trunk_of(name))
        changed.setattr(toy, "HEAD", head_of(name))
        model = toy.load(folder, TENSORS, heads=1)
    cross = link(Context(model, 64, backend=backend), "renamed", tree=tree)
    texts = {}
    for draft in (0, 3):
        generator = Generator(cross, sampling=Sampling(temperature=1.0, seed=5), draft=draft)
        texts[draft] = list(generator.generate([3, 1, 4], max_tokens=8))
    assert texts[0] == texts[3]
    assert generator.stats.drafted
    return generator.stats.drafted, generator.stats.accepted


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    "tree", [None, TreeShape(depth=2, width=2, n_nodes=3)], ids=["chain", "tree"]
)
def test_any_word_may_name_what_is_tapped_and_recycled(tmp_path, monkeypatch, backend, tree):
    wanted = drafts_of(tmp_path, monkeypatch, "plain", backend, tree)
    for name in WORDS:
        assert drafts_of(tmp_path, monkeypatch, name, backend, tree) == wanted, name


@pytest.mark.parametrize("name", INPUTS)
def test_no_slot_is_called_as_what_a_batch_has(name):
    spec = msgspec.structs.replace(toy.HEAD, feeds=(Feed(slot=name, recycle="hidden"),))
    with pytest.raises(PluginError, match="reads of every batch") as caught:
        check_spec(spec)
    assert repr(name) in caught.value.where


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        *((toy.HEAD, name) for name in ("draft", "llm", "target", "head1", "head12", "a b")),
        *((toy.TRUNK, name) for name in ("llm", "target", "draft", "draft2", "draft_head1")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_no_further_graph_is_called_as_another_role(spec, name):
    with pytest.raises(PluginError, match="identifiers of their own") as caught:
        check_spec(msgspec.structs.replace(spec, graphs=((name, toy.trunk),)))
    assert caught.value.got == repr(name)


@pytest.mark.parametrize("name", [CHOSEN, "slot hidden", "logits", "Hidden", "", "x" * 200])
def test_outputs_are_called_by_words_of_their_own(name):
    g = GraphBuilder("toy", TENSORS)
    x = g.embed(g.inputs.tokens, "token_embd.weight")
    results = Outputs(g.output_rows(x))
    results.rows[name] = x
    with pytest.raises(GraphError, match="no name of an output") as caught:
        g.finish(results)
    assert caught.value.got == repr(name)


def test_no_tap_is_called_logits():
    g = GraphBuilder("toy", TENSORS, taps=[Tap("logits")])
    x = g.tap("logits", g.embed(g.inputs.tokens, "token_embd.weight"))
    with pytest.raises(GraphError, match="no name of an output"):
        g.finish(Outputs(g.output_rows(x)))


def test_two_results_of_one_name_are_refused():
    g = GraphBuilder("toy", TENSORS, taps=[Tap("hidden")])
    x = g.embed(g.inputs.tokens, "token_embd.weight")
    g.tap("hidden", x)
    g.tap("hidden", x)
    g.finish(Outputs(hidden=x))
    with pytest.raises(GraphError, match="two taps are called 'hidden'"):
        g.tap("hidden", g.scale(x, 2.0))
    with pytest.raises(GraphError, match="two outputs are called 'hidden'"):
        g.finish(Outputs(hidden=g.scale(x, 3.0)))
