"""Models by their names: found on this machine, or fetched from the hub with what drafts for them.

What a name means is decided by ``mtpcore.hub``; how files of drafters are called, by plugins.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.registry import registry
from mtpcore.discovery.sidecars import rank_names, sidecar_patterns
from mtpcore.errors import ModelFileError
from mtpcore.hub import (
    CHECKPOINT,
    FetchReport,
    Held,
    ModelName,
    Offered,
    Repository,
    ask,
    bits_from_eight,
    cached_repository,
    choose_model,
    download,
    find_in_store,
    held_in_cache,
    held_in_stores,
    is_offline,
    list_offered,
    remove,
    show_bar,
)

__all__ = ["Fetched", "fetch", "fetch_checkpoint", "held", "open_named", "pull", "remove_held"]

log = logging.getLogger("mtpcore")
_OTHERS = ("mmproj",)
"""Files beside a model that are no drafters, as their names begin."""


class Fetched(msgspec.Struct, frozen=True):
    """A model that is on this machine now.

    Attributes
    ----------
    path : Path
        Its file, the first of a split one.
    drafter : Path or None
        The file beside it that drafts for it, where one was asked for and there is one.
    files : tuple of Offered
        The model's files in its repository.
    beside : tuple of Offered
        Files of drafters that the repository has beside the model or in a folder above, the nearest
        name first.
    others : tuple of Offered
        Files beside the model that nothing here reads.
    is_listed : bool
        Whether the hub said what lies beside; otherwise it is what this machine has.
    """

    path: Path
    drafter: Path | None = None
    files: tuple[Offered, ...] = ()
    beside: tuple[Offered, ...] = ()
    others: tuple[Offered, ...] = ()
    is_listed: bool = False


def open_named(
    name: ModelName, *, offline: bool = False, report: FetchReport | None = None
) -> Fetched:
    """Return where a model is: in another program's store, in the cache, or fetched from the hub.

    What the cache holds is taken as it is, and the hub is not asked.

    Raises
    ------
    ModelFileError
        It is not there and cannot be fetched; says what to do.
    """
    if name.store != "hf":
        return Fetched(find_in_store(name, _patterns()))
    return _cached(name) or fetch(name, offline=offline, report=report)


def pull(name: ModelName, *, drafter: bool = False, report: FetchReport | None = None) -> Fetched:
    """Fetch a model as the hub has it now; as ``fetch``.

    Raises
    ------
    ModelFileError
        Another program's store is named, or it cannot be fetched.
    """
    if name.store != "hf":
        raise ModelFileError(
            "only the hub's models are fetched",
            got=str(name),
            fix="this one is fetched by the program whose store it is",
        )
    return fetch(name, drafter=drafter, report=report)


def fetch(
    name: ModelName,
    *,
    drafter: bool = False,
    offline: bool = False,
    report: FetchReport | None = None,
) -> Fetched:
    """Fetch the files of a model from the hub into its cache, those that are not there.

    Nothing else is fetched: files beside the model are named in what is returned.

    Parameters
    ----------
    name : ModelName
    drafter : bool
        Whether to fetch the file that drafts for the model, too, which ``load_model`` then finds.
    offline : bool
        Whether to take what the cache holds, without asking.
    report : callable, optional
        Told the bytes that have come, and all; default: a bar on standard error, if that is a
        terminal.

    Raises
    ------
    ModelFileError
        It is not there or cannot be fetched; says what to do.
    """
    if offline or is_offline():
        if found := _cached(name, drafter):
            return found
        raise ModelFileError(
            "the cache does not hold the model, and the hub is not to be asked",
            got=str(name),
            fix=f"without --offline and HF_HUB_OFFLINE: mtpcore pull {str(name)[3:]}",
        )
    try:
        there = ask(name.repo)
    except ModelFileError as error:
        found = _cached(name, drafter)
        if found is None or "cannot be reached" not in error.what:
            raise
        log.warning("taking the model as the cache has it: %s", error)
        return found
    chosen = choose_model(there.files, name, _patterns())
    beside, others = _beside(there, chosen[0])
    wanted = [*chosen, *beside[:1]] if drafter else [*chosen]
    title = PurePosixPath(chosen[0].path).name
    if report is None:
        with show_bar(title) as shown:
            paths = download(there, wanted, shown)
    else:
        paths = download(there, wanted, report)
    found_drafter = paths[len(chosen)] if drafter and beside else None
    return Fetched(paths[0], found_drafter, chosen, beside, others, True)


def fetch_checkpoint(repo: str, *, report: FetchReport | None = None) -> Path:
    """Fetch what a conversion reads of a published checkpoint; return the folder that holds it.

    Of a checkpoint in several files with an index, only the files that the index names are
    fetched.

    Raises
    ------
    ModelFileError
        There is no such checkpoint, or it cannot be fetched.
    """
    if is_offline():
        there = cached_repository(repo)
        if there is None or not (there.folder / "config.json").is_file():
            raise ModelFileError(
                "the cache does not hold the checkpoint, and HF_HUB_OFFLINE forbids asking the hub",
                got=repo,
                fix="fetch it while there is a network, or give the folder that holds it",
            )
        return there.folder
    there = ask(repo)
    files = [one for one in there.files if any(re.fullmatch(form, one.path) for form in CHECKPOINT)]
    tensors = [one for one in files if one.path.endswith(".safetensors")]
    if not tensors or not any(one.path == "config.json" for one in files):
        raise ModelFileError(
            "the repository holds no checkpoint that can be converted",
            where=f"hf:{repo}",
            wanted="config.json and *.safetensors",
            got=list_offered(there.files) or "none",
            fix="take the repository of the model as its authors published it",
        )
    small = [one for one in files if one not in tensors]
    report = report or (lambda done, total: None)
    download(there, small, None)
    download(there, [one for one in tensors if one.path in _indexed(there, tensors)], report)
    return there.folder


def _indexed(there: Repository, tensors: Sequence[Offered]) -> set[str]:
    """Return the files that hold the checkpoint: those of its index, or the whole one, or all."""
    names = {one.path for one in tensors}
    index = there.folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = msgspec.json.decode(index.read_bytes())["weight_map"].values()
            return names & {*listed}
        except (msgspec.DecodeError, KeyError, AttributeError, TypeError):
            return names  # the conversion says what is wrong with it
    return {"model.safetensors"} if "model.safetensors" in names else names


def held() -> Iterator[Held]:
    """Yield the models on this machine that have names."""
    yield from held_in_cache(_patterns())
    yield from held_in_stores(_patterns())


def remove_held(name: ModelName) -> tuple[list[str], int]:
    """Remove a model from the hub's cache; as ``mtpcore.hub.remove``.

    Raises
    ------
    ModelFileError
        It is not there, or belongs to another program.
    """
    if name.store != "hf":
        owner, command = {"ollama": ("Ollama", "ollama rm"), "lmstudio": ("LM Studio", "lms")}[
            name.store
        ]
        raise ModelFileError(
            f"the model belongs to {owner}, whose store is only read",
            got=str(name),
            fix=f"remove it there ({command})",
        )
    return remove(name, _patterns())


def _cached(name: ModelName, drafter: bool = False) -> Fetched | None:
    """Return a model as the cache holds it; None where it does not, or not all of it."""
    there = cached_repository(name.repo)
    if there is None:
        return None
    try:
        chosen = choose_model(there.files, name, _patterns())
    except ModelFileError:
        return None
    beside, others = _beside(there, chosen[0])
    found = there.folder / beside[0].path if drafter and beside else None
    return Fetched(there.folder / chosen[0].path, found, chosen, beside, others)


def _beside(there: Repository, model: Offered) -> tuple[tuple[Offered, ...], tuple[Offered, ...]]:
    """Return the drafters' files of a model, the nearest first, and what else belongs to it.

    They are in its folder, or in one above it, as those of split models are.
    """
    folder = PurePosixPath(model.path).parent
    beside: list[Offered] = []
    others: list[Offered] = []
    for place in (folder, *folder.parents):
        files = {
            one.name: one
            for one in there.files
            if PurePosixPath(one.path).parent == place and one.path.lower().endswith(".gguf")
        }
        ranked = rank_names(Path(model.name), files, sidecar_patterns(_drafters()))
        ranked.sort(key=lambda one: (one.distance, bits_from_eight(one.path.name)))
        beside += [files[one.path.name] for one in ranked]
        others += [one for name, one in files.items() if name.lower().startswith(_OTHERS)]
    return tuple(beside), tuple(others)


def _drafters() -> Sequence[DrafterSpec]:
    return registry().drafters


def _patterns() -> list[str]:
    """Return what files of drafters are called."""
    return [pattern for pattern, _ in sidecar_patterns(_drafters())]
