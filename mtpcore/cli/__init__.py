"""The command line: run, chat, inspect, bench, convert, quantize, vocabulary, plugins."""

from mtpcore.cli.main import main

__all__ = ["main"]
