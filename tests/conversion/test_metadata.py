"""Metadata of the model card and of the configuration, typed as llama.cpp's converter types it."""

import json

import gguf
import numpy as np
import pytest
from harness.published import small_config, small_tensors, write_checkpoint

from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, read_tokenizer

CARD = """---
license: apache-2.0
tags: [text-generation, tiny]
language: [en, de]
base_model: Someone/Small-1B
---
A model.
"""
KIND = gguf.GGUFValueType


@pytest.fixture
def folder(tmp_path):
    config = small_config()
    made = write_checkpoint(tmp_path / "Small-Model-1B", config, small_tensors(config))
    (made / "README.md").write_text(CARD)
    sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (made / "generation_config.json").write_text(json.dumps(sampling))
    return made


def test_the_model_card_is_taken_along(folder, tmp_path):
    convert(folder, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    found = {key: field.contents() for key, field in fields.items()}
    assert found["general.license"] == "apache-2.0"
    assert found["general.tags"] == ["text-generation", "tiny"]
    assert found["general.languages"] == ["en", "de"]
    assert found["general.name"] == "Small Model 1B"
    assert found["general.sampling.temp"] == pytest.approx(0.6)
    assert fields["general.sampling.temp"].types == [KIND.FLOAT32]
    assert found["general.sampling.top_k"] == 20
    assert fields["general.sampling.top_k"].types == [KIND.INT32]


def test_values_have_the_types_that_readers_expect(folder, tmp_path):
    convert(folder, tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        found = file.metadata
    assert isinstance(found["qwen2.rope.freq_base"], float)
    assert isinstance(found["qwen2.attention.layer_norm_rms_epsilon"], float)
    assert type(found["qwen2.block_count"]) is int
    assert found["tokenizer.ggml.token_type"].dtype == np.int32


@pytest.mark.parametrize(
    "card", ["---\n- a\n b: [\n---\n", "---\ntags: [{a: b}]\n---\n", "---\nname: 3\n---\n"]
)
def test_a_malformed_card_is_an_error(folder, tmp_path, card):
    (folder / "README.md").write_text(card)
    with pytest.raises(ModelFileError, match="model card"):
        convert(folder, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize("tokens", [[30, 3], [], None])
def test_suppressed_tokens_are_taken_along(folder, tmp_path, tokens):
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": tokens}))
    convert(folder, tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        found = file.metadata.get("tokenizer.ggml.suppress_tokens")
        assert read_tokenizer(file.metadata).suppressed == tuple(sorted(tokens or ()))
    assert (found is None) == (not tokens)
    assert found is None or (found.dtype, found.tolist()) == (np.int32, tokens)


@pytest.mark.parametrize(
    ("said", "listed"), [([3, 30], [3, 30]), ([3], [3]), (3, [3]), (31, []), (None, [])]
)
def test_every_end_of_a_text_is_taken_along(folder, tmp_path, said, listed):
    """Gemma 4 ends its turns, and its calls of tools, by others than its tokenizer's ``<eos>``.

    What the tokenizer's own files name is not said again.
    """
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 31}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    convert(folder, tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        assert list(file.metadata.get("tokenizer.ggml.eos_token_ids", ())) == listed
        assert {*listed} <= read_tokenizer(file.metadata).end_tokens


@pytest.mark.parametrize("key", ["suppress_tokens", "eos_token_id"])
@pytest.mark.parametrize(
    ("tokens", "said"), [([32], "no such token"), ([-1], "malformed"), ("3", "malformed")]
)
def test_tokens_that_there_are_not(folder, tmp_path, key, tokens, said):
    (folder / "generation_config.json").write_text(json.dumps({key: tokens}))
    with pytest.raises(ModelFileError, match=said) as error:
        convert(folder, tmp_path / "model.gguf")
    assert "generation_config.json" in error.value.where
    assert said == "malformed" or error.value.where.endswith(key)


def convert_with(folder, tmp_path, config=None, **generation):
    """Return the metadata of a file, converted with this ``generation_config.json`` or without."""
    if config is not None:
        values = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps(values))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    convert(folder, tmp_path / "model.gguf")
    with open_model_file(tmp_path / "model.gguf") as file:
        return dict(file.metadata)


@pytest.mark.parametrize(("ends", "listed"), [([3, 30], [3, 30]), ([3], [3]), (3, [])])
def test_a_configuration_may_list_the_ends_of_texts(folder, tmp_path, ends, listed):
    """As Llama 3.1's does; transformers reads them there where no other file names them."""
    found = convert_with(folder, tmp_path, {"eos_token_id": ends})
    assert list(found.get("tokenizer.ggml.eos_token_ids", ())) == listed


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"temperature": 1, "top_k": 64, "min_p": 0.1}, {"temp": 1.0, "top_k": 64, "min_p": 0.1}),
        ({"do_sample": True, "top_p": 1.0}, {"top_p": 1.0}),
        ({"do_sample": False, "temperature": 0.6, "top_k": 5}, {"temp": 0.0}),
        ({"repetition_penalty": 1.05}, {"penalty_repeat": 1.05, "penalty_last_n": -1}),
        ({"repetition_penalty": 1.0, "temperature": None}, {}),
    ],
)
def test_settings_of_the_sampler_are_taken_along(folder, tmp_path, caplog, said, wanted):
    """Under llama.cpp's names and types; a penalty is on the whole text, as in transformers."""
    found = convert_with(folder, tmp_path, **said)
    key = "general.sampling."
    settings = {k.removeprefix(key): v for k, v in found.items() if k.startswith(key)}
    assert settings == pytest.approx(wanted)
    assert "generation_config" not in caplog.text


@pytest.mark.parametrize("name", ["temperature", "top_k", "do_sample", "repetition_penalty"])
def test_a_setting_of_the_sampler_is_of_the_wrong_kind(folder, tmp_path, name):
    with pytest.raises(ModelFileError, match="malformed") as error:
        convert_with(folder, tmp_path, **{name: "much"})
    assert f"$.{name}" in error.value.what
    assert error.value.where.endswith("generation_config.json")


def test_settings_without_a_place_in_model_files_are_said(folder, tmp_path, caplog):
    said = {"no_repeat_ngram_size": 3, "typical_p": 1.0, "num_beams": 4, "max_length": 20}
    convert_with(folder, tmp_path, **said, presence_penalty=1.5, use_cache=True, guidance_scale=1)
    assert "no_repeat_ngram_size = 3, num_beams = 4, presence_penalty = 1.5: where" in caplog.text
