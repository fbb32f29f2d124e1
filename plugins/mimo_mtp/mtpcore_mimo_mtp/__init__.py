"""MiMo-7B (``mimo``) and MiMo-V2 (``mimo2``), each with its MTP heads."""

from mtpcore.plugin import DrafterSpec, ModelSpec, hookimpl
from mtpcore_mimo_mtp.mimo import MIMO, MIMO_MTP
from mtpcore_mimo_mtp.mimo2 import FIRST_HEAD, MIMO2, MIMO2_MTP, TARGET_FED


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks."""
    return [MIMO, MIMO2]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the heads, those that are chained as published first."""
    return [MIMO_MTP, MIMO2_MTP, TARGET_FED, FIRST_HEAD]
