"""Operations over the rows of a block of a sequence."""

from __future__ import annotations

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import Launch, Launcher, Step, blocks_of

__all__ = ["KERNELS", "LAUNCHERS"]

_MEAN, _MIX = (Kernel("block", (("MIX", str(i)),)) for i in range(2))
_CONV, _ATTENTION, _WALK = Kernel("block_conv"), Kernel("block_attention"), Kernel("block_walk")
KERNELS = (_MEAN, _MIX, _CONV, _ATTENTION, _WALK)


def block_mean(step: Step, n_rows: int) -> list[Launch]:
    """Give the rows of a block their mean."""
    return _over_blocks(_MEAN, step, n_rows, None, step.attrs["size"])


def block_mix(step: Step, n_rows: int) -> list[Launch]:
    """Mix the rows of a block, each with those before it."""
    return _over_blocks(_MIX, step, n_rows, step.weights[0], step.weights[0].shape[0])


def block_conv(step: Step, n_rows: int) -> list[Launch]:
    """Convolve the rows of a block, by a kernel that each changes."""
    (x, changes), w, rows = step.inputs, step.weights[0], step.memory
    arguments = _CONV.arguments(
        x=x,
        changes=changes,
        w=w,
        order=rows.order,
        spans=rows.spans,
        y=step.outputs[0],
        width=x.shape[1],
        size=step.attrs["size"],
        part=step.attrs["part"],
        n_taps=w.shape[1],
        n_groups=changes.shape[1] // w.shape[1],
    )
    return [Launch(_CONV, (n_rows, blocks_of(x.shape[1])), arguments)]


def block_attention(step: Step, n_rows: int) -> list[Launch]:
    """Let the candidates of a block's rows attend to each other."""
    (q, k, v), bias, rows = step.inputs, step.weights[0], step.memory
    _, n_ranks, width = q.shape
    n_heads = bias.shape[0]
    arguments = _ATTENTION.arguments(
        q=q,
        k=k,
        v=v,
        bias=bias,
        order=rows.order,
        spans=rows.spans,
        y=step.outputs[0],
        width=width,
        n_ranks=n_ranks,
        n_heads=n_heads,
        **step.attrs,
    )
    return [Launch(_ATTENTION, (n_rows, n_ranks, n_heads), arguments)]


def block_walk(step: Step, n_rows: int) -> list[Launch]:
    """Score the candidates of each row after the best one of the row before."""
    ids, start, going, coming = step.inputs
    _, n_ranks, width = going.shape
    arguments = _WALK.arguments(
        ids=ids,
        start=start,
        going=going,
        coming=coming,
        order=step.memory.order,
        spans=step.memory.spans,
        y=step.outputs[0],
        n_columns=step.attrs["width"],
        n_ranks=n_ranks,
        width=width,
        size=step.attrs["size"],
        first=step.attrs["first"],
    )
    return [Launch(_WALK, (n_rows, 1), arguments)]


def _over_blocks(
    kernel: Kernel, step: Step, n_rows: int, weight: DeviceArray | None, size: int
) -> list[Launch]:
    x, rows = step.inputs[0], step.memory
    arguments = kernel.arguments(
        x=x,
        w=weight,
        order=rows.order,
        spans=rows.spans,
        y=step.outputs[0],
        width=x.shape[1],
        size=size,
    )
    return [Launch(kernel, (n_rows, blocks_of(x.shape[1])), arguments)]


LAUNCHERS: dict[str, Launcher] = {
    "block_mean": block_mean,
    "block_mix": block_mix,
    "block_conv": block_conv,
    "block_attention": block_attention,
    "block_walk": block_walk,
}
