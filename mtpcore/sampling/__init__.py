"""Sampling: settings, the compiled sampler, and its definition in NumPy."""

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.sampling.processor import (
    DraftProcessor,
    LogitsProcessor,
    PureProcessor,
    process_logits,
    read_answer,
)
from mtpcore.sampling.recommended import USUAL, Recommended, read_recommended
from mtpcore.sampling.settings import Sampling, check_sampling

__all__ = [
    "USUAL",
    "DraftProcessor",
    "LogitsProcessor",
    "PureProcessor",
    "Recommended",
    "Sampler",
    "Sampling",
    "Scratch",
    "check_sampling",
    "process_logits",
    "read_answer",
    "read_recommended",
]
