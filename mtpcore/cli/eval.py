"""``mtpcore eval``: how well models predict texts, and how far they are from another file."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.boundary.texts import read_pieces
from mtpcore.cli import options as shared
from mtpcore.cli.lora import add_adapter_options, given_adapters, merged_adapters, scales_of
from mtpcore.cli.named import find_named_model
from mtpcore.cli.progress import count_tokens
from mtpcore.cli.session import make_context
from mtpcore.cli.tables import draw_table
from mtpcore.cli.terminal import harmless, note, spell_bytes
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.evaluation import Estimate, Evaluation, evaluate
from mtpcore.hub import parse_name
from mtpcore.runtime.context import Context

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Measure perplexity of texts, and divergence from another file of the same model"
EXAMPLES = """examples:
  mtpcore eval model-q4_k_m.gguf -f text.txt
  mtpcore eval model-q4_k_m.gguf model-q6_k.gguf --against model-f16.gguf -f text.txt --chunks 20
  mtpcore eval model-q4_k_m.gguf --lora sql.gguf --lora-merge --against model-f16.gguf -f text.txt
  mtpcore eval hf:owner/repo:Q4_K_M -f text.txt --json | jq .models[0].perplexity
"""
_CHUNK = 512


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "models", nargs="+", metavar="MODEL", help="GGUF files, or names, as run takes them"
    )
    group.add_argument(
        "--against",
        metavar="MODEL",
        help="the reference: a more precise file of the same model, read beside each of the others",
    )
    group.add_argument(
        "--offline", action="store_true", help="take what the cache holds, and never ask the hub"
    )
    add_adapter_options(parser)
    group = parser.add_argument_group("texts")
    shared.add_texts_option(group, "as large as you have time for: what is lost depends on them")
    group.add_argument(
        "--chunks",
        type=shared.whole(1),
        metavar="N",
        help="most chunks of -c tokens that are read (default: all)",
    )
    shared.add_context_options(parser)
    parser.set_defaults(ctx_size=_CHUNK)
    form = parser.add_argument_group("output").add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print a table in Markdown")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    texts = {path: "".join(read_pieces(path)) for path in options.file}
    found: dict[str, Evaluation] = {}
    sizes: dict[str, int] = {}
    beside = copy.copy(options)
    beside.lora_merge = False  # of the reference
    for name in options.models:
        with _context(options, name) as context:
            sizes[name] = sum(path.stat().st_size for path in context.model.paths)
            if options.against is None:
                found[name] = _evaluate(options, name, texts, context, None)
                continue
            with _context(beside, options.against) as reference:
                found[name] = _evaluate(options, name, texts, context, reference)
    if options.json:
        print(json.dumps(_plain(options, found, sizes)))
        return 0
    first = next(iter(found.values()))
    note(
        f"{first.n_chunks} chunks of {options.ctx_size} tokens, {first.figures.n_tokens} predicted"
    )
    print(draw_table(_rows(found, sizes), markdown=options.markdown))
    return 0


@contextmanager
def _context(options: argparse.Namespace, name: str) -> Iterator[Context]:
    """Load a model without its heads, and give a context for one chunk."""
    named = parse_name(name)
    path = find_model(name) if named is None else find_named_model(named, offline=options.offline)
    merged = merged_adapters(options)
    with load_model(path, mtp=False, sidecars=False, adapters=merged) as model:
        yield make_context(options, model, options.ctx_size)


def _evaluate(
    options: argparse.Namespace,
    name: str,
    texts: dict[str, str],
    context: Context,
    reference: Context | None,
) -> Evaluation:
    with count_tokens(f"reading with {Path(name).name}") as report:
        return evaluate(
            context,
            texts,
            against=reference,
            n_ctx=options.ctx_size,
            n_chunks=options.chunks,
            report=report,
            adapters=scales_of(options, context),
            against_adapters=scales_of(options, reference) if reference else (),
        )


def _plain(
    options: argparse.Namespace, found: dict[str, Evaluation], sizes: dict[str, int]
) -> dict[str, Any]:
    models = [
        {
            "model": name,
            "bytes": sizes[name],
            "chunks": one.n_chunks,
            **msgspec.to_builtins(one.figures),
            "texts": msgspec.to_builtins(one.texts),
        }
        for name, one in found.items()
    ]
    adapters = [{"adapter": path, "scale": scale} for path, scale in given_adapters(options)]
    return {
        "against": options.against,
        "n_ctx": options.ctx_size,
        "adapters": adapters,
        "merged": options.lora_merge,
        "models": models,
    }


def _rows(found: dict[str, Evaluation], sizes: dict[str, int]) -> list[Sequence[str]]:
    """Return a head and a row for each model, and each of several texts."""
    compares = next(iter(found.values())).figures.divergence is not None
    head = ["model", "size", "perplexity"]
    if compares:
        head += ["of the reference", "KLD mean", "99 %", "largest", "same choice"]
    rows: list[Sequence[str]] = [head]
    for name, one in found.items():
        many = {f"  {text}": figures for text, figures in one.texts.items() if len(one.texts) > 1}
        for label, figures in {Path(name).name: one.figures, **many}.items():
            row = [harmless(label), "" if label in many else spell_bytes(sizes[name])]
            row.append(_spell(figures.perplexity, 4))
            if (far := figures.divergence) is not None:
                row += [
                    _spell(far.reference_perplexity, 4),
                    _spell(far.mean, 5),
                    f"{far.percentiles['99']:.4f}",
                    f"{far.maximum:.4f}",
                    f"{100 * far.same_choice.value:.2f} %",
                ]
            rows.append(row)
    return rows


def _spell(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} +- {estimate.error:.{digits}f}"
