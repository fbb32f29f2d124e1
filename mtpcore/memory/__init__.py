"""Memory kinds: what a context keeps of each sequence."""

from mtpcore.memory.base import LOG, PAGE, Memory
from mtpcore.memory.grouped import GroupedKV, make_memory
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables
from mtpcore.memory.recurrent import CHECKPOINTS, RecurrentMemory, checkpoints_in, slots_for
from mtpcore.memory.types import KV_DTYPES, bytes_of_place
from mtpcore.memory.windowed import SPARE, WindowedKV, pages_for

__all__ = [
    "CHECKPOINTS",
    "KV_DTYPES",
    "LOG",
    "PAGE",
    "SPARE",
    "GroupedKV",
    "Memory",
    "PageTables",
    "PagedKV",
    "RecurrentMemory",
    "WindowedKV",
    "bytes_of_place",
    "checkpoints_in",
    "make_memory",
    "pages_for",
    "slots_for",
]
