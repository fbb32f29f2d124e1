"""Drawings of a program as text: Mermaid and DOT.

A node of the drawing is an operation with its weights; an edge is an array, with its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mtpcore.graph.program import Node, Program

__all__ = ["to_dot", "to_mermaid"]

_SHOWN = {
    "attention": ("layer", "mask", "window"),
    "remember": ("layer",),
    "cross_attention": ("layer",),
    "causal_conv": ("layer", "kind"),
    "block_mean": ("size",),
    "block_conv": ("size", "part"),
    "keep_best": ("n",),
    "find_best": ("n",),
    "block_attention": ("size", "first"),
    "block_walk": ("size", "first"),
    "delta_rule": ("layer", "key_heads"),
    "route": ("n_used", "gate"),
    "rope": ("style",),
    "activation": ("kind",),
    "gated": ("kind",),
    "scale": ("factor",),
    "slice": ("start", "stop"),
}
"""Attributes worth a place in a picture."""


class _Box(NamedTuple):
    key: str
    lines: tuple[str, ...]
    kind: str  # input, operation, memory or output


def to_mermaid(program: Program) -> str:
    """Return the program as a Mermaid flowchart, from inputs above to outputs below."""
    frames = {
        "input": ("([", "])"),
        "operation": ("[", "]"),
        "memory": ("[(", ")]"),
        "output": ("{{", "}}"),
    }
    lines = ["flowchart TB", f"  %% {program.name}"]
    for box in _boxes(program):
        left, right = frames[box.kind]
        text = "<br/>".join(_escape(line) for line in box.lines)
        lines.append(f'  {box.key}{left}"{text}"{right}')
    lines += [f'  {a} -->|"{_escape(text)}"| {b}' for a, b, text in _edges(program)]
    return "\n".join(lines) + "\n"


def to_dot(program: Program) -> str:
    """Return the program in Graphviz's language."""
    shapes = {"input": "oval", "operation": "box", "memory": "cylinder", "output": "hexagon"}
    lines = [f"digraph {_quote(program.name)} {{", '  node [fontname="sans-serif"];']
    for box in _boxes(program):
        label = _quote("\n".join(box.lines))
        lines.append(f"  {box.key} [shape={shapes[box.kind]}, label={label}];")
    lines += [f"  {a} -> {b} [label={_quote(text)}];" for a, b, text in _edges(program)]
    return "\n".join([*lines, "}"]) + "\n"


def _boxes(program: Program) -> Iterator[_Box]:
    for name, i in program.inputs.items():
        yield _Box(f"v{i}", (name,), "input")
    for i, node in enumerate(program.nodes):
        yield _Box(f"n{i}", tuple(_lines(node)), "memory" if "layer" in node.attrs else "operation")
    for i, name in enumerate(program.outputs):
        yield _Box(f"o{i}", (name,), "output")


def _lines(node: Node) -> Iterator[str]:
    yield node.op
    for weight in node.weights:
        if weight is not None:
            tied = f" (for {weight.wanted})" if weight.wanted != weight.tensor else ""
            yield f"{weight.tensor}{tied} {_shape(weight.shape)}"
    shown = [f"{key} {node.attrs[key]}" for key in _SHOWN.get(node.op, ()) if key in node.attrs]
    if shown:
        yield ", ".join(shown)


def _edges(program: Program) -> Iterator[tuple[str, str, str]]:
    maker = {i: f"v{i}" for i in program.inputs.values()}
    kept = {}
    for n, node in enumerate(program.nodes):
        if node.op == "remember":
            kept[node.attrs["layer"]] = f"n{n}"
        elif node.op == "cross_attention" and node.attrs["layer"] in kept:
            yield kept[node.attrs["layer"]], f"n{n}", "kept"
        for i in node.inputs:
            yield maker[i], f"n{n}", _shape(program.values[i].shape)
        maker.update({i: f"n{n}" for i in node.outputs})
    for o, i in enumerate(program.outputs.values()):
        yield maker[i], f"o{o}", _shape(program.values[i].shape)


def _shape(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape))


def _escape(text: str) -> str:
    """Make text safe inside Mermaid's quotes; names come from plugins and files."""
    for mark, entity in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(mark, entity)
    return " ".join(text.split())


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
