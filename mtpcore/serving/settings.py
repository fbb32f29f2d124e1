"""What a server may do, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.lm.embedding import Pooling

__all__ = ["ServerSettings"]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server.

    Attributes
    ----------
    name : str, optional
        What the model is called; default: the name of its file.
    api_keys : tuple of str
        Any of them opens the server; empty: it is open.
    origins : tuple of str
        Web pages, by scheme, host and port, that may ask from a browser; ``*``: all.
    hosts : tuple of str
        Names under which the server may be asked for, so that no page can reach it under a name of
        its own (DNS rebinding); empty: any.
    max_body : int
        Bytes of a request.
    max_waiting : int
        Texts that may wait for a sequence; whoever asks for more gets status 429.
    max_choices : int
        Texts of one request.
    seconds : float, optional
        How long a request may take, waiting included.
    keep_alive : float
        Seconds after which a stream without news says that it is still there.
    page : bool
        Whether browsers get a page to chat with, at ``/``.
    pooling : {"mean", "last", "none"}, optional
        How embeddings are made where a request does not say; default: as ``LM.embed``.
    slot_folder : Path, optional
        Where texts are saved and restored that slots hold; default: nowhere, and requests to do so
        are refused.
    template_options : mapping of str to object
        Variables of the chat template where a request does not give them.
    """

    name: str | None = None
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 32 << 20
    max_waiting: int = 64
    max_choices: int = 16
    seconds: float | None = None
    keep_alive: float = 15.0
    page: bool = True
    pooling: Pooling | None = None
    slot_folder: Path | None = None
    template_options: Mapping[str, Any] = {}
