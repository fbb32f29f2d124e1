"""Launchers called with arrays of NumPy, and their results brought home."""

import numpy as np
from gguf import GGMLQuantizationType as Type

from mtpcore.backends.cuda.fusion import Group
from mtpcore.backends.cuda.launch.step import Step, start
from mtpcore.backends.cuda.layout import pack
from mtpcore.backends.cuda.weights import upload


def leave_alone(program, block_of):
    """Return a group for each node, in the program's order, in place of ``fuse``."""
    return [Group((node,), node) for node in program.nodes]


def execute(device, launches):
    """Launch in order."""
    start(device, launches)


def matrix(device, kind, raw, shape):
    """Pack a matrix, or a stack of them, and upload it."""
    return upload(device, pack(raw.reshape(-1), int(Type[kind]), shape))


def carry_out(
    device, launcher, inputs, weights, *outputs, n_batch=0, chosen=None, memory=None, **attrs
):
    """Return the outputs of an operation, whose row shapes and types are given.

    Weights are arrays, or matrices that are on the device already. The device's arrays have room
    for more rows than there are.
    """
    n_rows = len(chosen) if chosen is not None else len(inputs[0])
    n_batch = max(n_batch, n_rows)

    def placed(array):
        into = device.empty((max(n_batch, len(array)), *array.shape[1:]), array.dtype)
        return device.upload(array, into)

    kept = {}

    def scratch(name, shape, dtype):
        return kept.setdefault((name, shape), device.empty(shape, dtype))

    made = [device.empty((n_batch, *shape), dtype) for shape, dtype in outputs]
    step = Step(
        tuple(placed(array) for array in inputs),
        tuple(device.upload(w) if isinstance(w, np.ndarray) else w for w in weights),
        tuple(made),
        attrs,
        scratch,
        device.upload,
        None if chosen is None else device.upload(chosen),
        memory,
    )
    execute(device, launcher(step, n_rows))
    return [device.download(array, n_rows) for array in made]
