"""Trunks and shared blocks, registered through the same hooks as any plugin's."""

from mtpcore.declarations.spec import DrafterSpec, ModelSpec, Unsupported
from mtpcore.discovery.hookspecs import hookimpl
from mtpcore.models.apertus import APERTUS
from mtpcore.models.arctic import ARCTIC
from mtpcore.models.bailingmoe3 import BAILING_MOE3, BAILING_MOE3_HEAD
from mtpcore.models.cogvlm import COGVLM
from mtpcore.models.cohere2moe import COHERE2_MOE
from mtpcore.models.deci import DECI
from mtpcore.models.dots3note import DOTS3_NOTE, DOTS3_NOTE_HEAD
from mtpcore.models.families import FAMILIES
from mtpcore.models.grok import GROK
from mtpcore.models.grovemoe import GROVE_MOE
from mtpcore.models.hrm_text import HRM_TEXT
from mtpcore.models.kimi_k3 import KIMI_K3
from mtpcore.models.kimi_linear import KIMI_LINEAR
from mtpcore.models.latent import MINICPM3
from mtpcore.models.lfm2 import LFM2, LFM2_MOE
from mtpcore.models.llama import LLAMA
from mtpcore.models.llama4 import LLAMA4
from mtpcore.models.mamba import JAMBA, MAMBA
from mtpcore.models.mamba2 import FALCON_H1, GRANITE_HYBRID, MAMBA2
from mtpcore.models.maple import MAPLE
from mtpcore.models.minimax_01 import MINIMAX_01
from mtpcore.models.minimax_m3 import MINIMAX_M3
from mtpcore.models.mpt import MPT
from mtpcore.models.muse_glimmer import MUSE_GLIMMER
from mtpcore.models.nemotron_h import NEMOTRON_H, NEMOTRON_H_HEAD, NEMOTRON_H_MOE
from mtpcore.models.plamo2 import PLAMO2
from mtpcore.models.qwen2 import QWEN2
from mtpcore.models.qwen3 import QWEN3
from mtpcore.models.qwen3moe import QWEN3_MOE
from mtpcore.models.refact import REFACT
from mtpcore.models.smallthinker import SMALLTHINKER
from mtpcore.models.stablelm import STABLELM
from mtpcore.models.step35 import STEP35
from mtpcore.models.talkie import TALKIE
from mtpcore.models.unsupported import UNSUPPORTED
from mtpcore.models.variant_heads import HEADS

__all__ = [
    *("LFM2", "LFM2_MOE", "LLAMA", "QWEN2", "QWEN3", "QWEN3_MOE"),
    *("mtpcore_drafters", "mtpcore_models", "mtpcore_unsupported"),
]

_OF_THEIR_OWN = (
    *(
        LLAMA,
        QWEN2,
        QWEN3,
        QWEN3_MOE,
        APERTUS,
        ARCTIC,
        COGVLM,
        COHERE2_MOE,
        DECI,
        GROVE_MOE,
        HRM_TEXT,
        MUSE_GLIMMER,
    ),
    *(LFM2, LFM2_MOE, LLAMA4, MAPLE, GROK, MPT, REFACT, SMALLTHINKER, STABLELM, STEP35, TALKIE),
    *(FALCON_H1, GRANITE_HYBRID, JAMBA, MAMBA, MAMBA2, MINIMAX_01, NEMOTRON_H, NEMOTRON_H_MOE),
    *(PLAMO2, BAILING_MOE3, DOTS3_NOTE, KIMI_K3, KIMI_LINEAR, MINICPM3, MINIMAX_M3),
)
"""Families with layers of their own, not only a line in the table."""


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks that come with mtpcore."""
    return [*_OF_THEIR_OWN, *FAMILIES]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the heads of such trunks."""
    return [*HEADS, BAILING_MOE3_HEAD, DOTS3_NOTE_HEAD, NEMOTRON_H_HEAD]


@hookimpl
def mtpcore_unsupported() -> list[Unsupported]:
    """Say what the others would need."""
    return UNSUPPORTED
