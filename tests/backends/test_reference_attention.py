"""What a row sees: causal, windows, trees, blocks, other rows of a batch; and how it is stored."""

import numpy as np
import pytest

from mtpcore.backends.reference import ReferenceBackend
from mtpcore.graph import GraphBuilder, MemoryLayer, Outputs
from mtpcore.graph.alibi import alibi_slopes
from mtpcore.testing import Runner, Weights

H, G, DK, DV, WIDTH = 4, 2, 6, 5, 12
N_VOCAB = 30


class Array:
    """A tensor that is no file's."""

    type = 0

    def __init__(self, *shape, seed=0):
        self._values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.shape = shape

    def array(self):
        return self._values

    def raw(self):
        return self._values.view(np.uint8)


TENSORS = {
    "embd.weight": Array(N_VOCAB, WIDTH, seed=1),
    "q.weight": Array(H * DK, WIDTH, seed=2),
    "k.weight": Array(G * DK, WIDTH, seed=3),
    "v.weight": Array(G * DV, WIDTH, seed=4),
    "sinks.weight": Array(H, seed=5),
    "bias.weight": Array(9, H, seed=6),
}
SCALE = 0.05


def program(
    *, mask="causal", window=0, sinks=False, cross=False, latent=False, bias=0, softcap=0, alibi=0
):
    g = GraphBuilder("attention", TENSORS, slots={"rows": WIDTH}, whole=["rows"])
    x = g.embed(g.inputs.tokens, "embd.weight")
    q = g.split_heads(g.matmul(x, "q.weight"), H)
    seen = g.inputs["rows"] if cross else x
    k = g.split_heads(g.matmul(seen, "k.weight"), G)
    v = g.split_heads(g.matmul(seen, "v.weight"), G)
    if cross:
        y = g.cross_attention(q, k, v, layer=4, scale=SCALE)
    else:
        y = g.attention(
            q, k, DV if latent else v, layer=3, scale=SCALE, mask=mask, window=window,
            sinks="sinks.weight" if sinks else None,
            bias="bias.weight" if bias else None, max_distance=bias,
            softcap=softcap, max_alibi_bias=alibi,
        )  # fmt: skip
    return g.finish(Outputs(y=g.merge_heads(y)))


def runner(dtype="f32", kv_dtype=None, **options):
    backend = ReferenceBackend(dtype)
    return Runner(backend, program(**options), Weights(TENSORS), kv_dtype=kv_dtype or dtype)


def wanted(
    tokens, sees, sinks=False, stored=np.float64, others=None, bias=None, softcap=0, slopes=None
):
    """Attention over all rows at once in float64, where ``sees[t, j]`` says that t sees j.

    ``others`` are rows to attend to in place of the tokens' own; ``bias(distance)`` is the bucket.
    """
    x = TENSORS["embd.weight"].array()[tokens].astype(np.float64)
    own = x
    x = x if others is None else others.astype(np.float64)
    q = (own @ TENSORS["q.weight"].array().T).reshape(-1, H, DK)
    k = (x @ TENSORS["k.weight"].array().T).reshape(-1, G, DK).astype(stored).repeat(H // G, axis=1)
    v = (x @ TENSORS["v.weight"].array().T).reshape(-1, G, DV).astype(stored).repeat(H // G, axis=1)
    scores = SCALE * np.einsum("ihd,jhd->hij", q, k)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        places = np.arange(len(x))
        scores = scores - slopes[:, None, None] * np.abs(places[None] - places[:, None])
    if bias:
        table = TENSORS["bias.weight"].array()
        buckets = [[bias(j - i) for j in range(len(x))] for i in range(len(own))]
        scores = scores + np.moveaxis(table[np.array(buckets)], -1, 0)
    e = np.exp(scores) * sees
    total = e.sum(axis=2, keepdims=True)
    if sinks:
        total = total + np.exp(TENSORS["sinks.weight"].array().astype(np.float64))[:, None, None]
    return np.einsum("hij,jhd->ihd", e / total, v).reshape(len(tokens), -1)


TOKENS = np.random.default_rng(6).integers(0, N_VOCAB, 100)
CAUSAL = np.tri(100, dtype=bool)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 7, 64, 99, 200])
def test_causal(window, sinks):
    sees = CAUSAL & ~np.tri(100, k=-window, dtype=bool) if window else CAUSAL
    r = runner("f64", window=window, sinks=sinks)
    made = np.concatenate([r.feed(TOKENS[:63])["y"], r.feed(TOKENS[63:])["y"]])
    assert np.abs(made - wanted(TOKENS, sees, sinks)).max() < 1e-12


@pytest.mark.parametrize("mask", ["causal", "block"])
def test_scores_are_capped_before_biases(mask):
    sees = CAUSAL if mask == "causal" else np.ones((100, 100), bool)
    r = runner("f64", mask=mask, softcap=0.02, alibi=8.0)
    slopes = np.float32(2.0) ** np.array([-2, -4, -6, -8])
    made = r.feed(TOKENS)["y"]
    assert np.abs(made - wanted(TOKENS, sees, softcap=0.02, slopes=slopes)).max() < 1e-12
    assert np.abs(made - wanted(TOKENS, sees, slopes=slopes)).max() > 1e-3


