"""What becomes of a checkpoint's values: norms, decays, and the order of heads.

Each of r = (V heads / K heads) V heads shares a K head. Checkpoints have V heads by groups: head
``g * r + j`` is number j of K head g. Files of Qwen3.5 have them in tiles, as ``j * (K heads) + g``
(llama.cpp's order, by which K heads are repeated as a whole), those of Qwen3-Next by groups.
Arguments and results are arrays as checkpoints and files hold them; heads lie on the first axis
unless said otherwise.
"""

import numpy as np

from mtpcore.plugin import Config, Count


def _heads(config: Config) -> tuple[int, int]:
    """Return the numbers of K heads and of V heads."""
    n_keys = config.require("linear_num_key_heads", Count)
    return n_keys, config.require("linear_num_value_heads", Count)


def _widths(config: Config) -> tuple[int, int]:
    """Return the widths of a K head and of a V head."""
    k_width = config.require("linear_key_head_dim", Count)
    return k_width, config.require("linear_value_head_dim", Count)


def add_one(values: np.ndarray, config: Config) -> np.ndarray:
    """Return a norm's factors, which are published minus one."""
    return values + np.float32(1)


def rate(values: np.ndarray, config: Config) -> np.ndarray:
    """Return by what the step is multiplied to get a log decay: -exp(A_log), rounded once."""
    return (-np.exp(values.astype(np.float64))).astype(np.float32)


def rate_in_tiles(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the same with V heads in tiles."""
    return rows_in_tiles(rate(values, config), config)


def rows_in_tiles(values: np.ndarray, config: Config) -> np.ndarray:
    """Return rows, as many for each V head, with V heads in tiles."""
    n_keys, n_values = _heads(config)
    groups = values.reshape(n_keys, n_values // n_keys, -1, *values.shape[1:])
    return groups.swapaxes(0, 1).reshape(values.shape)


def columns_in_tiles(values: np.ndarray, config: Config) -> np.ndarray:
    """Return columns, as many for each V head, with V heads in tiles."""
    return rows_in_tiles(values.T, config).T


def values_in_tiles(values: np.ndarray, config: Config) -> np.ndarray:
    """Return rows of queries, keys and values; only values have V heads."""
    n = 2 * _heads(config)[0] * _widths(config)[0]
    return np.concatenate([values[:n], rows_in_tiles(values[n:], config)])


def kernel(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the convolution's weights: [channels, 1, kernel] -> [channels, kernel]."""
    return values.squeeze(1)


def kernel_in_tiles(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the same with V heads in tiles."""
    return values_in_tiles(kernel(values, config), config)


def _groups(values: np.ndarray, config: Config) -> list[np.ndarray]:
    """Take rows [q, k, v, z] of each K head apart: four of [K heads, rows, width]."""
    (n_keys, n_values), (k_width, v_width) = _heads(config), _widths(config)
    n = n_values // n_keys * v_width
    rows = values.reshape(n_keys, 2 * k_width + 2 * n, -1)
    return np.split(rows, [k_width, 2 * k_width, 2 * k_width + n], axis=1)


def qkv_of_groups(values: np.ndarray, config: Config) -> np.ndarray:
    """Return rows of all queries, all keys and all values, of rows that are grouped by K head."""
    parts = _groups(values, config)[:3]
    return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts])


def gate_of_groups(values: np.ndarray, config: Config) -> np.ndarray:
    """Return rows of all output gates, of rows that are grouped by K head."""
    return _groups(values, config)[3].reshape(-1, values.shape[1])


def first_half(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the first half of the rows, of a matrix of gate and up."""
    return np.split(values, 2)[0]


def second_half(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the second half."""
    return np.split(values, 2)[1]
