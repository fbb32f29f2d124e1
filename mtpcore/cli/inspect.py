"""``mtpcore inspect``: what a model file holds and what it needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mtpcore._ext._cpu import check_environment
from mtpcore.cli import options as shared
from mtpcore.cli.anatomy import describe_file, describe_model, drafter_program, target_taps
from mtpcore.cli.samplers import spell_sampling
from mtpcore.cli.session import open_draft_model
from mtpcore.cli.terminal import harmless, spell_bytes
from mtpcore.cross import find_drafter
from mtpcore.declarations.draft_model import is_independent
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.drafting.lookup import LOOKUP
from mtpcore.drafting.vocabulary import shared_tokens
from mtpcore.errors import GraphError, MtpcoreError
from mtpcore.gguf import open_model_file
from mtpcore.graph import GraphType, Program
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
        help="draw this graph instead: llm, draft, or another that trunk or drafter declares",
    )
    group.add_argument("--drafter", metavar="NAME", help="which drafter, if several fit")
    group.add_argument(
        "--format", choices=sorted(_PICTURES), default="text", help="default: %(default)s"
    )
    group.add_argument("--json", action="store_true", help="print one object")
    plan = parser.add_argument_group("memory plan")
    plan.add_argument(
        "-c",
        "--ctx-size",
        type=shared.whole(0),
        metavar="N",
        help="tokens of a sequence; 0: as many as the model was trained on (default: that, at most "
        f"{_LONGEST})",
    )
    shared.add_memory_options(plan)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    shared.model_path(options)
    if not options.graph and (options.drafter or options.format != "text"):
        options.parser.error("--drafter and --format say how to draw: give --graph NAME as well")
    if options.graph and (options.json or options.tensors or options.ctx_size is not None):
        options.parser.error("--graph draws a graph instead: leave --json, --tensors and -c out")
    check_environment()
    try:
        if options.graph:
            print(harmless(_draw(options)))
            return 0
        described = _describe(options)
    except MtpcoreError as error:
        if options.graph or options.mtp_path or options.model_draft:
            raise
        described = _look_at(options, error)
    print(json.dumps(described) if options.json else _spell_out(described, options.tensors))
    return 0


def _describe(options: argparse.Namespace) -> dict[str, Any]:
    """Return what there is to say of a model."""
    with _models(options) as (model, draft_model):
        trained = getattr(model.hparams, "n_ctx_train", _LONGEST)
        n_ctx = shared.context_size(options, model) or min(trained, _LONGEST)
        return describe_model(
            model,
            draft_model,
            n_ctx=n_ctx,
            kv_dtype=options.kv_dtype,
            checkpoint_bytes=options.checkpoint_bytes,
        )


def _look_at(options: argparse.Namespace, error: MtpcoreError) -> dict[str, Any]:
    """Return what there is to say of a file that cannot be loaded.

    Raises
    ------
    ModelFileError
        It cannot be read at all.
    """
    with open_model_file(find_model(shared.model_path(options)), to_look_at=True) as file:
        return describe_file(file, error)


def _draw(options: argparse.Namespace) -> str:
    """Return a picture of a graph."""
    with _models(options) as (model, draft_model):
        program = _program(model, draft_model, options)
        return _PICTURES[options.format](program).rstrip("\n")


@contextmanager
def _models(options: argparse.Namespace) -> Iterator[tuple[Model, Model | None]]:
    """Load the model, and the drafter in a file of its own where there is one."""
    path, repack = shared.model_path(options), options.repack
    with ExitStack() as files:
        model = files.enter_context(
            load_model(
                path,
                mtp_path=options.mtp_path,
                sidecars=options.model_draft is None,
                repack=repack,
            )
        )
        draft_model = open_draft_model(options, model)
        if draft_model is not None:
            files.enter_context(draft_model)
            _lend(model, draft_model)
        yield model, draft_model


def _spell_out(described: dict[str, Any], every_tensor: bool) -> str:
    """Return everything as text."""
    sections = {
        "": _overview(described),
        "metadata": [f"{key} = {_spell(value)}" for key, value in described["metadata"].items()],
        "tensors": _tensors(described, every_tensor) or ["none"],
    }
    if described["error"] is None:
        plan = described["plan"]
        sections["drafters"] = _drafters(described)
        if described["sidecars"]:
            sections["files beside it that may hold a drafter"] = _sidecars(described)
        sections[f"memory for {plan['n_ctx']} tokens in {plan['kv_dtype']}, CPU"] = _plan(described)
    sections["this machine"] = _machine(described)
    texts = []
    for title, lines in sections.items():
        text = "\n".join([title, *(f"  {line}" for line in lines)] if title else lines)
        texts.append(harmless(text) + "\n")
    return "\n".join(texts)


def _lend(model: Model, draft_model: Model) -> None:
    """Let a draft model borrow of its target; refuse one that does not fit."""
    if draft_model.as_draft_model is not None:
        shared_tokens(model, draft_model, None)
        return
    draft_model.borrow_from(model)
    if any(map(is_independent, draft_model.drafters)):
        shared_tokens(model, draft_model, None)
    for spec in draft_model.drafters:
        model.program(taps=target_taps(spec))


def _program(model: Model, draft_model: Model | None, options: argparse.Namespace) -> Program:
    trunk_graphs = "llm", *dict(model.spec.graphs if model.spec is not None else ())
    if options.graph in trunk_graphs:
        return model.program(GraphType(options.graph))
    graph = "" if options.graph == "draft" else options.graph
    found = find_drafter(model, draft_model, options.drafter or "auto")
    if found is None or (found[1] is LOOKUP and not options.drafter):
        found = model, model.find_drafter()
    source, spec = found
    if spec.shape == "proposer" and graph not in dict(spec.graphs):
        raise GraphError(
            "a proposer drafts without this graph",
            where=f"drafter {spec.full_name}",
            wanted=", ".join(dict(spec.graphs)) or None,
            got=options.graph,
            fix="name another drafter with --drafter",
        )
    known = *trunk_graphs, "draft", *dict(spec.graphs)
    if options.graph not in known:
        raise GraphError(
            "no such graph",
            where=str(model.path),
            wanted=", ".join(known),
            got=options.graph,
            fix="name one of these with --graph",
        )
    return drafter_program(source, spec.name, graph)


def _overview(described: dict[str, Any]) -> list[str]:
    trunk = described["trunk"]
    of = f", trunk {trunk['name']} of plugin {trunk['plugin']}" if trunk else ""
    reason = (described["error"] or "").replace("\n  ", "\n" + " " * 14)
    return [
        *(
            f"file          {file['path']} ({spell_bytes(file['bytes'])})"
            for file in described["files"]
        ),
        f"architecture  {described['architecture'] or 'none is named'}{of}",
        *([f"layout        {described['layout']}"] if described["layout"] else []),
        *([f"cannot run    {reason}"] if reason else []),
        *(_texts(described) if described["llama_cpp"]["option"] is None else []),
        f"llama.cpp     {_for_llama_cpp(described['llama_cpp'])}",
    ]


def _texts(described: dict[str, Any]) -> list[str]:
    """Return what a model makes texts by."""
    return [
        f"tokenizer     {described['tokenizer'] or 'none that is supported'}"
        + (", with a chat template" if described["chat_template"] else ""),
        *_sampling(described["sampling"]),
    ]


def _for_llama_cpp(judged: dict[str, Any]) -> str:
    of = f"of {judged['of']}"
    if judged["option"]:
        return f"{of} takes it beside a model: {judged['option']}"
    if judged["unknown"]:
        return f"{of} does not know {', '.join(judged['unknown'])}"
    head = "" if judged["head"] is None else f", and {judged['head']} the head"
    if judged["head"] == "refuses":
        head = ", and refuses files with its head"
    return f"{of} knows architecture, tokenizer and types{head}"


def _machine(described: dict[str, Any]) -> list[str]:
    isa, fetch = described["isa"], described["fetch"]
    return [
        f"instructions  {isa['used']} (of {', '.join(isa['available'])})",
        f"prefetch      {fetch['used']} (of {', '.join(fetch['available'])})",
    ]


def _sampling(described: dict[str, Any]) -> list[str]:
    settings, named = described["settings"], described["recommended"]
    own = {name: settings[name] for name in settings if name in named}
    usual = {name: settings[name] for name in settings if name not in named}
    parts = [f"{spell_sampling(own)} (of the file)"] if own else []
    parts += [spell_sampling(usual)] if usual else []
    left_out = described["left_out"].items()
    return [
        f"sampling      {', '.join(parts)}",
        *(f"              {key} is not taken: {reason}" for key, reason in left_out),
    ]


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        first = ", ".join(map(json.dumps, value["first"]))
        return f"[{first}, ...] ({value['length']} values)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else text[:87] + "..."


def _size(n_bytes: int | None) -> str:
    return "?" if n_bytes is None else spell_bytes(n_bytes)


def _tensors(described: dict[str, Any], every: bool) -> list[str]:
    lines = [
        f"{row['role'] or '':10} {row['type']:7} {row['tensors']:5} {_size(row['bytes']):>9}"
        for row in described["roles"]
    ]
    if every:
        lines += [
            f"{t['role'] or '':10} {t['type']:7} {_size(t['bytes']):>9}  {t['name']} "
            f"{' x '.join(map(str, t['shape']))}"
            for t in described["tensors"]
        ]
    if (rest := described["unread"]) and rest["tensors"]:
        lines.append(
            f"not read here: {rest['tensors']} tensors of {rest['path']} "
            f"({spell_bytes(rest['bytes'])}), which another program may run"
        )
    return lines


def _drafters(described: dict[str, Any]) -> list[str]:
    lines = []
    for drafter in described["drafters"]:
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
    if described["default_drafter"] == LOOKUP.name:
        lines.append("lookup, as no other fits: copies from earlier in the text")
    return lines or ["none fits: text is decoded without drafts"]


def _sidecars(described: dict[str, Any]) -> list[str]:
    lines = []
    for beside in described["sidecars"]:
        became = "used" if beside["used"] else f"not used: {beside['reason']}"
        lines += [f"{beside['path']} (as of {', '.join(beside['drafters'])})", f"  {became}"]
    return lines


def _plan(described: dict[str, Any]) -> list[str]:
    lines = []
    for part in described["plan"]["parts"]:
        if "error" in part:
            lines.append(f"{part['role']:12} {part['error'].splitlines()[0]}")
            continue
        mapped = f" (and {spell_bytes(part['mapped'])} in the file)" if part["mapped"] else ""
        shared_too = f" (and {spell_bytes(part['shared'])} shared)" if part["shared"] else ""
        lines.append(
            f"{part['role']:12} weights {spell_bytes(part['weights'])}{mapped}{shared_too}, "
            f"keys and values {spell_bytes(part['kv_per_sequence'])} a sequence, "
            f"{spell_bytes(part['kv_per_token'])} a token" + _states(part)
        )
    known = [part for part in described["plan"]["parts"] if "error" not in part]
    kept = ("weights", "kv_per_sequence", "states_per_sequence")
    total = sum(part[name] for part in known for name in kept)
    return [*lines, f"{'total':12} {spell_bytes(total)} with one sequence"]


def _states(part: dict[str, Any]) -> str:
    """Say what recurrent layers keep of a sequence; empty without such layers."""
    if not part["slot"]:
        return ""
    return (
        f", recurrent states up to {spell_bytes(part['states_per_sequence'])} a sequence, "
        f"{spell_bytes(part['slot'])} a state with its log"
    )
