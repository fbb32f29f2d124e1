"""``mtpcore quantize``: a model file with its tensors in other types, or a part of it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import msgspec

from mtpcore.cli.lora import add_lora_option, given_adapters
from mtpcore.cli.options import add_mtp_option, add_type_options, whole
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.templates import add_response_options, read_response_option
from mtpcore.cli.terminal import note, note_left_out, spell_bytes
from mtpcore.conversion import WRITABLE, Retyped, TensorTypes, quantised_types, quantize
from mtpcore.conversion.mixes import MixName
from mtpcore.conversion.parts import MTP
from mtpcore.discovery.loading import find_model
from mtpcore.gguf import open_model_file
from mtpcore.gguf.response_template import RESPONSE_TEMPLATE_KEY
from mtpcore.gguf.splitting import part_path, split_prefix

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Convert a model file's tensors to other types, or extract its trunk or heads"
EXAMPLES = """examples:
  mtpcore quantize model-f16.gguf model-q4_k_m.gguf --outtype q4_k_m
  mtpcore quantize model-f16.gguf model-iq4_xs.gguf --outtype iq4_xs --imatrix model.imatrix.gguf
  mtpcore quantize model-f16.gguf model-q4_0.gguf --outtype q4_0 --mtp-type f16
  mtpcore quantize model-f16.gguf mtp-model.gguf --outtype f16 --mtp only
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("files")
    group.add_argument("source", metavar="IN", help="a GGUF file (the first part of a split one)")
    group.add_argument(
        "out",
        metavar="OUT",
        help="the file to write, with its companion for a model in two; replaced if it exists",
    )
    group.add_argument(
        "--keep-split",
        action="store_true",
        help="write a split model in parts as it comes in them: OUT-00001-of-00003.gguf and so on",
    )
    add_mtp_option(group)
    add_lora_option(group)
    group = add_type_options(parser, None)
    group.add_argument(
        "--imatrix",
        metavar="FILE",
        help="an importance matrix: columns that it says matter more lose less",
    )
    group.add_argument(
        "--tensor-type",
        type=_named_type,
        action="append",
        default=[],
        metavar="REGEX=TYPE",
        help="type of matrices in whose names an expression is found, the first of several",
    )
    group.add_argument(
        "--output-tensor-type", type=str.lower, choices=WRITABLE, metavar="TYPE", dest="output"
    )
    group.add_argument(
        "--leave-output-tensor",
        action="store_const",
        const="keep",
        dest="output",
        help="the output matrix keeps its type",
    )
    group.add_argument(
        "--token-embedding-type", type=str.lower, choices=WRITABLE, metavar="TYPE", dest="embedding"
    )
    group.add_argument(
        "--pure", action="store_true", help="all other matrices in the mix's own type"
    )
    group.add_argument(
        "--override-kv",
        type=_metadata,
        action="append",
        default=[],
        metavar="KEY=TYPE:VALUE",
        help="metadata of the new file; TYPE is int, float, bool or str",
    )
    add_response_options(group)
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing: say which types tensors would get, and how large the file would be",
    )
    group.add_argument("-t", "--threads", type=whole(1), metavar="N", help="default: all cores")


_READERS: dict[str, Callable[[str], int | float | bool | str]] = {
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
    "str": str,
}


def _named_type(text: str) -> tuple[str, str]:
    name, mark, kind = text.rpartition("=")
    if not (name and mark):
        raise argparse.ArgumentTypeError("wanted REGEX=TYPE, as ffn_down=q6_k")
    return name, kind.lower()


def _metadata(text: str) -> tuple[str, int | float | bool | str]:
    key, _, typed = text.partition("=")
    kind, mark, value = typed.partition(":")
    try:
        if not (key and mark):
            raise ValueError
        return key, _READERS[kind](value)
    except (KeyError, ValueError):
        wanted = "wanted KEY=TYPE:VALUE, as general.name=str:Mine; TYPE is int, float, bool or str"
        raise argparse.ArgumentTypeError(wanted) from None


def _response_metadata(options: argparse.Namespace) -> dict[str, str | None]:
    """Return what the response template of the options changes of the file's metadata."""
    if options.response_template is None:
        return {}
    found = read_response_option(options)
    text = None if found is None else msgspec.json.encode(found.source).decode()
    return {RESPONSE_TEMPLATE_KEY: text}


class _Asked(TypedDict):
    """What decides about types."""

    outtype: MixName
    mtp_type: str | None
    mtp: MTP
    types: TensorTypes
    importance: str | None


def _print_types(tensors: Sequence[Retyped]) -> None:
    """Print what a file would hold, and its size."""
    width = max(len(tensor.name) for tensor in tensors)
    for tensor in tensors:
        shape = " x ".join(map(str, tensor.shape))
        kinds = f"{tensor.before} to {tensor.after}" if tensor.before != tensor.after else ""
        size = spell_bytes(tensor.n_bytes)
        print(f"{tensor.name:{width}}  {kinds or tensor.after:16} {size:>10}  {shape}")
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    n_values = sum(math.prod(tensor.shape) for tensor in tensors)
    print(f"{spell_bytes(n_bytes)}, {8 * n_bytes / n_values:.2f} bits a weight")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    types = TensorTypes(
        output=options.output,
        embedding=options.embedding,
        named=dict(options.tensor_type),
        pure=options.pure,
    )
    asked: _Asked = {
        "outtype": options.outtype,
        "mtp_type": options.mtp_type,
        "mtp": options.mtp,
        "types": types,
        "importance": options.imatrix,
    }
    if options.dry_run:
        _print_types(quantised_types(options.source, **asked))
        return 0
    with count_bytes("writing") as report:
        left_out = quantize(
            options.source,
            options.out,
            **asked,
            override={**dict(options.override_kv), **_response_metadata(options)},
            keep_split=options.keep_split,
            adapters=given_adapters(options),
            threads=options.threads,
            report=report,
        )
    note_left_out(left_out, options.verbose)
    paths = [Path(options.out)]
    if options.keep_split:
        paths = _parts(options.source, paths[0])
    note(f"wrote {paths[0]}, {spell_bytes(sum(path.stat().st_size for path in paths))}")
    return 0


def _parts(source: str, out: Path) -> list[Path]:
    """Return the parts that were written as the source has them; of a whole source the one file."""
    with open_model_file(find_model(source), to_look_at=True) as file:
        count = len(file.files)
    prefix = split_prefix(out)
    return [out] if count == 1 else [part_path(prefix, i, count) for i in range(count)]
