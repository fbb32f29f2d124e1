"""Sampling: settings, the compiled sampler, and its definition in NumPy."""

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.sampling.processor import LogitsProcessor, process_logits
from mtpcore.sampling.settings import Sampling, check_sampling

__all__ = ["LogitsProcessor", "Sampler", "Sampling", "Scratch", "check_sampling", "process_logits"]
