"""The two parts of a graph that is fed whole sequences by another one."""

from __future__ import annotations

import msgspec

from mtpcore.graph.program import SOURCES, TOKENS, Program

__all__ = ["split_sources"]


def split_sources(program: Program) -> tuple[Program, Program | None]:
    """Return what runs with each batch, and what runs once for each sequence that is delivered.

    The second part has the slot of whole sequences for its rows, makes no outputs, and stores what
    the first part attends to. None where no sequence is delivered.
    """
    slot = program.whole_slot
    if slot is None:
        return program, None
    of_sources = {value.id for value in program.values if value.shape[0] == SOURCES}
    once = [node for node in program.nodes if set(node.inputs) & of_sources]
    each = [node for node in program.nodes if not set(node.inputs) & of_sources]
    values = tuple(
        msgspec.structs.replace(value, shape=(TOKENS, *value.shape[1:]))
        if value.id in of_sources
        else value
        for value in program.values
    )
    inputs = program.inputs
    delivered = msgspec.structs.replace(
        program,
        name=f"{program.name}.{slot}",
        values=values,
        nodes=tuple(once),
        inputs={name: inputs[name] for name in ("tokens", "positions", slot)},
        outputs={},
        memory=(),
        taps=(),
        states=(),
    )
    batches = msgspec.structs.replace(
        program,
        nodes=tuple(each),
        inputs={name: i for name, i in inputs.items() if name != slot},
    )
    return batches, delivered
