"""DFlash and its relatives, as published and converted, against formulas in NumPy."""

import itertools

import numpy as np
import pytest
from harness import dflash, lilicorr
from harness.dflash import N_VOCAB, SIZES, VARIANTS
from harness.every_trunk import write_trunk
from msgspec.structs import replace

from mtpcore import Batch, Context, Generator, Sampling, TreeShape, link, load_model
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import ModelFileError
from mtpcore.testing import Runner, Subject, Texts, check_drafts, check_texts

TOKENS = np.random.default_rng(7).integers(0, N_VOCAB, 16).astype(np.int32)
variants = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with load_model(dflash.write_target(tmp_path_factory.mktemp("target"))) as model:
        yield model


def seed_of(name):
    return list(VARIANTS).index(name)


def drafter_of(name, target, folder):
    drafter = load_model(dflash.write_drafter(folder, VARIANTS[name], seed_of(name)))
    drafter.borrow_from(target)
    return drafter


def taps_of(c):
    return [f"layer_input:{n}" for n in c.layers]


def check_formulas(c, w, drafter, target, kind):
    """Compare entries of a text, and the logits of a block after them."""
    (spec,) = drafter.drafters
    assert spec.feeds[0].taps == tuple(taps_of(c))
    assert (spec.limit, spec.block.size) == (c.size - c.first, c.size)
    exact = kind == "reference"
    backend, near = (ReferenceBackend("f64"), 1e-9) if exact else (CpuBackend(), 2e-4)

    def runner(model, graph_type, taps=()):
        named = None if graph_type == "llm" else model.drafters[0].name
        program = model.program(graph_type, taps=taps, drafter=named)
        return Runner(backend, program, model, kv_dtype="f64" if exact else "f32")

    made = runner(target, "llm", taps_of(c)).feed(TOKENS)
    taps = np.concatenate([made[tap] for tap in taps_of(c)], axis=1)
    program = drafter.program("entries", drafter=spec.name)
    drafting = runner(drafter, "draft")
    store = backend.plan(
        program,
        drafter,
        n_batch=64,
        n_ctx=512,
        threads=1,
        stores=[group.store for group in drafting.memory.groups],
    )
    n = len(TOKENS)
    places = np.arange(n, dtype=np.int32)
    drafting.memory.reserve({0: (0, n)})
    store.run(
        CheckedBatch(
            tokens=TOKENS,
            positions=places[:, None],
            seq=np.zeros(n, np.int32),
            place=places,
            outputs=places[:0],
            slots={"taps": np.ascontiguousarray(taps)},
        ),
        drafting.memory,
    )
    block = np.array([3] + [c.mask] * (c.size - 1), np.int32)
    if c.head_width:
        rows = np.zeros((c.size, taps.shape[1]), taps.dtype)
        rows[0] = taps[-1]
        logits = drafting.feed(block, taps=rows)["logits"][1:]
        text = [*TOKENS.tolist(), int(block[0])]
        wanted = dflash.scores(c, w, text, taps.astype(np.float64), [0] * (c.size - 1))
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=near * lilicorr.SCALE)
        assert np.abs(wanted[np.isfinite(wanted)]).max() > 0.1 * lilicorr.SCALE
        return
    drawn = drafting.feed(block)
    logits = drawn["logits"]
    wanted = dflash.block_logits(c, w, dflash.entries(c, w, taps.astype(np.float64)), block)
    size = np.abs(wanted).max()
    assert size > 0.5
    assert np.abs(logits - wanted).max() < near * size
    if c.n_taps:
        slots = {"base": logits[:1], "pairs": drawn["pairs"][:1]}
        made = runner(drafter, "selector").feed(TOKENS[:1], **slots)["logits"]
        hidden = dflash.block_hidden(c, w, dflash.entries(c, w, taps.astype(np.float64)), block)
        scores = dflash.selected_scores(w, dflash.candidates(wanted)[0], hidden[0], TOKENS[0])
        np.testing.assert_allclose(made[0], scores, rtol=0, atol=near * size)
    if c.markov:
        post_head = runner(drafter, "markov").feed(TOKENS[:1], base=logits[:1])["logits"]
        wanted = dflash.markov_logits(w, wanted[0], TOKENS[0])
        assert np.abs(post_head[0] - wanted).max() < near * np.abs(wanted).max()
    if c.passes:
        before = TOKENS[: c.size]
        slots = {"base": drawn["logits"], "description": drawn["description"]}
        refined = runner(drafter, "refiner").feed(before, **slots)["logits"]
        hidden = dflash.block_hidden(c, w, dflash.entries(c, w, taps.astype(np.float64)), block)
        wanted = dflash.refined_logits(w, hidden, before)
        assert np.abs(refined - wanted).max() < near * np.abs(wanted).max()


