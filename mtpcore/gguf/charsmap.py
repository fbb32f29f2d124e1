"""Maps of characters that SentencePiece normalises text with, as model files hold them.

A map is a double array over bytes of UTF-8, with its size before it, and after it the texts that
its leaves stand for. The ``tokenizers`` package follows such a map without looking whether it leads
anywhere; so it is checked here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fault_of"]

_SIZE = 4  # bytes of the size, and of a unit of the array
_BYTES = 256


def fault_of(charsmap: bytes) -> str:
    """Return what is wrong with a map; empty where it leads nowhere else than to its own texts."""
    n_bytes = int.from_bytes(charsmap[:_SIZE], "little")
    texts = np.frombuffer(charsmap[_SIZE + n_bytes :], np.uint8)
    if len(charsmap) < _SIZE or n_bytes % _SIZE or _SIZE + n_bytes > len(charsmap) or not n_bytes:
        return "its array is cut short"
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError:
        return "its texts are not UTF-8"
    units = np.frombuffer(charsmap[_SIZE : _SIZE + n_bytes], "<u4").astype(np.int64)
    return _fault_of_array(units, texts)


def _fault_of_array(units: NDArray[np.int64], texts: NDArray[np.uint8]) -> str:
    """Follow every byte from every unit that can be come to."""
    seen = np.zeros(len(units), bool)
    of_bytes = np.arange(1, _BYTES)
    children = _child(units, np.zeros(1, np.int64))
    leaves = children[:0]
    while len(children):
        # A unit's children lie where its place and a byte differ: all over a block of 256.
        if (children | (_BYTES - 1)).max() >= len(units):
            return "its array leads outside"
        values = units[leaves] & 0x7FFFFFFF
        if len(values) and (values.max() >= len(texts) or (texts[values] & 0xC0 == 0x80).any()):
            return "a leaf stands for no text"
        at = np.unique(children[~seen[children]])
        seen[at] = True
        nexts = at[:, None] ^ of_bytes
        found = nexts[units[nexts] & 0x800000FF == of_bytes]
        children = _child(units, found)
        leaves = children[(units[found] >> 8) & 1 == 1]
    return ""


def _child(units: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the children of units begin."""
    unit = units[at]
    return at ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))
