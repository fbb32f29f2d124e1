"""Memory kinds: what a context keeps of each sequence."""

from mtpcore.memory.base import PAGE, Memory
from mtpcore.memory.kv import PagedKV
from mtpcore.memory.pages import PageTables

__all__ = ["PAGE", "Memory", "PageTables", "PagedKV"]