@variants
@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_formulas(name, kind, target, tmp_path):
    c, drafter = VARIANTS[name], drafter_of(name, target, tmp_path)
    check_formulas(c, dflash.read_weights(c, seed_of(name), target), drafter, target, kind)


def check_drafts_at_every_place(c, w, drafter, target, backend):
    """Of every length, through links and the loop over the block; near ties are few."""
    llm = Context(target, 64, kv_dtype="f32", threads=1, backend=backend)
    cross = link(llm, draft_model=drafter)
    rows, near, longest = [], 0, c.size - c.first
    for place, token in enumerate(TOKENS):
        made = llm.process(Batch.of([token], pos=place))
        rows.append(np.concatenate([made.tap(tap)[0] for tap in taps_of(c)]))
        pending = cross.pending(0, Sampling.greedy())
        text = [*TOKENS[: place + 1].tolist(), pending]
        wanted, margin = dflash.drafts(c, w, text, np.array(rows, np.float64), longest)
        near += margin < 1e-2
        if margin >= 1e-2:
            assert cross.draft(0, 8) == wanted
            # Where rows see no later ones, a shorter block is the beginning of a longer one.
            assert cross.draft(0, 2) == wanted[:2]
    assert near < 8


OF_EACH_LOOP = ("z-lab", "dspark", "xpress")
"""By their own logits, through a post-head in order, and through one in passes."""


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "cpu") for name in VARIANTS), *((name, "reference") for name in OF_EACH_LOOP)],
)
def test_drafts_of_a_linked_drafter(name, backend, target, tmp_path):
    c, drafter = VARIANTS[name], drafter_of(name, target, tmp_path)
    w = dflash.read_weights(c, seed_of(name), target)
    check_drafts_at_every_place(c, w, drafter, target, backend)


def ways_of(tree):
    """Return the tokens on the way to each node."""
    ways = []
    for token, above in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
        ways.append((*(ways[above] if above >= 0 else ()), token))
    assert len({*ways}) == len(ways)
    return {*ways}


