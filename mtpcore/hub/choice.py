"""Which files of a repository are a model, as people who name it mean it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import msgspec

from mtpcore.errors import ModelFileError
from mtpcore.hub.naming import ModelName, StoreName

__all__ = ["Offered", "bits_from_eight", "choose_model", "list_offered", "name_models"]

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(
    r"[-.]((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP\d\w*|NVFP\d\w*))$", re.IGNORECASE
)
_DEFAULTS = ("Q4_K_M", "Q8_0")
"""Quantisations that are taken where none is named; then the first file."""
_NO_MODELS = ("mmproj", "imatrix")
_MOST_NAMED = 24


class Offered(msgspec.Struct, frozen=True):
    """A file of a repository.

    Attributes
    ----------
    path : str
        In the repository, with slashes.
    n_bytes : int
    sha256 : str
        Of its content, in hexadecimal digits; empty where the hub does not say it.
    """

    path: str
    n_bytes: int
    sha256: str = ""

    @property
    def name(self) -> str:
        """The name without folders."""
        return PurePosixPath(self.path).name


def choose_model(
    files: Iterable[Offered], name: ModelName, sidecars: Sequence[str]
) -> tuple[Offered, ...]:
    """Return the files of the model that is meant: one, or the parts of a split one in order.

    As in llama.cpp: a quantisation is found in the names of files, in either case, followed by a
    dot or a hyphen; where none is named, Q4_K_M is taken, else Q8_0, else the first file. Files
    that are made to stand beside a model are only taken where there is no other.

    Parameters
    ----------
    files : iterable of Offered
        All of the repository, in its order.
    name : ModelName
    sidecars : sequence of str
        What drafters' files are called, each with one ``*``.

    Raises
    ------
    ModelFileError
        There is no such model, or a part of it is missing; says what there is.
    """
    every = [one for one in files if one.path.lower().endswith(".gguf")]
    first = _find(every, name, sidecars)
    if first is None:
        raise ModelFileError(
            "the repository holds no such GGUF file" if every else "no GGUF file in the repository",
            where=f"{name.store}:{name.repo}",
            wanted=name.file or name.tag or "*.gguf",
            got=list_offered(every) or "none",
            fix="name one that is there"
            if every
            else f"mtpcore convert {name.repo} makes one of a published checkpoint",
        )
    return _parts(first, every, name)


def list_offered(files: Sequence[Offered]) -> str:
    """Return the names of files, in one line."""
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return ", ".join(one.path for one in files[:_MOST_NAMED]) + more


def name_models(
    files: Iterable[Offered], store: StoreName, repo: str, sidecars: Sequence[str]
) -> Iterator[tuple[ModelName, tuple[Offered, ...]]]:
    """Yield the GGUF files of a repository, a split one as one, under the shortest name of each.

    Parameters
    ----------
    files : iterable of Offered
    store, repo : str
        As in ``ModelName``.
    sidecars : sequence of str
        As in ``choose_model``.
    """
    every = [one for one in files if one.path.lower().endswith(".gguf")]
    seen: set[str] = set()
    for one in every:
        if one.path in seen:
            continue
        exact = ModelName(store, repo, file=one.path)
        try:
            parts = choose_model(every, exact, sidecars)
        except ModelFileError:  # parts are missing: asked for by this name, it says so
            parts = (one,)
        seen |= {part.path for part in parts}
        yield _shorten(exact, parts, every, sidecars), parts


def bits_from_eight(path: str) -> int:
    """Return how far the quantisation in a file's name is from eight bits; 0 where it has none.

    ``load_model`` prefers such a drafter, and looks at the tensors.
    """
    tag = _tag(path)
    bits = re.search(r"\d+", tag)
    return abs(int(bits[0]) - 8) if bits else 0


def _tag(path: str) -> str:
    """Return the quantisation that a file's name ends in; empty where it names none."""
    part = _PART.fullmatch(path)
    found = _TAG.search(part[1] if part else path[: -len(".gguf")])
    return found[1] if found else ""


def _shorten(
    exact: ModelName, parts: tuple[Offered, ...], every: Sequence[Offered], sidecars: Sequence[str]
) -> ModelName:
    """Return the name by its quantisation where that means the same files."""
    short = ModelName(exact.store, exact.repo, _tag(exact.file))
    if not short.tag:
        return exact
    try:
        return short if choose_model(every, short, sidecars) == parts else exact
    except ModelFileError:
        return exact


def _find(every: Sequence[Offered], name: ModelName, sidecars: Sequence[str]) -> Offered | None:
    if name.file:
        return next((one for one in every if one.path == name.file), None)
    firsts = [one for one in every if _number(one) == 1]
    models = [one for one in firsts if not _is_beside(one, sidecars)] or [
        one for one in firsts if not any(word in one.name.lower() for word in _NO_MODELS)
    ]
    for tag in (name.tag,) if name.tag else _DEFAULTS:
        for before in (r"(?<![A-Za-z0-9])", ""):  # F16 is not meant by a name with BF16
            wanted = re.compile(before + re.escape(tag) + r"[.-]", re.IGNORECASE)
            if found := next((one for one in models if wanted.search(one.path)), None):
                return found
    return None if name.tag or not models else models[0]


def _is_beside(file: Offered, sidecars: Sequence[str]) -> bool:
    """Say whether a file's name is of those that stand beside a model."""
    name = file.name.lower()
    if any(word in name for word in _NO_MODELS):
        return True
    for pattern in sidecars:
        before, after = pattern.lower().removesuffix(".gguf").split("*")
        part = _PART.fullmatch(name)
        stem = part[1] if part else name.removesuffix(".gguf")
        if stem.startswith(before) and stem.endswith(after):
            return True
    return False


def _number(file: Offered) -> int:
    part = _PART.fullmatch(file.path)
    return int(part[2]) if part else 1


def _parts(first: Offered, every: Sequence[Offered], name: ModelName) -> tuple[Offered, ...]:
    part = _PART.fullmatch(first.path)
    if part is None:
        return (first,)
    there = {one.path: one for one in every}
    paths = [
        f"{part[1]}-{number:05}-of-{part[3]}{part[4]}" for number in range(1, int(part[3]) + 1)
    ]
    if missing := [path for path in paths if path not in there]:
        raise ModelFileError(
            "parts of the split model are missing",
            where=f"{name.store}:{name.repo}",
            wanted=f"{len(paths)} parts",
            got=f"without {', '.join(missing[:3])}",
            fix="take another quantisation, or tell who published it",
        )
    return tuple(there[path] for path in paths)
