"""Trunks and shared blocks, registered through the same hooks as any plugin's."""

from mtpcore.declarations.spec import ModelSpec, Unsupported
from mtpcore.discovery.hookspecs import hookimpl
from mtpcore.models.families import FAMILIES
from mtpcore.models.lfm2 import LFM2, LFM2_MOE
from mtpcore.models.llama import LLAMA
from mtpcore.models.qwen2 import QWEN2
from mtpcore.models.qwen3 import QWEN3
from mtpcore.models.qwen3moe import QWEN3_MOE
from mtpcore.models.unsupported import UNSUPPORTED

__all__ = [
    "LFM2",
    "LFM2_MOE",
    "LLAMA",
    "QWEN2",
    "QWEN3",
    "QWEN3_MOE",
    "mtpcore_models",
    "mtpcore_unsupported",
]


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks that come with mtpcore."""
    return [
        LLAMA,
        QWEN2,
        QWEN3,
        QWEN3_MOE,
        LFM2,
        LFM2_MOE,
        *FAMILIES,
    ]


@hookimpl
def mtpcore_unsupported() -> list[Unsupported]:
    """Say what the others would need."""
    return UNSUPPORTED
