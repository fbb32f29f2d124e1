"""Keys and values of the KV cache as attention reads them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.reference.arithmetic.fused import F32, fma
from mtpcore.backends.reference.coded import CodedRows, codes_of
from mtpcore.memory.types import CODES

__all__ = ["CodedPair", "FloatRows", "Stored", "stored_of"]

At = NDArray[np.int64]
"""Which stored rows, [rows, places]."""


class Stored(Protocol):
    """Keys and values of ``n_heads`` key heads; values have ``v_width`` entries."""

    n_heads: int
    v_width: int

    def products(self, q: F32, at: At) -> F32:
        """Return [rows, G, H / G, places] of queries [rows, G, H / G, Dk] with keys."""

    def values(self, at: At) -> tuple[F32, F32 | None]:
        """Return values [rows, places, G, Dv] and what their weights are multiplied by."""


class FloatRows:
    """Float keys [n, G, Dk] and values [n, G, Dv]: a product is a chain over the key's width."""

    def __init__(self, keys: Any, values: Any) -> None:
        self._keys, self._values = keys, values
        self.n_heads, self.v_width = values.shape[1:]

    def products(self, q: F32, at: At) -> F32:
        """Return queries times keys."""
        keys = self._keys[at].astype(np.float32)
        dots = np.zeros((*q.shape[:3], at.shape[1]), np.float32)
        for d in range(q.shape[3]):
            dots = fma(keys[:, :, :, d].transpose(0, 2, 1)[:, :, None], q[..., d, None], dots)
        return dots

    def values(self, at: At) -> tuple[F32, None]:
        """Return values alone."""
        return self._values[at].astype(np.float32), None


class CodedPair:
    """Keys and values as codes.

    Queries become codes, too. The product of a block's whole numbers is exact in any order; it is
    added to the blocks before, times the product of the two scales, which is rounded. A value's
    scale multiplies its weight.
    """

    def __init__(self, keys: CodedRows, values: CodedRows) -> None:
        _, _, self.n_heads, _ = keys.codes.shape
        self.v_width = values.width
        self._k_codes, self._k_scales = _flat(keys.codes), _flat(keys.scales)
        self._v_codes, self._v_scales = _flat(values.codes), _flat(values.scales)

    def products(self, q: F32, at: At) -> F32:
        """Return queries times keys."""
        codes, scales = codes_of(q)
        keys, key_scales = self._k_codes[at].astype(np.float64), self._k_scales[at]
        dots = np.zeros((*q.shape[:3], at.shape[1]), np.float32)
        for b in range(scales.shape[-1]):
            part = keys[..., b * CODES : (b + 1) * CODES]
            query_codes = codes[..., b, : part.shape[-1]].astype(np.float64)
            whole = np.einsum("rpgd,rghd->rghp", part, query_codes).astype(np.float32)
            scale = key_scales[..., b].transpose(0, 2, 1)[:, :, None] * scales[..., b, None]
            dots = fma(whole, scale, dots)
        return dots

    def values(self, at: At) -> tuple[F32, F32]:
        """Return codes and scales."""
        codes = self._v_codes[at][..., : self.v_width].astype(np.float32)
        return codes, np.repeat(self._v_scales[at], CODES, axis=-1)[..., : self.v_width]


def stored_of(keys: Any, values: Any) -> Stored:
    """Return a layer's rows [n_pages, places, G, D], counted through all pages."""
    if isinstance(keys, CodedRows):
        return CodedPair(keys, values)
    return FloatRows(_flat(keys), _flat(values))


def _flat(pages: NDArray[Any]) -> NDArray[Any]:
    return pages.reshape(-1, *pages.shape[2:])
