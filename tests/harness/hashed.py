"""A language model made of hashes: exact, instant, and every hidden row carries a tag.

The target's state after tokens t0..tp is a 40-bit hash of them; its logits are a function of that
state, and its hidden row says which state at which place it is. The drafter's entry p must be the
pair (token p, row of place p - 1): the plan asserts it, so an off-by-one, a wrong sequence or a
stale row fails at once. From the pair the drafter can compute the target's next logits; ``skill``
says how often it does. With ``fused`` another graph stands between: it reads two taps, asserts
that both are of its own place, and hands the row on.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import msgspec
import numpy as np

from harness.memory_kinds import ListStore
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.host_rows import HostRows
from mtpcore.declarations.spec import DrafterSpec, Feed, Fit
from mtpcore.graph import GraphBuilder, Outputs

N_VOCAB, WIDTH = 13, 4
START = 0x9E3779B97F
SOURCES = {"hidden": 1.0, "carry": 2.0, "residual": 3.0}
SPEC = DrafterSpec(
    name="hashed",
    fit=Fit(architectures=frozenset({"hashed"})),
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="carry"),),
)
FUSED = msgspec.structs.replace(
    SPEC,
    feeds=(
        Feed(slot="hidden", src="fusion", taps=("fused",), recycle="carry"),
        Feed(slot="taps", graph="fusion", taps=("hidden", "residual"), pairing="same-token"),
    ),
    graphs=(("fusion", lambda g, inputs, h: None),),
)


def advance(state, token):
    data = hashlib.blake2b(f"{state}/{token}".encode(), digest_size=5).digest()
    return int.from_bytes(data, "big")


def logits_of(state):
    data = hashlib.blake2b(str(state).encode(), digest_size=2 * N_VOCAB).digest()
    return (np.frombuffer(data, np.uint16).astype(np.float32) / 8192.0).astype(np.float32)


def tag(state, place, source):
    """float32[4] that holds a 40-bit state, a place and one of SOURCES."""
    return np.array([state >> 20, state & 0xFFFFF, place, source], np.float32)


def read_tag(row):
    return (int(row[0]) << 20) | int(row[1]), int(row[2])


class Planted(RuntimeError):
    """What the double and scripts raise on purpose."""


class HashPlan:
    """Runs the target's or the drafter's hashes; ``fail_at`` raises after that many rows."""

    def __init__(self, program, store, backend):
        self.program, self.store, self.backend = program, store, backend

    bytes_to_pack = 0
    is_warm = True

    def prepare(self):
        pass

    def run(self, rows, memory):
        if self.program.name == "fusion":
            return {"fused": self.fuse(rows)}
        target = self.program.name == "llm"
        n = len(rows.tokens)
        made, logits = self.backend.workspace(n)
        for i in range(n):
            self.backend.count_row()
            seq, token = int(rows.seq[i]), int(rows.tokens[i])
            at_row = int(rows.place[i])
            place = int(rows.positions[i, 0])  # the same, but in a tree
            above = at_row - 1 if rows.parent is None else self.above(rows, i)
            before = START
            if above >= memory.first(seq) and at_row > memory.first(seq):
                page, row = memory.pages.where(seq, above)
                before = self.store.pages[page][row]
            if target:
                state = entry = advance(before, token)
            else:
                hidden, at = read_tag(rows.slots["hidden"][i])
                assert at == place - 1, f"token at {place} paired with the row of {at}"
                state = advance(hidden, token)
                entry = advance(before, (token, hidden, at, rows.slots["hidden"][i, 3]))
                self.backend.pairs.append((token, place, hidden))
                self.backend.sources.append(float(rows.slots["hidden"][i, 3]))
            page, row = memory.pages.where(seq, at_row)
            self.store.pages[page][row] = entry
            made[i] = tag(state, place, SOURCES["hidden" if target else "carry"])
            logits[i] = logits_of(state)
            if not target and self.backend.misleads(state):
                logits[i] = -logits[i]
            if not target and self.backend.breaks(state):
                made[i] = np.nan
        arrays = {name: made.copy() for name in self.program.outputs if name != "logits"}
        if target and "residual" in arrays:
            arrays["residual"][:, 3] = SOURCES["residual"]
        if "logits" in self.program.outputs:
            arrays["logits"] = logits[rows.outputs]
        for poisoned in self.backend.buffers:
            poisoned[:] = np.nan
        return arrays

    def fuse(self, rows):
        taps = rows.slots["taps"]
        for i, row in enumerate(taps):
            self.backend.count_row()
            assert rows.tokens[i] >= 0
            assert np.array_equal(row[: WIDTH - 1], row[WIDTH:-1])
            assert (row[WIDTH - 1], row[-1]) == (SOURCES["hidden"], SOURCES["residual"])
            at = read_tag(row)[1]
            assert at == rows.place[i], f"place {rows.place[i]} fused of the rows of {at}"
        return taps[:, :WIDTH].copy()

    @staticmethod
    def above(rows, i):
        """Return where the row before row i is stored; before the first of a batch all is chain."""
        if rows.parent[i] >= 0:
            return int(rows.place[rows.parent[i]])
        return int(rows.place[rows.seq == rows.seq[i]].min()) - 1

    def run_schedule(self, schedule):
        return run_schedule(schedule)


class HashBackend:
    """skill: how many of 16 states the drafter predicts; nan: how many of 16 it breaks at."""

    name, guarantee, packs_after_runs, on_host = "hashed", "exact", True, True

    def __init__(self, skill=12, nan=0):
        self.skill, self.nan, self.fail_at = skill, nan, None
        self.pairs, self.sources = [], []  # of the drafter's rows: who made what they read
        self.buffers = []  # reused by every run and poisoned after it

    def misleads(self, state):
        return state % 16 >= self.skill

    def breaks(self, state):
        return (state >> 4) % 16 < self.nan

    def workspace(self, n):
        """Return rows float32[n, WIDTH] and logits float32[n, N_VOCAB] to compute in."""
        if not self.buffers or len(self.buffers[0]) < n:
            self.buffers = [
                np.full((2 * n, width), np.nan, np.float32) for width in (WIDTH, N_VOCAB)
            ]
        return [buffer[:n] for buffer in self.buffers]

    def count_row(self):
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise Planted("planted")

    def row_buffer(self, n_rows, width):
        return HostRows(n_rows, width)

    def store(self, layers, n_pages, dtype):
        return ListStore(n_pages)

    def state_store(self, layers, n_slots, source):
        raise AssertionError("its models have no recurrent layers")

    def plan(self, program, source, *, n_batch, n_ctx, threads, stores, states=None):
        return HashPlan(program, stores[0] if stores else None, self)


class HashModel:
    """What contexts need of a model."""

    architecture, path, tokenizer, spec, codebooks = "hashed", "hashed.gguf", None, None, None
    has_tokenizer = property(lambda self: self.tokenizer is not None)
    as_draft_model, backends = None, ()
    plan_alone = staticmethod(lambda make: make())

    def __init__(self, spec=SPEC):
        self.drafters = (spec,)
        self.hparams = SimpleNamespace(n_vocab=N_VOCAB, width=WIDTH)
        self.packed, self.programs, self.metadata = {}, {}, {}
        shapes = {"table": (N_VOCAB, WIDTH), "head": (N_VOCAB, WIDTH), "join": (WIDTH, 2 * WIDTH)}
        self.tensors = {
            name: SimpleNamespace(shape=shape, type=0, raw=lambda: np.zeros(8, np.uint8))
            for name, shape in shapes.items()
        }

    def open_draft_model(self):
        return None

    def n_tokens(self, graph_type):
        return N_VOCAB

    def find_drafter(self, drafter):
        return drafter if isinstance(drafter, DrafterSpec) else self.drafters[0]

    def program(self, graph_type, *, taps=(), drafter=None, head=0, n_ctx=0):
        key = graph_type.name, tuple(taps)
        if key not in self.programs:
            self.programs[key] = self.build(*key)
        return self.programs[key]

    def is_long(self, n_ctx, spec=None):
        return False

    def build(self, name, taps):
        slots = {"draft": {"hidden": WIDTH}, "fusion": {"taps": 2 * WIDTH}}.get(name)
        g, draft = GraphBuilder(name, self.tensors, taps=taps, slots=slots), name == "draft"
        if name == "fusion":
            return g.finish(Outputs(fused=g.slice(g.inputs["taps"], 0, WIDTH)))
        x = g.embed(g.inputs.tokens, "table")
        if draft:
            x = g.matmul(g.concat(x, g.inputs["hidden"]), "join")
        heads = g.split_heads(x, 1)
        x = g.merge_heads(g.attention(heads, heads, heads, layer=0, scale=1.0))
        g.tap("hidden", x)
        g.tap("residual", x)
        logits = g.matmul(g.output_rows(x), "head")
        return g.finish(Outputs(logits, carry=x) if draft else Outputs(logits))
