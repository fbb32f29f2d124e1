"""Every exception that mtpcore raises on purpose; imports nothing of mtpcore.

Each error carries facts as attributes: *what* went wrong, *where*, what was *wanted*, what was
*got*, and a *fix*. The message is built from them, so callers test attributes, not sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

__all__ = [
    "BackendError",
    "BatchError",
    "BusyError",
    "CapacityError",
    "CopyError",
    "GraphError",
    "LinkError",
    "ModelFileError",
    "MtpcoreError",
    "NoTokenError",
    "PluginError",
    "SamplingError",
    "StateError",
    "spell",
]

E = TypeVar("E", bound="MtpcoreError")

_LONGEST = 400
"""Characters of a value in a message."""


def spell(value: object, write: Callable[[Any], str] = repr) -> str:
    """Return a value as an error shows it, cut where it is long; raises nothing of the value's."""
    try:
        text = write(value)
    except Exception:  # numbers of more than 4300 digits, and whatever an object's own method does
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class MtpcoreError(Exception):
    """Root of every exception raised on purpose.

    Parameters
    ----------
    what : str
        What went wrong, one clause.
    where : str, optional
        The file, node, tensor, row or call concerned.
    wanted, got : object, optional
        The expected and the found value; shown where given.
    fix : str, optional
        What the caller can do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        wanted: object = None,
        got: object = None,
        fix: str = "",
    ) -> None:
        what, where, fix = (x if isinstance(x, str) else spell(x) for x in (what, where, fix))
        self.what, self.where, self.wanted, self.got, self.fix = what, where, wanted, got, fix
        text = f"{where}: {what}" if where else what
        if wanted is not None:
            text += f"; wanted {spell(wanted, str)}"
        if got is not None:
            text += f"; got {spell(got, str)}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)

    def at(self, where: str, *, fix: str = "") -> Self:
        """Return the same error with ``where`` in front of its own.

        Class and attributes stay, those that a subclass added too.

        Parameters
        ----------
        where : str
            The place around the error's own, which follows it: ``outer: inner``.
        fix : str, optional
            What the caller can do about it, taken where the error does not say so itself.
        """
        error = Exception.__new__(type(self))  # a subclass may be made of other arguments
        error.__dict__.update(self.__dict__)
        MtpcoreError.__init__(
            error,
            self.what,
            where=f"{where}: {self.where}" if self.where else where,
            wanted=self.wanted,
            got=self.got,
            fix=self.fix or fix,
        )
        return error

    def into(self, kind: type[E]) -> E:
        """Return an error of another kind that says the same."""
        return kind(self.what, where=self.where, wanted=self.wanted, got=self.got, fix=self.fix)


class ModelFileError(MtpcoreError, ValueError):
    """A model file is malformed, unsupported or incomplete."""


class GraphError(MtpcoreError, ValueError):
    """A graph breaks the grammar: a shape, a tensor or an undeclared tap."""


class BatchError(MtpcoreError, ValueError):
    """A batch names ids, positions, sequences, parents or rows that cannot be processed."""


class BusyError(MtpcoreError, RuntimeError):
    """Another call is running on the context or Cross; this one changed nothing."""


class LinkError(MtpcoreError, ValueError):
    """Contexts cannot be linked, or a linked row is missing."""


class PluginError(MtpcoreError, RuntimeError):
    """A plugin is broken, misspelt, or claims what another claims."""


class CapacityError(MtpcoreError, MemoryError):
    """Memory, sequence slots or context length are exhausted; the state is unchanged."""


class CopyError(MtpcoreError, TypeError):
    """An object that cannot be copied or pickled."""


class SamplingError(MtpcoreError, ValueError):
    """Sampler settings are out of range."""


class NoTokenError(SamplingError):
    """No token is left to choose: all are forbidden, or no logit is a number."""


class StateError(MtpcoreError, ValueError):
    """A saved state is damaged, or of another model, drafter, format or context."""


class BackendError(MtpcoreError, RuntimeError):
    """A backend is unavailable or cannot run a program."""
