"""The weights of a fused head before the first step: a linear guess, and heads that copy.

Where a text repeats itself, what followed the last time is the best draft there is. Models find it
by "induction heads" (Olsson et al., 2022, arXiv 2209.11895), which a small head learns only from
many tokens. But it can be built: entry j knows token j by its taps and token j + 1 by its
embedding, so that a query of the newest token, compared with what taps say, finds what came next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["EPS", "LayerSizes", "TextSample", "first_weights"]

F32 = NDArray[np.float32]
TextSample = Callable[[], Iterator[tuple[F32, F32, F32]]]

EPS = 1e-5
_COPYING = 2
"""Heads that copy."""
_SHARP = 16.0
"""The score of equal tokens, of which others have none, give or take."""
_BEFORE = 0.4
"""What the token before counts, of what the newest one does."""
_ASIDE = 0.15
"""What a value of a code adds to logits, of what a direction of the guess does on average."""
_NEARBY = 0.3
"""Spread of the values that see how far away a place is; they are not told what to look for."""
_RIDGE = 0.002
"""What keeps the matrices of least squares small, of the columns' mean square."""


class LayerSizes(NamedTuple):
    """Sizes of a head's layer, which need not be those of the target's.

    A quarter of each head is rotated: by the rest tokens are compared, however far away they are.
    """

    width: int
    n_heads: int
    head_width: int
    n_rotated: int
    feed_forward: int

    @classmethod
    def of(cls, width: int) -> LayerSizes:
        """Choose heads whose values hold a whole embedding, and those that copy."""
        head_width = next((n for n in (128, 64, 32, 16) if 4 * n <= width), 8)
        n_heads = -(-width // head_width) + _COPYING
        feed_forward = 32 * max(round(width * 8 / 3 / 32), 1)
        return cls(width, n_heads, head_width, head_width // 4, feed_forward)


def first_weights(
    s: LayerSizes, norm: F32, embeddings: F32, output: F32, sample: TextSample, seed: int
) -> dict[str, F32]:
    """Return the weights of a head, by the names of its file.

    Least squares say what matrices of token, taps, and the token that followed the like of it come
    nearest to the target's next row, added up. The feed-forward network adds nothing yet.

    Parameters
    ----------
    s : LayerSizes
    norm : float32[width]
        Of the target's output, without zeros.
    embeddings, output : float32[n_drafted, width]
        Rows of the tokens that can be drafted.
    sample : callable
        ``sample()`` yields pieces of text, as for ``Shape.begin``.
    seed : int
    """
    rng = np.random.default_rng(seed)
    width = s.width
    codes = _Codes.of(_normed(embeddings), s.head_width - s.n_rotated)
    known = _read_codes(sample(), codes)
    linear, squares = _guess(sample(), norm, codes, known)
    of_token, of_taps, of_copied = np.split(linear, [width, linear.shape[1] - width], axis=1)
    fused, read = _put_aside(of_taps, known, squares, output * norm)
    norms = ("attn_norm", "attn_norm_2", "ffn_norm")
    weights = {
        "fc.weight": fused,
        **{f"blk.0.{name}.weight": np.ones(width) for name in norms},
        **_compare(s, codes, read, rng),
        **_carry(s, of_token, of_copied),
        "blk.0.ffn_gate.weight": _drawn(rng, s.feed_forward, width),
        "blk.0.ffn_up.weight": _drawn(rng, s.feed_forward, width),
        "blk.0.ffn_down.weight": np.zeros((width, s.feed_forward)),
        "output_norm.weight": norm,
        "output.weight": output,
    }
    return {name: np.ascontiguousarray(values, np.float32) for name, values in weights.items()}


class _Codes(NamedTuple):
    """By what tokens are compared: matrices that make codes of normed embeddings.

    Values of a code have a spread of 1, and none says what another does. ``older``, for the token
    before, has the first rows of ``newer``.
    """

    newer: F32
    older: F32

    @classmethod
    def of(cls, tokens: F32, n: int) -> _Codes:
        """Choose n values from the axes along which tokens differ most."""
        squares, axes = np.linalg.eigh(np.cov(tokens.T))
        best = (axes / np.sqrt(squares + EPS)).T[::-1].astype(np.float32)
        return cls(best[: n - n // 3], best[: n // 3])


def _read_codes(pieces: Iterable[tuple[F32, F32, F32]], codes: _Codes) -> F32:
    """Return the matrix that makes of taps the codes of their token and of the one before it."""
    squares, products, n = _add_up(
        (taps[2:], np.concatenate([e[1:-1] @ codes.newer.T, e[:-2] @ codes.older.T], axis=1))
        for e, taps in ((_normed(embeddings), taps) for embeddings, taps, _ in pieces)
    )
    matrix = _solve(squares, products)
    known: F32 = matrix / np.sqrt(np.sum(matrix @ squares * matrix, axis=1, keepdims=True) / n)
    return known


def _guess(
    pieces: Iterable[tuple[F32, F32, F32]], norm: F32, codes: _Codes, known: F32
) -> tuple[F32, F32]:
    """Return the matrix of token, taps and copied token, and the mean products of taps."""
    squares, products, n = _add_up(
        (np.concatenate([e, taps, _copy(e, taps @ known.T, codes)], axis=1), rows / norm)
        for e, taps, rows in ((_normed(e), taps, rows) for e, taps, rows in pieces)
    )
    taps = slice(len(norm), -len(norm))
    return _solve(squares, products), squares[taps, taps] / np.float32(n)


def _copy(tokens: F32, known: F32, codes: _Codes) -> F32:
    """Mix the tokens that followed the likes of the newest one and of the one before it."""
    n = len(codes.newer)
    scores = tokens @ codes.newer.T @ known[:, :n].T
    scores += _BEFORE * known[:, : len(codes.older)] @ known[:, n:].T
    scores = np.where(np.tri(len(tokens), dtype=bool), _SHARP / n * scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: F32 = shares / shares.sum(axis=1, keepdims=True) @ tokens
    return mixed


def _put_aside(of_taps: F32, known: F32, squares: F32, output: F32) -> tuple[F32, F32]:
    """Let rows tell codes too, in those directions in which the guess says least of logits.

    Returns
    -------
    fused : float32[width, n_taps]
        Makes rows of taps.
    read : float32[n_codes, width]
        Makes codes of normed rows.
    """
    weights, axes = np.linalg.eigh(output.T @ output)
    seen = np.sqrt(np.maximum(weights, 1e-6 * weights[-1]))
    to_logits, from_logits = (axes * seen).T, axes / seen  # distances are those of logits
    guess = to_logits @ of_taps
    spread, directions = np.linalg.eigh(guess @ squares @ guess.T)
    least = directions[:, : len(known)]
    size = _ASIDE * np.sqrt(np.maximum(spread, 0).mean())
    fused = from_logits @ (guess - least @ (least.T @ guess) + size * least @ known)
    length = np.sqrt(np.sum(fused @ squares * fused) / len(fused))
    return fused, least.T @ to_logits * (length / size)


def _compare(
    s: LayerSizes, codes: _Codes, read: F32, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return queries and keys: of the newest token for itself, then for tokens of taps."""
    width, n_token, n = s.width, s.n_heads - _COPYING, len(codes.newer)
    query = np.zeros((s.n_heads, s.head_width, 2 * width))
    query[:, : s.n_rotated] = _NEARBY * _drawn(rng, s.n_rotated, 2 * width)
    key = query.copy()
    newer, older = slice(s.n_rotated, s.n_rotated + n), slice(s.n_rotated + n, None)
    scale = _SHARP / n * s.head_width**0.5  # by which attention divides
    query[:, newer, :width] = scale * codes.newer
    key[:n_token, newer, :width] = codes.newer
    key[n_token:, newer, width:] = read[:n]
    query[n_token:, older, width:] = scale * _BEFORE * read[: len(codes.older)]
    key[n_token:, older, width:] = read[n:]
    return {
        "blk.0.attn_q.weight": query.reshape(-1, 2 * width),
        "blk.0.attn_k.weight": key.reshape(-1, 2 * width),
    }


def _carry(s: LayerSizes, of_token: F32, of_copied: F32) -> dict[str, NDArray[Any]]:
    """Return values and what is made of them: of the newest token, then of the copied one.

    Two heads are narrower than a token: they carry what matters most of it.
    """
    width, begin = s.width, (s.n_heads - _COPYING) * s.head_width
    n = min(_COPYING * s.head_width, width)
    left, sizes, right = np.linalg.svd(of_copied)
    value = np.zeros((s.n_heads * s.head_width, 2 * width))
    made = np.zeros((width, len(value)))
    value[:width, :width], made[:, :width] = np.eye(width), of_token
    value[begin : begin + n, :width], made[:, begin : begin + n] = right[:n], (left * sizes)[:, :n]
    return {"blk.0.attn_v.weight": value, "blk.0.attn_output.weight": made}


def _add_up(pairs: Iterable[tuple[F32, F32]]) -> tuple[F32, F32, int]:
    """Return the sums of x^T x and x^T y of rows x and y, and how many rows there were."""
    squares: Any = 0
    products: Any = 0
    n = 0
    for x, y in pairs:
        squares, products, n = squares + x.T @ x, products + x.T @ y, n + len(x)
    return squares, products, n


def _solve(squares: F32, products: F32) -> F32:
    """Return the matrix of least squares, float32[n_out, n_in], kept small by a ridge."""
    ridge = _RIDGE * np.trace(squares) / len(squares)
    matrix = np.linalg.solve(squares + ridge * np.eye(len(squares), dtype=np.float32), products)
    return np.ascontiguousarray(matrix.T, np.float32)


def _normed(rows: F32) -> F32:
    normed: F32 = rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + EPS)
    return normed


def _drawn(rng: np.random.Generator, n_out: int, n_in: int) -> F32:
    matrix: F32 = (rng.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)
    return matrix
