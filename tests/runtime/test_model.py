"""What programs of a model are built of, and which tensors its tied weights mean."""

import functools

import msgspec
import numpy as np
import pytest
import toy

from mtpcore import Batch, Context, load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import GraphError, LinkError, ModelFileError, PluginError
from mtpcore.graph import GraphType
from mtpcore.plugin import DrafterSpec, Feed, Fit, first_of, hookimpl


@pytest.fixture
def load(tmp_path):
    """Write a toy file and load it."""
    return functools.partial(toy.load, tmp_path)


def test_errors_of_a_graph_name_the_plugin(load):
    def reads_undeclared(g, inputs, h):
        inputs["elsewhere"]

    def fails(g, inputs, h):
        raise AttributeError("oops")

    drafters = (
        toy.replaced(name="undeclared", build=reads_undeclared),
        toy.replaced(name="failing", build=fails),
        toy.replaced(
            name="no_graph",
            build=None,
            feeds=(),
            ties=(),
            shape="proposer",
            proposer=lambda model: None,
        ),
    )
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, *drafters, heads=1)
    for name, kind in (
        ("undeclared", GraphError),
        ("failing", PluginError),
        ("no_graph", GraphError),
    ):
        with pytest.raises(kind) as caught:
            model.program(GraphType.DRAFT, drafter=name)
        assert repr(name) in caught.value.where
        assert "plugin 'other'" in caught.value.where


def test_taps_that_a_graph_does_not_offer(load):
    model = load(toy.trunk_tensors())
    with pytest.raises(GraphError) as caught:
        model.program(taps=["layer_input:9"])
    assert "plugin 'toy'" in caught.value.where


# Programs


def test_programs_are_built_once(load):
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1)
    assert model.program(taps=["hidden"]) is model.program(taps=["hidden"])
    assert model.program(taps=["hidden"]) is not model.program()
    assert model.program("draft") is model.program("draft", drafter="toy_head", head=0)
    with pytest.raises(GraphError, match="no such head"):
        model.program("draft", head=1)


def test_slots_are_as_wide_as_their_taps_together(load):
    def wide(g, inputs, h):
        x = g.matmul(g.slice(inputs["wide"], 0, 2 * toy.WIDTH), "blk.{n}.join.weight")
        return toy.Outputs(logits=g.matmul(g.output_rows(x), "output.weight"))

    feed = Feed(slot="wide", taps=("layer_input:1", "hidden", "wide"))
    model = load(
        {**toy.trunk_tensors(), **toy.head_tensors()},
        toy.replaced(name="wide", build=wide, feeds=(feed,)),
        heads=1,
    )
    program = model.program("draft", drafter="wide")
    assert program.values[program.inputs["wide"]].shape == ("n_tokens", 4 * toy.WIDTH)


def test_a_graph_of_taps_feeds_the_graph_that_drafts(load):
    def fuse(g, inputs, h):
        return toy.Outputs(fused=g.matmul(inputs["taps"], "blk.{n}.join.weight"))

    spec = toy.replaced(
        name="fused",
        graphs=(("toy_fusion", fuse),),
        feeds=(
            Feed(
                slot="taps",
                graph="toy_fusion",
                taps=("layer_input:0", "layer_input:1"),
                pairing="same-token",
            ),
            Feed(slot="hidden", src="toy_fusion", taps=("fused",), recycle="hidden"),
        ),
    )
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    fusion = model.program("toy_fusion", drafter="fused")
    assert fusion.shape("fused") == ("n_tokens", toy.WIDTH)
    draft = model.program("draft", drafter="fused")
    assert draft.values[draft.inputs["hidden"]].shape == ("n_tokens", toy.WIDTH)


