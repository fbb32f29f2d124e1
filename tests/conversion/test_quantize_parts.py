"""A model file taken apart by ``quantize --mtp``: as ``convert`` does it, and whole together."""

import pytest
from harness.fixtures import checkpoint, model_file, references, target_checkpoint

import mtpcore
from mtpcore.conversion import convert, quantize
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file

NAMES = ("glm-11", "ds-12", "mimo-14", "mimo2-15")
PER_BLOCK = ("attention.head_count_kv", "attention.sliding_window_pattern")


def contents(path):
    """Return tensors and what the metadata says, but for the label that counts parameters."""
    with open_model_file(path) as file:
        tensors = {n: (t.type_name, t.raw().tobytes()) for n, t in file.tensors.items()}
        said = {key: getattr(v, "tolist", lambda v=v: v)() for key, v in file.metadata.items()}
        said.pop("general.size_label", None)
        return tensors, said


@pytest.fixture(scope="module", params=NAMES)
def parts(request, tmp_path_factory):
    """Name, and folder with the parts of a converted file."""
    folder = tmp_path_factory.mktemp(request.param)
    for mtp in ("drop", "only"):
        quantize(model_file(request.param), folder / f"{mtp}.gguf", outtype="f16", mtp=mtp)
    return request.param, folder


@pytest.mark.parametrize("mtp", ["drop", "only"])
def test_the_same_as_from_the_checkpoint(parts, mtp, tmp_path):
    name, folder = parts
    convert(checkpoint(name), tmp_path / "model.gguf", mtp=mtp)
    tensors, said = contents(folder / f"{mtp}.gguf")
    wanted_tensors, wanted = contents(tmp_path / "model.gguf")
    assert said == wanted
    assert tensors == wanted_tensors
    with mtpcore.load_model(folder / f"{mtp}.gguf") as model:
        assert model.file_layout == {"drop": "trunk-only", "only": "mtp-only"}[mtp]


def test_the_parts_together_are_the_whole(parts):
    """The same text by the same drafts, of every head."""
    name, folder = parts
    prompt, made = references(name)["prompts"][0], []
    for path, head in ((model_file(name), None), (folder / "drop.gguf", folder / "only.gguf")):
        with mtpcore.load_model(path, mtp_path=head) as model:
            cross = mtpcore.link(mtpcore.Context(model, 128, kv_dtype="f32"))
            generator = mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=3)
            tokens = list(generator.generate(prompt, max_tokens=24, ignore_eos=True))
            made.append((tokens, generator.stats.drafted, generator.stats.accepted_per_position))
    assert made[0] == made[1]
    assert made[0][1] > 0


def test_what_is_left_out_is_said(tmp_path):
    with open_model_file(model_file("mimo2-15")) as file:
        in_heads = {name for name in file.tensors if name.startswith(("blk.4", "blk.5", "blk.6"))}
        in_trunk = {name for name in file.tensors if name.startswith("blk.")} - in_heads
    assert len(in_heads) > 30
    for mtp, wanted in (("keep", set()), ("drop", in_heads), ("only", in_trunk)):
        said = quantize(model_file("mimo2-15"), tmp_path / "m.gguf", outtype="f16", mtp=mtp)
        assert said == dict.fromkeys(said, f"--mtp {mtp}")
        assert said.keys() == wanted


def test_types_go_with_the_parts(tmp_path):
    quantize(model_file("glm-11"), tmp_path / "head.gguf", outtype="q8_0", mtp="only")
    with open_model_file(tmp_path / "head.gguf") as file:
        kinds = {name: tensor.type_name for name, tensor in file.tensors.items()}
    assert kinds["blk.4.attn_q.weight"] == "Q8_0"
    assert kinds["output.weight"] == kinds["token_embd.weight"] == "Q8_0"


def test_a_part_of_a_part(parts, tmp_path):
    """A file that holds the wanted part alone is that part; the other one is not there."""
    _, folder = parts
    for mtp, other in (("drop", "only"), ("only", "drop")):
        path = tmp_path / f"{mtp}.gguf"
        quantize(folder / f"{mtp}.gguf", path, outtype="f16", mtp=mtp)
        assert contents(path) == contents(folder / f"{mtp}.gguf")
        with pytest.raises(ModelFileError, match=f"no {'heads' if mtp == 'drop' else 'trunk'}"):
            quantize(folder / f"{mtp}.gguf", tmp_path / "x.gguf", outtype="f16", mtp=other)
        assert not (tmp_path / "x.gguf").exists()


def test_a_key_that_counts_heads_which_are_not_there_goes(tmp_path):
    """Some converters leave out the heads' tensors alone."""
    with open_model_file(model_file("glm-11")) as file:
        kept = {n: t for n, t in file.tensors.items() if not n.startswith("blk.4.")}
        raw, kinds = {n: t.raw() for n, t in kept.items()}, {n: t.type for n, t in kept.items()}
        write_model_file(tmp_path / "odd.gguf", file.architecture, file.metadata, raw, kinds)
    quantize(tmp_path / "odd.gguf", tmp_path / "model.gguf", outtype="f16", mtp="drop")
    _, said = contents(tmp_path / "model.gguf")
    assert said["glm4moe.block_count"] == 4
    assert "glm4moe.nextn_predict_layers" not in said


@pytest.mark.parametrize("mtp", ["drop", "only"])
def test_a_drafter_alone_cannot_be_taken_apart(mtp, tmp_path):
    target, _ = target_checkpoint("eagle3-13")
    head = checkpoint("eagle3-13")
    with pytest.raises(ModelFileError, match="a drafter alone") as error:
        convert(head, tmp_path / "a.gguf", target=target, mtp=mtp)
    assert mtp in error.value.fix
    convert(head, tmp_path / "head.gguf", target=target)
    with pytest.raises(ModelFileError, match="a drafter alone") as error:
        quantize(tmp_path / "head.gguf", tmp_path / "a.gguf", outtype="f16", mtp=mtp)
    assert error.value.where == str(tmp_path / "head.gguf")
    assert not (tmp_path / "a.gguf").exists()
