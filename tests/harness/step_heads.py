"""Toys of heads for each step: what they read, the widths of their rows, what runs before them."""

import msgspec
import numpy as np
import toy

from mtpcore.discovery.registry import Registry
from mtpcore.plugin import DrafterSpec, Feed, Fit, Heads, Key, Outputs
from mtpcore.testing import Subject

NARROW, N_HEADS, N_DRAFT = 16, 3, 24


def step(g, inputs, h):
    """An MLP speculator without its constants: each head has a table of its own."""
    x = g.matmul(inputs["state"], "blk.{n}.step.weight")
    x = g.add(x, g.embed(inputs.tokens, "blk.{n}.embed.weight"))
    x = g.activation(g.rms_norm(x, None, toy.EPS), "gelu")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.out.weight"), state=x)


def cell(g, inputs, h):
    """A head with a second state, which begins with zeros."""
    x = g.matmul(inputs["state"], "blk.{n}.step.weight")
    x = g.add(x, g.embed(inputs.tokens, "blk.{n}.embed.weight"))
    kept = g.add(g.scale(inputs["cell"], 0.5), g.rms_norm(x, None, toy.EPS))
    x = g.activation(kept, "gelu")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.out.weight"), state=x, cell=kept)


def entry(g, inputs, h):
    return Outputs(made=g.matmul(inputs["row"], "entry.weight"))


def blind(g, inputs, h):
    """One of Medusa's heads: it reads no token."""
    x = g.activation(g.matmul(inputs["state"], "blk.{n}.step.weight"), "silu")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.out.weight"))


STEPS = DrafterSpec(
    name="steps",
    fit=Fit(architectures=frozenset({"toy"}), tensors=("blk.{n}.step.weight",)),
    build=step,
    feeds=(Feed(slot="state", recycle="state", width=Key("toy.narrow", NARROW)),),
    heads=Heads(order="each-step"),
    unread=(("blk.{n}.embed.weight", "heads that read no drafts have no use for it"),),
)
CELL = msgspec.structs.replace(
    STEPS,
    build=cell,
    feeds=(*STEPS.feeds, Feed(slot="cell", taps=(), recycle="cell", width=NARROW)),
)
ENTRY = msgspec.structs.replace(
    STEPS,
    graphs=(("entry", entry),),
    feeds=(
        Feed(slot="row", graph="entry", pairing="same-token"),
        Feed(slot="state", src="entry", taps=("made",), recycle="state"),
    ),
)
BLIND = msgspec.structs.replace(
    STEPS,
    build=blind,
    feeds=(Feed(slot="state"),),
    heads=Heads(order="each-step", hidden_from="target"),
)
REDUCED = msgspec.structs.replace(STEPS, vocabulary="d2t")
SPECS = {"steps": STEPS, "cell": CELL, "entry": ENTRY, "blind": BLIND, "reduced": REDUCED}


def tensors_of(name, n_heads=N_HEADS):
    made = np.random.default_rng(5)
    n_out = N_DRAFT if name == "reduced" else toy.N_VOCAB
    width = toy.WIDTH if name == "blind" else NARROW
    tensors = {}
    for i in range(n_heads):
        n, reads = toy.N_LAYERS + i, NARROW if name == "entry" or (i and name != "blind") else 32
        tensors |= {
            f"blk.{n}.step.weight": made.normal(size=(width, reads)) / reads**0.5,
            f"blk.{n}.embed.weight": made.normal(size=(toy.N_VOCAB, NARROW)),
            f"blk.{n}.out.weight": made.normal(size=(n_out, width)),
        }
    if name == "entry":
        tensors["entry.weight"] = made.normal(size=(NARROW, toy.WIDTH)) / toy.WIDTH**0.5
    tensors = {key: values.astype(np.float32) for key, values in tensors.items()}
    if name == "reduced":
        tensors["d2t"] = np.sort(made.permutation(toy.N_VOCAB)[:N_DRAFT]).astype(np.int32)
    return tensors


def written(folder, name, **changes):
    tensors = toy.trunk_tensors() | tensors_of(name)
    path = toy.write(folder / f"{name}.gguf", tensors)
    spec = msgspec.structs.replace(SPECS[name], **changes)
    return Subject(name, str(path), plugins=Registry.of(toy, toy.offering(spec)))