# Tied weights


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("own", [(), ("embed",), ("head",), ("embed", "head")])
def test_tied_weights_come_from_where_the_file_has_them(load, own, output):
    made = np.random.default_rng(5)
    tables = {n: made.normal(size=(toy.N_VOCAB, toy.WIDTH)).astype(np.float32) for n in own}
    model = load({**toy.trunk_tensors(output=output), **toy.head_tensors(**tables)}, heads=1)
    embed, head = model.tie_report()
    fallback = {
        "embed": "token_embd.weight",
        "head": "output.weight" if output else "token_embd.weight",
    }
    read = model.program("draft").weights()
    for use, name in ((embed, "embed"), (head, "head")):
        wanted = f"blk.{toy.N_LAYERS}.{name}.weight"
        assert use.wanted == wanted
        assert use.source == ("own" if name in own else "borrowed")
        assert use.tensor == (wanted if name in own else fallback[name])
        assert use.tensor in read
        values = tables[name] if name in own else toy.trunk_tensors(output=output)[use.tensor]
        assert np.array_equal(model.tensors[use.tensor].array(), values)


def test_a_head_may_read_the_output_matrix_by_the_trunks_tie(load):
    def plain(g, inputs, h):
        return toy.Outputs(logits=g.matmul(g.output_rows(inputs["hidden"]), "output.weight"))

    spec = toy.replaced(name="plain", build=plain, ties=())
    model = load({**toy.trunk_tensors(output=False), **toy.head_tensors()}, spec, heads=1)
    assert set(model.program("draft", drafter="plain").weights()) == {"token_embd.weight"}


