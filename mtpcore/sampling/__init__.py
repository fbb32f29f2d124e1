"""Sampling: settings, the compiled sampler, and its definition in NumPy."""

from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.sampling.breakers import spell_breakers
from mtpcore.sampling.grammar import Grammar
from mtpcore.sampling.matcher import GrammarCompiler, GrammarMatcher, fill_masks
from mtpcore.sampling.processor import (
    DraftProcessor,
    LogitsProcessor,
    PureProcessor,
    process_logits,
    read_answer,
)
from mtpcore.sampling.recommended import USUAL, Recommended, read_recommended, read_sequence
from mtpcore.sampling.settings import Sampling, check_no_grammar, check_sampling

__all__ = [
    "USUAL",
    "DraftProcessor",
    "Grammar",
    "GrammarCompiler",
    "LogitsProcessor",
    "GrammarMatcher",
    "PureProcessor",
    "Recommended",
    "Sampler",
    "Sampling",
    "Scratch",
    "check_no_grammar",
    "check_sampling",
    "fill_masks",
    "process_logits",
    "read_answer",
    "read_recommended",
    "read_sequence",
    "spell_breakers",
]
