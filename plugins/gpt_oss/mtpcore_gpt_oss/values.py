"""What becomes of a checkpoint's experts: gate and up apart, four-bit floats repacked.

Rows of gate and up alternate in checkpoints, gate first. MXFP4 is blocks of 32 four-bit floats with
a scale of eight bits (Open Compute Project, Microscaling Formats, 2023). Checkpoints have the
scales in a tensor of their own, and in byte i of a block the values 2 i (low bits) and 2 i + 1;
files have the scale before each block, and in its byte i the values i (low bits) and i + 16.
Arguments and results are arrays of one expert as checkpoints and files hold them.
"""

import numpy as np

from mtpcore.plugin import Config

MXFP4 = "MXFP4"


def blocks(values: np.ndarray, config: Config, scales: np.ndarray) -> np.ndarray:
    """Return rows of blocks, uint8[outputs, 17 blocks].

    Parameters
    ----------
    values : uint8[outputs, blocks, 16]
    scales : uint8[outputs, blocks]
    """
    codes = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:2], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(len(values), -1)


def even_blocks(values: np.ndarray, config: Config, scales: np.ndarray) -> np.ndarray:
    """Return those of the gate."""
    return blocks(values[::2], config, scales[::2])


def odd_blocks(values: np.ndarray, config: Config, scales: np.ndarray) -> np.ndarray:
    """Return those of up."""
    return blocks(values[1::2], config, scales[1::2])


def transposed(values: np.ndarray, config: Config) -> np.ndarray:
    """Return a matrix with outputs first: [inputs, outputs] -> [outputs, inputs]."""
    return values.T


def even_columns(values: np.ndarray, config: Config) -> np.ndarray:
    """Return that of the gate, outputs first."""
    return values[:, ::2].T


def odd_columns(values: np.ndarray, config: Config) -> np.ndarray:
    """Return that of up, outputs first."""
    return values[:, 1::2].T


def even_values(values: np.ndarray, config: Config) -> np.ndarray:
    """Return the gates' biases of all experts."""
    return values[:, ::2]


def odd_values(values: np.ndarray, config: Config) -> np.ndarray:
    """Return those of up."""
    return values[:, 1::2]
