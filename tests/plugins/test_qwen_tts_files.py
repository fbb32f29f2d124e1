"""Qwen3-TTS in two files, as llama.cpp's converter writes them: what is made, what is refused."""

import numpy as np
import pytest
from harness import qwen_tts
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from harness.qwen_tts import SPEECHES
from harness.qwen_tts_llama_cpp import BASE, CODEC, companion, talker, write_files
from harness.speech_prompts import rows_of

from mtpcore import Context, Frames, ModelFileError, Sampling, link, load_model
from mtpcore.conversion import convert, quantize
from mtpcore.errors import MtpcoreError
from mtpcore.gguf import open_model_file, write_model_file

speeches = pytest.mark.parametrize("i", range(len(SPEECHES)), ids=list(SPEECHES))


@pytest.fixture(scope="module")
def refs():
    with np.load(DATA / "qwen_tts" / "refs.npz") as file:
        return {name: file[name] for name in file}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("llama_cpp"), qwen_tts.weights())


@pytest.fixture
def converted(tmp_path):
    config = qwen_tts.configuration()
    write_checkpoint(tmp_path / "hf", config, qwen_tts.weights(), tokenizer(qwen_tts.N_TEXT))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    return tmp_path / "model.gguf", tmp_path / "mmproj-model.gguf"


def speak(path, i, **options):
    prompt, beside = rows_of([*SPEECHES.values()][i])
    context = Context(load_model(path, **options), 64, kv_dtype="f32", threads=1)
    frames = Frames(link(context), sampling=Sampling.greedy())
    return np.array(list(frames.generate(prompt, beside=beside, max_frames=8)))


@speeches
def test_frames_are_those_of_the_package(paths, refs, i):
    assert np.array_equal(speak(paths[0], i), refs[f"frames{i}"])


def test_a_code_predictor_as_wide_as_the_talker(tmp_path, refs):
    path, _ = write_files(tmp_path, qwen_tts.weights(depth=qwen_tts.WIDTH))
    assert np.array_equal(speak(path, 0), refs["wide"])


def test_marks_are_read_from_the_texts_of_tokens(paths):
    with load_model(paths[0]) as model:
        for kind, wanted in (("speaker", qwen_tts.SPEAKERS), ("language", qwen_tts.LANGUAGES)):
            names, ids = (model.metadata[f"qwen3tts.{kind}.{what}"] for what in ("names", "ids"))
            assert dict(zip(names, map(int, ids), strict=True)) == wanted
        for name, wanted in qwen_tts.MARKS.items():
            if name != "codec_eos_token_id":
                assert model.metadata[f"qwen3tts.{name.replace('_', '.', 1)}"] == wanted
        assert model.codebooks.end == qwen_tts.MARKS["codec_eos_token_id"]
        assert model.codebooks.n_first == qwen_tts.N_FIRST
        assert model.hparams.rotary_axes == 1
        assert model.paths == paths


def test_what_convert_writes_is_what_llama_cpps_converter_writes(converted, tmp_path):
    """Names, shapes and values of both files, and the keys that llama.cpp reads; not the texts."""
    w = qwen_tts.weights()
    for path, (metadata, tensors) in zip(converted, (talker(w), companion(w)), strict=True):
        with open_model_file(path) as file:
            assert file.tensors.keys() == tensors.keys() - CODEC.keys()
            for name, tensor in file.tensors.items():
                assert np.abs(tensor.array() - tensors[name]).max() < 2e-6
            for key, value in metadata.items():
                if key.startswith(("qwen3tts.", "clip.gen.", "clip.has_gen")):
                    agree = key.endswith("dimension_sections")  # the axes agree
                    assert agree or file.metadata[key] == pytest.approx(value)
    with open_model_file(converted[0]) as file:
        texts, wanted = file.metadata["tokenizer.ggml.tokens"], talker(w)[0]
        assert texts[qwen_tts.N_TEXT :] == wanted["tokenizer.ggml.tokens"][qwen_tts.N_TEXT :]
        for key in ("eos_token_id", "suppress_tokens"):
            key = f"tokenizer.ggml.{key}"
            assert np.array_equal(file.metadata[key], wanted[key])


