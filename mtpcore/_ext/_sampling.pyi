"""The sampler of ``c/sampler/sampler.h``, which defines it; checks its arguments."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_TOKEN: int
"""What stands for a token where none was left to choose: less than -1."""

class Settings(Protocol):
    """What `Sampler` reads: the fields of `mtpcore.sampling.Sampling`, already checked."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def top_n_sigma(self) -> float: ...
    @property
    def typical_p(self) -> float: ...
    @property
    def xtc_probability(self) -> float: ...
    @property
    def xtc_threshold(self) -> float: ...
    @property
    def dynatemp_range(self) -> float: ...
    @property
    def dynatemp_exponent(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def penalty_last_n(self) -> int: ...
    @property
    def dry_multiplier(self) -> float: ...
    @property
    def dry_base(self) -> float: ...
    @property
    def dry_allowed_length(self) -> int: ...
    @property
    def dry_penalty_last_n(self) -> int: ...
    @property
    def has_penalties(self) -> bool: ...
    @property
    def is_for_hosts(self) -> bool: ...
    @property
    def logit_bias(self) -> Mapping[int, float] | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def stream(self) -> int: ...

class Scratch:
    """Working memory of one choice at a time; samplers of one thread share it.

    Parameters
    ----------
    n_vocab : int
        Longest row of logits.
    n_ids : int, optional
        Size of the target's vocabulary; ``n_vocab`` by default.

    Raises
    ------
    SamplingError
        A size is not in 1 .. 2**31 - 1.
    MemoryError
        There is no memory for it.
    """

    n_vocab: int
    n_ids: int
    def __init__(self, n_vocab: int, n_ids: int | None = None) -> None: ...

class Sampler:
    """The choice of tokens under one `mtpcore.sampling.Sampling`.

    A sampler holds no state: what it chooses depends on its settings and arguments only.

    Parameters
    ----------
    settings : Settings
        Sampler settings; `None` for a seed is not allowed here.
    scratch : Scratch
        Working memory, large enough for every row.
    breakers : sequence of sequences of int
        Tokens, and lists of tokens, that break repetitions for DRY, as ``spell_breakers`` gives
        them; ids 0 or more.
    """

    scratch: Scratch
    sampling: Settings
    def __init__(
        self, settings: Settings, scratch: Scratch, breakers: Sequence[Sequence[int]] = ()
    ) -> None: ...
    @property
    def is_gumbel_max(self) -> bool:
        """Whether a choice reads each logit by itself: no bias, no penalties, no cuts."""

    def check(self, n_vocab: int, index: int, token_ids: NDArray[np.int32] | None = None) -> None:
        """Check the arguments of a choice that is made elsewhere, as on a device.

        Raises
        ------
        SamplingError
            As `choose` does.
        """

    def choose(
        self,
        logits: NDArray[np.float32],
        history: NDArray[np.int32],
        n_prompt: int,
        index: int,
        token_ids: NDArray[np.int32] | None = None,
        mask: NDArray[np.uint32] | None = None,
    ) -> int:
        """Choose a token.

        Parameters
        ----------
        logits : float32[n_vocab]
            One row. NaN counts as -inf.
        history : int32[n_history]
            Tokens before the chosen one; only penalties read them, and pass over ids out of range.
        n_prompt : int
            How many of them, from the start, are the prompt.
        index : int
            Index of the chosen token in its sequence, 0 .. 2**32 - 1.
        token_ids : int32[n_vocab], optional
            The target's token id of each row of a draft vocabulary. Noise, bias, penalties, mask
            and the result speak of these ids.
        mask : uint32[ceil(n_ids / 32)], optional
            Bit ``id % 32`` of word ``id // 32`` allows a token id.

        Returns
        -------
        int
            A token id.

        Raises
        ------
        NoTokenError
            Every logit is -inf, after bias, penalties and mask: no token is left to choose.
        SamplingError
            A shape, an id or an index is out of range, or another thread drafts with the scratch.
        """

    def choose_with_probability(
        self,
        logits: NDArray[np.float32],
        history: NDArray[np.int32],
        n_prompt: int,
        index: int,
        token_ids: NDArray[np.int32] | None = None,
        mask: NDArray[np.uint32] | None = None,
    ) -> tuple[int, float]:
        """Choose a token as `choose` does; return its probability too.

        The probability is the token's share in the softmax at temperature 1 after bias, penalties
        and mask, before the cuts. Where no token is left to choose this returns ``NO_TOKEN`` and 0:
        a drafter then proposes nothing.
        """

    def rank(
        self,
        logits: NDArray[np.float32],
        history: NDArray[np.int32],
        n_prompt: int,
        index: int,
        n: int,
        token_ids: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]:
        """Rank the best tokens: the one that `choose` returns, then those that would be next.

        Parameters
        ----------
        logits, history, n_prompt, index, token_ids
            As in `choose`.
        n : int
            How many are wanted. Above temperature 0 the cuts may leave fewer, and where every logit
            is -inf there is none.

        Returns
        -------
        ids : int32[m]
            Token ids, best first.
        probabilities : float32[m]
            As `choose_with_probability` gives them.
        shares : float64[m]
            How much of the choice is each token's, if logits are not quite what they seem; never
            rising, the probabilities at temperature 0. ``c/sampler/sampler.h`` has the formula.

        Raises
        ------
        SamplingError
            A shape, an id or a number is out of range, or another thread drafts with the scratch.
        """

def gumbel(seed: int, stream: int, index: int, token_id: int) -> float:
    """Return the noise of one token at one index of a sequence."""

def philox(counter: Sequence[int], key: int) -> tuple[int, int, int, int]:
    """Return the four words of Philox4x32-10 for four counter words and a 64-bit key."""

def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sampler's own logarithm of positive normal numbers."""

def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sampler's own exponential of numbers in (-700, 700)."""
