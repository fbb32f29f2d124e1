"""Heads kept, alone or dropped: the file layouts, and the types that heads are kept in."""

import logging
from typing import NamedTuple

import numpy as np
import pytest
from harness.fixtures import checkpoint, references
from harness.published import save_tensors

import mtpcore
from mtpcore.conversion import convert
from mtpcore.conversion.published import read_tensors
from mtpcore.gguf import open_model_file

HEAD = "blk.4."


class Family(NamedTuple):
    """A reference model of four layers and a head after them.

    ``attends`` is a layer with attention and experts, ``exact`` are tensors that it and the head
    keep in float32, ``in_head`` is what begins the names of the head in the checkpoint.
    """

    name: str
    architecture: str
    attends: int
    exact: tuple[str, ...]
    in_head: str


GLM = Family(
    *("glm-11", "glm4moe", 1),
    ("ffn_gate_inp.weight", "exp_probs_b.bias", "attn_norm.weight", "attn_q.bias"),
    "model.layers.4.",
)
QWEN = Family(
    *("qwen35moe-17", "qwen35moe", 3),
    ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "attn_norm.weight", "attn_q_norm.weight"),
    "mtp.",
)


@pytest.fixture(scope="module", params=[GLM, QWEN], ids=lambda one: one.name)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def files(family, tmp_path_factory):
    """A model with its head, without it, and the head alone."""
    folder = tmp_path_factory.mktemp(family.name)
    for mtp in ("keep", "drop", "only"):
        convert(checkpoint(family.name), folder / f"{mtp}.gguf", mtp=mtp)
    return folder


def metadata(path):
    with open_model_file(path) as file:
        return dict(file.metadata)


def names(path):
    with open_model_file(path) as file:
        return set(file.tensors)


def test_layouts(files):
    layouts = {"keep": "combined", "drop": "trunk-only", "only": "mtp-only"}
    for mtp, layout in layouts.items():
        with mtpcore.load_model(files / f"{mtp}.gguf") as model:
            assert model.file_layout == layout


def test_each_part_holds_its_tensors(files):
    whole = names(files / "keep.gguf")
    tables = {"token_embd.weight", "output_norm.weight", "output.weight"}
    head = {name for name in whole if name.startswith(HEAD)}
    assert len(head) >= 20
    assert names(files / "drop.gguf") == whole - head
    assert names(files / "only.gguf") == head | tables


def test_metadata_counts_what_is_there(files, family):
    arch = family.architecture
    whole, trunk, head = (metadata(files / f"{m}.gguf") for m in ("keep", "drop", "only"))
    assert (whole[f"{arch}.block_count"], trunk[f"{arch}.block_count"]) == (5, 4)
    assert f"{arch}.nextn_predict_layers" not in trunk
    assert head[f"{arch}.nextn_predict_layers"] == whole[f"{arch}.nextn_predict_layers"] == 1
    assert head[f"{arch}.block_count"] == 5
    if family is QWEN:
        kinds = [one[f"{arch}.attention.recurrent_layers"] for one in (whole, trunk, head)]
        recurrent = [True, True, True, False, False]
        assert [list(found) for found in kinds] == [recurrent, recurrent[:4], recurrent]


def test_the_parts_together_are_the_whole(files, family):
    prompt = references(family.name)["prompts"][0]
    made = []
    for path, mtp_path in (("keep", None), ("drop", files / "only.gguf")):
        with mtpcore.load_model(files / f"{path}.gguf", mtp_path=mtp_path) as model:
            cross = mtpcore.link(mtpcore.Context(model, 128, kv_dtype="f32"))
            generator = mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=3)
            tokens = list(generator.generate(prompt, max_tokens=32))
            made.append((tokens, generator.stats.accepted))
    assert made[0] == made[1]
    assert made[0][1] > 0


