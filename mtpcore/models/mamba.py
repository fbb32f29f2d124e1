"""Decoders with layers of Mamba: Mamba itself, Falcon Mamba, and Jamba, which attends in some."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec

from mtpcore.declarations.spec import ATTENTION_SCALES
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints import mamba as checkpoints
from mtpcore.models.hybrid import check_kernels, count_heads_once
from mtpcore.models.mamba2 import pure_layer, without_heads
from mtpcore.models.selective_scan import SelectiveScan, mamba
from mtpcore.models.ssm import SSM_EXACT, SSM_SCALES
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    build,
    layer,
    variant_spec,
)

__all__ = ["JAMBA", "MAMBA", "ScanHparams"]

_SIZES = (
    ("ssm_conv1d.weight", "conv_kernel", "the convolution"),
    ("ssm_a", "state_size", "a channel's state"),
    ("ssm_dt.weight", "time_step_rank", "the row of dt"),
)
"""Tensors whose last axis is as long as a key of ``{arch}.ssm.`` says."""


class ScanHparams(VariantHparams, frozen=True, kw_only=True):
    """What layers of Mamba add."""

    scan: SelectiveScan | None = None

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a family's metadata, and check that layers have the sizes that it says."""
        for weight, key, what in _SIZES:
            check_kernels(fields, tensors, weight, f"{{arch}}.ssm.{key}", what)
        h = super().read_variant(variant, count_heads_once(fields), tensors)
        return msgspec.structs.replace(h, scan=SelectiveScan.read(fields))


def _scanned(g: GraphBuilder, a: Value, positions: Value, n: int, h: ScanHparams) -> Value:
    assert h.scan is not None
    return mamba(g, a, n, h, h.scan)


def _mixed(g: GraphBuilder, a: Value, positions: Value, n: int, h: ScanHparams) -> Value:
    """Return what attention adds, or a layer of Mamba, by the tensors of a block."""
    mixer = _scanned if g.has(f"blk.{n}.ssm_in.weight") else attention
    return mixer(g, a, positions, n, h)


MAMBA = variant_spec(
    "mamba",
    Variant(scaled=("output", *SSM_SCALES)),
    hparams=ScanHparams,
    build=partial(build, layer=partial(pure_layer, mixer=_scanned)),
    adapt=without_heads,
    min_types=(SSM_EXACT,),
    checkpoint=checkpoints.MAMBA,
    layouts=(checkpoints.FALCON_MAMBA,),
)
JAMBA = variant_spec(
    "jamba",
    Variant(
        rotates=lambda h, n: False,
        normalises=False,
        scaled=(*ATTENTION_SCALES, *SSM_SCALES),
    ),
    hparams=ScanHparams,
    build=partial(build, layer=partial(layer, mixer=_mixed)),
    min_types=(SSM_EXACT,),
    checkpoint=checkpoints.JAMBA,
)