@pytest.mark.parametrize("name", ["z-lab", "speculators", "causal", "speculators' windows"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_trees_have_the_likeliest_nodes_of_a_block(name, backend, target, tmp_path):
    """Those that a heap gives, whatever the size, unless the last one and the next are near."""
    c, drafter = VARIANTS[name], drafter_of(name, target, tmp_path)
    w = dflash.read_weights(c, seed_of(name), target)
    near = 0
    for n in (1, 2, 5, 16):
        llm = Context(target, 64, kv_dtype="f32", threads=1, backend=backend)
        cross = link(llm, draft_model=drafter, tree=TreeShape(depth=8, width=16, n_nodes=n))
        rows = []
        for place, token in enumerate(TOKENS):
            made = llm.process(Batch.of([token], pos=place))
            rows.append(np.concatenate([made.tap(tap)[0] for tap in taps_of(c)]))
            text = [*TOKENS[: place + 1].tolist(), cross.pending(0, Sampling.greedy())]
            for k in (2, 8):
                taps = np.array(rows, np.float64)
                wanted, margin = dflash.likeliest(c, w, text, taps, k, n)
                near += margin < 1e-2
                assert margin < 1e-2 or ways_of(cross.draft(0, k)) == wanted
    assert near < 32


FIXED = TreeShape(paths=((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 2)))


def test_a_fixed_tree_has_the_ranks_of_the_rows(target, tmp_path):
    """Rows do not depend on drafts: the best ones are those of the block, after whichever draft."""
    drafter = drafter_of("z-lab", target, tmp_path)
    plain = link(Context(target, 64), draft_model=drafter)
    fixed = link(Context(target, 64), draft_model=drafter, tree=FIXED)
    for cross in (plain, fixed):
        cross.llm.process(Batch.of(TOKENS))
    chain, tree = plain.draft(0, 3), fixed.draft(0, 3)
    first, second, third = chain
    assert tree.parent.tolist() == [-1, -1, 0, 1, 2, 0]
    assert tree.tokens[[0, 2, 3, 4]].tolist() == [first, second, second, third]
    assert len({*tree.tokens[[0, 1]].tolist()}) == len({*tree.tokens[[2, 5]].tolist()}) == 2
    assert fixed.draft(0, 1).tokens.tolist() == tree.tokens[:2].tolist()


@pytest.mark.parametrize("shape", [TreeShape(depth=8, width=16, n_nodes=7), FIXED], ids=str)
def test_trees_change_no_text(shape, target, tmp_path):
    drafter = dflash.write_drafter(tmp_path, VARIANTS["z-lab"], 0)
    subject = Subject("trees", str(target.path), str(drafter))
    spec = replace(subject.spec, tree=shape)
    for sampling in (Sampling.greedy(), Sampling(temperature=1.0, seed=3)):
        check_texts(subject, Texts(k=4, sampling=sampling), spec)


TRUNKS = ("qwen35", "qwen35moe", "gemma4", "gpt_oss", "mimo2", "lfm2")


@pytest.fixture(scope="module", params=TRUNKS)
def other_target(request, tmp_path_factory):
    """A trunk with a recurrence or convolutions, scaled embeddings, sinks, or windows and sinks."""
    with load_model(write_trunk(tmp_path_factory.mktemp("trunk"), request.param)) as model:
        yield model


OTHERS = {
    "dflash": "windows",
    "dflash2": "speculators' dflash2",
    "lilicorr": "lilicorr",
    "dspark": "dspark",
    "xpress": "xpress",
}
"""The drafters that are tried on other trunks, by variant."""
others = pytest.mark.parametrize("name", OTHERS.values(), ids=OTHERS)


def drafter_for(name, target, folder):
    """Return a variant of another target's sizes, its weights, and its file."""
    c = dflash.for_target(VARIANTS[name], target)
    path = dflash.write_drafter(folder, c, seed_of(name))
    return c, dflash.read_weights(c, seed_of(name), target), path


@pytest.mark.parametrize(
    ("other_target", "name"),
    list(zip(TRUNKS, itertools.cycle(OTHERS.values()), strict=False)),
    indirect=["other_target"],
)
def test_formulas_and_drafts_on_other_trunks(name, other_target, tmp_path):
    """Each drafter and each trunk; their texts and rejected drafts are looked at in all pairs."""
    c, w, path = drafter_for(name, other_target, tmp_path)
    drafter = load_model(path)
    drafter.borrow_from(other_target)
    for backend in ("reference", "cpu"):
        check_formulas(c, w, drafter, other_target, backend)
    check_drafts_at_every_place(c, w, drafter, other_target, "cpu")


@others
def test_drafts_change_no_text_of_other_trunks(name, other_target, tmp_path):
    c, _, path = drafter_for(name, other_target, tmp_path)
    subject = Subject(f"dflash {name}", str(other_target.path), str(path))
    assert OTHERS[subject.spec.name] == name
    for sampling in (Sampling.greedy(), Sampling(temperature=1.0, seed=3)):
        check_texts(subject, Texts(k=c.size - c.first, sampling=sampling))


@others
def test_rejected_drafts_leave_no_trace_in_other_trunks(name, other_target, tmp_path):
    """Whatever part is accepted. Texts do not show what recurrent layers hold after their end.

    For what runs next says at which place it goes on, and reads nothing after it.
    """
    c, _, path = drafter_for(name, other_target, tmp_path)
    subject, sampling = Subject(name, str(other_target.path), str(path)), Sampling.greedy()
    k = c.size - c.first
    generator = Generator(subject.link(64, threads=1), sampling=sampling)
    wanted = list(generator.generate(TOKENS[:5].tolist(), max_tokens=4 * k, ignore_eos=True))
    cross = subject.link(64, threads=1)
    cross.llm.process(Batch.of(TOKENS[:5]))
    for accepted in (0, k, 1, k - 1):
        cross.pending(0, sampling)
        assert len(cross.draft(0, k, sampling)) == k
        right = wanted[len(cross.tokens(0)) - 4 :]
        drafts = [*right[:accepted], *((token + 1) % c.n_vocab for token in right[accepted:k])]
        verdict = cross.verify({0: drafts}, sampling)[0]
        assert verdict.accepted == accepted
        cross.accept(0, accepted)
        fresh = subject.link(64, threads=1)
        fresh.llm.process(Batch.of(cross.tokens(0)))
        assert cross.digest(0) == fresh.digest(0), f"{accepted} of {k} accepted"


@pytest.mark.parametrize(
    "name",
    [
        "z-lab",
        "speculators",
        "windows",
        "dspark",
        "dspark in place",
        "dflash2",
        "lilicorr",
        "speculators' xpress",
    ],
)
def test_the_conformance_kit_agrees_with_the_formulas(name, tmp_path, target):
    c = VARIANTS[name]
    w = dflash.read_weights(c, seed_of(name), target)
    drafter = dflash.write_drafter(tmp_path, c, seed_of(name))
    subject = Subject(f"dflash {name}", str(target.path), str(drafter))

    def scores(tokens, rows, drafts):
        taps = np.concatenate([rows[tap] for tap in taps_of(c)], axis=1).astype(np.float64)
        return dflash.scores(c, w, list(tokens), taps, list(drafts))

    assert check_drafts(subject, scores, k=c.size, n_tokens=12) >= 12 * (c.size - c.first)


def test_layers_are_named(tmp_path, monkeypatch):
    """Implementations differ on a default."""
    plain = dflash.config_of

    def config_of(c):
        config = plain(c)
        del config["dflash_config"]["target_layer_ids"]
        return config

    monkeypatch.setattr(dflash, "config_of", config_of)
    with pytest.raises(ModelFileError, match="does not name the target's layers"):
        dflash.write_drafter(tmp_path, VARIANTS["z-lab"])


@pytest.fixture
def change(monkeypatch):
    """Return what changes the configuration of drafters that are written from then on."""
    plain = dflash.config_of

    def change(**values):
        monkeypatch.setattr(dflash, "config_of", lambda c: plain(c) | values)

    return change


def test_passes_are_six_where_nobody_says(tmp_path, change):
    change(xpress_num_passes=None)
    drafter = load_model(dflash.write_drafter(tmp_path, VARIANTS["xpress"]))
    assert drafter.drafters[0].block.passes == 6


def test_a_refiner_mixes_whole_blocks(tmp_path, change):
    change(block_size=4)
    with pytest.raises(ModelFileError, match="not the size of the blocks that the file"):
        dflash.write_drafter(tmp_path, VARIANTS["xpress"])


@pytest.mark.parametrize("n", range(SIZES.n_layers + 1))
def test_the_stream_after_the_last_layer_is_a_layer_input_too(n, target):
    made = Context(target, 64, taps=[f"layer_input:{n}", "residual"]).process(Batch.of(TOKENS))
    is_last = n == SIZES.n_layers
    assert np.array_equal(made.tap(f"layer_input:{n}"), made.tap("residual")) is is_last
