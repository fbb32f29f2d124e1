"""``mtpcore inspect``: what a model file holds and what it needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mtpcore.cli import options as shared
from mtpcore.cli.anatomy import describe_model, drafter_program, target_taps
from mtpcore.cli.session import open_draft_model, require_drafter
from mtpcore.cli.terminal import harmless, spell_bytes
from mtpcore.discovery.loading import load_model
from mtpcore.graph import Program
from mtpcore.graph.draw import to_dot, to_mermaid
from mtpcore.runtime.model import Model

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Show what a model file holds: tensors by role, drafters, ties, memory, graphs"
EXAMPLES = """examples:
  mtpcore inspect demo
  mtpcore inspect model.gguf -c 32768
  mtpcore inspect model.gguf --tensors | grep nextn
  mtpcore inspect target.gguf -md drafter.gguf
  mtpcore inspect demo --graph draft --format dot | dot -Tsvg > draft.svg
  mtpcore inspect model.gguf --json | jq .plan
"""
_LONGEST = 4096
_PICTURES: dict[str, Callable[[Program], str]] = {"text": str, "mermaid": to_mermaid, "dot": to_dot}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    group = parser.add_argument_group("what to show")
    group.add_argument("--tensors", action="store_true", help="list every tensor as well")
    group.add_argument(
        "--graph",
        metavar="NAME",
        help="draw this graph instead: llm, draft, or another of the drafter's",
    )
    group.add_argument("--drafter", metavar="NAME", help="whose graph, where several fit")
    group.add_argument(
        "--format", choices=sorted(_PICTURES), default="text", help="default: %(default)s"
    )
    group.add_argument("--json", action="store_true", help="print one object")
    plan = parser.add_argument_group("memory plan")
    plan.add_argument(
        "-c",
        "--ctx-size",
        type=shared.whole(1),
        metavar="N",
        help=f"tokens of a sequence (default: what the model was trained for, up to {_LONGEST})",
    )
    shared.add_kv_option(plan)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    path, repack = shared.model_path(options), options.repack
    if not options.graph and (options.drafter or options.format != "text"):
        options.parser.error("--drafter and --format say how to draw: give --graph NAME as well")
    if options.graph and (options.json or options.tensors or options.ctx_size):
        options.parser.error("--graph draws a graph instead: leave --json, --tensors and -c out")
    with ExitStack() as files:
        model = files.enter_context(load_model(path, mtp_path=options.mtp_path, repack=repack))
        draft_model = open_draft_model(options, insists=options.model_draft is not None)
        if draft_model is not None:
            files.enter_context(draft_model)
            _lend(options, model, draft_model)
        if options.graph:
            program = _program(model, draft_model, options)
            print(harmless(_PICTURES[options.format](program).rstrip("\n")))
            return 0
        trained = getattr(model.hparams, "n_ctx_train", _LONGEST)
        n_ctx = options.ctx_size or min(trained, _LONGEST)
        found = describe_model(model, draft_model, n_ctx=n_ctx, kv_dtype=options.kv_dtype)
    if options.json:
        print(json.dumps(found))
        return 0
    sections = {
        "": _overview(found),
        "metadata": [f"{key} = {_spell(value)}" for key, value in found["metadata"].items()],
        "tensors": _tensors(found, options.tensors),
        "drafters": _drafters(found),
        f"memory for {n_ctx} tokens in {options.kv_dtype}, CPU": _plan(found),
    }
    for title, lines in sections.items():
        text = "\n".join([title, *(f"  {line}" for line in lines)] if title else lines)
        print(harmless(text) + "\n")
    return 0


def _lend(options: argparse.Namespace, model: Model, draft_model: Model) -> None:
    """Let a drafter in a file of its own borrow of its target; refuse one that does not fit."""
    require_drafter(options.model_draft or str(draft_model.path), draft_model)
    draft_model.borrow_from(model)
    for spec in draft_model.drafters:
        model.program(taps=target_taps(spec))


def _program(model: Model, draft_model: Model | None, options: argparse.Namespace) -> Program:
    if options.graph == "llm":
        return model.program()
    graph = "" if options.graph == "draft" else options.graph
    return drafter_program(draft_model or model, options.drafter, graph)


def _overview(found: dict[str, Any]) -> list[str]:
    trunk = found["trunk"]
    of = f", trunk {trunk['name']} of plugin {trunk['plugin']}" if trunk else ""
    return [
        *(f"file          {one['path']} ({spell_bytes(one['bytes'])})" for one in found["files"]),
        f"architecture  {found['architecture']}{of}",
        f"layout        {found['layout']}",
        f"tokenizer     {found['tokenizer'] or 'none that is supported'}"
        + (", with a chat template" if found["chat_template"] else ""),
        f"instructions  {found['isa']['used']} (this machine runs "
        f"{', '.join(found['isa']['available'])})",
        f"asks ahead    for {found['fetch']['used']} (of {', '.join(found['fetch']['available'])})",
    ]


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        first = ", ".join(map(json.dumps, value["first"]))
        return f"[{first}, ...] ({value['length']} values)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else text[:87] + "..."


def _tensors(found: dict[str, Any], every: bool) -> list[str]:
    lines = [
        f"{row['role']:10} {row['type']:6} {row['tensors']:5} {spell_bytes(row['bytes']):>9}"
        for row in found["roles"]
    ]
    if every:
        lines += [
            f"{t['role']:10} {t['type']:6} {spell_bytes(t['bytes']):>9}  {t['name']} "
            f"{' x '.join(map(str, t['shape']))}"
            for t in found["tensors"]
        ]
    return lines


def _drafters(found: dict[str, Any]) -> list[str]:
    lines = []
    for drafter in found["drafters"]:
        if drafter["variant_of"]:
            reads = ", ".join(drafter["taps"])
            lines.append(f"{drafter['name']}: variant of {drafter['variant_of']}, reads {reads}")
            continue
        low, high = drafter["acceptance"]
        beside = f" in {drafter['path']}" if drafter["path"] else ""
        lines.append(
            f"{drafter['name']} of plugin {drafter['plugin']}{beside}: {drafter['shape']}, "
            f"up to {drafter['limit']} tokens, first draft accepted {low:.2f} to {high:.2f}"
        )
        if drafter["taps"]:
            lines.append(f"  reads {', '.join(drafter['taps'])}")
        if len(drafter["graphs"]) > 1:
            lines.append(f"  graphs {', '.join(drafter['graphs'])}")
        for use in drafter["ties"]:
            origin = {"own": "its own", "missing": "missing"}.get(
                use["source"], f"borrowed from {use['tensor']}"
            )
            lines.append(f"  {use['wanted']}: {origin} {use['type']}".rstrip())
    return lines or ["none fits: text is decoded plainly"]


def _plan(found: dict[str, Any]) -> list[str]:
    lines = []
    for part in found["plan"]["parts"]:
        if "error" in part:
            lines.append(f"{part['role']:12} {part['error'].splitlines()[0]}")
            continue
        mapped = f" (and {spell_bytes(part['mapped'])} in the file)" if part["mapped"] else ""
        shared_too = f" (and {spell_bytes(part['shared'])} shared)" if part["shared"] else ""
        lines.append(
            f"{part['role']:12} weights {spell_bytes(part['weights'])}{mapped}{shared_too}, "
            f"keys and values {spell_bytes(part['kv_per_sequence'])} a sequence, "
            f"{spell_bytes(part['kv_per_token'])} a token"
        )
    known = [part for part in found["plan"]["parts"] if "error" not in part]
    total = sum(part["weights"] + part["kv_per_sequence"] for part in known)
    return [*lines, f"{'total':12} {spell_bytes(total)} with one sequence"]
