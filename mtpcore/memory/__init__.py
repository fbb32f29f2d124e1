"""Memory kinds: what a context keeps of each sequence."""

from mtpcore.memory.base import PAGE, Memory
from mtpcore.memory.grouped import GroupedKV, make_memory
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables
from mtpcore.memory.undo import Undo
from mtpcore.memory.windowed import SPARE, WindowedKV, pages_for

__all__ = [
    "PAGE",
    "SPARE",
    "GroupedKV",
    "Memory",
    "PageTables",
    "PagedKV",
    "Undo",
    "WindowedKV",
    "make_memory",
    "pages_for",
]
