"""Fused launches have the bits of single ones, and are really fewer."""

from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.attentions import fill, together
from harness.cuda_steps import leave_alone
from harness.families import FAMILIES
from harness.generated import random_matrix
from harness.random_graphs import random_graphs
from harness.random_programs import random_batches, random_programs
from harness.random_text import N_CTX, Text, assert_same_bits, feed
from harness.search import searching
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st
from programs import Raw, random_tensors

from mtpcore import Batch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda import plan as planning
from mtpcore.backends.cuda.fusion import fuse
from mtpcore.backends.cuda.launch import attention as attending
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.models.blocks import moe, swiglu
from mtpcore.models.hparams import Experts
from mtpcore.testing import Runner, Weights


@contextmanager
def single_launches():
    """Let plans launch each node alone, and its rows lie by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "fuse", leave_alone)
        patch.setattr(planning, "columns_of_others", lambda program, block_of: {})
        patch.setattr(planning, "stack_shared_experts", lambda program, are_alike: program)
        yield


def both_runners(*given, **options):
    """Return what runs a program in fused launches, and what runs it in single ones."""
    fused = Runner(*given, **options)
    with single_launches():
        return fused, Runner(*given, **options)


class Compared:
    """A graph that runs in fused launches and in single ones, and must make the same."""

    def __init__(self, device, g, outputs, **options):
        self.program, weights = g.finish(outputs), Weights(g.tensors)
        self.runners = both_runners(CudaBackend(device), self.program, weights, **options)
        self.fused, _ = self.runners
        self.n_tokens = g.tensors["embd.weight"].shape[0]

    def feed(self, n_rows):
        """Return all outputs of the next rows of a sequence, by name."""
        tokens = np.arange(n_rows) % self.n_tokens
        return self._same(*(runner.feed(tokens) for runner in self.runners))

    def feed_together(self, n_rows, n_seqs):
        """Return what is hidden of the next rows of several sequences, which take turns."""
        tokens, seqs = np.arange(n_rows) % self.n_tokens, np.arange(n_rows) % n_seqs
        made = [{"hidden": together(r, tokens, seqs, "hidden")} for r in self.runners]
        return self._same(*made, n_seqs=n_seqs)["hidden"]

    def _same(self, made, wanted, n_seqs=1):
        assert {*made} == {*wanted} == {*self.program.outputs}
        for name, rows in made.items():
            assert np.isfinite(rows).all(), name
            assert rows.tobytes() == wanted[name].tobytes(), name
        for seq in range(n_seqs):
            digests = {runner.memory.digest(seq) for runner in self.runners}
            assert len(digests) == 1, seq
        return made


def launches_of(runner, n_rows):
    """Return the launches of a run of so many rows, as the last one was."""
    return [launch for do, step, _ in runner.plan._steps for launch in do(step, n_rows)]


def arguments_of(launch):
    """Return the arguments of a launch by the names that its kernel has for them."""
    names = [of.name for of in launch.kernel.signature.parameters]
    return dict(zip(names, launch.arguments, strict=True))


def kernels_of(runner, n_rows):
    """Return the names of the kernels of such a run."""
    return [launch.kernel.name for launch in launches_of(runner, n_rows)]


def embedded(kinds, **shapes):
    """Return the builder of a graph, of tensors of any type each, and its embedded tokens."""
    rng = np.random.default_rng(3)
    tensors = {
        f"{name}.weight": Raw(random_matrix(rng, kinds.get(name, "F32"), *shape),
                              kinds.get(name, "F32"), shape)
        for name, shape in shapes.items()
    }  # fmt: skip
    g = GraphBuilder("fused", tensors)
    return g, g.embed(g.inputs.tokens, "embd.weight")


@searching(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.data(),
    random_programs() | random_graphs(),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.integers(0, 2**32 - 1),
)
def test_random_programs_have_the_same_bits(emulated, data, drawn, kv_dtype, seed):
    note(str(drawn.program))
    batches = data.draw(random_batches(drawn, most=12))
    text, n_batch = Text(drawn, seed), max(len(batch.seq) for batch in batches)
    weights = Weights(drawn.tensors)
    options = {"n_seq": 3, "n_ctx": N_CTX, "n_batch": n_batch, "kv_dtype": kv_dtype}
    fused, single = both_runners(CudaBackend(emulated), drawn.program, weights, **options)
    for batch in batches:
        assert_same_bits(feed(fused, text, batch), feed(single, text, batch), str(batch))
    for seq in range(3):
        assert fused.memory.digest(seq) == single.memory.digest(seq)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_models_have_the_same_bits(family, backend):
    def logits():
        context = msgspec.structs.replace(family, backend=backend).context(64)
        return context.process(Batch.of(family.text(20), outputs="all")).logits.tobytes()

    fused = logits()
    with single_launches():
        assert fused == logits()


WIDTH, N_HEADS, N_KEY_HEADS, HEAD, LATENT, ROTATED = 64, 4, 2, 32, 32, 16


def grouped_attention(
    g, a, i, n_heads=N_HEADS, n_key_heads=N_KEY_HEADS, angles=(1.0, 0.1), style="halves"
):
    """Queries share keys, as in llama's layers; no ``angles`` rotate them if these are None."""
    q, k, v = (
        g.split_heads(g.matmul(a, f"{i}.{name}.weight"), n)
        for name, n in (("q", n_heads), ("k", n_key_heads), ("v", n_key_heads))
    )
    if angles is not None:
        q, k = (g.rope(x, g.inputs.positions, angles, style=style) for x in (q, k))
    return g.attention(q, k, v, layer=i, scale=0.2)


