"""Hooks on the batches of a context, for tests that observe or interrupt them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import Deliver

__all__ = ["intercept"]


@contextmanager
def intercept(context: Context, look: Deliver) -> Iterator[None]:
    """Call ``look`` with each batch before it is delivered; what it raises undoes the batch.

    Parameters
    ----------
    context : Context
        Alone or in a Cross.
    look : callable
        ``look(batch, output)``.
    """
    runner = context.runner
    deliver = runner.deliver

    def first_look(batch: Batch, output: Output) -> None:
        look(batch, output)
        if deliver is not None:
            deliver(batch, output)

    runner.deliver = first_look
    try:
        yield
    finally:
        runner.deliver = deliver
