"""Objects that own files, memory or threads, or are owned, and so have no copies."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

from mtpcore.errors import CopyError

__all__ = ["Uncopied"]


class Uncopied:
    """Base of what ``copy``, ``deepcopy`` and ``pickle`` refuse, with words of ours."""

    _because: ClassVar[str] = "it owns files, memory or a process"
    _instead: ClassVar[str]
    """What the caller does in place of a copy."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise CopyError(
            f"{type(self).__name__} is not copied or pickled: {self._because}",
            fix=self._instead,
        )
