"""Logits processors: functions of a caller that change logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.arrays import RowsLike
from mtpcore.boundary.dlpack import is_elsewhere, to_host
from mtpcore.errors import NoTokenError, SamplingError, spell

__all__ = ["DraftProcessor", "LogitsProcessor", "PureProcessor", "process_logits", "read_answer"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

LogitsProcessor = Callable[[I32, F32], RowsLike | None]
"""``processor(tokens, logits)`` changes the logits, float32[n_vocab], in place and returns None, or
returns others: float32[n_vocab], of NumPy or of a library that gives rows by DLPack, on the host.

``tokens``, int32[n_tokens], are those before the one that is chosen. It runs before the sampler's
own chain: bias, penalties, cuts and temperature see what it left. What it does may depend on its
arguments alone. Where it leaves no token to choose the text ends (``finish_reason`` "no_token").
"""


class PureProcessor:
    """A logits processor that may be called for drafts, too: ``@PureProcessor`` over a function.

    What it does depends on its arguments alone, and it keeps nothing: it is called any number of
    times, in any order, and with tokens that never become part of the text. So drafters see its
    effect, and more of their drafts are accepted. The text is the same.

    Parameters
    ----------
    processor : callable
        As ``LogitsProcessor`` says.

    Raises
    ------
    SamplingError
        It is no callable.

    Examples
    --------
    >>> @PureProcessor
    ... def no_zero(tokens, logits):
    ...     logits[0] = -np.inf
    """

    def __init__(self, processor: LogitsProcessor) -> None:
        if not callable(processor):
            raise SamplingError(
                "a logits processor is a callable",
                wanted="processor(tokens, logits)",
                got=spell(processor),
            )
        self._processor = processor

    def __call__(self, tokens: I32, logits: F32) -> RowsLike | None:
        """Change logits, or return others; see ``LogitsProcessor``."""
        return self._processor(tokens, logits)

    def __repr__(self) -> str:
        return f"PureProcessor({self._processor!r})"


class DraftProcessor:
    """A pure processor for a drafter, whose logits may be of other tokens than the target's.

    A draft is a guess, so nothing that the processor does wrong is an error here: where it raises,
    or returns no logits, no token is left to draft. It is an error if the target comes there.

    Parameters
    ----------
    processor : PureProcessor
    n_vocab : int
        Tokens of the target.
    warn : callable
        Is told what the processor raised.
    """

    def __init__(self, processor: PureProcessor, n_vocab: int, warn: Callable[[str], None]) -> None:
        self._processor, self._n_vocab, self._warn = processor, n_vocab, warn

    def __call__(self, tokens: I32, logits: F32, token_ids: I32 | None = None) -> F32:
        """Return float32[n_logits] as the processor leaves them.

        Parameters
        ----------
        tokens : int32[n]
            The text and the drafts so far.
        logits : float32[n_logits]
        token_ids : int32[n_logits], optional
            The token of each logit, where that is not its index. Tokens without one are -inf for
            the processor.
        """
        places: slice | I32 = slice(len(logits)) if token_ids is None else token_ids
        row = np.full(self._n_vocab, -np.inf, np.float32)
        row[places] = logits
        try:
            return np.ascontiguousarray(process_logits(self._processor, tokens, row)[places])
        except NoTokenError:
            pass
        except MemoryError:
            raise
        except Exception as error:  # whatever a caller's function raises
            self._warn(f"its logits processor raised {type(error).__name__}; drafts end there")
        return np.full(len(logits), -np.inf, np.float32)


def process_logits(processor: LogitsProcessor | None, tokens: I32, logits: F32) -> F32:
    """Return one row of logits as a processor leaves it; what it gets are copies.

    Raises
    ------
    SamplingError
        As ``read_answer``.
    Exception
        Whatever the processor raises.
    """
    if processor is None:
        return logits
    changed = logits.copy()
    answer = processor(tokens.copy(), changed[:])  # of a view it may change the shape
    return read_answer(answer, changed)


def read_answer(answer: object, logits: F32) -> F32:
    """Return what a processor returned in place of ``logits``; None: it changed them in place.

    Raises
    ------
    SamplingError
        Something else than a row of as many float32 on the host.
    """
    if answer is None:
        return logits
    row: Any = answer
    try:
        if not isinstance(answer, np.ndarray) and hasattr(answer, "__dlpack__"):
            row = answer if is_elsewhere(answer) else to_host(answer)
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        row = error
    if not isinstance(row, np.ndarray) or row.dtype != np.float32 or row.shape != logits.shape:
        is_array = isinstance(row, np.ndarray)
        raise SamplingError(
            "a logits processor returns the logits that it made, or nothing",
            where="logits_processor",
            wanted=f"float32[{len(logits)}] on the host, or None where it changed them in place",
            got=f"{row.dtype}{list(row.shape)}" if is_array else spell(row),
            fix="return logits.astype(numpy.float32), one for each token of the vocabulary",
        )
    return np.ascontiguousarray(row)