def test_all_pairs_of_a_head_have_an_axis_that_counts(converted):
    """llama.cpp turns pair i with axis i % 3 if i is below 3 x its section, else not at all."""
    with open_model_file(converted[0]) as file:
        sections = file.metadata["qwen3tts.rope.dimension_sections"]
    assert sum(sections) == qwen_tts.HEAD // 2
    assert all(i < 3 * sections[i % 3] for i in range(qwen_tts.HEAD // 2))


def test_llama_cpp_takes_a_base_for_granted(tmp_path):
    metadata, tensors = companion(qwen_tts.weights())
    del metadata[BASE]
    path, beside = write_files(tmp_path, qwen_tts.weights())
    write_model_file(beside, "clip", metadata, tensors)
    with load_model(path) as model:
        wanted = 1e6 ** (-2 / 8)
        assert model.hparams.depth.rope.frequencies[1] == pytest.approx(wanted)


def test_a_file_may_hold_all(tmp_path, paths, refs):
    """As one file: what the companion holds, by the names of the graphs."""
    with load_model(paths[0]) as model:
        tensors = {name: tensor.array() for name, tensor in model.tensors.items()}
        metadata = dict(model.metadata)
    write_model_file(tmp_path / "whole.gguf", "qwen3tts", metadata, tensors)
    assert np.array_equal(speak(tmp_path / "whole.gguf", 0), refs["frames0"])
    with pytest.raises(ModelFileError, match="the model needs no companion"):
        load_model(tmp_path / "whole.gguf", companion=paths[1])


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_quantize_writes_both_files(tmp_path, paths, outtype):
    """As ``convert`` does; what is of no use here, such as the codec, stays as it is."""
    quantize(paths[0], tmp_path / "small.gguf", outtype=outtype)
    first, second = tmp_path / "small.gguf", tmp_path / "mmproj-small.gguf"
    with open_model_file(second) as file, open_model_file(paths[1]) as whole:
        assert file.tensors.keys() == whole.tensors.keys()
        types = {name: tensor.type_name for name, tensor in file.tensors.items()}
        for name in CODEC:
            assert types[name] == "F32"
            assert np.array_equal(file.tensors[name].array(), whole.tensors[name].array())
        assert types["a.gen.code.blk.0.ffn_down.weight"] == "F32"
        assert types["a.gen.code.embd.weight"] == outtype.upper()
        assert file.metadata["clip.audio.projector_type"] == "qwen3tts_spkenc"
    with load_model(first) as model:
        assert model.paths == (first, second)
        assert model.tensors["audio_embd.weight"].type_name == outtype.upper()
        assert model.tensors["token_embd.weight"].type_name == outtype.upper()
    if outtype == "f16":
        assert speak(first, 0).shape[1] == qwen_tts.N_CODEBOOKS


# What is refused


def test_a_companion_that_is_read_is_not_written(tmp_path):
    path, beside = write_files(tmp_path, qwen_tts.weights())
    path = path.rename(tmp_path / "other.gguf")
    for written in (path, tmp_path / "model.gguf"):
        with pytest.raises(ModelFileError, match="the file to write is the one to read"):
            quantize(path, written, outtype="f16")
    assert sorted(tmp_path.iterdir()) == sorted([path, beside])


def test_nothing_beside_the_talker(tmp_path, paths):
    alone = tmp_path / "model.gguf"
    alone.write_bytes(paths[0].read_bytes())
    with pytest.raises(ModelFileError) as caught:
        load_model(alone)
    assert str(caught.value) == (
        f"{alone}: the rest of the model is in another file, and no file beside it is that one; "
        "wanted mmproj-*.gguf with a.gen.code.out_embd.weight, a.gen.code.embd.weight, "
        "a.gen.code.head.weight; got no such file\n"
        "  fix: put both files into one folder, or name the other one: load_model(companion=...)"
    )
    assert load_model(alone, companion=paths[1]).paths == (alone, paths[1])


def change(tmp_path, **changes):
    """Write both files, the companion with other metadata or tensors; return the paths."""
    path, beside = write_files(tmp_path, qwen_tts.weights())
    metadata, tensors = companion(qwen_tts.weights())
    tensors |= {name: v for name, v in changes.pop("tensors", {}).items() if v is not None}
    for name in changes.pop("without", ()):
        del tensors[name]
    architecture = changes.pop("architecture", "clip")
    write_model_file(beside, architecture, metadata | changes, tensors)
    return path, beside


CODES = ("a.gen.code.out_embd.weight", "a.gen.code.embd.weight")
HEAD = "a.gen.code.head.weight"
FIRST, OTHERS, OUTPUTS = (companion(qwen_tts.weights())[1][name] for name in (*CODES, HEAD))
FOREIGN = {
    "another architecture": (
        {"architecture": "llama"},
        "{1}: the companion is of another architecture; wanted clip; got llama",
    ),
    "too few tensors": (
        {"without": ("a.gen.code.embd.weight", "a.gen.code.head.weight")},
        "{1}: tensors of the companion are missing; wanted a.gen.code.embd.weight, "
        "a.gen.code.head.weight",
    ),
    "another talker": (
        {"tensors": {"a.gen.code.out_embd.weight": FIRST[::-1].copy()}},
        "{0} and {1}: the files do not belong together: the embeddings of first codes differ",
    ),
    "another width": (
        {"tensors": dict(zip(CODES, (FIRST[:, :16].copy(), OTHERS[..., :16].copy()), strict=True))},
        "{0} and {1}: the files do not belong together: [1043, 16] is no end of a table [1067, 32]",
    ),
    "fewer matrices": (
        {"tensors": {HEAD: OUTPUTS[:3].copy()}},
        "matrices (3, 19, 24) are not for codes of tables (4, 19, 32)",
    ),
    "a layer is missing": (
        {"without": ("a.gen.code.blk.1.attn_q.weight",)},
        "depth.blk.1.attn_q.weight",
    ),
    "no sizes": ({"clip.gen.audio.attention.head_count": 0}, "head_count"),
}


@pytest.mark.parametrize(("changes", "why"), FOREIGN.values(), ids=list(FOREIGN))
def test_a_companion_that_does_not_fit(tmp_path, changes, why):
    path, beside = change(tmp_path, **changes)
    why = why.format(path, beside)
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert "no file beside it is that one" in str(caught.value)
    assert f"{beside.name}: " in caught.value.got
    assert why in caught.value.got
    with pytest.raises(MtpcoreError) as caught:
        load_model(path, companion=beside)
    assert why in str(caught.value)


def test_one_that_does_not_fit_makes_room_for_the_next(tmp_path):
    path, _ = change(tmp_path, architecture="llama")
    other, good = write_files(tmp_path, qwen_tts.weights(), "other-Q8_0")
    other.unlink()
    with load_model(path) as model:
        assert model.paths == (path, good)


def test_a_failure_leaves_no_file(tmp_path):
    """The output matrix is of another width than the talker: no graph can be built of it."""
    w = qwen_tts.weights()
    w["talker.codec_head.weight"] = w["talker.codec_head.weight"][:, :16]
    write_checkpoint(tmp_path / "hf", qwen_tts.configuration(), w, tokenizer(qwen_tts.N_TEXT))
    with pytest.raises(ModelFileError, match="is no model"):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_failure_while_a_file_is_written_leaves_the_old_ones(tmp_path):
    config = qwen_tts.configuration()
    write_checkpoint(tmp_path / "hf", config, qwen_tts.weights(), tokenizer(qwen_tts.N_TEXT))

    (tmp_path / "mmproj-model.gguf").write_text("old")

    def stop(done, total):
        assert len(list(tmp_path.glob("*.part"))) == 2
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32", report=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "mmproj-model.gguf"]
    assert (tmp_path / "mmproj-model.gguf").read_text() == "old"


def test_another_activation_of_the_text_is_refused(tmp_path):
    config = qwen_tts.configuration()
    config["talker_config"]["hidden_act"] = "gelu"
    write_checkpoint(tmp_path / "hf", config, qwen_tts.weights(), tokenizer(qwen_tts.N_TEXT))
    with pytest.raises(ModelFileError, match="the activation 'gelu', not 'silu'"):
        convert(tmp_path / "hf", tmp_path / "model.gguf")
