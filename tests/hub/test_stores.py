"""The stores of Ollama and LM Studio: found, and never written."""

import hashlib
import json

import pytest

from mtpcore.errors import ModelFileError
from mtpcore.hub import find_in_store, held_in_stores, parse_name

MODEL = b"GGUF and so on"
KINDS = "application/vnd.ollama.image."


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return tmp_path


def write_ollama(home, name="registry.ollama.ai/library/m/latest", kinds=("model", "template")):
    """Write a model as Ollama keeps it."""
    root, layers = home / ".ollama/models", []
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        data = MODEL if kind == "model" else kind.encode()
        digest = hashlib.sha256(data).hexdigest()
        (root / "blobs" / f"sha256-{digest}").write_bytes(data)
        layers.append({"mediaType": KINDS + kind, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "x"}
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}))
    return root


def find(text):
    return find_in_store(parse_name(text), ["mtp-*.gguf"])


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("registry.ollama.ai/library/m/latest", "ollama:m"),
        ("registry.ollama.ai/library/m/latest", "ollama:m:latest"),
        ("registry.ollama.ai/somebody/m/7b", "ollama:somebody/m:7b"),
        ("hf.co/a/b/Q8_0", "ollama:hf.co/a/b:Q8_0"),
    ],
)
def test_a_model_of_ollama(home, place, name):
    write_ollama(home, place)
    assert find(name).read_bytes() == MODEL
    (held,) = held_in_stores([])
    assert find(held.name).read_bytes() == MODEL
    assert (held.owner, held.n_bytes) == ("Ollama", len(MODEL))


def test_a_store_elsewhere(home, tmp_path, monkeypatch):
    root = write_ollama(home)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelFileError, match="has no such model here"):
        find("ollama:m")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    assert find("ollama:m").read_bytes() == MODEL


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("model", "adapter"), "one with an adapter"),
        (("tensor", "tensor"), "no single GGUF file"),
        (("model", "model"), "no single GGUF file"),
        ((), "no single GGUF file"),
    ],
)
def test_models_that_are_not_a_file(home, kinds, said):
    write_ollama(home, kinds=kinds)
    with pytest.raises(ModelFileError, match=said):
        find("ollama:m")
    assert [*held_in_stores([])] == []


def test_a_store_that_is_damaged(home):
    root = write_ollama(home)
    (blob,) = [path for path in (root / "blobs").iterdir() if path.read_bytes() == MODEL]
    blob.write_bytes(MODEL[:5])
    with pytest.raises(ModelFileError, match="not whole"):
        find("ollama:m")
    manifest = root / "manifests/registry.ollama.ai/library/m/latest"
    for text in ("{", '{"layers": 3}', '{"layers": [{"size": -1}]}', "\xff"):
        manifest.write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelFileError, match="not a manifest of Ollama"):
            find("ollama:m")


def test_a_digest_that_leads_elsewhere(home):
    root = write_ollama(home)
    manifest = root / "manifests/registry.ollama.ai/library/m/latest"
    layer = {"mediaType": KINDS + "model", "digest": "sha256:../../../../etc/passwd", "size": 1}
    manifest.write_text(json.dumps({"layers": [layer]}))
    with pytest.raises(ModelFileError, match="not there"):
        find("ollama:m")


@pytest.mark.parametrize("place", [".lmstudio/models", ".cache/lm-studio/models", "far"])
def test_models_of_lm_studio(home, place):
    if place == "far":
        (home / ".lmstudio").mkdir()
        settings = {"downloadsFolder": str(home / "far"), "theme": "dark"}
        (home / ".lmstudio/settings.json").write_text(json.dumps(settings))
    folder = home / place / "a/b"
    folder.mkdir(parents=True)
    for name in ("M-Q4_K_M.gguf", "M-Q8_0.gguf", "mmproj-M.gguf", "notes.txt"):
        (folder / name).write_bytes(MODEL)
    assert find("lmstudio:a/b").name == "M-Q4_K_M.gguf"
    assert find("lmstudio:a/b:q8_0").name == "M-Q8_0.gguf"
    assert find("lmstudio:a/b/M-Q8_0.gguf") == folder / "M-Q8_0.gguf"
    names = {held.name for held in held_in_stores([])}
    assert names == {"lmstudio:a/b:Q4_K_M", "lmstudio:a/b:Q8_0", "lmstudio:a/b/mmproj-M.gguf"}
    with pytest.raises(ModelFileError, match="holds no such GGUF file"):
        find("lmstudio:a/b:Q2_K")
    with pytest.raises(ModelFileError, match="LM Studio has no such model"):
        find("lmstudio:a/c")


def test_a_home_that_lm_studio_points_to(home):
    folder = home / "else/models/a/b"
    folder.mkdir(parents=True)
    (folder / "M-Q8_0.gguf").write_bytes(MODEL)
    (home / ".lmstudio-home-pointer").write_text(f"{home}/else\n")
    assert find("lmstudio:a/b").read_bytes() == MODEL
