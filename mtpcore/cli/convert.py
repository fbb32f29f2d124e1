"""``mtpcore convert``: a model file of a published checkpoint."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from mtpcore.cli.options import add_mtp_option, add_type_options
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.templates import add_response_options
from mtpcore.cli.terminal import note, note_left_out, spell_bytes
from mtpcore.conversion import convert, convert_adapter, is_adapter
from mtpcore.conversion.mixes import MixName
from mtpcore.discovery.fetching import fetch_checkpoint
from mtpcore.errors import ModelFileError
from mtpcore.hub import CHECKPOINT_NAME

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Make a model file from a published checkpoint: a folder of .safetensors files"
EXAMPLES = """examples:
  mtpcore convert Some-Model-7B model.gguf --outtype q8_0
  mtpcore convert owner/Some-Model-7B    (of the Hugging Face hub, where there is no such folder)
  mtpcore convert Some-Model-7B trunk.gguf --mtp drop
  mtpcore convert Some-Model-7B mtp-model.gguf --mtp only    (run it: --mtp-path mtp-model.gguf)
  mtpcore convert Some-Model-7B tuned.gguf --lora Some-Adapter    (merged; apart: see --base)
  mtpcore convert Some-Drafter drafter.gguf --target Some-Model-7B --mtp-type q8_0
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument(
        "folder",
        metavar="HF_DIR",
        help="config.json, tensors and tokenizer; OWNER/REPO or hf:OWNER/REPO: fetched from the "
        "Hugging Face hub",
    )
    group.add_argument(
        "out",
        nargs="?",
        metavar="OUT.gguf",
        help="the file to write, with its companion for a model in two; replaced if it exists "
        "(default: HF_DIR-OUTTYPE.gguf in the current folder)",
    )
    group.add_argument(
        "--target",
        metavar="HF_DIR",
        help="for a drafter alone: the folder of its target, whose tokenizer is used",
    )
    group.add_argument(
        "--base",
        metavar="HF_DIR",
        help="for an adapter that PEFT saved: the folder of its base model, of which config.json "
        "is enough where it replaces no tensors (default: the one that it names)",
    )
    group.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="ADAPTER_DIR",
        help="merge an adapter that PEFT saved into the model; repeatable: one after the other",
    )
    group.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="take a setting of config.json as null; repeatable: for what you know to change "
        "nothing where a conversion is refused",
    )
    add_response_options(
        group,
        "the response template of the file, in place of the checkpoint's; family: the one that the "
        "family's plugin declares; none: it has none",
    )
    add_type_options(parser, "f16, of an adapter f32")
    add_mtp_option(group)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    folder, name = _find_folder(options.folder)
    if is_adapter(folder):
        return _convert_adapter(options, folder, name)
    if options.base is not None:
        options.parser.error("--base is for an adapter, a folder with adapter_config.json")
    target = None if options.target is None else _find_folder(options.target)[0]
    outtype: MixName = options.outtype or "f16"
    out = options.out or f"{name}-{outtype}.gguf"
    with count_bytes("writing") as report:
        left_out = convert(
            folder,
            out,
            outtype=outtype,
            mtp_type=options.mtp_type,
            mtp=options.mtp,
            target=target,
            ignore=options.ignore,
            lora=[_find_folder(one)[0] for one in options.lora],
            response_template=options.response_template,
            report=report,
        )
    note_left_out(left_out, options.verbose)
    note(f"wrote {out}, {spell_bytes(Path(out).stat().st_size)}")
    return 0


def _convert_adapter(options: argparse.Namespace, folder: str | Path, name: str) -> int:
    """Convert an adapter."""
    if options.response_template is not None:
        options.parser.error("--response-template is for a model, and this is an adapter")
    if options.lora:
        options.parser.error("--lora is for a model, and this is an adapter")
    out = options.out or f"{name}-lora.gguf"
    base = None if options.base is None else _find_folder(options.base)[0]
    convert_adapter(folder, out, base=base, outtype=options.outtype or "f32")
    note(f"wrote {out}, {spell_bytes(Path(out).stat().st_size)}")
    return 0


def _find_folder(given: str) -> tuple[str | Path, str]:
    """Return the folder of a checkpoint, fetched where the hub's is meant, and what it is called.

    Raises
    ------
    ModelFileError
        It cannot be fetched.
    """
    named = re.fullmatch(r"(hf:(?://)?)?(?:https://huggingface\.co/)?(.*?)/?", given)
    assert named is not None
    is_meant = bool(named[1]) or not os.path.lexists(given)
    if not (is_meant and CHECKPOINT_NAME.fullmatch(named[2])):
        return given, Path(given).resolve().name
    try:
        with count_bytes(f"fetching {named[2]}") as report:
            folder = fetch_checkpoint(named[2], report=report)
    except ModelFileError as error:
        raise error if named[1] else error.at(f"{given} is no folder here") from error
    return folder, named[2].partition("/")[2]
