"""The command line: run, inspect, bench, plugins."""

from mtpcore.cli.main import main

__all__ = ["main"]
