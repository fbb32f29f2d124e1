"""Shapes: what ``fit`` must know of a kind of head, which the plugin that drafts with it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.arguments import offers
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.discovery.registry import Registry
from mtpcore.errors import MtpcoreError, PluginError

if TYPE_CHECKING:
    import jax

__all__ = ["Shape", "find_shapes", "needed_packages"]

F32 = NDArray[np.float32]


class Shape(Protocol):
    """A module that says how a kind of head is fitted; ``DrafterSpec.fitting`` names it.

    Weights are float32 arrays by the names of the file's tensors. Taps are divided by a scale of
    their own in each column, so that columns a thousand times as large as others do not rule.
    """

    ARCHITECTURE: str

    def taps(self, target: Any) -> tuple[str, ...]:
        """Return the hidden states of the target that the head reads, side by side."""

    def metadata(self, target: Any, depth: int) -> dict[str, Any]:
        """Return the entries that are the head's own, of a head that learns ``depth`` drafts."""

    def begin(
        self,
        target: Any,
        embeddings: F32,
        output: F32,
        sample: Callable[[], Iterator[tuple[F32, F32, F32]]],
        seed: int,
        depth: int,
    ) -> dict[str, F32]:
        """Return the weights before the first step, of a head that learns ``depth`` drafts.

        ``embeddings`` and ``output``, float32[n_drafted, width], are the rows of the target's
        matrices for the tokens that can be drafted. ``sample()`` yields pieces of text: embeddings
        float32[n, width], taps float32[n, ...] of the token before each, and the target's row after
        it, float32[n, width].
        """

    def scaled(self, weights: Mapping[str, F32], scale: F32) -> dict[str, F32]:
        """Return weights that make of taps what ``weights`` make of taps times ``scale``."""

    def draft(
        self,
        weights: Mapping[str, jax.Array],
        embeddings: jax.Array,
        taps: jax.Array,
        depth: int,
        target: Any,
    ) -> list[jax.Array]:
        """Return the rows of ``depth`` steps, each float32[batch, n, width].

        Drafts begin at every place of the texts at once. ``embeddings`` float32[batch, n, width]
        are of the token after each place, ``taps`` float32[batch, n, ...] of the place. Step i of
        the draft that begins at place p reads token p + i + 1; ``output.weight`` makes of its row
        the logits of token p + i + 2.
        """


def find_shapes(known: Registry, names: Sequence[str] = ()) -> list[tuple[DrafterSpec, Shape]]:
    """Return the drafters of these names and their shapes; without names, all that can be fitted.

    Raises
    ------
    PluginError
        No plugin has one of this name, or what it names is no shape.
    MtpcoreError
        A package that the shape needs is missing.
    """
    there = {spec.name: spec for spec in known.drafters if spec.fitting}
    wanted = names or there
    if not there or not {*wanted} <= there.keys():
        raise PluginError(
            "no such shape of a head can be fitted",
            wanted=", ".join(there) or "a plugin whose DrafterSpec names a module in fitting=",
            got=", ".join(names) or None,
        )
    return [(there[name], _load_shape(there[name])) for name in dict.fromkeys(wanted)]


def _load_shape(spec: DrafterSpec) -> Shape:
    with needed_packages(spec.fitting):
        module = import_module(spec.fitting)
    methods = "ARCHITECTURE", "taps", "metadata", "begin", "scaled", "draft"
    if not offers(module, *methods[1:]) or not hasattr(module, methods[0]):
        raise PluginError(
            "the module is no shape", where=spec.fitting, wanted=", ".join(methods), got=spec.name
        )
    return cast(Shape, module)


@contextmanager
def needed_packages(module: str) -> Iterator[None]:
    """Import a module in the block; a package that it lacks is named, and how to get it.

    Raises
    ------
    MtpcoreError
    """
    try:
        yield
    except ImportError as error:
        raise MtpcoreError(
            "a package that fitting needs is missing",
            where=module,
            got=error,
            fix="pip install 'mtpcore[fit]'",
        ) from error
