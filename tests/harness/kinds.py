"""A toy drafter of each kind, and toys that declare one thing more, by rows of the docs' tables."""

from __future__ import annotations

import msgspec
import numpy as np

import mtpcore
import mtpcore.models
from harness.adapters import write_adapter
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file
from mtpcore.plugin import (
    Block,
    DrafterSpec,
    FedProposer,
    Feed,
    Fit,
    Heads,
    Hparams,
    Noise,
    Outputs,
    SharedMemory,
    TreeShape,
    attention_block,
    draft_block,
    draft_heads,
    draft_levels,
    first_of,
    hookimpl,
    remember,
)

WIDTH, N_VOCAB, N_HEADS, MASK = 16, 32, 2, 31
N = "blk.{n}."
replace = msgspec.structs.replace


def joined(g, inputs):
    """Return what a head's graph makes of a token and its row, before any attention."""
    row = inputs["hidden"]
    if row.shape[1] != WIDTH:
        row = g.matmul(row, N + "widen.weight")
    return g.matmul(g.concat(g.embed(inputs.tokens, "token_embd.weight"), row), N + "join.weight")


def ends(g, x, output="output.weight", **rows):
    return Outputs(logits=g.matmul(g.output_rows(x), output), **{"hidden": x, **rows})


def attending(g, inputs, h):
    x = joined(g, inputs)
    return g.add(x, attention_block(g, x, inputs.positions, g.n, h))


def reading(g, inputs, h):
    x = joined(g, inputs)
    q = g.split_heads(g.matmul(x, N + "attn_q.weight"), h.n_heads)
    return g.add(x, g.merge_heads(g.attend(q, layer=0, scale=h.head_width**-0.5)))


def tokens_alone(g, inputs, h):
    x = g.embed(inputs.tokens, "token_embd.weight")
    return g.add(x, attention_block(g, x, inputs.positions, 0, h))


BODIES = {"shared memory": reading, "draft model": tokens_alone}


def body(kind):
    return BODIES.get(kind, attending)


def build(kind):
    return lambda g, inputs, h: ends(g, body(kind)(g, inputs, h))


class Counting(FedProposer):
    def __init__(self, model):
        pass

    def draft(self, ask):
        assert ask.rows("hidden").shape == (len(ask.tokens) - 1, WIDTH)
        return list(range(ask.k))


GROWN = TreeShape(depth=2, width=2, n_nodes=4)
LAST_LAYER = SharedMemory(layers=lambda stored, h: [stored[-1].layer])
MASKED = Feed(slot="hidden", mask=N + "mask.weight")
UNREAD = (("*", "one file is for drafters of all kinds"),)
CHAIN = DrafterSpec(
    name="toy",
    fit=Fit(architectures=frozenset({"llama"}), tensors=(N + "join.weight",)),
    build=build("chain"),
    feeds=(Feed(slot="hidden", recycle="hidden"),),
    unread=UNREAD,
)
KINDS = {
    "chain": CHAIN,
    "heads": replace(CHAIN, heads=Heads(order="each-step")),
    "tree": replace(CHAIN, shape="tree", tree=GROWN),
    "block": replace(CHAIN, shape="block", block=Block(size=4, mask=MASK), feeds=(MASKED,)),
    "shared memory": replace(CHAIN, build=build("shared memory"), shared_memory=LAST_LAYER),
    "draft model": DrafterSpec(
        name="toy",
        fit=Fit(architectures=frozenset({"toy"}), tensors=("token_embd.weight",)),
        build=build("draft model"),
        hparams=Hparams.read,
        standalone=True,
        unread=UNREAD,
    ),
    "adapter": DrafterSpec(
        name="toy",
        fit=Fit(architectures=frozenset({"llama"})),
        adapter=True,
        shape="block",
        block=Block(size=4, mask=Noise()),
        unread=UNREAD,
    ),
    "proposer": replace(
        CHAIN,
        build=None,
        shape="proposer",
        proposer=Counting,
        feeds=(Feed(slot="hidden", pairing="same-token"),),
    ),
}


def fused(spec, kind):
    """Return a drafter whose rows a further graph makes."""

    def fusion(g, inputs, h):
        return Outputs(fused=g.tap("fused", g.matmul(inputs["row"], "blk.1.attn_q.weight")))

    made = (replace(feed, src="fusion", taps=("fused",)) for feed in spec.feeds)
    read = Feed(slot="row", graph="fusion", pairing="same-token")
    return replace(spec, graphs=(("fusion", fusion),), feeds=(*made, read))


