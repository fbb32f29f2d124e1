"""The stores of Ollama and LM Studio on this machine: read, never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from mtpcore.boundary.paths import read_regular
from mtpcore.errors import ModelFileError
from mtpcore.hub.choice import Offered, choose_model, name_models
from mtpcore.hub.naming import ModelName

__all__ = ["Held", "find_in_store", "held_in_stores"]

_LONGEST = 1 << 20  # bytes of a manifest
_REGISTRY, _OWNER, _TAG = "registry.ollama.ai", "library", "latest"
_MEDIA = "application/vnd.ollama.image."
_DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")


class Held(msgspec.Struct, frozen=True):
    """A model on this machine.

    Attributes
    ----------
    name : str
        By which commands take it.
    n_bytes : int
        Of all its parts.
    path : Path
        Its first file.
    modified : float
        Seconds since 1970.
    owner : str
        Whose store it lies in; empty for the hub's cache.
    is_partial : bool
        Whether it is the part of a file that came before a break.
    """

    name: str
    n_bytes: int
    path: Path
    modified: float
    owner: str = ""
    is_partial: bool = False


class _OllamaLayer(msgspec.Struct, rename="camel"):
    media_type: str = ""
    digest: str = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Manifest(msgspec.Struct):
    layers: list[_OllamaLayer] = []


def find_in_store(name: ModelName, sidecars: Sequence[str]) -> Path:
    """Return the file of a model in another program's store, the first of a split one.

    Raises
    ------
    ModelFileError
        The store has no such model, or one that is no single GGUF file.
    """
    if name.store == "ollama":
        return _find_ollama(name)
    for root in _lm_studio_roots():
        files = _folder(root / name.repo)
        if files:
            return root / name.repo / choose_model(files, name, sidecars)[0].path
    raise ModelFileError(
        "LM Studio has no such model here",
        got=str(name),
        wanted=_listed(held.name for held in _held_by_lm_studio(sidecars)),
        fix="mtpcore list shows what there is",
    )


def held_in_stores(sidecars: Sequence[str]) -> Iterator[Held]:
    """Yield the models that Ollama and LM Studio have on this machine."""
    yield from _held_by_ollama()
    yield from _held_by_lm_studio(sidecars)


def _listed(names: Iterator[str]) -> str:
    return ", ".join(sorted(names)[:12]) or "none is there"


def _ollama_roots() -> list[Path]:
    """Return where Ollama keeps models: for this user, and as a service of the machine."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    home = Path(os.path.expanduser("~"))
    places = (home / ".ollama/models", Path("/usr/share/ollama/.ollama/models"))
    return [path for path in places if (path / "manifests").is_dir()]


def _find_ollama(name: ModelName) -> Path:
    words = name.repo.split("/")
    full = [_REGISTRY, _OWNER, *words] if len(words) == 1 else [_REGISTRY, *words]
    full = full if len(words) < 3 else words
    for root in _ollama_roots():
        manifest = root.joinpath("manifests", *full, name.tag or _TAG)
        if manifest.is_file():
            return _ollama_file(root, manifest, str(name))
    raise ModelFileError(
        "Ollama has no such model here",
        got=str(name),
        wanted=_listed(held.name for held in _held_by_ollama()),
        fix="ollama pull fetches it, and mtpcore list shows what there is",
    )


def _ollama_file(root: Path, manifest: Path, name: str) -> Path:
    layers = _layers(manifest)
    kinds = [layer.media_type.removeprefix(_MEDIA) for layer in layers]
    found = [layer for layer, kind in zip(layers, kinds, strict=True) if kind == "model"]
    if "adapter" in kinds:
        raise ModelFileError(
            "the model is one with an adapter, which Ollama adds when it runs",
            where=name,
            fix="merge the adapter into a model file",
        )
    if len(found) != 1:
        raise ModelFileError(
            "the model is no single GGUF file",
            where=name,
            wanted="one layer with the model",
            got=", ".join(sorted({*kinds})) or "none",
            fix="take a GGUF file of it: mtpcore pull OWNER/REPO",
        )
    digest = _DIGEST.fullmatch(found[0].digest)
    path = root / "blobs" / f"sha256-{digest[1]}" if digest else None
    if path is None or not path.is_file() or path.stat().st_size != found[0].size:
        raise ModelFileError(
            "the file of the model is not there, or is not whole",
            where=name,
            got=found[0].digest[:80],
            fix="ollama pull fetches it again",
        )
    return path


def _layers(manifest: Path) -> list[_OllamaLayer]:
    try:
        return msgspec.json.decode(read_regular(manifest, _LONGEST), type=_Manifest).layers
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(
            "not a manifest of Ollama",
            where=str(manifest),
            got=str(error),
            fix="ollama pull writes it again",
        ) from error


def _held_by_ollama() -> Iterator[Held]:
    for root in _ollama_roots():
        folder = root / "manifests"
        for manifest in sorted(folder.glob("*/**/*")):
            words = manifest.relative_to(folder).parts
            if len(words) < 4 or not manifest.is_file():
                continue
            host, owner, *rest, tag = words
            name = "/".join(rest if (host, owner) == (_REGISTRY, _OWNER) else (owner, *rest))
            if host != _REGISTRY:
                name = f"{host}/{name}"
            name = f"ollama:{name}:{tag}"
            try:
                path = _ollama_file(root, manifest, name)
            except ModelFileError:
                continue  # asked for by its name, it says why it cannot be taken
            status = path.stat()
            yield Held(name, status.st_size, path, manifest.stat().st_mtime, "Ollama")


def _lm_studio_roots() -> list[Path]:
    """Return the folders where LM Studio keeps models."""
    home = Path(os.path.expanduser("~"))
    roots = [home / ".lmstudio", home / ".cache/lm-studio"]
    pointer = home / ".lmstudio-home-pointer"
    if pointer.is_file():
        text = read_regular(pointer, _LONGEST).decode("utf-8", "replace").strip()
        roots.insert(0, Path(text or "/nonexistent"))
    folders = [root / "models" for root in roots]
    for root in roots:
        settings = root / "settings.json"
        if settings.is_file():
            folders[:0] = _named_folder(settings)
    return [path for path in dict.fromkeys(folders) if path.is_dir()]


class _FolderSettings(msgspec.Struct, rename="camel"):
    downloads_folder: str = ""


def _named_folder(settings: Path) -> list[Path]:
    try:
        given = msgspec.json.decode(read_regular(settings, _LONGEST), type=_FolderSettings)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # LM Studio's own, which may be of another version
    return [Path(given.downloads_folder)] if given.downloads_folder else []


def _folder(folder: Path) -> list[Offered]:
    """Return the GGUF files in a folder, by their paths in it."""
    if not folder.is_dir():
        return []
    return [
        Offered(path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() == ".gguf" and path.is_file()
    ]


def _held_by_lm_studio(sidecars: Sequence[str]) -> Iterator[Held]:
    for root in _lm_studio_roots():
        for folder in sorted(root.glob("*/*")):
            repo = folder.relative_to(root).as_posix()
            files = _folder(folder)
            for name, parts in name_models(files, "lmstudio", repo, sidecars):
                path, n_bytes = folder / parts[0].path, sum(one.n_bytes for one in parts)
                yield Held(str(name), n_bytes, path, path.stat().st_mtime, "LM Studio")
