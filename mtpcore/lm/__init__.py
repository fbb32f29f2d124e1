"""Strings in, strings out: one object that owns a model, its drafter and their KV caches."""

from mtpcore.gguf.answer_parser import ToolCall
from mtpcore.lm.answer_form import answering, find_form, form_answer, read_response_format
from mtpcore.lm.completion import Completion, CompletionStats, Piece
from mtpcore.lm.language_model import LM
from mtpcore.lm.opening import default_n_ctx
from mtpcore.lm.settings import recommend_sampling
from mtpcore.lm.streams import AsyncStream, Stream, read_together
from mtpcore.lm.template_options import read_template_options, thinking_options

__all__ = [
    "LM",
    "AsyncStream",
    "Completion",
    "CompletionStats",
    "Piece",
    "Stream",
    "ToolCall",
    "answering",
    "find_form",
    "default_n_ctx",
    "form_answer",
    "read_response_format",
    "read_template_options",
    "read_together",
    "recommend_sampling",
    "thinking_options",
]
