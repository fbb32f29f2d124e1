"""Joining the pieces of a text, as byte-pair encoding does: the best pair first."""

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
    scores : float64 [n_tokens], optional
        How good a joint each token is, the highest first; for vocabularies without ``ranks``.
    ranks : dict, optional
        The rank of a pair, spelt with a space between, the lowest first; others are not joined.
    whole_words : bool
        Whether a word that is a token is taken as it is.

    Attributes
    ----------
    missed : str or None
        The last pair that had a rank and made no token, and so was not joined.
    """

    missed: str | None

    def __init__(
        self,
        texts: list[str],
        ids: dict[str, int],
        joinable: NDArray[np.uint8],
        scores: NDArray[np.float64] | None = None,
        ranks: dict[str, int] | None = None,
        whole_words: bool = False,
    ) -> None: ...
    def join(self, pieces: list[int], words: list[int | None]) -> list[int]:
        """Join tokens, each a letter, with those of the same word beside them.

        Parameters
        ----------
        pieces : list of int
        words : list of int or None
            The word in which each piece stands.

        Returns
        -------
        list of int
            Takes n log n steps for a word of n letters.

        Raises
        ------
        IndexError
            A token is not in the vocabulary, or a piece has no word.
        """
