"""An EAGLE-3 head's checkpoint as a model file: types, tokenizer, what is refused."""

import json

import pytest
import tokenizers
from harness import fixtures
from harness.published import tokenizer

from mtpcore.conversion import convert, quantize
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, read_tokenizer

HEAD = fixtures.checkpoint("eagle3-13")
TARGET, _ = fixtures.target_checkpoint("eagle3-13")
MATRICES = ("blk.0.attn_q.weight", "blk.0.ffn_down.weight")
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The head in F32."""
    path = tmp_path_factory.mktemp("eagle3") / "head.gguf"
    convert(HEAD, path, outtype="f32", target=TARGET)
    return path


@pytest.mark.parametrize("way", ["convert", "quantize"])
@pytest.mark.parametrize(
    ("outtype", "mtp_type", "kind", "joining", "output"),
    [
        ("f32", None, "F32", "F32", "F32"),
        ("q8_0", None, "Q8_0", "Q8_0", "Q8_0"),
        ("q4_0", None, "Q8_0", "Q8_0", "Q8_0"),
        ("q4_0", "q4_0", "Q4_0", "Q8_0", "Q6_K"),
        ("f16", "q8_0", "Q8_0", "Q8_0", "Q8_0"),
    ],
)
def test_every_matrix_is_the_head_s(plain, tmp_path, way, outtype, mtp_type, kind, joining, output):
    """``fc`` has a smallest type, and the output matrix more bits, as in a file of a trunk."""
    path, types = tmp_path / "model.gguf", {"outtype": outtype, "mtp_type": mtp_type}
    if way == "convert":
        convert(HEAD, path, target=TARGET, **types)
    else:
        quantize(plain, path, **types)
    with open_model_file(path) as file:
        kinds = {name: tensor.type_name for name, tensor in file.tensors.items()}
        assert file.metadata["general.file_type"] == FILE_TYPES[kind]
    assert [kinds[name] for name in MATRICES] == [kind] * 2
    assert [kinds[name] for name in ("fc.weight", "output.weight")] == [joining, output]
    assert kinds["output_norm.weight"] == "F32"
    assert kinds["d2t"] == "I64"


@pytest.fixture
def folder(tmp_path):
    """The head's checkpoint, with a tokenizer of its own beside it."""
    made = tmp_path / "hf"
    made.mkdir()
    for name in ("config.json", "model.safetensors"):
        (made / name).symlink_to(HEAD / name)
    (made / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return made


def test_the_tokenizer_is_the_target_s(folder, tmp_path):
    convert(folder, tmp_path / "head.gguf", target=TARGET)
    theirs = tokenizers.Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    with open_model_file(tmp_path / "head.gguf") as file:
        mine = read_tokenizer(file.metadata)
    assert [mine.vocabulary.tokens[i] for i in range(2048)] == [
        theirs.id_to_token(i) for i in range(2048)
    ]
    assert (mine.bos, mine.eos) == (0, 1)
    text = "def read(path: str) -> None:\n    return 12345\n"
    assert mine.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids


def test_without_a_target(folder, tmp_path):
    """Its own tokenizer would not do: the target's ids are what it drafts."""
    with pytest.raises(ModelFileError, match="its target's tokenizer") as error:
        convert(folder, tmp_path / "head.gguf")
    assert error.value.where == str(folder)
    assert "--target" in error.value.fix
    assert not (tmp_path / "head.gguf").exists()