def test_slopes_of_heads():
    """As the paper has them; of 12 heads, 8 have those of 8, and 4 every second one of 16."""
    assert alibi_slopes(8, 8.0).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(12, 8.0)[:8].tolist() == alibi_slopes(8, 8.0).tolist()
    assert alibi_slopes(12, 8.0)[8:].tolist() == alibi_slopes(16, 8.0)[:8:2].tolist()
    assert alibi_slopes(1, 4.0).tolist() == [2.0**-4]


@pytest.mark.parametrize("kv_dtype", ["f64", "f16"])
def test_latent_values_are_the_first_entries_of_keys(kv_dtype):
    """As if they had been given a second time; memory holds them once."""
    twice = dict(TENSORS)
    twice["v.weight"] = Array(G * DV)
    keys = TENSORS["k.weight"].array().reshape(G, DK, WIDTH)
    twice["v.weight"]._values = np.ascontiguousarray(keys[:, :DV]).reshape(G * DV, WIDTH)
    latent = runner("f64", kv_dtype, latent=True)
    plain = Runner(ReferenceBackend("f64"), program(), Weights(twice), kv_dtype=kv_dtype)
    for part in (TOKENS[:63], TOKENS[63:]):
        made, given = latent.feed(part)["y"], plain.feed(part)["y"]
        assert np.abs(made - given).max() < 1e-12
    stores = latent.memory.store, plain.memory.store
    assert stores[0].n_bytes * (DK + DV) == stores[1].n_bytes * DK
    assert len(stores[0].read(0, 0, 3)) * (DK + DV) == len(stores[1].read(0, 0, 3)) * DK


def test_first_place_need_not_be_zero():
    made = runner("f64").feed(TOKENS[:20], place=61)["y"]
    assert np.abs(made - wanted(TOKENS[:20], CAUSAL[:20, :20])).max() < 1e-12


@pytest.mark.parametrize("window", [0, 5])
def test_block_sees_what_is_stored_and_the_whole_batch(window):
    sees = np.zeros((30, 30), bool)
    sees[:10, :10] = sees[10:, :] = True
    if window:
        sees &= ~np.tri(30, k=-window, dtype=bool)
    r = runner("f64", mask="block", window=window)
    made = np.concatenate([r.feed(TOKENS[:10])["y"], r.feed(TOKENS[10:30])["y"]])
    assert np.abs(made - wanted(TOKENS[:30], sees)).max() < 1e-12


def test_cross_attention_sees_all_that_was_delivered():
    """Whatever the rows' places, of their own sequence only, and what was delivered last."""
    r = runner("f64", cross=True)
    rows = np.random.default_rng(7).normal(size=(90, WIDTH)).astype(np.float32)
    r.deliver(0, rows=rows[:5])
    r.deliver(1, rows=rows[:7])
    r.deliver(0, rows=rows)
    every = np.ones((9, 90), bool)
    r.feed(TOKENS[50:60])
    made = r.feed(TOKENS[:9])["y"]
    assert np.abs(made - wanted(TOKENS[:9], every, others=rows)).max() < 1e-12
    made = r.feed(TOKENS[:9], seq=1)["y"]
    assert np.abs(made - wanted(TOKENS[:9], every[:, :7], others=rows[:7])).max() < 1e-12
    tree = r.feed(TOKENS[: len(PARENT)], parent=PARENT)["y"]
    assert np.abs(tree - wanted(TOKENS[:8], every[:8], others=rows)).max() < 1e-12


def causal_bucket(distance):
    """Nine buckets: four near ones, and five up to a distance of 20."""
    d = max(-distance, 0)
    return d if d < 4 else min(8, 4 + int(np.log(d / 4) * 5 / np.log(5) + 1e-9))


def block_bucket(distance):
    """Four buckets for each direction: two near ones, and two up to a distance of 20."""
    d = abs(distance)
    return 4 * (distance > 0) + (d if d < 2 else min(3, 2 + int(np.log(d / 2) * 2 / np.log(10))))


@pytest.mark.parametrize("window", [0, 30])
def test_bias_by_distance(window):
    sees = CAUSAL & ~np.tri(100, k=-window, dtype=bool) if window else CAUSAL
    r = runner("f64", bias=20, window=window)
    made = np.concatenate([r.feed(TOKENS[:63])["y"], r.feed(TOKENS[63:])["y"]])
    assert np.abs(made - wanted(TOKENS, sees, bias=causal_bucket)).max() < 1e-12
    both = runner("f64", bias=20, mask="block").feed(TOKENS)["y"]
    everything = np.ones((100, 100), bool)
    assert np.abs(both - wanted(TOKENS, everything, bias=block_bucket)).max() < 1e-12


PARENT = [-1, 0, 0, 1, 2, 3, -1, 6]