@pytest.mark.parametrize(
    ("outtype", "mtp_type", "trunk", "head"),
    [
        ("f32", None, "F32", "F32"),
        ("f16", None, "F16", "F16"),
        ("bf16", None, "BF16", "BF16"),
        ("q8_0", None, "Q8_0", "Q8_0"),
        ("q4_0", None, "Q4_0", "Q8_0"),
        ("q8_0", "q4_0", "Q8_0", "Q4_0"),
        ("f16", "f32", "F16", "F32"),
    ],
)
def test_types(family, tmp_path, outtype, mtp_type, trunk, head):
    path, n = tmp_path / "model.gguf", family.attends
    convert(checkpoint(family.name), path, outtype=outtype, mtp_type=mtp_type)
    with open_model_file(path) as file:
        kinds = {name: tensor.type_name for name, tensor in file.tensors.items()}
    assert kinds[f"blk.{n}.attn_q.weight"] == kinds[f"blk.{n}.ffn_up_exps.weight"] == trunk
    assert kinds[HEAD + "attn_q.weight"] == kinds[HEAD + "nextn.eh_proj.weight"] == head
    assert kinds["output.weight"] == ("Q8_0" if outtype == "q4_0" else trunk)
    for block in (n, 4):
        for name in family.exact:
            assert kinds[f"blk.{block}.{name}"] == "F32"


def test_what_is_left_out_is_said(family, tmp_path):
    left_out = convert(checkpoint(family.name), tmp_path / "model.gguf", mtp="drop")
    assert set(left_out.values()) == {"--mtp drop"}
    assert {"model.layers.4.eh_proj.weight", "mtp.fc.weight"} & left_out.keys()
    assert all(name.startswith(family.in_head) for name in left_out)
    assert convert(checkpoint(family.name), tmp_path / "model.gguf") == {}


@pytest.fixture
def copied(tmp_path):
    """A folder with all of the checkpoint but its tensors, and these."""
    source, folder = checkpoint("glm-11"), tmp_path / "hf"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder, {name: t.rows() for name, t in read_tensors(source).items()}


@pytest.mark.parametrize("mtp", ["keep", "drop"])
def test_heads_that_the_configuration_counts_and_nobody_finds(mtp, copied, tmp_path, caplog):
    """A fine-tuned checkpoint often comes without them."""
    folder, tensors = copied
    trunk = {n: values for n, values in tensors.items() if not n.startswith("model.layers.4.")}
    save_tensors(folder / "model.safetensors", trunk)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(folder, tmp_path / "model.gguf", mtp=mtp)
    said = [record.getMessage() for record in caplog.records]
    wanted = f"{folder}: the configuration counts 1 heads, the tensors are of 0"
    assert [line[: len(wanted)] for line in said] == ([wanted] if mtp == "keep" else [])
    with mtpcore.load_model(tmp_path / "model.gguf") as model:
        assert model.file_layout == "trunk-only"
        assert model.hparams.n_layers == 4


def test_tables_that_are_copies_are_left_out(tmp_path, copied):
    """As DeepSeek and GLM publish them: the head's own tables equal the trunk's."""
    folder, tensors = copied
    tensors["model.layers.4.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    other = tensors["lm_head.weight"] * np.float32(2)
    tensors["model.layers.4.shared_head.head.weight"] = other
    save_tensors(folder / "model.safetensors", tensors)
    left_out = convert(folder, tmp_path / "model.gguf")
    copy = "a copy of model.embed_tokens.weight"
    assert left_out == {"model.layers.4.embed_tokens.weight": copy}
    with open_model_file(tmp_path / "model.gguf") as file:
        assert HEAD + "nextn.embed_tokens.weight" not in file.tensors
        found = file.tensors[HEAD + "nextn.shared_head_head.weight"].array()
        np.testing.assert_array_equal(found, other)
    with mtpcore.load_model(tmp_path / "model.gguf") as model:
        uses = {use.wanted: use.source for use in model.tie_report()}
    assert uses[HEAD + "nextn.embed_tokens.weight"] == "borrowed"
    assert uses[HEAD + "nextn.shared_head_head.weight"] == "own"
