"""Which types matrices get in a mix, and whole files: what llama.cpp's quantiser makes of them.

Digests of its files are kept by ``tools/llama_cpp_quantised.py``.
"""

from pathlib import Path

import pytest
from harness.architectures import header
from harness.peer_headers import parsed
from harness.quantised import (
    CASES,
    HEADED,
    IMPORTANCE,
    MODEL,
    digest,
    digest_of_types,
    kept,
    write_case,
    write_importance,
)

from mtpcore.conversion import MIXES, TensorTypes, quantised_types, quantize
from mtpcore.conversion.mixes import Described, TypeRules, choose_types, model_shape
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file
from mtpcore.gguf.types import is_float, type_name

FILES, TYPES = kept()["files"], kept()["types"]


@pytest.mark.parametrize("case", [*CASES, HEADED])
def test_files_are_those_of_llama_quantize(case, tmp_path, monkeypatch):
    """Whole files, with weights of columns and without."""
    monkeypatch.chdir(tmp_path)
    write_case(case, Path(MODEL))
    weights, wrong = {"plain": None, "weighted": IMPORTANCE}, []
    for key, wanted in FILES.items():
        of, mix, how = key.split("/")
        if of == case:
            write_importance(MODEL, Path(IMPORTANCE), of_all=mix == "q2_k_s")
            quantize(MODEL, "made.gguf", outtype=mix, mtp_type="mix", importance=weights[how])
            wrong += [key] if digest(Path("made.gguf").read_bytes()) != wanted else []
    assert wrong == []


@pytest.mark.parametrize("name", TYPES)
def test_types_are_those_of_llama_quantize(name):
    """Of every architecture that its generator writes, by the header alone."""
    head = parsed(header(name))
    tensors = [Described(one.name, one.shape, one.type) for one in head.tensors]
    floats = [tensor for tensor in tensors if is_float(tensor.type)]
    shape = model_shape(head.metadata["general.architecture"], head.metadata)
    for mix, wanted in TYPES[name].items():
        chosen = choose_types(floats, mix, shape, TypeRules())
        kinds = {tensor.name: chosen.get(tensor.name, tensor.type) for tensor in tensors}
        assert digest_of_types(kinds) == wanted, mix


def types_of(path):
    with open_model_file(path) as file:
        return {name: tensor.type_name for name, tensor in file.tensors.items()}


def test_types_that_are_asked_for(tmp_path):
    model, made = write_case("dense", tmp_path / "model.gguf"), tmp_path / "made.gguf"
    named = {r"ffn_(up|gate)": "q5_k", "ffn": "q8_0"}
    types = TensorTypes(output="keep", embedding="q5_0", named=named, pure=True)
    quantize(model, made, outtype="q4_k_m", types=types)
    found = types_of(made)
    assert found["output.weight"] == "F32"
    assert found["token_embd.weight"] == "Q5_0"
    assert (found["blk.0.ffn_up.weight"], found["blk.0.ffn_down.weight"]) == ("Q5_K", "Q8_0")
    assert {kind for name, kind in found.items() if "attn_" in name} == {"Q4_K", "F32"}  # norms
    quantize(model, made, outtype="f16", types=TensorTypes(output="q6_k", named={"attn_v": "q8_0"}))
    found = types_of(made)
    assert (found["output.weight"], found["blk.1.attn_v.weight"]) == ("Q6_K", "Q8_0")


def test_types_are_said_before_a_file_is_written(tmp_path):
    model, made = write_case("experts", tmp_path / "model.gguf"), tmp_path / "made.gguf"
    asked = {"outtype": "q4_k_m", "types": TensorTypes(output="q8_0")}
    said = quantised_types(model, **asked)
    assert list(tmp_path.iterdir()) == [model]
    quantize(model, made, **asked)
    with open_model_file(made) as file:
        found = [(t.name, t.shape, t.type_name, t.n_bytes) for t in file.tensors.values()]
    assert [(one.name, one.shape, one.after, one.n_bytes) for one in said] == found
    assert {one.before for one in said} == {"F32"}


def test_metadata_that_replaces_the_file_s(tmp_path):
    """The rest is as it was stored, in its order; types are said last but for what is replaced."""
    model, made = write_case("tied", tmp_path / "model.gguf"), tmp_path / "made.gguf"
    more = {"general.name": "mine", "general.of_mine": True, "llama.context_length": 64}
    quantize(model, made, outtype="q8_0", override=more)
    with open_model_file(model) as before, open_model_file(made) as after:
        types = {"general.quantization_version": 2, "general.file_type": 7}
        kept = {k: v for k, v in before.metadata.items() if k not in {**types, **more}}
        assert list(after.metadata.items()) == list((kept | types | more).items())


def test_weights_of_every_matrix(tmp_path):
    """Where a mix would be of no use without them."""
    model = write_case("dense", tmp_path / "model.gguf")
    weights = write_importance(model, tmp_path / "importance.gguf", of_all=False)
    with pytest.raises(ModelFileError, match=r"'blk.1.attn_q.weight'.*needs an importance matrix"):
        quantize(model, tmp_path / "made.gguf", outtype="q2_k_s", importance=weights)


def test_matrices_without_weights_are_named(tmp_path, caplog):
    model = write_case("dense", tmp_path / "model.gguf")
    weights = write_importance(model, tmp_path / "importance.gguf", of_all=False)
    quantize(model, tmp_path / "made.gguf", outtype="q4_k_m", importance=weights)
    assert "no weights of 1 of 63 matrices: blk.1.attn_q.weight" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outtype": "q9_k"}, "outtype: unknown type"),
        ({"outtype": ["q4_k"]}, "outtype: unknown type"),
        ({"outtype": "q4_k_m", "mtp_type": "q4_k_m"}, "mtp_type: unknown type"),
        ({"outtype": "q4_k_m", "types": TensorTypes(output="i8")}, "output: unknown type"),
        ({"outtype": "q4_k_m", "types": TensorTypes(named={"(": "q8_0"})}, "not a regular expr"),
        ({"outtype": "q2_k_s"}, "needs an importance matrix"),
        ({"outtype": "q4_k_m", "threads": 0}, "threads"),
        ({"outtype": "q4_k_m", "types": {"pure": True}}, "wanted TensorTypes"),
        ({"outtype": "q4_k_m", "override": ["general.name"]}, "override"),
        ({"outtype": "q4_k_m", "override": {"llama.block_count": "many"}}, "block_count"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, options, words):
    model = write_case("dense", tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=words):
        quantize(model, tmp_path / "made.gguf", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_every_mix_names_a_type_of_its_own():
    assert len({mix.file_type for mix in MIXES.values()}) == len(MIXES)
    assert {type_name(mix.type).lower() for mix in MIXES.values()} <= {*MIXES} | {
        *("q3_k", "q4_k", "q5_k", "mxfp4")
    }