def test_a_weight_of_another_width_is_refused(load):
    narrow = np.ones((toy.N_VOCAB, toy.WIDTH // 2), np.float32)
    model = load({**toy.trunk_tensors(), **toy.head_tensors(head=narrow)}, heads=1)
    with pytest.raises(GraphError) as caught:
        model.program("draft")
    assert f"blk.{toy.N_LAYERS}.head.weight" in caught.value.where
    assert model.program().shape("logits") == ("n_outputs", toy.N_VOCAB)


def test_logits_are_those_of_the_vocabulary(load):
    short = toy.trunk_tensors()
    short["output.weight"] = short["output.weight"][:-1]
    with pytest.raises(GraphError, match="one logit a token") as info:
        load(short).program()
    assert (info.value.wanted, info.value.got) == (toy.N_VOCAB, toy.N_VOCAB - 1)
    head = toy.head_tensors(head=short["output.weight"])
    with pytest.raises(GraphError, match="one logit a token"):
        load(toy.trunk_tensors() | head, heads=1).program("draft")


def test_a_scale_multiplies_products_where_it_counts(load):
    """Beside the output matrix it does, whatever the type; beside others it changes nothing."""
    tensors = toy.trunk_tensors()
    beside = {"output.scale": np.full(1, 2, np.float32)}
    idle = {"blk.0.mix.scale": np.full(1, 3, np.float32), "output.input_scale": np.ones(1)}
    plain, scaled = (
        Context(load(tensors | more), n_ctx=8).process(Batch.of([1, 2, 3])).logits
        for more in (idle, idle | beside)
    )
    assert np.array_equal(scaled, 2 * plain)
    assert np.array_equal(
        plain, Context(load(tensors), n_ctx=8).process(Batch.of([1, 2, 3])).logits
    )


def test_a_scale_that_counts_and_that_nothing_reads_is_refused(tmp_path):
    """The weights alone are of another magnitude: here those of a norm, which is no product."""

    class Plugin:
        __name__ = "scaled"

        @staticmethod
        @hookimpl
        def mtpcore_models():
            return [msgspec.structs.replace(toy.TRUNK, scaled=("output_norm",))]

    tensors = toy.trunk_tensors() | {"output_norm.scale": np.ones(1, np.float32)}
    path = toy.write(tmp_path / "toy.gguf", tensors)
    model = load_model(path, plugins=Registry.of(Plugin()))
    with pytest.raises(GraphError, match="a scale of its own") as caught:
        model.program()
    assert "output_norm.scale" in caught.value.where
    assert "NVFP4" in caught.value.fix


def test_a_tied_weight_keeps_the_type_of_its_file(load):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = load(tensors, heads=1, types={"output.weight": "Q8_0", "token_embd.weight": "F16"})
    assert [use.type for use in model.tie_report("toy_head")] == ["F16", "Q8_0"]


class Apart:
    """Hyper-parameters of a head in a file of its own."""

    rotary_axes, width, n_vocab, n_layers, n_drafter_blocks = 1, toy.WIDTH, toy.N_VOCAB, 0, 1
    target_width = toy.WIDTH


APART = DrafterSpec(
    name="apart",
    fit=Fit(
        architectures=frozenset({"toy_apart"}),
        tensors=("blk.{n}.join.weight",),
        targets=frozenset({"toy"}),
    ),
    build=toy.head,
    feeds=toy.HEAD.feeds,
    ties=(
        first_of("blk.{n}.embed.weight", "target:token_embd.weight"),
        first_of("blk.{n}.head.weight", "target:output.weight", "target:token_embd.weight"),
    ),
    hparams=lambda fields, tensors: Apart(),
    standalone=True,
)


@pytest.mark.parametrize("output", [True, False])
def test_a_head_in_its_own_file_borrows_of_its_target(load, output):
    target = load(toy.trunk_tensors(output=output))
    own = toy.head_tensors(n=0)
    drafter = load(own, APART, architecture="toy_apart", name="apart.gguf")
    with pytest.raises(GraphError):
        drafter.program("draft")
    drafter.borrow_from(target)
    drafter.borrow_from(target)
    table = "output.weight" if output else "token_embd.weight"
    assert [use.tensor for use in drafter.tie_report()] == [
        "target:token_embd.weight",
        f"target:{table}",
    ]
    assert np.array_equal(
        drafter.tensors[f"target:{table}"].array(), toy.trunk_tensors(output=output)[table]
    )
    assert drafter.program("draft").shape("logits") == ("n_outputs", toy.N_VOCAB)
    assert drafter.n_bytes == sum(values.nbytes for values in own.values())
    with pytest.raises(LinkError, match="another target"):
        drafter.borrow_from(load(toy.trunk_tensors(), name="second.gguf"))


def test_a_head_made_for_another_target_is_refused(load):
    drafter = load(toy.head_tensors(n=0), APART, architecture="toy_apart", name="apart.gguf")
    for changes, wanted in (({"architecture": "toy_two"}, "toy"), ({"width": 16}, toy.WIDTH)):
        target = load(toy.trunk_tensors())
        for name, value in changes.items():
            setattr(target.hparams if name == "width" else target._file, name, value)
        with pytest.raises(LinkError) as caught:
            drafter.borrow_from(target)
        assert caught.value.wanted == wanted
        assert "target:token_embd.weight" not in drafter.tensors


def test_a_missing_tied_weight_is_reported(load):
    spec = toy.replaced(name="lost", ties=(*toy.HEAD.ties, first_of("blk.{n}.gone.weight")))
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    assert model.tie_report("lost")[-1].source == "missing"


def test_a_closed_model_says_so(load):
    model = load(toy.trunk_tensors())
    array = model.tensors["token_embd.weight"].array()
    model.close()
    assert array.shape == (toy.N_VOCAB, toy.WIDTH)
    with pytest.raises(ModelFileError, match="closed"):
        model.tensors["token_embd.weight"].raw()


class Own:
    """What a head in the trunk's file says itself."""

    factor = 0.5


def test_a_heads_hyper_parameters_lie_over_the_trunks(load):
    def build(g, inputs, h):
        seen.append((h.factor, h.width, h.n_vocab, h.n_layers))
        return toy.head(g, inputs, h)

    seen, spec = [], toy.replaced(name="own", build=build, hparams=lambda fields, tensors: Own())
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    model.program("draft", drafter="own")
    assert seen == [(0.5, toy.WIDTH, toy.N_VOCAB, toy.N_LAYERS)]
    spec = toy.replaced(name="lacking", build=lambda g, inputs, h: h.nothing, hparams=spec.hparams)
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1, name="b.gguf")
    with pytest.raises(PluginError, match="nothing"):
        model.program("draft", drafter="lacking")
