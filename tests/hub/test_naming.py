"""Names of models, and texts that are none."""

import pytest

from mtpcore.errors import ModelFileError
from mtpcore.hub import ModelName, parse_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:a/b", ModelName("hf", "a/b")),
        ("hf:a/b:Q4_K_M", ModelName("hf", "a/b", "Q4_K_M")),
        ("hf:a/b/c/d-Q4_0.gguf", ModelName("hf", "a/b", file="c/d-Q4_0.gguf")),
        ("hf:https://huggingface.co/a/b", ModelName("hf", "a/b")),
        ("hf:hf.co/a-1.5/b_c.gguf-GGUF:q8_0", ModelName("hf", "a-1.5/b_c.gguf-GGUF", "q8_0")),
        ("hf://a/b", ModelName("hf", "a/b")),
        ("ollama:qwen3", ModelName("ollama", "qwen3")),
        ("ollama:a/b:7b-q4", ModelName("ollama", "a/b", "7b-q4")),
        ("ollama:hf.co/a/b:Q8_0", ModelName("ollama", "hf.co/a/b", "Q8_0")),
        ("lmstudio:a/b/c.gguf", ModelName("lmstudio", "a/b", file="c.gguf")),
        ("demo:llama", None),
        ("hf/a.gguf", None),
        ("./hf:a/b", None),
        ("C:a/b", None),
    ],
)
def test_texts_that_are_names_or_paths(text, name):
    assert parse_name(text) == name
    if name is not None:
        assert parse_name(str(name)) == name


def test_a_store_that_is_meant():
    assert parse_name("a/b:Q8_0", "hf") == ModelName("hf", "a/b", "Q8_0")
    assert parse_name("ollama:b", "hf") == ModelName("ollama", "b")


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b/../../c.gguf", "hf:a--b/c",
     "hf:a/b:", "hf:a/b:c/d", "hf:a b/c", "ollama:", "ollama:../x", "ollama:a/b/c/d/e",
     "lmstudio:a"],
)  # fmt: skip
def test_names_of_nothing(text):
    with pytest.raises(ModelFileError, match="not the name of a model") as caught:
        parse_name(text)
    assert text in caught.value.fix
