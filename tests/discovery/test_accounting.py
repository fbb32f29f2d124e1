"""Every tensor of a file is read by a graph, known to be needless or refused by name; keys, too."""

import functools
import logging
import types

import msgspec
import numpy as np
import pytest
import toy
from harness.every_trunk import FAMILIES, write_trunk

from mtpcore import Context, link
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import is_needless, open_model_file, write_model_file
from mtpcore.plugin import hookimpl


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A family's model file: architecture, metadata and tensors as a writer takes them."""
    folder = tmp_path_factory.mktemp(request.param)
    with open_model_file(write_trunk(folder, request.param)) as file:
        tensors = {name: tensor.array() for name, tensor in file.tensors.items()}
        return folder, file.architecture, dict(file.metadata), tensors


def changed(family, tensors=None, **keys):
    """Write a family's file with further tensors and keys of its architecture."""
    folder, architecture, metadata, held = family
    path = folder / f"{architecture}-changed.gguf"
    keys = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    write_model_file(path, architecture, metadata | keys, held | (tensors or {}))
    return path


FURTHER = np.ones(8, np.float32)


@pytest.mark.parametrize("name", ["strange.weight", "blk.0.attn_q.strange", "blk.0.fn_norm.weight"])
def test_a_tensor_that_nothing_reads_is_named(family, name):
    with pytest.raises(ModelFileError, match="no graph reads") as raised:
        load_model(changed(family, {name: FURTHER}), sidecars=False)
    assert raised.value.got == name
    assert all(word in raised.value.fix for word in ("build", "unread"))


DECLARED = {
    "deepseek2": "blk.0.attn_kv_b.weight",
    "qwen3": "cls.output.weight",
    "t5": "dec.blk.0.cross_attn_rel_b.weight",
}


def test_what_families_declare(family):
    if family[1] in DECLARED:
        load_model(changed(family, {DECLARED[family[1]]: FURTHER}), sidecars=False).close()


def test_an_encoder_of_images_is_needless(family):
    names = (
        "v.blk.0.attn_q.weight",
        "mm.input_projection.weight",
        "a.conv1d.0.weight",
        "blk.0.q.input_scale",
    )
    load_model(changed(family, dict.fromkeys(names, FURTHER), vision__block_count=1)).close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attn_logit_softcapping", 20.0),
        ("residual_scale", 0.25),
        ("embedding_scale", 12.0),
        ("attention.clamp_kqv", 5.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.indexer.head_count", 4),
        ("swiglu_clamp_exp", [7.0, 7.0]),
        ("use_parallel_residual", True),
        ("strange", 1),
    ],
)
def test_a_key_that_changes_numbers_is_named(family, name, value):
    with pytest.raises(ModelFileError, match="nothing reads") as raised:
        load_model(changed(family, **{name: value}), sidecars=False)
    assert raised.value.got.startswith(f"{family[1]}.{name} = ")


def test_keys_at_values_that_ask_for_nothing(family):
    """As llama.cpp saves every key that it knows, and Ollama writes some of its own."""
    saved = {
        "attn_logit_softcapping": 50.0,
        "residual_scale": 0.0,
        "logit_scale": 0.0,
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "attention.indexer.head_count": 0,
        "attention.indexer.kpool_select_tail": True,
        "attention.rope_pattern": 1,
        "expert_group_scale": 0.05,
        "deepstack_mapping": [-1] * 8,
        "pooling_type": 4294967295,
        "swiglu_clamp_exp": [0.0, 0.0],
        "token_shift_count": 2,
        "image_token_id": 7,
        "vision.patch_size": 14,
    }
    load_model(changed(family, **saved), sidecars=False).close()


@pytest.mark.parametrize(
    ("name", "others", "needless"),
    [
        ("expert_used_count", {"expert_count": 0}, True),
        ("expert_used_count", {"expert_count": 8}, False),
        ("rope.freq_base_swa", {}, True),
        ("rope.freq_base_swa", {"attention.sliding_window": 64, "rope.freq_base": 7}, True),
        ("rope.freq_base_swa", {"attention.sliding_window": 64, "rope.freq_base": 8}, False),
        ("rope.scaling.yarn_beta_fast", {"rope.scaling.type": "linear"}, True),
        ("rope.scaling.yarn_beta_fast", {"rope.scaling.type": "yarn"}, False),
        ("attention.sliding_window", {}, False),
        ("feed_forward_length", {}, True),
    ],
)
def test_a_part_of_what_is_not_there(name, others, needless):
    metadata = {f"toy.{key}": value for key, value in {**others, name: 7}.items()}
    assert is_needless(name, "toy", metadata) == needless


