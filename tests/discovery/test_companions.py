"""Models in two files: which companion is found, and what is refused."""

import types

import msgspec
import numpy as np
import pytest
import toy

from mtpcore.discovery import companions
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError, MtpcoreError, PluginError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.plugin import Companion, hookimpl

WHOLE = toy.trunk_tensors()
KEPT = ("token_embd.weight", "output.weight")
REST = {
    "rest.norm": WHOLE["output_norm.weight"],
    "rest.0.mix": WHOLE["blk.0.mix.weight"],
    "rest.1.mix.top": WHOLE["blk.1.mix.weight"][:20],
    "rest.1.mix.end": WHOLE["blk.1.mix.weight"][20:].reshape(3, 4, -1),
    "rest.more": np.ones(3, np.float32),
}


def metadata(model, companion):
    if companion.metadata.get("rest.wrong"):
        raise ValueError("they quarrel")
    return {"{arch}.told": companion.metadata["rest.told"], "{arch}.block_count": 9}


COMPANION = Companion(
    file="rest-*.gguf",
    architecture="rest",
    tensors=(
        ("output_norm.weight", ("rest.norm",)),
        ("blk.1.mix.weight", ("rest.1.mix.top", "rest.1.mix.end")),
        ("blk.{n}.mix.weight", ("rest.{n}.mix",)),
    ),
    metadata=metadata,
)


def knowing(companion=COMPANION):
    module = types.ModuleType("in_two")
    unread = (("{arch}.told", "for this test"),)
    spec = msgspec.structs.replace(toy.TRUNK, companion=companion, unread=unread)
    module.mtpcore_models = hookimpl(lambda: [spec], specname="mtpcore_models")
    return Registry.of(module)


KNOWN = knowing()


@pytest.fixture
def path(tmp_path):
    return toy.write(tmp_path / "big-Q4_0.gguf", {name: WHOLE[name] for name in KEPT})


def write_rest(path, tensors=REST, architecture="rest", kinds="F32", **told):
    write_model_file(path, architecture, {"rest.told": 7, **told}, tensors, kinds)
    return path


def test_both_files_are_one_model(path, tmp_path):
    rest = write_rest(tmp_path / "rest-big-Q4_0.gguf")
    whole = load_model(toy.write(tmp_path / "whole.gguf", WHOLE), plugins=KNOWN)
    with load_model(path, plugins=KNOWN) as model:
        assert model.paths == (path, rest)
        assert [part.path for part in model.parts] == [path, rest]
        assert model.tensors.keys() == WHOLE.keys()
        for name, tensor in model.tensors.items():
            assert np.array_equal(tensor.array(), WHOLE[name])
        assert str(model.program()) == str(whole.program())
        assert model.metadata["toy.told"] == 7
        assert model.metadata["toy.block_count"] == toy.N_LAYERS  # the model's own key holds
    assert whole.parts == ()


@pytest.mark.parametrize(("part", "rows"), [("top", slice(20)), ("end", slice(20, None))])
def test_rows_of_several_types_are_joined_as_f32(path, tmp_path, part, rows):
    write_rest(tmp_path / "rest-big.gguf", kinds={f"rest.1.mix.{part}": "F16"})
    with load_model(path, plugins=KNOWN) as model:
        tensor = model.tensors["blk.1.mix.weight"]
        assert (tensor.type_name, tensor.shape) == ("F32", (32, 32))
        wanted = WHOLE["blk.1.mix.weight"].copy()
        wanted[rows] = wanted[rows].astype(np.float16)
        assert np.array_equal(tensor.array(), wanted)
        assert np.array_equal(tensor.rows(18, 23), wanted[18:23])


def test_rows_of_one_type_keep_their_blocks(path, tmp_path):
    kinds = {"rest.1.mix.top": "Q8_0", "rest.1.mix.end": "Q8_0"}
    rest = write_rest(tmp_path / "rest-big.gguf", kinds=kinds)
    with load_model(path, plugins=KNOWN) as model, open_model_file(rest) as file:
        tensor = model.tensors["blk.1.mix.weight"]
        parts = [file.tensors[name].raw().reshape(-1, 34) for name in kinds]
        assert np.array_equal(tensor.raw(), np.concatenate(parts))
        assert (tensor.type_name, tensor.n_bytes, tensor.offset) == ("Q8_0", 32 * 34, None)


def test_the_nearest_name_and_a_file_that_is_named(path, tmp_path):
    other = write_rest(tmp_path / "rest-other.gguf")
    near = write_rest(tmp_path / "rest-big-F16.gguf")
    assert load_model(path, plugins=KNOWN).paths == (path, near)
    assert load_model(path, plugins=KNOWN, sidecars=False).paths == (path, near)
    assert load_model(path, plugins=KNOWN, companion=other).paths == (path, other)


