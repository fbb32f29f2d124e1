"""Files with heads, without, with heads alone, and drafters that break."""

import functools
import logging
import types

import msgspec
import numpy as np
import pytest
import toy

import mtpcore.models
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError, PluginError
from mtpcore.gguf import write_model_file
from mtpcore.graph import GraphType
from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, Key, hookimpl


@pytest.fixture
def load(tmp_path):
    """Write a toy file and load it."""
    return functools.partial(toy.load, tmp_path)


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
        assert not model.has_tokenizer
        with pytest.raises(ModelFileError, match=r"no tokenizer that is supported.*got none"):
            _ = model.tokenizer
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


def test_heads_alone_lack_the_blocks_that_a_trunk_is_known_by(tmp_path):
    tensors = {
        "token_embd.weight": np.zeros((8, 32), np.float32),
        "output_norm.weight": np.ones(32, np.float32),
        "blk.2.nextn.eh_proj.weight": np.zeros((32, 64), np.float32),
    }
    metadata = {
        "qwen3.block_count": 3,
        "qwen3.nextn_predict_layers": 1,
        "qwen3.context_length": 64,
        "qwen3.embedding_length": 32,
        "qwen3.feed_forward_length": 32,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-5,
    }

    def load(tensors):
        write_model_file(tmp_path / "qwen3.gguf", "qwen3", metadata, tensors)
        return load_model(tmp_path / "qwen3.gguf", plugins=Registry.of(mtpcore.models))

    with load(tensors) as heads:
        assert heads.file_layout == "mtp-only"
    trunk = {**tensors, "blk.0.attn_q.weight": np.zeros((32, 32), np.float32)}
    with pytest.raises(ModelFileError, match="are missing") as caught:
        load(trunk)
    assert caught.value.wanted == "blk.0.attn_q_norm.weight, blk.0.attn_k_norm.weight"


def test_tensors_that_a_trunk_must_not_have_are_refused(tmp_path):
    spec = msgspec.structs.replace(
        toy.TRUNK, fit=Fit(architectures=frozenset({"toy"}), absent=("sinks",))
    )
    other = types.ModuleType("other")
    other.mtpcore_models = hookimpl(lambda: [spec], specname="mtpcore_models")
    tensors = {**toy.trunk_tensors(), "sinks": np.zeros(4, np.float32)}
    path = toy.write(tmp_path / "toy.gguf", tensors)
    with pytest.raises(ModelFileError, match="does not have") as caught:
        load_model(path, plugins=Registry.of(other))
    assert caught.value.got == "sinks"


def test_model_without_head(load, caplog):
    model = load(toy.trunk_tensors())
    assert (model.file_layout, model.drafters) == ("trunk-only", ())
    assert warnings_of(caplog) == []
    with pytest.raises(PluginError) as caught:
        model.find_drafter()
    assert str(model.path) in caught.value.where
    assert "mtp_path=" in caught.value.fix


def test_a_model_without_drafter_names_plugins_that_had_no_say(tmp_path):
    path = toy.write(tmp_path / "toy.gguf", toy.trunk_tensors())
    known = Registry.of(toy)
    for registry, said in (
        (known, ""),
        (msgspec.structs.replace(known, left_out=("far",)), "; left out: far (MTPCORE_PLUGINS)"),
    ):
        with load_model(path, plugins=registry) as model, pytest.raises(PluginError) as caught:
            model.find_drafter()
        assert caught.value.fix.endswith("lookup, which every model has" + said)


def test_flag_without_tensors(load, caplog):
    model = load(toy.trunk_tensors(), heads=1)
    assert (model.file_layout, model.drafters) == ("trunk-only", ())
    assert model.hparams.n_layers == toy.N_LAYERS
    (warning,) = warnings_of(caplog)
    assert "toy.n_heads_after" in warning
    assert "says 1" in warning


def test_tensors_without_flag(load, caplog):
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


def test_mtp_path_of_a_file_without_a_head_is_refused(load, tmp_path):
    guess = DrafterSpec(name="guess", fit=Fit(), shape="proposer", proposer=lambda model: None)
    bare = toy.write(tmp_path / "bare.gguf", toy.trunk_tensors(1))
    with pytest.raises(ModelFileError, match="holds no head") as caught:
        load(toy.trunk_tensors(), guess, mtp_path=bare)
    assert caught.value.where == str(bare)


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


def test_an_unknown_packaged_model_names_the_known_ones():
    with pytest.raises(ModelFileError) as caught:
        mtpcore.load_model("demo:nobody")
    assert "demo" in caught.value.wanted.split(", ")
    assert caught.value.got == "demo:nobody"


# Drafters that break


