"""Names of models: ``hf:owner/repo[:quant]``, ``ollama:name[:tag]``, ``lmstudio:owner/repo``."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from mtpcore.errors import ModelFileError

__all__ = ["CHECKPOINT_NAME", "ModelName", "StoreName", "parse_name"]

StoreName = Literal["hf", "ollama", "lmstudio"]
"""Where a model is: on the hub, or in the store of another program on this machine."""

_WORD = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_HUB = re.compile(
    r"(?:https://(?:huggingface\.co|hf\.co)/|hf\.co/|//)?"
    rf"(?P<repo>{_WORD}/{_WORD})(?:/(?P<file>[^:]*\.gguf)|:(?P<tag>[\w.-]+)|/)?",
    re.ASCII,
)
_OLLAMA = re.compile(rf"(?P<repo>(?:{_WORD}/){{0,3}}{_WORD})(?::(?P<tag>[\w.-]+))?", re.ASCII)
_FORMS: dict[StoreName, tuple[re.Pattern[str], str]] = {
    "hf": (_HUB, "hf:owner/repo, hf:owner/repo:Q4_K_M or hf:owner/repo/file.gguf"),
    "lmstudio": (_HUB, "lmstudio:owner/repo, with :Q4_K_M or /file.gguf"),
    "ollama": (_OLLAMA, "ollama:name or ollama:name:tag, as ollama list has them"),
}
CHECKPOINT_NAME = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
"""What a published checkpoint is called."""


class ModelName(msgspec.Struct, frozen=True):
    """A model by its name.

    Attributes
    ----------
    store : str
    repo : str
        ``owner/repo``, or the name that Ollama has for it.
    tag : str
        The quantisation, or Ollama's tag; empty where none is named.
    file : str
        A file in the repository, where the name says one.
    """

    store: StoreName
    repo: str
    tag: str = ""
    file: str = ""

    def __str__(self) -> str:
        tail = f"/{self.file}" if self.file else f":{self.tag}" if self.tag else ""
        return f"{self.store}:{self.repo}{tail}"


def parse_name(text: str, store: StoreName | None = None) -> ModelName | None:
    """Return the model that a text names; None for paths.

    Parameters
    ----------
    text : str
        Begins with the store and a colon.
    store : str, optional
        The store that is meant where the text names none: it is no path then.

    Raises
    ------
    ModelFileError
        The text names a store, and no model in it.
    """
    named, colon, rest = text.partition(":")
    kind = next((one for one in get_args(StoreName) if colon and named == one), None)
    if kind is None:
        if store is None:
            return None
        kind, rest = store, text
    form, wanted = _FORMS[kind]
    match = form.fullmatch(rest)
    if match is None or ".." in rest or "--" in match["repo"]:
        raise ModelFileError(
            "not the name of a model",
            wanted=wanted,
            got=text,
            fix=f"take one of these; a file of your own with this name is given as ./{text}",
        )
    parts = match.groupdict()
    return ModelName(kind, parts["repo"], parts["tag"] or "", parts.get("file") or "")
