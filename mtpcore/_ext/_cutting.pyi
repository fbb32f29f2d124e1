"""Cutting a text: where added tokens are, and into the pieces that are likeliest together."""

import numpy as np
from numpy.typing import NDArray

class Cutter:
    """Finds texts in a text: the leftmost first, of those that begin at one place the longest.

    Parameters
    ----------
    texts : list of str
        None is empty, and no two are equal.
    tokens : list of int
        Of each text.
    special : uint8 [n_texts]
        Whether a text is a special token.
    """

    def __init__(self, texts: list[str], tokens: list[int], special: NDArray[np.uint8]) -> None: ...
    def cut(self, text: str, special: bool) -> list[str | int]:
        """Return the tokens that are found, and what stands between.

        Parameters
        ----------
        text : str
        special : bool
            Whether special tokens are cut out; where not, they are text, and nothing that begins
            inside them is found.
        """

class Segmenter:
    """Cuts a text into the pieces whose scores have the largest sum (Viterbi).

    That is what SentencePiece does with a unigram model (``unigram_model.cc``): of equal sums the
    longest last piece wins.

    Parameters
    ----------
    texts : list of str
        The pieces. None is empty, and no two are equal.
    tokens : list of int
        Of each piece.
    scores : float64 [n_pieces]
        Logarithms of their probabilities.
    unknown : float, optional
        What a character scores that is no piece. Default: 10 less than the worst piece.
    """

    def __init__(
        self,
        texts: list[str],
        tokens: list[int],
        scores: NDArray[np.float64],
        unknown: float | None = None,
    ) -> None: ...
    def cut(self, text: str) -> list[str | int]:
        """Return the tokens of a text's pieces, and as text what is between and no piece.

        Takes as many steps for a character as the longest piece that may begin there is long.
        """
