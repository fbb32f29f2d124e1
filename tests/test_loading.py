"""Files with heads, without, with heads alone; what is tied to what; what a program is built of."""

import logging

import numpy as np
import pytest
import toy

from mtpcore.errors import GraphError, ModelFileError, PluginError
from mtpcore.gguf import Fields
from mtpcore.graph import GraphType
from mtpcore.loading import find_model, load_model
from mtpcore.plugin import Feed, Heads, Key, first_of, hookimpl
from mtpcore.registry import Registry
from mtpcore.spec import Block, DrafterSpec, Fit


@pytest.fixture
def plugins():
    return Registry.of(toy)


@pytest.fixture
def load(tmp_path, plugins):
    """Write a toy file and load it."""

    def load(tensors, *, mtp=True, mtp_path=None, plugins=plugins, name="toy.gguf", **written):
        path = toy.write(tmp_path / name, tensors, **written)
        return load_model(path, mtp=mtp, mtp_path=mtp_path, plugins=plugins)

    return load


def plugin_with(*drafters):
    """Return a plugin that declares these drafters beside the toy trunk."""

    class Plugin:
        __name__ = "other"

        @staticmethod
        @hookimpl
        def mtpcore_drafters():
            return list(drafters)

    return Plugin()


def replaced(**changes):
    import msgspec

    return msgspec.structs.replace(toy.HEAD, **changes)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# What a file holds


def test_combined_file(load, caplog):
    with load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1) as model:
        assert model.file_layout == "combined"
        assert [d.name for d in model.drafters] == ["toy_head"]
        assert model.architecture == "toy"
        assert model.hparams.n_layers == toy.N_LAYERS
        assert model.n_bytes == sum(t.n_bytes for t in model.tensors.values())
        assert model.tokenizer is None
        assert model.chat_template is None
    assert warnings_of(caplog) == []


def test_mtp_false_neither_holds_nor_counts_the_head(load):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    without = load(tensors, heads=1, mtp=False)
    assert without.drafters == ()
    assert set(without.tensors) == set(toy.trunk_tensors())
    assert without.n_bytes == sum(a.nbytes for a in toy.trunk_tensors().values())
    assert without.file_layout == "combined"
    assert without.hparams.n_layers == toy.N_LAYERS
    with pytest.raises(PluginError, match="no drafter"):
        without.program(GraphType.DRAFT)


def test_T29_model_without_head(load, caplog):
    model = load(toy.trunk_tensors())
    assert (model.file_layout, model.drafters) == ("trunk-only", ())
    assert warnings_of(caplog) == []
    with pytest.raises(PluginError) as caught:
        model.find_drafter()
    assert str(model.path) in caught.value.where
    assert "mtp_path=" in caught.value.fix


def test_T29_flag_without_tensors(load, caplog):
    model = load(toy.trunk_tensors(), heads=1)
    assert (model.file_layout, model.drafters) == ("trunk-only", ())
    assert model.hparams.n_layers == toy.N_LAYERS
    (warning,) = warnings_of(caplog)
    assert "toy.n_heads_behind" in warning
    assert "says 1" in warning


def test_T29_tensors_without_flag(load, caplog):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = load(tensors, n_blocks=toy.N_LAYERS + 1)
    assert model.file_layout == "combined"
    assert [d.name for d in model.drafters] == ["toy_head"]
    assert model.hparams.n_layers == toy.N_LAYERS
    (warning,) = warnings_of(caplog)
    assert "says 0" in warning


def test_half_a_head_is_left_out_with_a_warning(load, caplog):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    del tensors[f"blk.{toy.N_LAYERS}.norm.weight"]
    model = load(tensors, heads=1)
    assert model.drafters == ()
    assert any(f"blk.{toy.N_LAYERS}.norm.weight is missing" in w for w in warnings_of(caplog))
    assert model.program().shape("logits") == ("n_outputs", toy.N_VOCAB)


def test_file_of_the_head_alone(load):
    shared = toy.trunk_tensors()
    tensors = {n: shared[n] for n in ("token_embd.weight", "output_norm.weight", "output.weight")}
    model = load({**tensors, **toy.head_tensors()}, heads=1)
    assert model.file_layout == "mtp-only"
    assert model.program(GraphType.DRAFT).shape("logits") == ("n_outputs", toy.N_VOCAB)
    with pytest.raises(ModelFileError) as caught:
        model.program()
    assert "mtp_path=" in caught.value.fix


def test_mtp_path_completes_a_trunk(load, tmp_path, caplog):
    shared = toy.trunk_tensors()
    tensors = {n: shared[n] for n in ("token_embd.weight", "output_norm.weight", "output.weight")}
    head = toy.write(tmp_path / "mtp-toy.gguf", {**tensors, **toy.head_tensors()}, heads=1)
    model = load(toy.trunk_tensors(), mtp_path=head)
    assert model.file_layout == "combined"
    assert len(model.paths) == 2
    whole = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, name="whole.gguf")
    for kind in (GraphType.LLM, GraphType.DRAFT):
        assert str(model.program(kind)) == str(whole.program(kind))
    for name, tensor in whole.tensors.items():
        assert np.array_equal(tensor.array(), model.tensors[name].array())
    assert warnings_of(caplog) == []