def test_a_drafter_s_file_is_accounted_for_when_it_is_linked(tmp_path):
    """Keys when it is loaded; tensors when its graphs can be built."""
    with open_model_file(find_model("demo:eagle3-draft")) as file:
        integers = {"d2t": np.int64}
        tensors = {k: t.array(integers.get(k, np.float32)) for k, t in file.tensors.items()}
        held = tmp_path, file.architecture, file.metadata, tensors
    with pytest.raises(ModelFileError, match="nothing reads"):
        load_model(changed(held, strange=1))
    target = load_model("demo:eagle3")
    draft_model = load_model(changed(held, {"blk.0.strange": FURTHER}))
    with pytest.raises(ModelFileError, match="no graph reads") as raised:
        link(Context(target, n_ctx=64), draft_model=draft_model)
    assert raised.value.got == "blk.0.strange"
    assert draft_model.target is None
    link(Context(target, n_ctx=64), draft_model=load_model(changed(held)))


# Declarations


def plugin(spec=toy.TRUNK, *drafters):
    return Registry.of(
        types.SimpleNamespace(
            __name__="toys",
            mtpcore_models=hookimpl(lambda: [spec], specname="mtpcore_models"),
            mtpcore_drafters=hookimpl(lambda: [*drafters], specname="mtpcore_drafters"),
        )
    )


@pytest.fixture
def load(tmp_path):
    return functools.partial(toy.load, tmp_path)


UNREAD = (("odd.*", "for another program"), ("{arch}.note.*", "for people"))


def test_declared_as_unread(tmp_path):
    tensors = {**toy.trunk_tensors(), "odd.1.weight": FURTHER}
    write_model_file(
        tmp_path / "m.gguf", "toy", {"toy.block_count": toy.N_LAYERS, "toy.note.a": 1}, tensors
    )
    with pytest.raises(ModelFileError, match="nothing reads"):
        load_model(tmp_path / "m.gguf", plugins=plugin())
    said = msgspec.structs.replace(toy.TRUNK, unread=UNREAD)
    load_model(tmp_path / "m.gguf", plugins=plugin(said)).close()
    write_model_file(
        tmp_path / "m.gguf", "toy", {"toy.block_count": toy.N_LAYERS}, tensors | {"odder": FURTHER}
    )
    with pytest.raises(ModelFileError, match="no graph reads") as raised:
        load_model(tmp_path / "m.gguf", plugins=plugin(said))
    assert raised.value.got == "odder"


def test_a_head_s_tensors(load, tmp_path, caplog):
    """One that it does not read is refused; blocks that nobody reads are left out."""
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    block = f"blk.{toy.N_LAYERS}."
    with pytest.raises(ModelFileError) as raised:
        load({**tensors, block + "join.bias": FURTHER}, heads=1)
    assert raised.value.got == block + "join.bias"
    with caplog.at_level(logging.WARNING):
        load_model(toy.write(tmp_path / "m.gguf", tensors, heads=1), plugins=plugin()).close()
    assert f"block {toy.N_LAYERS} is left out: no graph reads it" in caplog.text


def test_heads_that_are_not_loaded_account_for_their_part(tmp_path):
    """A tensor that only a head names, outside of its blocks, is the head's with mtp=False, too."""

    def build(g, inputs, h):
        made = toy.head(g, inputs, h)
        return msgspec.structs.replace(made) if not g.has("own.weight") else own(g, inputs, h)

    def own(g, inputs, h):
        g.matmul(inputs["hidden"], "own.weight")
        return toy.head(g, inputs, h)

    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    tensors["own.weight"] = np.zeros((toy.WIDTH, toy.WIDTH), np.float32)
    metadata = {"toy.block_count": toy.N_LAYERS + 1, "toy.n_heads_after": 1}
    write_model_file(tmp_path / "m.gguf", "toy", metadata, tensors)
    known = plugin(toy.TRUNK, toy.replaced(build=build))
    for mtp in (True, False):
        load_model(tmp_path / "m.gguf", plugins=known, mtp=mtp).close()
    with pytest.raises(ModelFileError, match="no graph reads"):
        load_model(tmp_path / "m.gguf", plugins=plugin(toy.TRUNK, toy.HEAD), mtp=False)
