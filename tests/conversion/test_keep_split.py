"""Quantising a split model into its parts: as ``llama-quantize --keep-split`` does, by bytes."""

import pytest
from harness.splits import CASES, MIXES, WAYS, digest, kept, write

from mtpcore.conversion import quantize
from mtpcore.errors import ModelFileError
from mtpcore.gguf.splitting import split_file


@pytest.mark.parametrize("case", CASES)
def test_parts_are_those_of_llama_cpp(tmp_path, case):
    model, wanted, n = write(case, tmp_path / "model.gguf"), kept(), 0
    for way, (_, asked) in WAYS.items():
        split, out = (tmp_path / f"{way}-{name}" for name in ("split", "out"))
        split.mkdir()
        out.mkdir()
        first = split_file(model, split / "x", **asked)[0].path
        for mix in MIXES:
            if f"{mix}/{case}/{way}" not in wanted:
                continue
            quantize(first, out / "q.gguf", outtype=mix, mtp_type="mix", keep_split=True)
            assert digest(out) == wanted[f"{mix}/{case}/{way}"], (mix, way)
            n += 1
    assert n >= 9


def test_a_whole_model_stays_whole(tmp_path):
    model = write("dense", tmp_path / "model.gguf")
    quantize(model, tmp_path / "a.gguf", outtype="q8_0", keep_split=True)
    quantize(model, tmp_path / "b.gguf", outtype="q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_what_cannot_be_kept(tmp_path):
    model = write("glm-11", tmp_path / "model.gguf")
    first = split_file(model, tmp_path / "x", max_tensors=40)[0].path
    there = sorted(tmp_path.iterdir())
    with pytest.raises(ModelFileError, match="parts are kept where all"):
        quantize(first, tmp_path / "y.gguf", outtype="q8_0", mtp="drop", keep_split=True)
    with pytest.raises(ModelFileError, match="the file to write is the one to read"):
        quantize(first, tmp_path / "x.gguf", outtype="q8_0", keep_split=True)
    wrong = {"glm4moe.embedding_length": 7}
    with pytest.raises(ModelFileError):
        quantize(first, tmp_path / "y", outtype="q8_0", keep_split=True, override=wrong)
    assert sorted(tmp_path.iterdir()) == there