def test_mtp_path_for_a_file_that_has_a_head_is_refused(load, tmp_path):
    head = toy.write(tmp_path / "mtp.gguf", {**toy.trunk_tensors(), **toy.head_tensors()}, heads=1)
    with pytest.raises(ModelFileError, match="already holds"):
        load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, mtp_path=head)
    with pytest.raises(ModelFileError, match="contradict"):
        load(toy.trunk_tensors(), mtp=False, mtp_path=head)


def test_unknown_architecture_names_the_known_ones(load):
    with pytest.raises(ModelFileError) as caught:
        load(toy.trunk_tensors(), architecture="unheard_of")
    assert "toy" in caught.value.wanted
    assert "unheard_of" in caught.value.got
    assert "plugin" in caught.value.fix


def test_a_trunk_whose_tensors_are_missing(load):
    tensors = toy.trunk_tensors()
    del tensors["output_norm.weight"]
    with pytest.raises(ModelFileError) as caught:
        load(tensors)
    assert "output_norm.weight" in caught.value.wanted


def test_names_of_packaged_models():
    assert find_model("demo").name == "demo.gguf"
    assert find_model("some/demo").name == "demo"


# Drafters that break


def test_a_broken_drafter_does_not_stop_the_trunk(load, caplog):
    def raise_key_error(fields, tensors):
        raise KeyError("nothing here")

    for broken in (
        replaced(name="raising", hparams=raise_key_error),
        replaced(
            name="keyless",
            heads=Heads(count="{arch}.no_such_key"),
            fit=Fit(tensors=("output_norm.weight",)),
        ),
    ):
        caplog.clear()
        plugins = Registry.of(toy, plugin_with(broken))
        model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, plugins=plugins)
        assert [d.name for d in model.drafters] == ["toy_head"]
        (warning,) = warnings_of(caplog)
        assert repr(broken.name) in warning
        assert "'other'" in warning


def test_errors_of_a_graph_name_the_plugin(load):
    def reads_undeclared(g, inputs, h):
        inputs["elsewhere"]

    def fails(g, inputs, h):
        raise AttributeError("oops")

    drafters = (
        replaced(name="undeclared", build=reads_undeclared),
        replaced(name="failing", build=fails),
        replaced(name="data_only", build=None),
    )
    plugins = Registry.of(toy, plugin_with(*drafters))
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, plugins=plugins)
    for name, kind in (
        ("undeclared", GraphError),
        ("failing", PluginError),
        ("data_only", GraphError),
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
    plugins = Registry.of(toy, plugin_with(replaced(name="wide", build=wide, feeds=(feed,))))
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, plugins=plugins)
    program = model.program("draft", drafter="wide")
    assert program.values[program.inputs["wide"]].shape == ("n_tokens", 4 * toy.WIDTH)


def test_a_graph_of_taps_feeds_the_graph_that_drafts(load):
    def fuse(g, inputs, h):
        return toy.Outputs(fused=g.matmul(inputs["taps"], "blk.{n}.join.weight"))

    spec = replaced(
        name="fused",
        graphs=(("toy_fusion", fuse),),
        feeds=(
            Feed(
                slot="taps",
                graph="toy_fusion",
                taps=("layer_input:0", "layer_input:1"),
                pairing="none",
            ),
            Feed(slot="hidden", src="toy_fusion", taps=("fused",), recycle="hidden"),
        ),
    )
    model = load(
        {**toy.trunk_tensors(), **toy.head_tensors()},
        heads=1,
        plugins=Registry.of(toy, plugin_with(spec)),
    )
    fusion = model.program("toy_fusion", drafter="fused")
    assert fusion.shape("fused") == ("n_tokens", toy.WIDTH)
    draft = model.program("draft", drafter="fused")
    assert draft.values[draft.inputs["hidden"]].shape == ("n_tokens", toy.WIDTH)


def test_numbers_stand_in_place_of_keys(load):
    block = Block(
        size="{arch}.block_size",
        mask_token=Key("tokenizer.mask", 7),
        causal=Key("{arch}.causal", False),
    )
    spec = replaced(
        name="block",
        shape="block",
        block=block,
        limit=100,
        feeds=(Feed(slot="hidden", taps=("layer_input:{arch}.layers",)),),
    )
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = load(
        tensors,
        heads=1,
        plugins=Registry.of(toy, plugin_with(spec)),
        **{"toy.block_size": 6, "toy.causal": True, "toy.layers": np.array([0, 1])},
    )
    found = model.find_drafter("block")
    assert (found.block.size, found.block.mask_token, found.block.causal) == (6, 7, True)
    assert found.feeds[0].taps == ("layer_input:0", "layer_input:1")
    assert found.limit == 5


