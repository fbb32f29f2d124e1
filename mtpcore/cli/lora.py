"""Options for adapters (LoRA): their files, and with which scale a text has them."""

from __future__ import annotations

import argparse
import os

from mtpcore.errors import ModelFileError
from mtpcore.gguf.adapter import Adapter, load_adapter
from mtpcore.runtime.context import Context

__all__ = [
    "add_adapter_options",
    "add_lora_option",
    "given_adapters",
    "merged_adapters",
    "open_adapters",
    "scales_of",
]


def add_adapter_options(parser: argparse.ArgumentParser) -> None:
    """Add the adapters of the model."""
    group = parser.add_argument_group("adapters")
    add_lora_option(group)
    group.add_argument(
        "--lora-merge",
        action="store_true",
        help="merge the adapters into the model's matrices as it is loaded, in their types",
    )


def add_lora_option(group: argparse._ArgumentGroup) -> None:
    """Add files of adapters, with scales."""
    group.add_argument(
        "--lora",
        "--lora-scaled",
        action="append",
        type=_read_files,
        default=[],
        metavar="FILE[:SCALE]",
        help="an adapter of the model (LoRA), and a factor of what it adds (default: 1); "
        "repeatable, or with commas",
    )


def _read_files(text: str) -> list[tuple[str, float]]:
    """Read files with scales, with commas between them."""
    return [_read_file(part) for part in ([text] if os.path.exists(text) else text.split(","))]


def _read_file(text: str) -> tuple[str, float]:
    """Read the path of a file, and its scale where one follows."""
    path, _, scale = text.rpartition(":")
    if not path or os.path.exists(text):
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        return text, 1.0


def open_adapters(options: argparse.Namespace) -> dict[str, Adapter]:
    """Open the adapters that the options name, by their names.

    Raises
    ------
    ModelFileError
        A file that is none, or two of one name.
    """
    opened: dict[str, Adapter] = {}
    for path, _ in () if options.lora_merge else given_adapters(options):
        adapter = load_adapter(path)
        if adapter.name in opened:
            raise ModelFileError(
                "two adapters of one name",
                where=path,
                got=f"{adapter.name!r}, as in {opened[adapter.name].path}",
                fix="rename one of the files, or its adapter.lora.task_name",
            )
        opened[adapter.name] = adapter
    return opened


def scales_of(options: argparse.Namespace, llm: Context) -> dict[str, float]:
    """Return with which scales the texts of a context have its adapters, by their names."""
    scales = [scale for _, scale in given_adapters(options)] if llm.adapters else []
    return dict(zip(llm.adapters, scales, strict=True))


def merged_adapters(options: argparse.Namespace) -> list[tuple[Adapter, float]]:
    """Open the adapters that are merged into the model as it is loaded, with their scales."""
    if not getattr(options, "lora_merge", False):
        return []
    return [(load_adapter(path), scale) for path, scale in given_adapters(options)]


def given_adapters(options: argparse.Namespace) -> list[tuple[str, float]]:
    """Return the adapters that the options name, and their scales."""
    return [one for files in options.lora for one in files]