MISFITS = {
    "no such file": (None, "got no such file"),
    "architecture": ({"architecture": "toy", "toy.block_count": 1}, "wanted rest; got toy"),
    "tensor": ({"tensors": {"rest.more": REST["rest.more"]}}, "wanted rest.norm"),
    "part": (
        {"tensors": {k: v for k, v in REST.items() if k != "rest.1.mix.end"}},
        "blk.1.mix.weight",
    ),
    "shape": ({"tensors": {**REST, "rest.0.mix": np.ones((8, 32), np.float32)}}, "blk.0.mix"),
    "width": (
        {"tensors": {**REST, "rest.1.mix.end": np.ones((3, 4, 16), np.float32)}},
        "rest.1.mix.top, rest.1.mix.end: parts of a tensor that are not equally wide; "
        "got [20, 32], [3, 4, 16]",
    ),
    "vector": (
        {"tensors": {**REST, "rest.1.mix.end": np.ones(32, np.float32)}},
        "parts of a tensor that are not equally wide",
    ),
    "quarrel": ({"rest.wrong": True}, "the files do not belong together: they quarrel"),
}


@pytest.mark.parametrize(("changes", "why"), MISFITS.values(), ids=list(MISFITS))
def test_what_does_not_fit(path, tmp_path, changes, why):
    rest = tmp_path / "rest-big.gguf"
    if changes is not None:
        write_rest(rest, **changes)
    with pytest.raises(ModelFileError) as caught:
        load_model(path, plugins=KNOWN)
    said = str(caught.value)
    assert said.startswith(f"{path}: the rest of the model is in another file")
    assert "wanted rest-*.gguf with rest.norm" in said
    assert why in said
    with pytest.raises(MtpcoreError) as caught:
        load_model(path, plugins=KNOWN, companion=rest)
    assert changes is None or why in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 30, 200, -40])
def test_a_damaged_file_makes_room_for_the_next(path, tmp_path, keep):
    broken = write_rest(tmp_path / "rest-big-Q4_0.gguf")
    broken.write_bytes(broken.read_bytes()[:keep])
    good = write_rest(tmp_path / "rest-other.gguf")
    assert load_model(path, plugins=KNOWN).paths == (path, good)


def test_a_plugin_that_breaks_is_named(path, tmp_path):
    rest = write_rest(tmp_path / "rest-big.gguf")
    broken = msgspec.structs.replace(COMPANION, metadata=lambda *files: {}["told"])
    with pytest.raises(ModelFileError, match="KeyError"):
        load_model(path, plugins=knowing(broken))
    with pytest.raises(PluginError, match=r"companion of 'toy' of plugin .* raised KeyError"):
        load_model(path, plugins=knowing(broken), companion=rest)


def test_few_headers_are_read(path, monkeypatch):
    for i in range(20):
        path.with_name(f"rest-x{i:02}.gguf").write_bytes(b"GGUF, perhaps")
    opened = []

    def count(file):
        opened.append(file)
        return open_model_file(file)

    monkeypatch.setattr(companions, "open_model_file", count)
    with pytest.raises(ModelFileError, match="the rest of the model"):
        load_model(path, plugins=KNOWN)
    assert len(opened) == 8


def test_a_model_that_needs_none(path, tmp_path):
    whole = toy.write(tmp_path / "whole.gguf", WHOLE)
    rest = write_rest(tmp_path / "rest-whole.gguf")
    assert load_model(whole, plugins=KNOWN).paths == (whole,)
    for known in (KNOWN, knowing(None)):
        with pytest.raises(ModelFileError, match="the model needs no companion"):
            load_model(whole, plugins=known, companion=rest)


def test_what_no_companion_could_hold_is_missing_as_ever(tmp_path):
    path = toy.write(tmp_path / "big.gguf", {"output.weight": WHOLE["output.weight"]})
    write_rest(tmp_path / "rest-big.gguf")
    with pytest.raises(ModelFileError, match="tensors of the architecture 'toy' are missing"):
        load_model(path, plugins=KNOWN)


@pytest.mark.parametrize("file", ["*", "rest.gguf", "*-*.gguf", "../rest-*.gguf", "*.gguf"])
def test_a_pattern_that_would_match_every_file_is_refused(file):
    with pytest.raises(PluginError, match=r"companion\.file"):
        knowing(msgspec.structs.replace(COMPANION, file=file))


def test_fields_of_a_companion_are_checked():
    with pytest.raises(PluginError, match=r"companion"):
        knowing(msgspec.structs.replace(COMPANION, tensors=(("a", "b"),)))