def test_heads_are_counted_by_their_tensors(load, caplog):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors(), **toy.head_tensors(n=toy.N_LAYERS + 1)}
    spec = replaced(name="chained", heads=Heads(count="{arch}.n_heads_behind", order="each-step"))
    plugins = Registry.of(toy, plugin_with(spec))
    model = load(tensors, heads=2, plugins=plugins)
    found = model.find_drafter("chained")
    assert (found.heads.count, found.limit) == (2, 2)
    second = model.program("draft", drafter=found, head=1)
    assert f"blk.{toy.N_LAYERS + 1}.join.weight" in second.weights()
    assert warnings_of(caplog) == []


def test_a_drafter_in_a_file_of_its_own(load):
    class Own:
        rotary_axes, width, n_vocab, n_layers, n_drafter_blocks = 1, toy.WIDTH, toy.N_VOCAB, 0, 1
        target_width = toy.WIDTH

    spec = DrafterSpec(
        name="apart",
        fit=Fit(architectures=frozenset({"toy_apart"}), tensors=("blk.{n}.join.weight",)),
        build=toy.head,
        feeds=toy.HEAD.feeds,
        ties=toy.HEAD.ties,
        hparams=lambda fields, tensors: Own(),
        standalone=True,
    )
    plugins = Registry.of(toy, plugin_with(spec))
    tensors = {
        "token_embd.weight": toy.trunk_tensors()["token_embd.weight"],
        **toy.head_tensors(n=0),
    }
    model = load(tensors, architecture="toy_apart", plugins=plugins)
    assert (model.spec, model.file_layout) == (None, "mtp-only")
    assert model.program("draft").shape("logits") == ("n_outputs", toy.N_VOCAB)
    with pytest.raises(ModelFileError):
        model.program()


def test_the_most_promising_drafter_comes_first(load):
    better = replaced(name="better", acceptance=(0.8, 0.95))
    script = DrafterSpec(
        name="script",
        fit=Fit(),
        shape="proposer",
        proposer=lambda model: None,
        acceptance=(0.9, 1.0),
    )
    plugins = Registry.of(toy, plugin_with(script, better))
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, heads=1, plugins=plugins)
    assert [d.name for d in model.drafters] == ["better", "toy_head", "script"]
    assert model.find_drafter().name == "better"


# T30: tied weights


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("own", [(), ("embed",), ("head",), ("embed", "head")])
def test_T30_tied_weights_come_from_where_the_file_has_them(load, own, output):
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


def test_T30_a_weight_of_another_width_is_refused(load):
    narrow = np.ones((toy.N_VOCAB, toy.WIDTH // 2), np.float32)
    model = load({**toy.trunk_tensors(), **toy.head_tensors(head=narrow)}, heads=1)
    with pytest.raises(GraphError) as caught:
        model.program("draft")
    assert f"blk.{toy.N_LAYERS}.head.weight" in caught.value.where
    assert model.program().shape("logits") == ("n_outputs", toy.N_VOCAB)


def test_T30_another_type_is_kept_or_asked_for(load):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    types = {"output.weight": "Q8_0", "token_embd.weight": "F16"}
    retyped = replaced(
        name="retyped",
        ties=(toy.HEAD.ties[0], first_of("blk.{n}.head.weight", "output.weight", retype="Q4_0")),
    )
    model = load(tensors, heads=1, types=types, plugins=Registry.of(toy, plugin_with(retyped)))
    assert [use.type for use in model.tie_report("toy_head")] == ["F16", "Q8_0"]
    assert [use.type for use in model.tie_report("retyped")] == ["F16", "Q8_0 as Q4_0"]
    assert model.program("draft", drafter="retyped").weights()["output.weight"].retype == "Q4_0"


def test_T30_a_missing_tied_weight_is_reported(load):
    spec = replaced(name="lost", ties=(*toy.HEAD.ties, first_of("blk.{n}.gone.weight")))
    model = load(
        {**toy.trunk_tensors(), **toy.head_tensors()},
        heads=1,
        plugins=Registry.of(toy, plugin_with(spec)),
    )
    assert model.tie_report("lost")[-1].source == "missing"


def test_a_closed_model_says_so(load):
    model = load(toy.trunk_tensors())
    array = model.tensors["token_embd.weight"].array()
    model.close()
    assert array.shape == (toy.N_VOCAB, toy.WIDTH)
    with pytest.raises(ModelFileError, match="closed"):
        model.tensors["token_embd.weight"].raw()


def test_fields_of_the_toy(load):
    model = load(toy.trunk_tensors())
    assert Fields(dict(model.metadata), "toy").require("{arch}.block_count", int) == toy.N_LAYERS
