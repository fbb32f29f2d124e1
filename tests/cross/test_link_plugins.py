"""Linking what plugins declare: proposers by name, heads in files of their own."""

import functools

import msgspec
import pytest
import toy
from harness.scripted import SCRIPTS, Scripted

from mtpcore import Batch, Context, Generator, Sampling, link, load_model
from mtpcore.errors import BatchError, GraphError, LinkError, PluginError
from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, Outputs, Proposer, first_of


@pytest.fixture
def load(tmp_path):
    """Write a toy file and load it."""
    return functools.partial(toy.load, tmp_path)


def context(model):
    return Context(model, n_ctx=64, backend="reference", kv_dtype="f32", threads=1)


def text(model, *drafters, draft=3, temperature=0.8, **options):
    llm = context(model)
    source = link(llm, *drafters, **options) if drafters else llm
    generator = Generator(source, sampling=Sampling(temperature=temperature, seed=5), draft=draft)
    made = list(generator.generate([1, 2, 3], max_tokens=16, ignore_eos=True))
    return made, generator.stats


class Repeat(Proposer):
    def propose(self, seq, tokens, k):
        return [int(tokens[-1])] * k


def proposer(name, make):
    return DrafterSpec(name=name, fit=Fit(), shape="proposer", proposer=make)


def test_proposer_of_a_plugin_by_name(load):
    seen = []

    def make(model):
        seen.append(model)
        return Repeat()

    model = load(toy.trunk_tensors(), proposer("repeat", make))
    plain, _ = text(model, draft=0)
    for chosen in ("repeat", "auto"):  # nothing better is there
        drafted, stats = text(model, chosen)
        assert drafted == plain
        assert stats.drafted > 0
    assert seen == [model, model]


def test_a_proposer_is_asked_for_no_more_than_its_limit(load):
    """As declared; one that is handed over has none."""
    spec = msgspec.structs.replace(proposer("repeat", lambda model: Repeat()), limit=2)
    model = load(toy.trunk_tensors(), spec)
    for drafter, n in (("repeat", 2), (Repeat(), 5)):
        cross = link(context(model), drafter)
        cross.llm.process(Batch.of([1, 2, 3]))
        assert len(cross.draft(0, 5)) == n


def test_a_head_is_taken_before_a_proposer(load):
    spec = proposer("never", lambda model: pytest.fail("asked for a proposer"))
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    plain, _ = text(model, draft=0)
    assert text(model, "auto")[0] == plain


def test_a_proposer_that_proposes_nothing_cannot_be_made():
    """The base is abstract; what has the method need not derive from it."""

    class Silent(Proposer):
        pass

    with pytest.raises(TypeError, match=r"abstract.*propose"):
        Silent()
    assert not isinstance(object(), Proposer)
    assert isinstance(Scripted(SCRIPTS["right"]), Proposer)


def test_a_plugin_that_makes_no_proposer(load):
    def fails(model):
        raise KeyError("nothing")

    model = load(toy.trunk_tensors(), proposer("empty", lambda m: None), proposer("fails", fails))
    for name, what in (("empty", "no Proposer"), ("fails", "KeyError")):
        with pytest.raises(PluginError, match=what) as caught:
            link(context(model), name)
        assert repr(name) in caught.value.where
        assert "'other'" in caught.value.where


def test_a_head_in_a_file_of_its_own(load):
    class Apart:
        rotary_axes, width, n_vocab, n_layers, n_drafter_blocks = 1, toy.WIDTH, toy.N_VOCAB, 0, 1

    spec = DrafterSpec(
        name="apart",
        fit=Fit(architectures=frozenset({"toy_apart"}), tensors=("blk.{n}.join.weight",)),
        build=toy.head,
        feeds=toy.HEAD.feeds,
        ties=(
            first_of("blk.{n}.embed.weight", "target:token_embd.weight"),
            first_of("blk.{n}.head.weight", "target:output.weight"),
        ),
        hparams=lambda fields, tensors: Apart(),
        standalone=True,
    )
    model = load(toy.trunk_tensors())
    head = toy.head_tensors(n=0)
    drafter = load(head, spec, architecture="toy_apart", name="apart.gguf")
    plain, _ = text(model, draft=0)
    drafted, apart = text(model, "apart", draft_model=drafter)
    assert drafted == plain
    # The same weights after the trunk make the same drafts.
    after = {name.replace("blk.0.", f"blk.{toy.N_LAYERS}."): w for name, w in head.items()}
    together = load({**toy.trunk_tensors(), **after}, heads=1, name="together.gguf")
    _, combined = text(together, "toy_head")
    assert apart.drafted == combined.drafted
    assert apart.accepted_per_position == combined.accepted_per_position


def test_no_such_drafter_says_what_there_is(load):
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1)
    with pytest.raises(LinkError) as caught:
        link(context(model), "elsewhere")
    assert caught.value.wanted == "toy_head"


