"""What the companion carries for llama.cpp alone, against what its own converter writes."""

import json

import numpy as np
import pytest
from harness import qwen_tts, qwen_tts_sound
from harness.fixtures import DATA
from harness.published import save_tensors, tokenizer, write_checkpoint

from mtpcore import ModelFileError, load_model
from mtpcore.cli import main
from mtpcore.conversion import convert, quantize
from mtpcore.gguf import open_model_file
from mtpcore.gguf.axes import fit_axes

N = qwen_tts_sound.N_CODEBOOKS
PEER = json.loads((DATA / "qwen_tts" / "peer.json").read_text())
for _file in PEER.values():  # axes of 1 at the front are left out by llama.cpp itself, and here
    for _said in _file["tensors"].values():
        _said[1] = [*fit_axes(_said[1], 1)]

NOTE = (
    "without an encoder of voices (speaker_encoder.*) and a codec of 16 codebooks "
    "(speech_tokenizer/) llama.cpp does not load the companion: it runs the talker alone"
)
FIRST_BOOKS = {k: v for k, v in qwen_tts_sound.codec().items() if ".vq.layers.14." not in k}
LACKING = {
    "no encoder of voices": {"voice": {}},
    "no codec": {"codec": {}},
    "a codec of fewer codebooks": {"codec": FIRST_BOOKS},
    "another codec": {"codec": {"decoder.dit.weight": np.zeros((2, 2), "f4")}},
}


def write(folder, voice=None, codec=None):
    """Write a checkpoint as it is published, with these parts or all."""
    config = qwen_tts.configuration(n_codebooks=N)
    tensors = qwen_tts.weights(n_codebooks=N)
    tensors |= qwen_tts_sound.voice() if voice is None else voice
    write_checkpoint(folder / "hf", config, tensors, tokenizer(qwen_tts.N_TEXT))
    inner = folder / "hf" / "speech_tokenizer"
    inner.mkdir()
    codec = qwen_tts_sound.codec() if codec is None else codec
    if codec:
        save_tensors(inner / "model.safetensors", codec)
    return folder / "hf"


def describe(path):
    """Return what is in a file, as ``tools/qwen_tts_companion.py`` does of llama.cpp's."""
    with open_model_file(path) as file:
        tensors = {}
        for name, tensor in file.tensors.items():
            values = tensor.array().astype(np.float64).ravel()
            total = float(values @ np.cos(np.arange(values.size)))
            tensors[name] = [tensor.type_name, list(tensor.shape), total]
        return {name: v for name, v in file.metadata.items() if name.startswith("clip.")}, tensors


@pytest.mark.parametrize("outtype", PEER)
def test_the_companion_is_llama_cpps(tmp_path, outtype, caplog):
    """Each tensor by name, type, shape and values; and each key, one besides: see the page."""
    wanted = PEER[outtype]
    left_out = convert(write(tmp_path), tmp_path / "model.gguf", outtype=outtype)
    metadata, tensors = describe(tmp_path / "mmproj-model.gguf")
    assert tensors.keys() == wanted["tensors"].keys()
    for name, (kind, shape, total) in tensors.items():
        assert [kind, shape] == wanted["tensors"][name][:2], name
        assert total == pytest.approx(wanted["tensors"][name][2], rel=1e-6, abs=1e-6), name
    assert {key: metadata[key] for key in wanted["metadata"]} == pytest.approx(wanted["metadata"])
    assert left_out == {
        "speech_tokenizer/encoder.downsample.conv.weight": "of no use: speech_tokenizer/*"
    }
    assert "llama.cpp" not in caplog.text


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    convert(write(folder), folder / "model.gguf", outtype="f32")
    return folder / "model.gguf", folder / "mmproj-model.gguf"


@pytest.mark.parametrize("parts", LACKING.values(), ids=list(LACKING))
def test_without_either_the_companion_holds_the_code_predictor_alone(tmp_path, parts, caplog):
    left_out = convert(write(tmp_path, **parts), tmp_path / "model.gguf", outtype="f32")
    metadata, tensors = describe(tmp_path / "mmproj-model.gguf")
    assert all(name.startswith("a.gen.code.") for name in tensors)
    assert "clip.has_audio_encoder" not in metadata
    assert {*left_out.values()} == {
        f"of no use: {one}"
        for one, given in (("speaker_encoder.*", "voice"), ("speech_tokenizer/*", "codec"))
        if parts.get(given) != {}
    }
    told = [record.getMessage() for record in caplog.records]
    assert told.count(f"{tmp_path / 'model.gguf'}: {NOTE}") == 1


def test_what_is_missing_of_a_codec_is_named(tmp_path):
    codec = qwen_tts_sound.codec()
    del codec["decoder.decoder.2.block.3.act1.beta"]
    with pytest.raises(ModelFileError) as caught:
        convert(write(tmp_path, codec=codec), tmp_path / "model.gguf")
    assert caught.value.wanted == "speech_tokenizer/decoder.decoder.2.block.3.act1.beta"
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_file_of_the_codec_is_not_written_over(tmp_path):
    folder = write(tmp_path)
    path = folder / "speech_tokenizer" / "model.safetensors"
    before = path.read_bytes()
    with pytest.raises(ModelFileError, match="the file to write is one of the checkpoint"):
        convert(folder, path)
    assert path.read_bytes() == before


def test_no_graph_reads_it_and_inspect_says_so(paths, capsys):
    with load_model(paths[0]) as model:
        assert not [name for name in model.tensors if name.startswith(("a.", "mm."))]
    assert main(["inspect", str(paths[0])]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "not read" in one]
    assert line.startswith(f"  not read here: 317 tensors of {paths[1]} (")
    assert line.endswith(" kB), which another program may run")
    assert main(["inspect", str(paths[0]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["unread"]
    assert (told["path"], told["tensors"]) == (str(paths[1]), 317)


def test_quantize_keeps_it(paths, tmp_path):
    quantize(paths[0], tmp_path / "small.gguf", outtype="q4_0")
    before, after = describe(paths[1])[1], describe(tmp_path / "mmproj-small.gguf")[1]
    assert before.keys() == after.keys()
    for name, values in before.items():
        if not name.startswith("a.gen.code."):
            assert after[name] == values


def test_types_of_the_codec_at_four_bits(tmp_path):
    """Matrices whose rows are whole blocks get eight; kernels are as for F16."""
    convert(write(tmp_path), tmp_path / "model.gguf", outtype="q4_0")
    tensors = describe(tmp_path / "mmproj-model.gguf")[1]
    whole = {f"a.gen.wav.tfm.blk.{n}.attn_out.weight" for n in range(qwen_tts_sound.N_LAYERS)}
    for name, (kind, shape, _) in PEER["f16"]["tensors"].items():
        if not name.startswith("a.gen.code."):
            wanted = "Q8_0" if name in whole else kind
            assert tensors[name][:2] == [wanted, shape], name