def fed(**fields):
    """Return what changes a toy's feed; a draft model's, which has none, gets one."""

    def change(spec, kind):
        feeds = spec.feeds or (Feed(slot="hidden", recycle="hidden"),)
        return replace(spec, feeds=tuple(replace(feed, **fields) for feed in feeds))

    return change


def declared(**fields):
    return lambda spec, kind: replace(spec, **fields)


def branching(tree):
    return declared(shape="tree", tree=tree)


def by_heads(**fields):
    """Return what declares heads, of a kind that has several heads for each step."""

    def change(spec, kind):
        order = {"order": "each-step"} if kind in ("heads", "tree") else {}
        return replace(spec, heads=Heads(**order | fields))

    return change


def reduced(spec, kind):
    def few(g, inputs, h):
        return ends(g, body(kind)(g, inputs, h), "blk.1.few.weight")

    return replace(spec, vocabulary="blk.1.few", build=few)


def shared(spec, kind):
    return replace(spec, shared_memory=LAST_LAYER, build=build("shared memory"))


def narrowed(spec, kind):
    """Return a drafter that recycles narrower rows than it reads at first, without a KV cache."""

    def narrow(g, inputs, h):
        x = joined(g, inputs)
        return ends(g, x, hidden=g.matmul(x, N + "narrow.weight"))

    return replace(fed(recycle="hidden", width=WIDTH // 2)(spec, kind), build=narrow)


def with_state(spec, kind):
    def stateful(g, inputs, h):
        x = body(kind)(g, inputs, h)
        return ends(g, x, state=g.add(x, inputs["state"]))

    state = Feed(slot="state", taps=(), width=WIDTH, recycle="state")
    return replace(spec, feeds=(*spec.feeds, state), build=stateful)


def in_block(**fields):
    """Return what declares a block, with the feeds that belong to it."""

    def change(spec, kind):
        feeds = tuple(MASKED if feed.recycle else feed for feed in spec.feeds)
        block = Block(**{"size": 4, "mask": MASK} | fields)
        return replace(spec, shape="block", block=block, feeds=feeds)

    return change


def with_entries(spec, kind):
    def entries(g, inputs, h):
        remember(g, inputs["row"], inputs.positions, g.n, h)
        return Outputs()

    spec = in_block(entries="entries")(spec, kind)
    read = Feed(slot="row", graph="entries", pairing="same-token")
    return replace(spec, graphs=(("entries", entries),), feeds=(*spec.feeds, read))


def with_post_head(**fields):
    def chooser(g, inputs, h):
        x = g.embed(inputs.tokens, "token_embd.weight")
        logits = g.matmul(g.output_rows(x), "output.weight")
        return Outputs(logits=g.add(g.output_rows(inputs["base"]), logits))

    def change(spec, kind):
        spec = in_block(post_head="chooser", **fields)(spec, kind)
        read = Feed(
            slot="base", graph="chooser", src="draft", taps=("logits",), pairing="same-token"
        )
        return replace(spec, graphs=(("chooser", chooser),), feeds=(*spec.feeds, read))

    return change


def alone(**fields):
    """Return what declares a drafter in a file of its own, and some fields of its fit."""

    def change(spec, kind):
        if not spec.standalone:
            fit = replace(spec.fit, architectures=frozenset({"heads"}))
            spec = replace(spec, standalone=True, hparams=Hparams.read, fit=fit)
        return replace(spec, fit=replace(spec.fit, **fields))

    return change


TIED = declared(ties=(first_of("output.weight", "token_embd.weight"),))
BUILDERS = {"heads": draft_heads, "block": draft_block, "adapter": draft_block}
SAMPLES = {
    "DrafterSpec": {
        "`build`": lambda spec, kind: replace(spec, build=build(kind)),
        "`graphs`": fused,
        "`proposer`": declared(proposer=Counting),
        "`feeds`": fed(),
        "`ties`": TIED,
        "`heads`": declared(heads=Heads(order="each-step")),
        "`tree`": branching(GROWN),
        "`schedule`": lambda spec, kind: replace(spec, schedule=BUILDERS.get(kind, draft_levels)),
        "`block`": in_block(),
        "`shared_memory`": shared,
        "`vocabulary`": reduced,
        "`limit`": declared(limit=1),
        "`hparams`": declared(hparams=Hparams.read),
        "`standalone`": alone(),
        "`adapter`": declared(adapter=True),
    },
    "Fit": {
        "`targets`": alone(targets=frozenset({"llama"})),
        "`sidecars`": alone(sidecars=("toy-*.gguf",)),
    },
    "Feed": {
        "`src`, `graph`": fused,
        "`pairing`: `next-token`": fed(pairing="next-token"),
        "`pairing`: `same-token`": fed(pairing="same-token"),
        "`pairing`: `same-token` between graphs": fused,
        "`pairing`: `whole-sequence`": fed(pairing="whole-sequence"),
        "`missing`": fed(missing="zeros"),
        "`recycle`": fed(recycle="hidden"),
        "`width`": narrowed,
        "`width` with `taps=()`": with_state,
        "`mask`": fed(mask=MASKED.mask),
    },
    "Heads": {
        "`count`": by_heads(count=2),
        "`order`": declared(heads=Heads(order="each-step")),
        "`hidden_from`": by_heads(hidden_from="target"),
    },
    "TreeShape": {
        "`paths`": branching(TreeShape(paths=((0,), (1,), (0, 0)))),
        "`depth`, `width`, `n_nodes`": branching(GROWN),
    },
    "Block": {
        "`size`": in_block(size=3),
        "`mask`": in_block(mask=MASK - 1),
        "`from_pending`": in_block(from_pending=False),
        "`entries`": with_entries,
        "`post_head`": with_post_head(),
        "`passes`": with_post_head(passes=2),
    },
    "Noise": {"`first`": in_block(mask=Noise(first=2))},
    "SharedMemory": {"`layers`": shared},
    "Tie": {"`tensor`, `candidates`": TIED},
}
"""What a row of a table declares, by struct and first cell: ``change(spec, kind)``."""


def write_files(folder):
    """Write the model that holds all toys, files of heads alone and an adapter, a draft model."""
    random = np.random.default_rng(0)

    def matrix(*shape):
        return (random.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    def layer(n):
        names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        ones = np.ones(WIDTH, np.float32)
        weights = {f"blk.{n}.{name}.weight": matrix(WIDTH, WIDTH) for name in names}
        return weights | {f"blk.{n}.{name}_norm.weight": ones for name in ("attn", "ffn")}

    weights = {
        "token_embd.weight": matrix(N_VOCAB, WIDTH),
        "output.weight": matrix(N_VOCAB, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "blk.1.few": np.array([7, 3, 9, 1], np.int32),
        "blk.1.few.weight": matrix(4, WIDTH),
        **layer(0),
    }
    heads, apart = {}, dict(weights)
    for n in (1, 2):
        made = {
            **layer(n),
            f"blk.{n}.join.weight": matrix(WIDTH, 2 * WIDTH),
            f"blk.{n}.mask.weight": matrix(WIDTH),
            f"blk.{n}.narrow.weight": matrix(WIDTH // 2, WIDTH),
            f"blk.{n}.widen.weight": matrix(WIDTH, WIDTH // 2),
        }
        heads |= made
        apart |= {name.replace(f"blk.{n}.", f"blk.{n - 1}."): w for name, w in made.items()}
    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": WIDTH,
        "attention.head_count": N_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    for name, tensors in (("llama", weights | heads), ("heads", apart), ("toy", weights)):
        metadata = {f"{name}.{key}": value for key, value in sizes.items()}
        write_model_file(str(folder / f"{name}.gguf"), name, metadata, tensors)
    write_adapter(folder / "adapter.gguf", "llama", {"blk.0.attn_q.weight": (WIDTH, WIDTH)})


def linked(spec, folder, **asked):
    """Return the Cross of a drafter and its target, from the files in a folder."""

    class Plugin:
        @hookimpl
        def mtpcore_drafters(self):
            return [spec]

    plugins = Registry.of(mtpcore.models, Plugin())
    options = {}
    if spec.standalone:
        (name,) = spec.fit.architectures
        options["draft_model"] = mtpcore.load_model(folder / f"{name}.gguf", plugins=plugins)
    beside = folder / "adapter.gguf" if spec.adapter else None
    model = mtpcore.load_model(folder / "llama.gguf", mtp_path=beside, plugins=plugins)
    return mtpcore.link(mtpcore.Context(model, n_ctx=32), spec.name, **options, **asked)


def draft(spec, folder):
    """Return what a drafter drafts after three tokens."""
    cross = linked(spec, folder)
    cross.llm.process(mtpcore.Batch.of([5, 6, 7]))
    return cross.draft(0, 3)