def latent_attention(g, a, i, style="halves"):
    """Keys and values of all heads are one short row, as in DeepSeek's layers."""
    q = g.rms_norm(g.matmul(a, f"{i}.q_a.weight"), f"{i}.q_norm.weight", 1e-5)
    q = g.split_heads(g.matmul(q, f"{i}.q_b.weight"), N_HEADS)
    both = g.matmul(a, f"{i}.kv_a.weight")
    c = g.rms_norm(g.slice(both, 0, LATENT), f"{i}.kv_norm.weight", 1e-5)
    key = g.split_heads(g.slice(both, LATENT, LATENT + ROTATED), 1)
    rotated, key = (
        g.rope(x, g.inputs.positions, [1.0, 0.1], style=style)
        for x in (g.slice(q, 32, 32 + ROTATED), key)
    )
    q = g.concat(g.head_matmul(g.slice(q, 0, 32), f"{i}.k_b.weight"), rotated)
    y = g.attention(q, g.concat(g.split_heads(c, 1), key), LATENT, layer=i, scale=0.2)
    return g.head_matmul(y, f"{i}.v_b.weight")


def dense(g, f, i):
    gate, up = (g.matmul(f, f"{i}.{name}.weight") for name in ("gate", "up"))
    return g.matmul(g.gated(gate, up), f"{i}.down.weight")


def experts(g, f, i):
    ids, shares = g.route(f, f"{i}.router.weight", n_used=2)
    gate, up = (g.expert_matmul(f, ids, f"{i}.{name}_exps.weight") for name in ("gate", "up"))
    return g.mix(g.expert_matmul(g.gated(gate, up), ids, f"{i}.down_exps.weight"), shares)


def shared_experts(g, f, i):
    """A shared expert beside those, as models build them."""
    return moe(g, f, i, Experts(n_used=2, gate="softmax", normalise=False))


