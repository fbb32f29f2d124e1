"""A request's use of its logits in a round: log-probabilities and its logits processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.decoding.logprobs import TokenLogprobs, log_softmax
from mtpcore.decoding.request import Request
from mtpcore.runtime.output import Output

__all__ = ["RoundLogits", "prompt_logprobs", "watches"]


class RoundLogits:
    """Notes a request's log-probabilities in one round, and lets its processor change the logits.

    It is a ``LogitsProcessor``, and a new one in each round: nothing is left of one that is undone.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._rows: list[NDArray[np.float64]] = []

    def __call__(self, tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> Any:
        """Take the row from which the token after ``tokens`` is chosen; return the processor's."""
        request = self._request
        if self._is_after_the_end(tokens):
            return None
        if request.n_logprobs is not None:
            self._rows.append(log_softmax(logits))
        return None if request.processor is None else request.processor(tokens, logits)

    def _is_after_the_end(self, tokens: NDArray[np.int32]) -> bool:
        """Say whether the text ends within the drafts of this round: no token follows then."""
        request = self._request
        drafts = tokens[request.n_held :].tolist()
        return bool(drafts) and request.advance(drafts, 0).reason is not None

    def logprobs(self, tokens: Sequence[int]) -> list[TokenLogprobs]:
        """Return the log-probabilities of the tokens that were chosen, in order."""
        n = self._request.n_logprobs
        if n is None:
            return []
        pairs = zip(self._rows, tokens, strict=False)
        write = self._request.token_text
        return [TokenLogprobs.of(row, token, n, write) for row, token in pairs]


def watches(request: Request) -> bool:
    """Say whether a request wants to see its logits; others let tokens be chosen without them."""
    return request.n_logprobs is not None or request.processor is not None


def prompt_logprobs(
    request: Request, output: Output | None, seq: int, n: int
) -> list[TokenLogprobs]:
    """Return how likely the tokens were that follow each of ``n`` further rows of a prompt.

    Nothing, where that was not asked for. After its last row the text begins.
    """
    if request.n_prompt_logprobs is None or output is None:
        return []
    begin = request.n_prefilled
    following = request.prompt[begin + 1 : begin + 1 + n]
    rows = (log_softmax(output.logits_of(seq, begin + i)) for i in range(len(following)))
    return [
        TokenLogprobs.of(row, token, request.n_prompt_logprobs, request.token_text)
        for row, token in zip(rows, following, strict=True)
    ]
