"""What lies in the hub's cache on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from mtpcore.errors import ModelFileError
from mtpcore.hub.choice import Offered, choose_model, name_models
from mtpcore.hub.downloading import PARTIAL, Repository, cache_root, repository_folder
from mtpcore.hub.naming import ModelName
from mtpcore.hub.stores import Held

__all__ = ["cached_repository", "held_in_cache", "remove"]


def cached_repository(repo: str) -> Repository | None:
    """Return what the cache holds of a repository's main branch; None: nothing."""
    folder = repository_folder(repo)
    try:
        commit = (folder / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeError):
        return None
    snapshot = folder / "snapshots" / commit
    if not commit or "/" in commit or not snapshot.is_dir():
        return None
    files = [
        Offered(path.relative_to(snapshot).as_posix(), path.stat().st_size)
        for path in sorted(snapshot.rglob("*"))
        if path.is_file()
    ]
    return Repository(repo, commit, tuple(files), snapshot) if files else None


def held_in_cache(sidecars: Sequence[str]) -> Iterator[Held]:
    """Yield the GGUF files that the cache holds, a split one as one, and unfinished ones.

    Parameters
    ----------
    sidecars : sequence of str
        As in ``choose_model``.
    """
    for folder in sorted(cache_root().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if there := cached_repository(repo):
            for name, files in name_models(there.files, "hf", repo, sidecars):
                path, n_bytes = there.folder / files[0].path, sum(one.n_bytes for one in files)
                yield Held(str(name), n_bytes, path, path.stat().st_mtime)
        if partial := [*folder.glob(f"blobs/*{PARTIAL}")]:
            n_bytes = sum(path.stat().st_size for path in partial)
            newest = max(path.stat().st_mtime for path in partial)
            yield Held(f"hf:{repo}", n_bytes, partial[0], newest, is_partial=True)


def remove(name: ModelName, sidecars: Sequence[str]) -> tuple[list[str], int]:
    """Remove a model from the cache, or all GGUF files of a repository where no more is named.

    Other files of the repository stay, and so does content that another file of the cache shares.

    Returns
    -------
    tuple of list of str and int
        What was removed, and how many bytes that gives back.

    Raises
    ------
    ModelFileError
        The cache does not hold it.
    """
    folder = repository_folder(name.repo)
    there = cached_repository(name.repo)
    partial = [*folder.glob(f"blobs/*{PARTIAL}")]
    if there is None and (name.tag or name.file or not partial):
        raise ModelFileError(
            "not in the cache", got=str(name), fix="mtpcore list shows what there is"
        )
    removed: list[str] = []
    pointers: list[Path] = []
    if there is not None:
        files = [one for one in there.files if one.path.lower().endswith(".gguf")]
        if name.tag or name.file:
            files = [*choose_model(files, name, sidecars)]
        removed = [one.path for one in files]
        wanted = {PurePosixPath(path) for path in removed}
        pointers = [
            path
            for snapshot in (folder / "snapshots").iterdir()
            for path in snapshot.rglob("*.gguf")
            if PurePosixPath(path.relative_to(snapshot).as_posix()) in wanted
        ]
    blobs = {Path(os.path.realpath(path)) for path in pointers}
    for path in pointers:
        path.unlink()
    kept = {os.path.realpath(path) for path in (folder / "snapshots").rglob("*") if path.is_file()}
    n_bytes = 0
    if not (name.tag or name.file):
        blobs |= {*partial}
        removed += [f"{path.name} (unfinished)" for path in partial]
    for blob in sorted(blobs):
        if str(blob) not in kept and blob.is_file():
            n_bytes += blob.stat().st_size
            blob.unlink()
    _remove_empty(folder)
    return removed, n_bytes


def _remove_empty(folder: Path) -> None:
    """Remove folders without files; the repository's own goes where no file is left in it."""
    if not any(path.is_file() for path in folder.glob("snapshots/**/*")) and not any(
        folder.glob("blobs/*")
    ):
        for path in (folder / "refs").glob("**/*"):
            if path.is_file():
                path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
