"""Published checkpoints into model files, and model files into other types.

What a family's tensors are called and what its metadata says is declared by trunks and plugins
(``mtpcore.declarations.checkpoint``); nothing here knows an architecture.
"""

from mtpcore.conversion.adapter import convert_adapter, is_adapter
from mtpcore.conversion.convert import convert
from mtpcore.conversion.lend import lend
from mtpcore.conversion.mixes import ALIASES, MIXES, WRITABLE
from mtpcore.conversion.output import Report
from mtpcore.conversion.quantize import Retyped, quantised_types, quantize
from mtpcore.conversion.types import TensorTypes

__all__ = [
    "ALIASES",
    "MIXES",
    "Report",
    "Retyped",
    "TensorTypes",
    "WRITABLE",
    "convert",
    "convert_adapter",
    "is_adapter",
    "lend",
    "quantised_types",
    "quantize",
]
