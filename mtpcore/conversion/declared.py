"""Calling the functions of declarations, which are plugins' code and read untrusted files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mtpcore.errors import ModelFileError, MtpcoreError

__all__ = ["ask"]

_LONGEST = 200  # characters of what was raised: it may quote anything


def ask(function: Callable[..., Any], *arguments: Any, what: str, where: str) -> Any:
    """Call a function of a declaration.

    Raises
    ------
    ModelFileError
        Whatever it raises, with what it was to find and where.
    """
    try:
        return function(*arguments)
    except MtpcoreError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST]
        fix = "take config.json and tensors from the published model"
        raise ModelFileError(f"{what}: {why}", where=where, fix=fix) from error
