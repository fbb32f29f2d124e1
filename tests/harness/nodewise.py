"""Two backends beside each other, value by value of a program: which operation differs first."""

import msgspec
import numpy as np

from mtpcore.testing import Runner


def showing_all_values(program):
    """Return the program with every float value that a node makes among its outputs, in order."""
    shown = {
        f"{at} {node.op} ({node.name})": value
        for at, node in enumerate(program.nodes)
        for value in node.outputs
        if program.values[value].dtype == "f32"
    }
    return msgspec.structs.replace(program, outputs=program.outputs | shown)


def assert_same_values(program, source, backends, tokens, *, kv_dtype="f32", **feeding):
    """Feed the same rows to both backends; compare bits in the order of nodes, then memory.

    Returns
    -------
    The outputs, by name.
    """
    shown = showing_all_values(program)
    runners = [Runner(b, shown, source, threads=2, kv_dtype=kv_dtype) for b in backends]
    made, wanted = (runner.feed(tokens, **feeding) for runner in runners)
    for name in sorted(wanted.keys() - program.outputs.keys(), key=lambda n: int(n.split()[0])):
        differs = made[name].view(np.uint32) != wanted[name].view(np.uint32)
        most = np.abs(made[name] - wanted[name]).max(initial=0)
        assert not differs.any(), f"{name}: {differs.sum()} of {differs.size}, by up to {most}"
    assert runners[0].memory.digest(0) == runners[1].memory.digest(0)
    return made