def test_a_broken_drafter_does_not_stop_the_trunk(load, caplog):
    def raise_key_error(fields, tensors):
        raise KeyError("nothing here")

    for broken in (
        toy.replaced(name="raising", hparams=raise_key_error),
        toy.replaced(
            name="keyless",
            heads=Heads(count="{arch}.no_such_key"),
            fit=Fit(tensors=("output_norm.weight",)),
        ),
    ):
        caplog.clear()
        model = load({**toy.trunk_tensors(), **toy.head_tensors()}, broken, heads=1)
        assert [d.name for d in model.drafters] == ["toy_head"]
        (warning,) = warnings_of(caplog)
        assert repr(broken.name) in warning
        assert "'other'" in warning


def test_numbers_stand_in_place_of_keys(load):
    spec = toy.replaced(
        name="keyed",
        fit=Fit(tensors=("output_norm.weight",)),
        heads=Heads(count=Key("{arch}.n_keyed", 3), order="each-step"),
        feeds=(Feed(slot="hidden", taps=("layer_input:{arch}.layers",)),),
    )
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    for keys, count in (({}, 3), ({"toy.n_keyed": 5}, 5)):
        model = load(tensors, spec, heads=1, **keys, **{"toy.layers": np.array([0, 1])})
        found = model.find_drafter("keyed")
        assert (found.heads.count, found.limit) == (count, count)
        assert found.feeds[0].taps == ("layer_input:0", "layer_input:1")


@pytest.mark.parametrize("count", [0, -3, 1 << 40])
def test_a_number_of_heads_that_is_none_leaves_the_drafter_out(load, caplog, count):
    fit = Fit(tensors=("output_norm.weight",))
    spec = toy.replaced(name="keyed", fit=fit, heads=Heads(count="{arch}.n_keyed"))
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = load(tensors, spec, heads=1, **{"toy.n_keyed": count})
    assert [drafter.name for drafter in model.drafters] == ["toy_head"]
    (said,) = warnings_of(caplog)
    assert "n_keyed" in said


def test_heads_are_counted_by_their_tensors(load, caplog):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors(), **toy.head_tensors(n=toy.N_LAYERS + 1)}
    spec = toy.replaced(
        name="chained", heads=Heads(count="{arch}.n_heads_after", order="each-step")
    )
    model = load(tensors, spec, heads=2)
    found = model.find_drafter("chained")
    assert (found.heads.count, found.limit) == (2, 2)
    second = model.program("draft", drafter=found, head=1)
    assert f"blk.{toy.N_LAYERS + 1}.join.weight" in second.weights()
    assert warnings_of(caplog) == []


def test_a_head_after_a_gap_is_left_out_with_a_warning(load, caplog):
    tensors = {**toy.trunk_tensors(), **toy.head_tensors(), **toy.head_tensors(n=toy.N_LAYERS + 2)}
    assert load(tensors, heads=1).find_drafter().heads.count == 1
    (said,) = warnings_of(caplog)
    assert f"block {toy.N_LAYERS + 2} is a head of toy_head" in said
    assert f"block {toy.N_LAYERS + 1} before it is none" in said


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
    tensors = {
        "token_embd.weight": toy.trunk_tensors()["token_embd.weight"],
        **toy.head_tensors(n=0),
    }
    model = load(tensors, spec, architecture="toy_apart")
    assert (model.spec, model.file_layout) == (None, "mtp-only")
    assert model.program("draft").shape("logits") == ("n_outputs", toy.N_VOCAB)
    with pytest.raises(ModelFileError):
        model.program()


def test_the_most_promising_drafter_comes_first(load):
    better = toy.replaced(name="better", acceptance=(0.8, 0.95))
    script = DrafterSpec(
        name="script",
        fit=Fit(),
        shape="proposer",
        proposer=lambda model: None,
        acceptance=(0.9, 1.0),
    )
    model = load({**toy.trunk_tensors(), **toy.head_tensors()}, script, better, heads=1)
    assert [d.name for d in model.drafters] == ["better", "toy_head", "script"]
    assert model.find_drafter().name == "better"


def test_a_variant_is_taken_only_by_name(load):
    head = toy.replaced(name="head", acceptance=(0.0, 0.1))
    variant = toy.replaced(name="better", acceptance=(0.8, 0.95), variant_of="head")
    script = DrafterSpec(
        name="script",
        fit=Fit(),
        shape="proposer",
        proposer=lambda model: None,
        acceptance=(0.0, 0.0),
    )
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = load(tensors, head, variant, script, heads=1)
    assert [d.name for d in model.drafters] == ["toy_head", "head", "script", "better"]
    assert model.find_drafter("better").name == "better"
    head = toy.replaced(name="head", fit=Fit(tensors=("nowhere.{n}.weight",)))
    variant = msgspec.structs.replace(script, variant_of="head")
    alone = load(toy.trunk_tensors(), head, variant)
    assert [d.name for d in alone.drafters] == ["script"]
    with pytest.raises(PluginError, match="no drafter"):
        alone.find_drafter()