def shapes_of_experts(i, n_experts, width, n_ff):
    """Return the shapes of a layer with a shared expert."""
    shapes = {f"blk.{i}.ffn_gate_inp": (n_experts, width)}
    for suffix, stack in (("exps", (n_experts,)), ("shexp", ())):
        shapes |= {f"blk.{i}.ffn_{name}_{suffix}": (*stack, n_ff, width) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down_{suffix}": (*stack, width, n_ff)}
    return shapes


def layers(n, attend, feed_forward, of_k_b=Type.Q8_0):
    """Return the builder of a graph of n layers, and its outputs."""
    shapes = {"embd": (40, WIDTH)}
    for i in range(n):
        of_layer = {
            "norm": (WIDTH,), "ff_norm": (WIDTH,), "o": (WIDTH, N_HEADS * HEAD),
            "q": (N_HEADS * HEAD, WIDTH), "k": (N_KEY_HEADS * HEAD, WIDTH),
            "v": (N_KEY_HEADS * HEAD, WIDTH), "q_a": (WIDTH, WIDTH), "q_norm": (WIDTH,),
            "q_b": (N_HEADS * (32 + ROTATED), WIDTH), "kv_a": (LATENT + ROTATED, WIDTH),
            "kv_norm": (LATENT,), "k_b": (N_HEADS, LATENT, 32), "v_b": (N_HEADS, HEAD, LATENT),
            "gate": (96, WIDTH), "up": (96, WIDTH), "down": (WIDTH, 96), "router": (5, WIDTH),
            "gate_exps": (5, 96, WIDTH), "up_exps": (5, 96, WIDTH), "down_exps": (5, WIDTH, 96),
        }  # fmt: skip
        shapes |= {f"{i}.{name}": shape for name, shape in of_layer.items()}
        shapes |= shapes_of_experts(i, 5, WIDTH, 96)
    tensors = random_tensors(1, Type.Q8_0, **shapes)
    of_heads = {name: shape for name, shape in shapes.items() if name.endswith("k_b")}
    g = GraphBuilder("layers", tensors | random_tensors(2, of_k_b, **of_heads))
    x = g.embed(g.inputs.tokens, "embd.weight")
    for i in range(n):
        y = attend(g, g.rms_norm(x, f"{i}.norm.weight", 1e-5), i)
        x = g.add(x, g.matmul(g.merge_heads(y), f"{i}.o.weight"))
        x = g.add(x, feed_forward(g, g.rms_norm(x, f"{i}.ff_norm.weight", 1e-5), i))
    return g, Outputs(hidden=x)


def said_of(group):
    """Return what a group says of its nodes, by their names, where it says something."""
    found = {}
    for field in group.__struct_fields__:
        value = getattr(group, field)
        if isinstance(value, tuple):
            value = [said_of(one) if field == "followers" else one.name for one in value]
        elif field in ("maker", "norm", "route", "stores_for") and value:
            value = value.name
        elif field == "next" and value:
            value = value.maker.name
        found |= {field: value} if value else {}
    return {name: value for name, value in found.items() if name not in ("nodes", "ropes")}


def test_a_dense_layer_is_the_groups_of_the_example():
    """That of ``fusion.Group``, between an embedding and another layer."""
    g, outputs = layers(2, grouped_attention, dense)
    _, first, second, third, *_ = fuse(g.finish(outputs), lambda node: 32)
    heads = ["0.q", "0.k", "0.v"]
    attention = second.maker.name
    assert said_of(first) == {
        "maker": "0.norm",
        "products": heads,
        "heads": heads,
        "stores_for": attention,
    }
    assert [node.op for node in first.ropes] == ["rope", "rope"]
    assert said_of(second) == {
        "maker": attention,
        "products": ["0.o"],
        "totals": [second.totals[0].name],
        "next": "0.ff_norm",
        "is_stored": True,
    }
    (follower,) = third.followers
    assert said_of(third) == {
        "maker": "0.ff_norm",
        "products": ["0.gate", "0.up"],
        "followers": [said_of(follower)],
        "n_before": 1,
    }
    assert said_of(follower) == {
        "maker": follower.maker.name,
        "products": ["0.down"],
        "totals": [follower.totals[0].name],
        "next": "1.norm",
    }
    assert (second.maker.op, follower.maker.op) == ("attention", "gated")


@pytest.mark.parametrize(
    ("attend", "feed_forward", "n_single", "n_fused"),
    [
        (grouped_attention, dense, 24, {1: 5, 8: 7, 40: 9}),
        (grouped_attention, experts, 30, {1: 6, 8: 8, 40: 13}),
        (grouped_attention, shared_experts, 38, {1: 6, 8: 8, 40: 13}),
        (latent_attention, dense, 37, {1: 8, 8: 11, 40: 15}),
    ],
)
@pytest.mark.parametrize("n_rows", [1, 8, 40])
def test_launches_of_a_layer(
    emulated, monkeypatch, attend, feed_forward, n_single, n_fused, n_rows
):
    """Of two kinds of attention and of feed-forward; docs/cuda.md has these numbers."""
    launch, launched = emulated.launch, []

    def counting(*given, **options):
        launched.append(given)
        launch(*given, **options)

    monkeypatch.setattr(emulated, "launch", counting)

    def launches(runner):
        runner.plan.prepare()  # weights are launched, too
        launched.clear()
        runner.feed(np.arange(n_rows))
        return len(launched)

    compared = [Compared(emulated, *layers(n, attend, feed_forward), n_batch=40) for n in (1, 2)]
    one, two = ([launches(runner) for runner in both.runners] for both in compared)
    assert np.subtract(two, one).tolist() == [n_fused[n_rows], n_single]
    compared[1].feed(n_rows)


@pytest.mark.parametrize(
    ("kv_dtype", "style"), [("f32", "halves"), ("f16", "pairs"), ("q8_0", "pairs")]
)
def test_latent_rows_are_joined_where_they_are_stored(emulated, kv_dtype, style):
    """Of several sequences, few rows and more, by products of a type of their own."""
    made = layers(1, partial(latent_attention, style=style), dense, Type.Q4_0)
    both = Compared(emulated, *made, kv_dtype=kv_dtype, n_seq=3, n_ctx=64)
    for n_rows, n_seqs in ((1, 1), (8, 3), (12, 3), (5, 2)):
        both.feed_together(n_rows, n_seqs)
        names = kernels_of(both.fused, n_rows)
        assert not {"rope", "remember"} & {*names}
        counts = tuple(map(names.count, ("join_and_store", "cos_sin")))
        assert counts == ((0, 1) if n_rows <= 8 else (1, 0))


@pytest.mark.parametrize("share", [None, "sigmoid"])
def test_codes_that_wait_have_rooms_of_their_own(emulated, share):
    """What a gate lets through of a shared expert, and of one that is chosen, of the same width.

    The shared one's rows are added to those that are mixed, or are mixed themselves.
    """
    shapes = {"embd": (20, 64), "norm": (64,)} | shapes_of_experts(0, 3, 64, 96)
    kinds = {name: "Q8_0" for name in shapes if name.endswith("exps")}
    kinds |= {name: "Q4_0" for name in shapes if name.endswith("shexp")}
    shapes |= {"blk.0.ffn_gate_inp_shexp": (1, 64)} if share else {}
    g, x = embedded(kinds, **shapes)
    f = g.rms_norm(x, "norm.weight", 1e-5)
    y = moe(g, f, 0, Experts(n_used=1, gate="softmax", normalise=False))
    both = Compared(emulated, g, Outputs(hidden=g.add(x, y)), n_batch=40)
    for n_rows in (1, 5, 8, 40):
        both.feed(n_rows)
        assert kernels_of(both.fused, n_rows).count("elementwise") == (1 if share else 0)


MATMULS = "matmul", "matmul_few"
STACKED = {"like others": {}, "of another type": {"kind": "Q4_0"}, "wider": {"width": 128},
           "with a share": {"more": {"blk.0.ffn_gate_inp_shexp.weight": (1, 64)}},
           "with a bias": {"more": {"blk.0.ffn_down_shexp.bias": (64,)}},
           "of experts with a bias": {"more": {"blk.0.ffn_up_exps.bias": (3, 96)}}}  # fmt: skip


@pytest.mark.parametrize("case", STACKED.values(), ids=STACKED)
def test_a_shared_expert_is_one_more_of_its_stack(emulated, case):
    """Where it is like the others; its products have no launches of their own."""
    kind, width = case.get("kind", "Q8_0"), case.get("width", 96)
    shapes = {"embd": (20, 64), "norm": (64,)} | shapes_of_experts(0, 3, 64, 96)
    kinds = {name: "Q8_0" for name in shapes if name.endswith("exps")}
    of_shared = {name: shapes_of_experts(0, 3, 64, width)[name]
                 for name in shapes if name.endswith("shexp")}  # fmt: skip
    kinds |= dict.fromkeys(of_shared, kind)
    g, x = embedded(kinds, **shapes | of_shared)
    rng = np.random.default_rng(5)
    for name, shape in case.get("more", {}).items():
        g.tensors[name] = Raw(random_matrix(rng, "F32", *shape), "F32", shape)
    f = g.rms_norm(x, "norm.weight", 1e-5)
    y = moe(g, f, 0, Experts(n_used=2, gate="sigmoid", normalise=True, scale=2.5))
    both = Compared(emulated, g, Outputs(hidden=g.add(x, y)), n_batch=64)
    for n_rows in (1, 8, 5, 40, 64):
        both.feed(n_rows)
        is_stacked = sum(map(kernels_of(both.fused, n_rows).count, MATMULS)) == 2
        assert is_stacked is (case == {})


def test_a_shared_expert_whose_rows_somebody_reads_stays_alone(emulated):
    shapes = {"embd": (20, 64), "norm": (64,)} | shapes_of_experts(0, 3, 64, 96)
    kinds = {name: "Q8_0" for name in shapes if name.endswith(("exps", "shexp"))}
    g, x = embedded(kinds, **shapes)
    f = g.rms_norm(x, "norm.weight", 1e-5)
    shared = swiglu(g, f, 0, "_shexp")
    ids, shares = g.route(f, "blk.0.ffn_gate_inp.weight", n_used=2)
    gate, up = (g.expert_matmul(f, ids, f"blk.0.ffn_{name}_exps.weight") for name in ("gate", "up"))
    y = g.mix(g.expert_matmul(g.gated(gate, up), ids, "blk.0.ffn_down_exps.weight"), shares)
    both = Compared(emulated, g, Outputs(hidden=g.add(y, shared), shared=shared), n_batch=16)
    for n_rows in (1, 12):
        both.feed(n_rows)


@pytest.mark.parametrize(("between", "is_sorted"), [(False, True), (True, False)])
def test_rows_are_sorted_once_unless_others_were_sorted_between(emulated, between, is_sorted):
    """Experts that another route chose leave their own tiles where those of the first one were."""
    shapes = {"embd": (40, WIDTH), "norm": (WIDTH,)}
    for i in range(2):
        shapes |= {f"router{i}": (5, WIDTH), f"down{i}": (5, WIDTH, 96)}
        shapes |= {f"{name}{i}": (5, 96, WIDTH) for name in ("gate", "up")}
    g = GraphBuilder("two routes", random_tensors(2, Type.Q8_0, **shapes))
    x = g.rms_norm(g.embed(g.inputs.tokens, "embd.weight"), "norm.weight", 1e-5)
    (ids, shares), (others, their_shares) = (
        g.route(x, f"router{i}.weight", n_used=2) for i in range(2)
    )
    gate, up = (g.expert_matmul(x, ids, f"{name}0.weight") for name in ("gate", "up"))
    y = None
    if between:
        z = g.gated(*(g.expert_matmul(x, others, f"{name}1.weight") for name in ("gate", "up")))
        y = g.mix(g.expert_matmul(z, others, "down1.weight"), their_shares)
    made = g.gated(gate, g.scale(up, 2.0))  # not where the products are, but behind the others
    total = g.mix(g.expert_matmul(made, ids, "down0.weight"), shares)
    both = Compared(
        emulated, g, Outputs(hidden=total if y is None else g.add(total, y)), n_batch=40
    )
    last = next(
        group
        for group in fuse(both.program, lambda node: 32)
        if any(product.name.startswith("down0") for product in group.products)
    )
    assert last.is_sorted is is_sorted
    both.feed(40)


GATES = {"32": ("Q8_0", "Q4_0"), "256": ("Q4_K", "Q6_K"), "256 to 32": ("Q4_K", "Q8_0"),
         "32 to 256": ("Q8_0", "Q4_K"), "apart": (("Q8_0", "Q4_0"), "Q8_0")}  # fmt: skip


@pytest.mark.parametrize("has_experts", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("kinds", GATES.values(), ids=GATES)
def test_products_become_codes_where_they_are_made(emulated, kinds, has_experts):
    """Of two matrices of one type; for few rows of each, whose gates have a limit."""
    (of_gate, of_up), of_down = np.broadcast_to(kinds[0], 2).tolist(), kinds[1]
    stack = (3,) if has_experts else ()
    shapes = {"embd": (20, 256), "norm": (256,), "router": (3, 256)}
    shapes |= {name: (*stack, 512, 256) for name in ("gate", "up")} | {"down": (*stack, 256, 512)}
    g, x = embedded({"gate": of_gate, "up": of_up, "down": of_down}, **shapes)
    f = g.rms_norm(x, "norm.weight", 1e-5)
    if has_experts:
        ids, shares = g.route(f, "router.weight", n_used=2)
        multiply = partial(g.expert_matmul, ids=ids)
    else:
        multiply = g.matmul
    made = g.gated(*(multiply(f, weight=f"{name}.weight") for name in ("gate", "up")), limit=0.5)
    y = multiply(made, weight="down.weight")
    hidden = g.add(x, g.mix(y, shares) if has_experts else y)
    both = Compared(emulated, g, Outputs(hidden=hidden), n_batch=64)
    for n_rows in (1, 5, 8, 1, 40):
        both.feed(n_rows)
        is_one = n_rows <= 8 and of_gate == of_up
        assert kernels_of(both.fused, n_rows).count("quantise") == (0 if is_one else 1)


PASSED = {"32": ("Q8_0", "Q8_0", "Q8_0", 128, 32), "256": ("Q4_K", "Q8_0", "Q4_K", 64, 32),
          "to 32": ("Q4_K", "Q4_0", "Q8_0", 32, 64), "to 256": ("Q8_0", "Q4_K", "Q6_K", 96, 256),
          "no tiles": ("Q8_0", "Q8_0", "Q8_0", 24, 32)}  # fmt: skip


@pytest.mark.parametrize(
    ("of_first", "of_heads", "of_last", "width", "n_cut"), PASSED.values(), ids=PASSED
)
@pytest.mark.parametrize("begin", [0, 16])
def test_products_become_codes_of_products_that_read_them(
    emulated, of_first, of_heads, of_last, width, n_cut, begin
):
    """Columns of heads, and heads as one row, whose blocks may be of several; of few rows."""
    n_heads = 8
    shapes = {"embd": (20, 256), "norm": (256,), "last": (32, n_heads * width), "other": (32, 256)}
    shapes |= {"first": (n_heads * (n_cut + 32), 256), "heads": (n_heads, width, n_cut)}
    types = {"first": of_first, "other": of_first, "heads": of_heads, "last": of_last}
    g, x = embedded(types, **shapes)
    x = g.rms_norm(x, "norm.weight", 1e-5)
    q = g.split_heads(g.matmul(x, "first.weight"), n_heads)
    y = g.head_matmul(g.slice(q, begin, begin + n_cut), "heads.weight")
    y = g.matmul(g.merge_heads(y), "last.weight")
    outputs = Outputs(y=y, kept=g.merge_heads(q), other=g.matmul(x, "other.weight"))
    both = Compared(emulated, g, outputs, n_batch=64)
    for n_rows in (1, 5, 8, 1, 40):
        both.feed(n_rows)
        n_alone = 1 if width % 16 else 0
        assert kernels_of(both.fused, n_rows).count("quantise") == (2 if n_rows > 8 else n_alone)


def test_products_follow_others_only_where_all_is_there(emulated):
    """What the last one is added to is made between the first and the second."""
    g, x = embedded(dict.fromkeys("abc", "Q8_0"), embd=(20, 32), **dict.fromkeys("abc", (32, 32)))
    a, z = g.matmul(x, "a.weight"), g.scale(x, 2.0)
    y = g.add(g.matmul(g.matmul(a, "b.weight"), "c.weight"), z)
    both = Compared(emulated, g, Outputs(hidden=y), n_batch=16)
    for n_rows in (1, 3, 12):
        both.feed(n_rows)


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_products_of_a_norm_of_what_the_last_of_a_chain_makes(emulated, names):
    """Of any length: the launch that makes it makes codes for the products behind the norm."""
    kinds = dict.fromkeys("abcd", "Q8_0")
    g, x = embedded(kinds, embd=(20, 64), norm=(64,), **dict.fromkeys(kinds, (64, 64)))
    for name in names:
        x = g.matmul(x, f"{name}.weight")
    y = g.matmul(g.rms_norm(x, "norm.weight", 1e-5), "d.weight")
    both = Compared(emulated, g, Outputs(hidden=y), n_batch=16)
    for n_rows in (1, 3, 12):
        both.feed(n_rows)


def test_products_that_are_heads_of_attention_follow_no_gates(emulated):
    """These are rotated, and stored, by the launch that makes them."""
    names = ("gate", "up", "0.q", "0.k", "0.v")
    shapes = {"embd": (20, 64), "o": (64, 64)} | dict.fromkeys(names, (64, 64))
    g, x = embedded(dict.fromkeys((*names, "o"), "Q8_0"), **shapes)
    x = g.gated(*(g.matmul(x, f"{name}.weight") for name in ("gate", "up")))
    y = grouped_attention(g, x, 0, 2, 2)
    hidden = g.matmul(g.merge_heads(y), "o.weight")
    both = Compared(emulated, g, Outputs(hidden=hidden), n_batch=16, n_ctx=64)
    for n_rows in (1, 3, 12):
        both.feed(n_rows)


@pytest.mark.parametrize(
    ("kind", "n_heads", "n_key_heads", "width"),
    [("Q8_0", 4, 2, 32), ("Q8_0", 4, 4, 8), ("Q4_0", 8, 1, 20), ("Q4_K", 8, 2, 64),
     ("Q4_K", 4, 2, 64), ("Q4_K", 64, 2, 4)],
)  # fmt: skip
@pytest.mark.parametrize("many", [1, 1 << 30], ids=["own ranges", "ranges of others"])
def test_attention_becomes_codes_where_its_ranges_are_taken_together(
    emulated, monkeypatch, kind, n_heads, n_key_heads, width, many
):
    """Of a key head, or of all where its values are no whole blocks; of several sequences."""
    monkeypatch.setattr(attending, "_MANY_BLOCKS", many)
    shapes = {"embd": (20, 32), "0.q": (n_heads * width, 32), "o": (32, n_heads * width)}
    shapes |= {f"0.{name}": (n_key_heads * width, 32) for name in "kv"}
    g, x = embedded({"o": kind}, **shapes)
    y = grouped_attention(g, x, 0, n_heads, n_key_heads, angles=None)
    hidden = g.matmul(g.merge_heads(y), "o.weight")
    both = Compared(emulated, g, Outputs(hidden=hidden), n_batch=64, n_ctx=1024)
    for runner in both.runners:
        fill(runner, 600)
    for n_rows, n_seqs in ((1, 1), (6, 3), (19, 2)):
        both.feed_together(n_rows, n_seqs)
    assert kernels_of(both.fused, 1) == ["embed", *["matmul_float"] * 3, "remember", "remember",
                              "attention", "matmul_few"]  # fmt: skip


NORMED = {
    "32": ("Q8_0", 96),
    "256": ("Q4_K", 256),
    "long": ("Q8_0", 2080),
    "longer": ("Q4_K", 4352),
}


@pytest.mark.parametrize("is_centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("maker", ["product", "mix", "experts"])
@pytest.mark.parametrize(("kind", "width"), NORMED.values(), ids=NORMED)
@pytest.mark.parametrize("is_kept", [False, True], ids=["codes", "rows"])
def test_rows_are_normalised_where_they_are_made(emulated, kind, width, maker, is_centred, is_kept):
    """For products, others that read them, or none; by one block, while they are few.

    What is mixed is so in a launch of its own, or where the last products of experts are made.
    """
    shapes = {"embd": (20, width), "first": (width, 32), "router": (3, 32), "norm": (width,)}
    shapes |= {"bias": (width,), "next": (16, width), "small": (20, 32), "experts": (3, width, 32)}
    shapes |= {name: (3, 32, 32) for name in ("gate", "up")}
    quantised = dict.fromkeys(("first", "gate", "up", "experts"), "Q8_0")
    g, x = embedded(quantised | {"next": kind}, **shapes)
    small = g.embed(g.inputs.tokens, "small.weight")
    if maker == "product":
        y = g.matmul(small, "first.weight")
    else:
        ids, shares = g.route(small, "router.weight", n_used=2)
        if maker == "experts":
            both = (g.expert_matmul(small, ids, f"{name}.weight") for name in ("gate", "up"))
            small = g.gated(*both)
        y = g.mix(g.expert_matmul(small, ids, "experts.weight"), shares)
    x = g.add(y, x)
    normed = (
        g.layer_norm(x, "norm.weight", "bias.weight", 1e-5)
        if is_centred
        else g.rms_norm(x, "norm.weight", 1e-5)
    )
    outputs = {"hidden": x, "next": g.matmul(normed, "next.weight")}
    outputs |= {"normed": normed} if is_kept else {}
    both = Compared(emulated, g, Outputs(**outputs), n_batch=64)
    for n_rows in (1, 2, 3, 1, 20):
        both.feed(n_rows)
        assert kernels_of(both.fused, n_rows).count("normalise") == (0 if n_rows <= 2 else 1)
        has_mix = maker == "mix" or (maker == "experts" and n_rows > 8)
        assert kernels_of(both.fused, n_rows).count("mix") == (1 if has_mix else 0)


MIXED = {"32": ("Q8_0", 64, 5, 2), "256": ("Q4_K", 96, 3, 3), "one of many": ("Q8_0", 48, 9, 1),
         "no tiles": ("Q8_0", 40, 4, 2)}  # fmt: skip


@pytest.mark.parametrize(("kind", "width", "n_experts", "n_used"), MIXED.values(), ids=MIXED)
def test_experts_are_mixed_where_they_are_made(emulated, kind, width, n_experts, n_used):
    """Of few rows, into arrays that have room for no more; a row has its bits in any batch."""
    shapes = {"embd": (20, 64), "norm": (64,), "router": (n_experts, 64), "other": (20, width)}
    shapes |= {name: (n_experts, 256, 64) for name in ("gate", "up")}
    shapes |= {"down": (n_experts, width, 256)}
    g, x = embedded({"gate": "Q8_0", "up": "Q8_0", "down": kind}, **shapes)
    other = g.embed(g.inputs.tokens, "other.weight")
    f = g.rms_norm(x, "norm.weight", 1e-5)
    ids, shares = g.route(f, "router.weight", n_used=n_used)
    made = g.gated(*(g.expert_matmul(f, ids, f"{name}.weight") for name in ("gate", "up")))
    y = g.mix(g.expert_matmul(made, ids, "down.weight"), shares)
    outputs, first = Outputs(hidden=g.add(y, other)), set()
    for n_batch, runs in ((8, (1, 5, 8, 1)), (40, (9, 40))):
        both = Compared(emulated, g, outputs, n_batch=n_batch)
        for n_rows in runs:
            first.add(both.feed(n_rows)["hidden"][0].tobytes())
            assert kernels_of(both.fused, n_rows).count("mix") == (0 if n_rows <= 8 else 1)
    assert len(first) == 1


def test_a_norm_waits_for_its_turn_where_others_are_between(emulated):
    """Else codes of the second norm would be where those of the first are still to be read."""
    shapes = {"embd": (20, 32), "norm": (32,), "other": (32,)} | dict.fromkeys("abcd", (32, 32))
    g, x = embedded(dict.fromkeys("abcd", "Q8_0"), **shapes)
    y = g.add(g.matmul(x, "a.weight"), x)
    z = g.add(g.matmul(y, "b.weight"), y)
    second, first = (g.rms_norm(v, f"{n}.weight", 1e-5) for v, n in ((z, "norm"), (y, "other")))
    hidden = g.add(g.matmul(first, "c.weight"), g.matmul(second, "d.weight"))
    both = Compared(emulated, g, Outputs(hidden=hidden))
    groups = fuse(both.program, lambda node: 32)
    assert [group.next is not None for group in groups].count(True) == 1
    both.feed(2)


HEADS = {"one type": ("Q8_0", 4, 2, 32), "two types": (("Q4_K", "Q4_K", "Q6_K"), 2, 1, 96),
         "short": ("Q8_0", 4, 4, 16), "no tiles": ("Q8_0", 4, 2, 24)}  # fmt: skip


@pytest.mark.parametrize(("kinds", "n_heads", "n_key_heads", "width"), HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("style", ["halves", "pairs"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0"])
def test_heads_are_rotated_and_stored_where_they_are_made(
    emulated, kinds, n_heads, n_key_heads, width, style, kv_dtype
):
    """In two layers that rotate by the same angles, and one by its own; of several sequences."""
    of_q, of_k, of_v = np.broadcast_to(kinds, 3).tolist()
    shapes, types = {"embd": (20, 256)}, {}
    for i in range(3):
        types |= {f"{i}.q": of_q, f"{i}.k": of_k, f"{i}.v": of_v, f"{i}.o": "Q8_0"}
        shapes |= {f"{i}.q": (n_heads * width, 256), f"{i}.o": (256, n_heads * width)}
        shapes |= {f"{i}.{name}": (n_key_heads * width, 256) for name in "kv"}
    g, x = embedded(types, **shapes)
    for i, angles in enumerate(([1.0, 0.1, 0.01], [1.0, 0.1, 0.01], [0.5, 0.2])):
        y = grouped_attention(g, x, i, n_heads, n_key_heads, angles=angles, style=style)
        x = g.add(x, g.matmul(g.merge_heads(y), f"{i}.o.weight"))
    options = {"n_batch": 16, "n_seq": 3, "n_ctx": 64, "kv_dtype": kv_dtype}
    both = Compared(emulated, g, Outputs(hidden=x), **options)
    for n_rows, n_seqs in ((1, 1), (8, 3), (12, 3), (5, 2)):
        both.feed_together(n_rows, n_seqs)
        is_one = n_rows <= 8 and width % 16 == 0
        counts = tuple(map(kernels_of(both.fused, n_rows).count, ("rope_and_store", "cos_sin")))
        assert counts == ((0, 2) if is_one else (3, 0))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_products_of_heads_lie_where_they_are_joined(emulated, kind):
    """Two of the same heads, each with a place of its own; and such that attention makes."""
    shapes = {"embd": (20, 512), "q": (512, 512), "k": (256, 512)}
    shapes |= {name: (2, 32, 256) for name in ("first", "second", "third")}
    kinds = dict.fromkeys(("first", "second", "third"), kind) | dict.fromkeys("qk", "Q8_0")
    g, x = embedded(kinds, **shapes)
    q, k = (g.split_heads(g.matmul(x, f"{name}.weight"), n) for name, n in (("q", 2), ("k", 1)))
    y = g.attention(q, k, 256, layer=0, scale=0.2)
    joined = g.concat(*(g.head_matmul(q, f"{name}.weight") for name in ("first", "second")))
    attended = g.merge_heads(g.head_matmul(y, "third.weight"))
    outputs = Outputs(both=g.merge_heads(g.scale(joined, 2.0)), attended=attended)
    both = Compared(emulated, g, outputs, n_batch=20, n_ctx=64)
    for n_rows in (1, 5, 20):
        both.feed(n_rows)
    names = [kernels_of(runner, 5) for runner in both.runners]
    assert [own.count("copy") for own in names] == [0, 2]
    assert [own.count("quantise") for own in names] == [1, 5]


def test_one_of_several_products_is_normalised(emulated):
    """The second of a type, beside another that is not."""
    shapes = {"embd": (20, 256), "norm": (64,), "next": (32, 64)} | dict.fromkeys("abc", (64, 256))
    g, x = embedded({"a": "Q8_0", "b": "Q8_0", "c": "Q4_0", "next": "Q8_0"}, **shapes)
    a, b, c = (g.matmul(x, f"{name}.weight") for name in "abc")
    y = g.matmul(g.rms_norm(b, "norm.weight", 1e-5), "next.weight")
    both = Compared(emulated, g, Outputs(a=a, b=b, c=c, y=y), n_batch=20)
    for n_rows in (1, 2, 5, 20):
        both.feed(n_rows)
        assert kernels_of(both.fused, n_rows).count("normalise") == (0 if n_rows <= 2 else 1)


def products_of_products():
    """Return the builder of products that read each other's rows, all of one width."""
    g, x = embedded(dict.fromkeys("abc", "Q8_0"), embd=(40, 64), **dict.fromkeys("abc", (64, 64)))
    for name in "abc":
        x = g.matmul(x, f"{name}.weight")
    return g, Outputs(hidden=x)


@pytest.mark.parametrize(
    ("made", "n_written"),
    [(partial(layers, 3, latent_attention, dense), {1: 12, 8: 9}),
     (partial(layers, 3, grouped_attention, shared_experts), {1: 8, 8: 3}),
     (products_of_products, {1: 2, 8: 2})],
    ids=["layers", "experts", "chain"],
)  # fmt: skip
@pytest.mark.parametrize("n_rows", [1, 8])
def test_no_launch_writes_codes_that_its_other_blocks_read(emulated, made, n_written, n_rows):
    """A block of one matrix may end last while others of the launch are still to begin."""
    fused = Compared(emulated, *made(), n_batch=40).fused
    launches = launches_of(fused, n_rows)
    products = [arguments_of(launch) for launch in launches if launch.kernel.name == "matmul_few"]
    made, taken = ("codes", "scales_of_codes", "sums_of_codes"), ("x", "x_scales", "x_sums")
    written = [[given[name] for name in made] for given in products]
    read = [[given[name] for name in taken] for given in products]
    assert sum(codes[0] is not None for codes in written) >= n_written[n_rows]
    for codes, found in zip(written, read, strict=True):
        memory = [array.memory for array in found]
        assert not any(array and any(array.memory is own for own in memory) for array in codes)