def wide(g, inputs, h):
    """Recycle rows of twice the slot's width."""
    logits = g.matmul(g.output_rows(inputs["hidden"]), "blk.{n}.head.weight")
    return Outputs(logits=logits, hidden=g.concat(inputs["hidden"], inputs["hidden"]))


def deaf(g, inputs, h):
    """Read no slot."""
    x = g.embed(inputs.tokens, "blk.{n}.embed.weight")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"), hidden=x)


def few(g, inputs, h):
    """Recycle only the rows whose outputs are wanted."""
    x = g.output_rows(inputs["hidden"])
    return Outputs(logits=g.matmul(x, "blk.{n}.head.weight"), hidden=x)


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({"build": deaf}, LinkError, "does not read the slot"),
        ({"build": few}, LinkError, "other rows"),
        ({"feeds": (Feed(slot="hidden", taps=("hiden",), recycle="hidden"),)}, GraphError, "hiden"),
        ({"feeds": (Feed(slot="hidden"),)}, LinkError, "recycle="),
        ({"feeds": (Feed(slot="hidden", recycle="hiden"),)}, LinkError, "hiden"),
        ({"build": lambda g, inputs, h: inputs["hidden"]}, GraphError, "Outputs; got Value"),
        ({"build": lambda g, inputs, h: None}, GraphError, "Outputs; got NoneType"),
        ({"build": lambda g, inputs, h: Outputs(hidden=inputs["hidden"])}, LinkError, "no logits"),
        ({"build": wide}, LinkError, r"another width; wanted 32 values a row; got 64"),
    ],
)
def test_a_wrong_head_is_refused_by_its_name(load, changes, kind, what):
    spec = msgspec.structs.replace(toy.HEAD, name="mine", **changes)
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    llm = context(model)
    with pytest.raises(kind, match=what) as caught:
        link(llm, "mine")
    assert "'mine' of plugin 'other'" in caught.value.where
    assert llm.owner is None
    assert llm.taps == ()
    with pytest.raises(BatchError, match="no such output"):
        llm.process(Batch.of([1])).tap("hidden")


@pytest.mark.parametrize(
    ("target", "drafter", "what"),
    [("demo:mimo", "demo", "narrower"), ("demo", "demo:mimo", "wider")],
)
def test_a_head_of_another_target_is_refused_by_its_name(target, drafter, what):
    llm = context(load_model(target))
    name = {"demo": "glm_nextn", "demo:mimo": "mimo_mtp"}[drafter]
    with pytest.raises(LinkError, match=what) as caught:
        link(llm, name, draft_model=load_model(drafter))
    assert caught.value.where.startswith(f"drafter {name!r} of plugin")
    assert "made for" in caught.value.fix
    assert llm.owner is None


def test_heads_that_read_the_target_alone_recycle_nothing(load):
    """As Medusa's do: head i meets a row i + 1 places back, and hands on none."""

    def mute(g, inputs, h):
        return Outputs(logits=toy.head(g, inputs, h).logits)

    n, found = toy.N_LAYERS, []
    weights = toy.trunk_tensors() | toy.head_tensors(1, n) | toy.head_tensors(2, n + 1)
    for name, build, recycle in (("loud", toy.head, "hidden"), ("mute", mute, None)):
        spec = toy.replaced(
            name=name,
            build=build,
            feeds=(Feed(slot="hidden", recycle=recycle),),
            heads=Heads(order="each-step", hidden_from="target"),
        )
        made, stats = text(load(weights, spec, heads=2), name)
        assert stats.drafted > stats.verify_steps
        found.append((made, stats.drafted, stats.accepted_per_position))
    assert found[0] == found[1]


@pytest.mark.parametrize("heads", [Heads(), Heads(order="each-step", hidden_from="target")])
def test_a_head_without_attention_keeps_nothing_and_drafts(load, heads):
    def light(g, inputs, h):
        x = g.rms_norm(inputs["hidden"], "output_norm.weight", toy.EPS)
        return Outputs(logits=g.matmul(g.output_rows(x), "output.weight"), hidden=x)

    each, n = heads.order == "each-step", toy.N_LAYERS
    weights = toy.trunk_tensors() | toy.head_tensors(1, n) | toy.head_tensors(2, n + 1)
    feed = Feed(slot="hidden", recycle=None if each else "hidden")
    spec = toy.replaced(name="light", build=light, feeds=(feed,), heads=heads)
    model = load(weights, spec, heads=2)
    made, stats = text(model, "light")
    assert made == text(model, draft=0)[0]
    assert stats.drafted > stats.verify_steps


@pytest.mark.parametrize("answer", [None, 1.5])
def test_an_answer_that_is_no_sequence_changes_nothing(load, answer, caplog):
    class Wrong(Proposer):
        def propose(self, seq, tokens, k):
            return answer

    model = load(toy.trunk_tensors(), proposer("wrong", lambda model: Wrong()))
    plain, _ = text(model, draft=0)
    drafted, stats = text(model, "wrong")
    assert drafted == plain
    assert stats.drafted == 0
    assert stats.invalid > 1
    assert len([r for r in caplog.records if "is no token" in r.message]) == 1
