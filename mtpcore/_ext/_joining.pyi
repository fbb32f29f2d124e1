"""Joining the letters of words: the best pair first."""

import numpy as np
from numpy.typing import NDArray

class Joiner:
    """Joins neighbours until none can be: the best joint first, the leftmost of those that tie.

    That is what SentencePiece does by score (``bpe_model.cc`` orders its agenda so), and byte-pair
    encoding by rank. Nothing is derived from the vocabulary before: what two pieces make is looked
    up when they stand beside each other.

    Parameters
    ----------
    texts : list of str
        Of each token.
    ids : dict
        The token of a text.
    joinable : uint8 [n_tokens]
        Tokens with 0 are no part of another, and no two make them.
    of_bytes : int32 [256]
        The token of each byte, -1 where there is none.
    unknown : int, optional
        The token of characters, however many in a row, that are no tokens and whose bytes are not
        either. Left out: a text is its bytes, and each of these has a token.
    scores : float64 [n_tokens], optional
        How good a joint each token is, the highest first; for vocabularies without ``merges``.
    merges : list of str, optional
        Pairs, spelt with a space between, the best first; others are not joined.
    whole_words : bool
        Whether a word that is a token is taken as it is.

    Attributes
    ----------
    missed : str or None
        The last pair of ``merges`` that made no token, and so was not joined.
    """

    missed: str | None

    def __init__(
        self,
        texts: list[str],
        ids: dict[str, int],
        joinable: NDArray[np.uint8],
        of_bytes: NDArray[np.int32],
        unknown: int | None = None,
        scores: NDArray[np.float64] | None = None,
        merges: list[str] | None = None,
        whole_words: bool = False,
    ) -> None: ...
    def join(self, words: list[str]) -> list[int]:
        """Return the tokens of words, one after the other, none across two.

        Parameters
        ----------
        words : list of str
            Valid Unicode.

        Returns
        -------
        list of int
            Takes n log n steps for a word of n letters. What short words become is remembered.

        Raises
        ------
        IndexError
            A token is not in the vocabulary.
        """
