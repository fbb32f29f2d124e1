"""``mtpcore plugins``: what is installed, what it matches and what it needs."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from mtpcore.cli.terminal import note
from mtpcore.declarations.spec import DrafterSpec, ModelSpec
from mtpcore.discovery.registry import SWITCH, Plugin, describe_plugins
from mtpcore.drafting.lookup import LOOKUP
from mtpcore.version import version

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "List installed plugins: trunks, drafters, backends, which files they fit, what they need"
EXAMPLES = f"""examples:
  mtpcore plugins
  mtpcore plugins -v
  mtpcore plugins --json | jq '.plugins[].drafters[].name'
  {SWITCH}= mtpcore run demo -p "import"       without third-party plugins
  {SWITCH}=lookup mtpcore run demo -p "import"    with this one alone
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print one object")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    selected = os.environ.get(SWITCH)
    described = [_describe(plugin, selected) for plugin in describe_plugins()]
    if options.json:
        print(json.dumps({"switch": SWITCH, "selected": selected, "plugins": described}))
        return 0
    if options.verbose:
        print("\n\n".join("\n".join(_lines(plugin)) for plugin in described))
    else:
        rows = [(plugin["name"], _summary(plugin)) for plugin in described]
        rows.append((LOOKUP.name, "drafter that every model has: copies from earlier in the text"))
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"{name:{width}}  {summary}" for name, summary in rows), flush=True)
        note("-v says which files they fit, what they need, and where they come from")
    if selected is not None:
        note(f"{SWITCH} is {selected!r}: of third-party plugins only these are used")
    return 0


def _describe(plugin: Plugin, selected: str | None) -> dict[str, Any]:
    names = None if selected is None else {name.strip() for name in selected.split(",")}
    return {
        "name": plugin.name,
        "distributions": [
            f"mtpcore {version()}" if name == "mtpcore" else name for name in plugin.distributions
        ],
        "module": plugin.module,
        "first_party": plugin.first_party,
        "used": plugin.error is None
        and (plugin.first_party or names is None or plugin.name in names),
        "error": str(plugin.error) if plugin.error else None,
        "models": [_model(spec) for spec in plugin.models],
        "drafters": [_drafter(spec) for spec in plugin.drafters],
        "backends": [{"name": spec.name, "source": spec.source} for spec in plugin.backends],
    }


def _fit(spec: ModelSpec | DrafterSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "architectures": sorted(spec.fit.architectures),
        "tensors": list(spec.fit.tensors),
        "absent": list(spec.fit.absent),
    }


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {**_fit(spec), "graphs": [name for name, _ in spec.graphs]}


def _drafter(spec: DrafterSpec) -> dict[str, Any]:
    return {
        **_fit(spec),
        "targets": sorted(spec.fit.targets),
        "variant_of": spec.variant_of,
        "standalone": spec.standalone,
        "shape": spec.shape,
        "limit": spec.limit,
        "acceptance": list(spec.acceptance),
        "feeds": [
            {
                "slot": feed.slot,
                "taps": list(feed.taps),
                "from": feed.src,
                "pairing": feed.pairing,
                "recycle": feed.recycle,
                "evidence": feed.evidence,
            }
            for feed in spec.feeds
        ],
        "ties": [list(tie.candidates) for tie in spec.ties],
        "evidence": spec.evidence,
    }


def _summary(plugin: dict[str, Any]) -> str:
    """Return what a plugin brings, in one line."""
    if plugin["error"]:
        return f"broken: {plugin['error'].splitlines()[0]}"
    parts = [f"left out by {SWITCH}"] if not plugin["used"] else []
    parts += _of("trunk ", [model["name"] for model in plugin["models"]])
    heads = [one for one in plugin["drafters"] if not one["variant_of"]]
    parts += _of("drafter ", [f"{one['name']} ({one['shape']})" for one in heads])
    parts += _of("backend ", [backend["name"] for backend in plugin["backends"]])
    return "; ".join(parts)


def _lines(plugin: dict[str, Any]) -> list[str]:
    lines = [f"{plugin['name']}  ({', '.join(plugin['distributions'])})"]
    if plugin["error"]:
        lines.append("  broken     " + plugin["error"].replace("\n", "\n             "))
    elif not plugin["used"]:
        lines.append(f"  left out   by {SWITCH}")
    for backend in plugin["backends"]:
        lines.append(f"  backend    {backend['name']}: {backend['source']}")
    for model in plugin["models"]:
        lines.append(f"  trunk      {model['name']}")
        lines += _matches(model)
    for drafter in plugin["drafters"]:
        low, high = drafter["acceptance"]
        known = (low, high) != (0.0, 1.0)
        lines.append(
            f"  drafter    {drafter['name']}: {drafter['shape']}, up to {drafter['limit']} tokens"
            # A declaration that expects anything says nothing.
            + (f", first draft accepted {low:.2f} to {high:.2f} of the time" if known else "")
        )
        lines += _matches(drafter)
        if drafter["standalone"]:
            lines.append("    file     of its own" + "".join(_of(" for ", drafter["targets"])))
        for feed in drafter["feeds"]:
            lines.append("    reads    " + _source(feed))
            lines += [f"    because  {feed['evidence']}"] if feed["evidence"] else []
        for own_name, *others in drafter["ties"]:
            lines += [f"    borrows  {own_name} from {' or '.join(others)}"] if others else []
        if drafter["evidence"]:
            lines.append(f"    evidence {drafter['evidence']}")
    return lines


def _source(feed: dict[str, Any]) -> str:
    if not feed["taps"]:  # a state of the drafter's own
        return f"its own {feed['recycle']} of the step before"
    return f"{', '.join(feed['taps'])} of {feed['from']}, pairing {feed['pairing']}"


def _matches(spec: dict[str, Any]) -> list[str]:
    lines = [f"    matches  {', '.join(spec['architectures']) or 'every architecture'}"]
    for word, names in (("needs", spec["tensors"]), ("without", spec["absent"])):
        if names:
            lines.append(f"    {word:8} {', '.join(names)}")
    return lines


def _of(text: str, names: list[str]) -> list[str]:
    return [text + ", ".join(names)] if names else []
