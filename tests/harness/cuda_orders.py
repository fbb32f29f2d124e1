"""The orders of sums of the CUDA kernels in plain NumPy, independently of their code.

The rest of their arithmetic is that of the ``cpu`` backend: see
``mtpcore/backends/reference/arithmetic``.
"""

import numpy as np

from mtpcore.backends.reference.activation import quantise
from mtpcore.backends.reference.arithmetic.fused import fma
from mtpcore.backends.reference.arithmetic.matrix import FloatMatrix, matrix_of

THREADS, WARPS, LANES = 256, 8, 32
PLACES = 256
"""In a range of attention."""


def total_of_threads(sums):
    """Return the sum of 256 threads' sums, [..., 256] -> [...]: by halves in warps, then warps.

    Whole warps of zeros may be left out.
    """
    lanes = sums.reshape(*sums.shape[:-1], -1, LANES)
    for half in (16, 8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    total = lanes[..., 0, 0]
    for warp in range(1, lanes.shape[-2]):
        total = total + lanes[..., warp, 0]
    return total + np.float32(0) if lanes.shape[-2] < WARPS else total


def by_threads(x, width):
    """See [..., n] as [steps, ..., 256 * width], zeros after the last value."""
    n_steps = -(-x.shape[-1] // (THREADS * width))
    filled = np.zeros((*x.shape[:-1], n_steps * THREADS * width), np.float32)
    filled[..., : x.shape[-1]] = x
    return np.moveaxis(filled.reshape(*x.shape[:-1], n_steps, THREADS * width), -2, 0)


def columns_of_threads(x):
    """Return the columns that threads add one after the other, float32[..., 256] each."""
    return [step[..., i::8] for step in by_threads(x, 8) for i in range(8)]


def normalised(x, w=None, bias=None, *, n, eps, centred=False):
    """Normalise rows: a thread takes eight columns of every 2048."""
    if centred:
        x = x - mean_of_row(x)
    mean = sum_of_squares(x) / np.float32(n)
    y = x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
    y = y if w is None else y * w
    return y if bias is None else y + bias


def above_cutoff(x, n_deviations):
    """Return what is above the mean and so many deviations; sums are those of norms."""
    x = x - mean_of_row(x)
    deviation = np.sqrt(sum_of_squares(x) / np.float32(x.shape[-1]))
    y = x - np.float32(n_deviations) * deviation
    return np.where(y < 0, np.float32(0), y)


def mean_of_row(x):
    """Return the mean over the last axis, [..., width] -> [..., 1]."""
    sums = np.zeros((*x.shape[:-1], THREADS), np.float32)
    for own in columns_of_threads(x):
        sums = sums + own
    return (total_of_threads(sums) / np.float32(x.shape[-1]))[..., None]


def sum_of_squares(x):
    """Return the sum of squares over the last axis, [..., width] -> [..., 1]."""
    squares = np.zeros((*x.shape[:-1], THREADS), np.float32)
    for own in columns_of_threads(x):
        squares = fma(own, own, squares)
    return total_of_threads(squares)[..., None]


class Product:
    """A matrix whose products are made in the order of the kernels; ``arithmetic``'s ``Matrix``."""

    def __init__(self, kind, raw):
        self.matrix = matrix_of(kind, raw)
        self.n_outputs = self.matrix.n_outputs

    def times(self, x):
        """Return the products with rows, [rows, inputs] -> [rows, outputs]."""
        if isinstance(self.matrix, FloatMatrix):
            return self._by_threads(x)
        return self._in_eighths(x, *self.matrix.blocks)

    def _by_threads(self, x):
        """A thread takes four columns of every 1024; four sums are made side by side here."""
        n_columns = x.shape[1]
        n_threads = min(-(-n_columns // (4 * LANES)) * LANES, THREADS)  # others have nothing to add
        sums = np.zeros((len(x), self.n_outputs, n_threads), np.float32)
        for of_w, of_x in zip(by_threads(self.matrix.columns.T, 4), by_threads(x, 4), strict=True):
            for i in range(4):
                w, v = of_w[:, i::4], of_x[:, None, i::4]
                sums = fma(w[..., :n_threads], v[..., :n_threads], sums)
        return total_of_threads(sums)

    def _in_eighths(self, x, whole, scale, minimum, min_scale):
        """Each eighth of the blocks is a chain; the eighths are added one after the other."""
        _, n_blocks, n_columns = whole.shape
        codes, x_scale = quantise(x, n_columns)
        codes = codes.reshape(len(x), n_blocks, n_columns).astype(np.float64)
        x_scale = x_scale.reshape(len(x), n_blocks, 1)
        total = None
        for warp in range(WARPS):
            y = np.zeros((len(x), self.n_outputs), np.float32)
            for b in range(n_blocks * warp // WARPS, n_blocks * (warp + 1) // WARPS):
                integers = (codes[:, b] @ whole[:, b].T).astype(np.float32)
                y = fma(integers, scale[:, b] * x_scale[:, b], y)
                if minimum is not None:
                    minima = (codes[:, b] @ minimum[:, b].T).astype(np.float32)
                    y = fma(-minima, min_scale[:, b] * x_scale[:, b], y)
            total = y if total is None else total + y
        return total
