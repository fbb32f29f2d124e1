"""Memory kinds: what a context keeps of each sequence."""

from mtpcore.memory.base import PAGE, Memory
from mtpcore.memory.grouped import GroupedKV, make_memory
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables
from mtpcore.memory.types import KV_DTYPES, bytes_of_place
from mtpcore.memory.windowed import SPARE, WindowedKV, pages_for

__all__ = [
    "KV_DTYPES",
    "PAGE",
    "SPARE",
    "GroupedKV",
    "Memory",
    "PageTables",
    "PagedKV",
    "WindowedKV",
    "bytes_of_place",
    "make_memory",
    "pages_for",
]