def path_to(row):
    path = []
    while row >= 0:
        path.append(row)
        row = PARENT[row]
    return path[::-1]


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"latent": True}, {"bias": 20}], ids=str)
def test_each_row_of_a_tree_equals_a_chain(options):
    """Bitwise: a row sees the stored text, its ancestors and itself, as a chain of them would."""
    tree_tokens = TOKENS[60 : 60 + len(PARENT)]
    r = runner(**options)
    r.feed(TOKENS[:59])
    tree = r.feed(tree_tokens, parent=PARENT)["y"]
    for row in range(len(PARENT)):
        chain = runner(**options)
        chain.feed(TOKENS[:59])
        assert np.array_equal(chain.feed(tree_tokens[path_to(row)])["y"][-1], tree[row])


@pytest.mark.parametrize("latent", [False, True])
def test_kept_path_is_a_chain(latent):
    """Places 62, 63 | 64...: the kept rows move from one page to another."""
    tree_tokens = TOKENS[60 : 60 + len(PARENT)]
    r, chain = runner(latent=latent), runner(latent=latent)
    r.feed(TOKENS[:62])
    r.feed(tree_tokens, parent=PARENT)
    r.memory.keep(0, 62, path_to(5))
    chain.feed(np.concatenate([TOKENS[:62], tree_tokens[path_to(5)]]))
    assert r.memory.digest(0) == chain.memory.digest(0)
    assert np.array_equal(r.feed([7])["y"], chain.feed([7])["y"])


@pytest.mark.parametrize("latent", [False, True])
def test_rewound_and_forked_memory(latent):
    r, fresh = runner(latent=latent), runner(latent=latent)
    r.feed(TOKENS[:70])
    r.memory.fork(0, 2)
    r.memory.rewind(0, 60)
    r.feed(TOKENS[80:90])
    fresh.feed(np.concatenate([TOKENS[:60], TOKENS[80:90]]))
    assert r.memory.digest(0) == fresh.memory.digest(0)
    fresh.feed(TOKENS[:70], seq=2)
    assert r.memory.digest(2) == fresh.memory.digest(2)
    assert np.array_equal(r.feed([3], seq=2)["y"], fresh.feed([3], seq=2)["y"])


def test_f16_memory_rounds_keys_and_values():
    exact, rounded = runner("f64"), runner("f64", kv_dtype="f16")
    made = rounded.feed(TOKENS[:20])["y"]
    assert np.abs(made - wanted(TOKENS[:20], CAUSAL[:20, :20], stored=np.float16)).max() < 1e-12
    assert np.abs(made - exact.feed(TOKENS[:20])["y"]).max() > 1e-4
    assert rounded.memory.store.n_bytes * 4 == exact.memory.store.n_bytes


def in_codes(rows):
    """Rows with a scale each, as q8_0 holds those of at most 64 entries."""
    codes = np.rint(rows * (127 / np.abs(rows).max(axis=-1, keepdims=True))).astype(np.int8)
    scale = (rows * codes).sum(axis=-1, keepdims=True)
    scale /= (codes.astype(np.float64) ** 2).sum(axis=-1, keepdims=True)
    return codes, np.float32(scale)


@pytest.mark.parametrize("latent", [False, True])
def test_q8_0_memory_holds_codes(latent):
    one = runner("f32", kv_dtype="q8_0", latent=latent)
    one.feed(TOKENS[:70])
    x = TENSORS["embd.weight"].array()[TOKENS[:70]]
    page = one.memory.pages.tables[0, :2]
    for name in ("k",) if latent else ("k", "v"):
        stored = (one.memory.store.keys if name == "k" else one.memory.store.values)[3]
        rows = x @ TENSORS[f"{name}.weight"].array().T
        codes, scale = in_codes(rows.reshape(70, G, -1))
        held = stored.codes[page].reshape(-1, G, 8)[:70]
        off = np.abs(held[..., : codes.shape[-1]].astype(int) - codes)
        assert off.max() <= 1  # the plan sums the products in another order
        assert off.mean() < 0.01
        assert not held[..., codes.shape[-1] :].any()
        assert np.allclose(stored.scales[page].reshape(-1, G, 1)[:70], scale, rtol=1e-5)


def test_q8_0_memory_takes_half_the_bytes_of_f16():
    layer = MemoryLayer(layer=0, n_heads=4, k_width=64, v_width=128)
    half, coded = (ReferenceBackend().store([layer], 3, kind).n_bytes for kind in ("f16", "q8_0"))
    assert coded * 32 == half * 17


@pytest.mark.parametrize("latent", [False, True])
def test_q8_0_memory_is_near_the_exact_one(latent):
    exact, coded = runner("f64", latent=latent), runner("f64", kv_dtype="q8_0", latent=latent)
    wanted, made = (one.feed(TOKENS)["y"] for one in (exact, coded))
    off = np.sqrt(np.mean((made - wanted) ** 2) / np.mean(wanted**2))
    assert 1e-4 < off < 1e-2


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_batches_do_not_change_bits(n):
    whole, split = runner().feed(TOKENS)["y"], runner()
    made = [split.feed(TOKENS[t : t + n])["y"] for t in range(0, 100, n)]
    assert np.array_equal(np.concatenate(made), whole)
