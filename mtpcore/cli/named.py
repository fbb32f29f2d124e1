"""Models by their names, at the terminal: what is fetched is said, and what lies beside it."""

from __future__ import annotations

from pathlib import Path

from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import harmless, note, spell_bytes
from mtpcore.discovery.fetching import Fetched, open_named
from mtpcore.hub import ModelName, Offered

__all__ = ["find_named_model", "note_beside"]


def find_named_model(name: ModelName, *, offline: bool) -> Path:
    """Return the file of a model, fetched where it is not on this machine.

    Raises
    ------
    ModelFileError
        It is not there and cannot be fetched; says what to do.
    """
    with count_bytes(f"fetching {name}") as report:
        found = open_named(name, offline=offline, report=report)
    note(f"{name} is {harmless(str(found.path))}")
    if found.is_listed:
        note_beside(name, found)
    return found.path


def note_beside(name: ModelName, fetched: Fetched) -> None:
    """Say which drafters the repository has beside a model, and what is not read."""
    if fetched.drafter is not None:
        path = harmless(str(fetched.drafter))
        if fetched.drafter.parent == fetched.path.parent:
            note(f"it drafts with {harmless(fetched.drafter.name)}, which is found beside it")
        else:
            note(f"its drafter is in another folder: give it, with --mtp-path or -md, {path}")
    elif fetched.beside:
        note(
            f"drafters beside it: {_listed(fetched.beside)}; mtpcore pull {str(name)[3:]} "
            "--drafter fetches the first"
        )
    if fetched.others:
        note(f"not fetched, as only texts are read: {_listed(fetched.others)}")


def _listed(files: tuple[Offered, ...]) -> str:
    return ", ".join(f"{harmless(one.path)} ({spell_bytes(one.n_bytes)})" for one in files)
