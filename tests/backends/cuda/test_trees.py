"""Draft trees that grow on the device: ranked tokens, nodes, and whole runs beside the host's."""

import msgspec
import numpy as np
import pytest
from harness import hybrid_family
from harness.families import FAMILIES, HYBRID
from harness.head_runs import HIDDEN, HISTORY, IDS, clear, hold
from harness.search import searching
from harness.step_heads import SPECS, written
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head, random_tensors

from mtpcore import Batch
from mtpcore.backends.base import (
    CHOSEN,
    CheckedBatch,
    FusedSampling,
    TreePass,
    TreeRun,
    Verification,
)
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.choice import Choice
from mtpcore.backends.cuda.launch.passes import DRAFT
from mtpcore.backends.cuda.launch.step import start
from mtpcore.backends.cuda.launch.tokens import WINNER, n_parts
from mtpcore.backends.cuda.launch.trees import RANKED, SELECTION, select_best
from mtpcore.backends.cuda.plan import CudaPlan
from mtpcore.backends.cuda.trees import TreeLoop
from mtpcore.cross.ahead import _is_same
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.growing_tree import GrowingTree
from mtpcore.drafting.outline import Outlines, outline
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner, Weights

SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=0.9, seed=3, top_k=3, logit_bias={3: 2.0, 9: -4.0}),
    Sampling(temperature=1.5, seed=4, top_p=0.8, min_p=0.01),
    Sampling(temperature=0, repetition_penalty=3.0, presence_penalty=1.0, frequency_penalty=0.5),
    Sampling(temperature=0.02, seed=5),
]
TEXT = np.random.default_rng(3).integers(0, 40, 9).astype(np.int32)


def rows_of(seed, n_logits):
    """Return rows of logits: some are equal, infinite or not numbers; in one, all are."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(6, n_logits)).astype(np.float32) * np.float32(3)
    logits[0] = np.round(logits[0])
    logits[1, rng.integers(0, n_logits, 5)] = np.nan
    logits[2, rng.integers(0, n_logits, 3)] = np.inf
    logits[3, rng.integers(0, n_logits, n_logits - 2)] = -np.inf
    logits[4] = -np.inf
    return logits


@searching(25)
@given(
    st.integers(0, 999),
    st.sampled_from([5, 40, 2100, 4500]),
    st.integers(1, 9),
    st.sampled_from(SAMPLINGS),
    st.booleans(),
)
def test_rankings_are_the_samplers(backend, seed, n_logits, n_ranks, sampling, has_ids):
    """Tokens, probabilities and shares, bit for bit."""
    device, logits, n_ranks = backend.device, rows_of(seed, n_logits), min(n_ranks, n_logits)
    ids = None
    if has_ids:
        ids = np.random.default_rng(seed).permutation(n_logits + 3)[:n_logits].astype(np.int32)
    sampler, n = Sampler(sampling, Scratch(n_logits, n_logits + 3)), len(logits)
    choice = Choice(device, device.upload(logits))
    wanted = FusedSampling(
        samplers=[sampler] * n,
        indices=[7 * i for i in range(n)],
        token_ids=ids,
        texts=[TEXT[: i + 1] for i in range(n)],
        n_prompt=[1] * n,
    )
    candidates = device.empty((n, n_parts(n_logits), n_ranks), WINNER)
    ranking = device.empty((n, n_ranks), RANKED)
    shape, parts = choice.take(wanted, has_odds=True)
    for values, target in parts:
        device.upload(values, target)
    start(device, choice.rank(shape, candidates, ranking, n_ranks))
    made = np.frombuffer(device.read(ranking, 0, ranking.memory.nbytes), RANKED).reshape(n, -1)
    for i in range(n):
        found = sampler.rank(logits[i], TEXT[: i + 1], 1, 7 * i, n_ranks, ids)
        m = len(found[0])
        for name, column in zip(("token", "probability", "share"), found, strict=True):
            assert made[i][name][:m].tobytes() == column.tobytes(), (i, name)
        assert (made[i]["token"][m:] == -1).all()


@searching(25)
@given(st.integers(0, 999), st.booleans())
def test_the_best_nodes_are_picked(backend, seed, is_to_run):
    """Of equal ones the first; to run they come in their order, or else the best one first."""
    rng, device = np.random.default_rng(seed), backend.device
    nodes = np.zeros(400, DRAFT)
    nodes["token"] = rng.integers(-1, 3, 400)
    nodes["goes_on"] = rng.integers(-1, 2, 400)
    worths = rng.choice([0.0, 0.25, 0.5, 1.0], 400)
    lists = [rng.permutation(400)[:n] for n in (1, 12, 390)]
    most = [2, 5, 60]
    selections = np.zeros(3, SELECTION)
    selections["begin"], selections["n_listed"] = [0, 1, 13], [1, 12, 390]
    selections["first"], selections["n"] = [3, 5, 10], most
    chosen = device.upload(np.full(71, 7, np.int32))
    given_arrays = (selections, np.concatenate(lists).astype(np.int32), nodes, worths)
    places = device.empty((403,), np.int32)
    arrays = (*map(device.upload, given_arrays), places, chosen)
    start(device, [select_best(*arrays, 3, is_to_run=is_to_run)])
    wanted = [7, 7, 7]
    for able, n in zip(lists, most, strict=True):
        fits = nodes["goes_on"] == 1 if is_to_run else nodes["token"] >= 0
        able = [at for at in able if fits[at]]
        best = sorted(able, key=lambda at: -worths[at])[:n]
        best = [at for at in able if at in best] if is_to_run else best
        wanted += best + [-1] * (n - len(best))
    assert device.download(chosen, 71).tolist() == [*wanted, 7]


FIXED = TreeShape(paths=((1,), (0, 0), (0, 2), (2, 0), (0, 0, 1), (2, 0, 0)))
GROWN = TreeShape(depth=3, width=3, n_nodes=7)
DEEP = TreeShape(depth=4, width=2, n_nodes=20)
SHAPES = [
    FIXED,
    GROWN,
    TreeShape(paths=((0, 0, 0), (1, 1))),
    TreeShape(paths=((2,), (0,))),
    DEEP,
]


@pytest.fixture(scope="module")
def one(emulated):
    return Runner(CudaBackend(emulated), *head(), n_batch=64)


@pytest.fixture(scope="module")
def target(emulated):
    return Runner(CudaBackend(emulated), *head(seed=77), n_batch=64)


def recurrent_head(seed):
    """Return a head without attention, whose rows depend on all before them."""
    n_heads, width = 2, 8
    q, k, v = (np.arange(3) * n_heads * width).tolist()
    tensors = random_tensors(
        seed, embd=(N_VOCAB, WIDTH), join=(WIDTH, 2 * WIDTH), qkv=(3 * k, WIDTH), conv=(3 * k, 4),
        alpha=(n_heads, WIDTH), beta=(n_heads, WIDTH), o=(WIDTH, k), head=(N_LOGITS, WIDTH),
    )  # fmt: skip
    g = GraphBuilder("recurrent head", tensors, slots={"hidden": WIDTH})
    x = g.embed(g.inputs.tokens, "embd.weight")
    x = g.matmul(g.concat(x, g.inputs["hidden"]), "join.weight")
    made = g.causal_conv(g.matmul(x, "qkv.weight"), "conv.weight", layer=0)
    q, k, v = (g.split_heads(g.slice(made, at, at + n_heads * width), n_heads) for at in (q, k, v))
    decay = g.scale(g.activation(g.matmul(x, "alpha.weight"), "softplus"), -0.1)
    beta = g.activation(g.matmul(x, "beta.weight"), "sigmoid")
    q, k = (g.l2_norm(part, 1e-6) for part in (q, k))
    y = g.merge_heads(g.delta_rule(q, k, v, decay, beta, layer=0))
    x = g.rms_norm(g.add(x, g.scale(g.matmul(y, "o.weight"), 60.0)), None, 1e-5)
    logits = g.scale(g.matmul(g.output_rows(x), "head.weight"), 3.0)
    return g.finish(Outputs(logits, hidden=x)), Weights(tensors)


@pytest.fixture(scope="module")
def recurrent(emulated):
    """Return a head with a state, and another one that verifies its trees."""
    return [Runner(CudaBackend(emulated), *recurrent_head(seed), n_batch=64) for seed in (9, 77)]


def rows_of_text(lengths, hidden):
    place = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    return CheckedBatch(
        tokens=HISTORY[place],
        positions=place[:, None].copy(),
        seq=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        place=place,
        outputs=np.cumsum(lengths, dtype=np.int32) - np.int32(1),
        slots={"hidden": hidden[place]},
    )


def tree_run(one, sequences, shape, ids=None, hidden=HIDDEN):
    """Return the run of [(length, k, p_min, sampling)] with one head that goes on by itself."""
    lengths = [length for length, *_ in sequences]
    joined = Outlines([outline(shape, k) for _, k, *_ in sequences])
    batch = rows_of_text(lengths, hidden)
    passes = [TreePass(one.plan, one.memory, batch, [-1] * len(batch.tokens), range(len(lengths)))]
    for seq, length in enumerate(lengths):
        one.memory.reserve({seq: (0, length + 14)})
    for depth in range(1, max(each.depth for each in joined.each)):
        seqs, place, positions, parent, rows, outputs = ([] for _ in range(6))
        for seq, each in enumerate(joined.each):
            number, level = {}, each.level(depth)
            for branch in each.paths(depth) if level else ():
                number[branch] = len(rows)
                parent.append(number.get(each.above[branch], -1))
                place.append(lengths[seq] + len(number) - 1)
                rows.append(joined.number(seq, branch))
                positions.append(lengths[seq] + joined.branches[rows[-1]].depth - 1)
                outputs += [number[branch]] if branch in level else []
                seqs.append(seq)
        later = CheckedBatch(
            tokens=np.zeros(len(rows), np.int32),
            positions=np.array(positions, np.int32)[:, None],
            seq=np.array(seqs, np.int32),
            place=np.array(place, np.int32),
            outputs=np.array(outputs, np.int32),
            parent=np.array(parent, np.int32),
        )
        passes.append(TreePass(one.plan, one.memory, later, rows, range(len(outputs))))
    scratch = Scratch(N_LOGITS, N_VOCAB + 3)
    return TreeRun(
        passes=passes,
        branches=joined.branches,
        nodes=joined.nodes,
        order=joined.order,
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[:length] for length in lengths],
        n_prompt=[length // 2 for length in lengths],
        p_min=[p_min for *_, p_min, _ in sequences],
        n_tokens=N_VOCAB,
        width=0 if shape.paths else shape.width,
        recycle={"hidden": "hidden"},
        token_ids=ids,
    )


def grow_by_hand(one, sequences, shape, ids=None, hidden=HIDDEN):
    """Return the trees of a run: each node is run alone behind its path."""
    grown = [grow_alone(one, *each, shape, ids, hidden) for each in sequences]
    clear(one)
    return grown


def grow_alone(one, length, k, p_min, sampling, shape, ids, hidden):
    clear(one)
    tree, sampler = (
        GrowingTree(shape, k, N_VOCAB),
        Sampler(sampling, Scratch(N_LOGITS, N_VOCAB + 3)),
    )

    def branch(node, text, rows, place):
        arrays = one.feed(text[place:], seq=0, place=place, hidden=rows, outputs=[len(rows) - 1])
        logits, made = np.asarray(arrays["logits"])[0], np.asarray(arrays["hidden"])[-1]
        ranking = sampler.rank(logits, text, length // 2, len(text), tree.n_ranked(node), ids)
        tree.branch(node, ranking, {"hidden": made} if np.isfinite(made).all() else None, p_min)

    branch(-1, HISTORY[:length], hidden[:length], 0)
    while level := tree.next_level(99):
        for node in level:
            path = tree.path(node)
            tokens = np.array([tree.tokens[each] for each in path], np.int32)
            rows = np.stack([tree.slot_rows[each]["hidden"] for each in path])
            branch(node, np.concatenate([HISTORY[:length], tokens]), rows, length)
            one.memory.rewind(0, length)
    whole = tree.tree()
    is_finite = all(rows is not None for rows in tree.slot_rows)
    return whole.tokens.tolist(), whole.parent.tolist(), is_finite


each_sequence = st.tuples(
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    st.sampled_from(SAMPLINGS),
)


@searching(8)
@given(st.lists(each_sequence, min_size=1, max_size=2), st.sampled_from(SHAPES), st.booleans())
def test_trees_grow_as_by_hand(one, sequences, shape, has_ids):
    """Launched, recorded and replayed."""
    ids = IDS if has_ids else None
    wanted = grow_by_hand(one, sequences, shape, ids)
    for _ in range(3):
        assert one.plan.grow(tree_run(one, sequences, shape, ids)) == wanted
        clear(one)


@pytest.mark.parametrize("shape", [FIXED, GROWN], ids=["fixed", "grown"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_a_tree_beside_another(one, shape, sampling):
    """Of each way to choose; nodes that are not probable enough end their branches alone."""
    sequences = [(2, 3, 0.08, sampling), (3, 3, 0.0, SAMPLINGS[1]), (1, 1, 0.0, sampling)]
    wanted = grow_by_hand(one, sequences, shape)
    for _ in range(3):
        assert one.plan.grow(tree_run(one, sequences, shape)) == wanted
        clear(one)


@pytest.mark.parametrize("shape", [FIXED, GROWN], ids=["fixed", "grown"])
def test_rows_that_are_not_finite_end_a_tree_alone(one, shape):
    hidden = HIDDEN.copy()
    hidden[2] = np.nan
    sequences = [(3, 3, 0.0, SAMPLINGS[0]), (2, 3, 0.0, SAMPLINGS[0])]
    wanted = grow_by_hand(one, sequences, shape, hidden=hidden)
    assert [bool(tokens) for tokens, *_ in wanted] == [False, True]
    for _ in range(3):
        assert one.plan.grow(tree_run(one, sequences, shape, hidden=hidden)) == wanted
        clear(one)


def rows_to_verify(held, trees, sampler):
    """Return the target's batch of these trees behind so many rows of each sequence."""
    tokens, seq, place, positions, parent, texts, first = ([] for _ in range(7))
    for i, (length, (ids, above)) in enumerate(zip(held, trees, strict=True)):
        root = len(tokens)
        first.append(root)
        for at, (token, up) in enumerate(zip([HISTORY[length], *ids], [None, *above], strict=True)):
            row = root if up is None else root + 1 + up
            tokens.append(int(token))
            seq.append(i)
            place.append(length + at)
            positions.append(length if up is None else positions[row] + 1)
            parent.append(-1 if up is None else row)
            before = HISTORY[:length] if up is None else texts[row]
            texts.append(np.append(before, np.int32(token)))
    n, fused = len(tokens), None
    if sampler:
        fused = FusedSampling(
            samplers=[sampler] * n,
            indices=[position + 1 for position in positions],
            texts=texts,
            n_prompt=[0] * n,
        )
    batch = CheckedBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32)[:, None],
        seq=np.array(seq, np.int32),
        place=np.array(place, np.int32),
        outputs=np.arange(n, dtype=np.int32),
        parent=np.array(parent, np.int32),
        slots={"hidden": HIDDEN[:n].copy()},
        fused_sampling=fused,
    )
    return batch, first


@pytest.mark.parametrize("sampling", [None, SAMPLINGS[1], SAMPLINGS[2], SAMPLINGS[4]])
@pytest.mark.parametrize("shape", [FIXED, GROWN], ids=["fixed", "grown"])
def test_what_verifies_runs_behind_a_tree(one, target, shape, sampling):
    """Its rows, choices and memory are those of the tree that was made."""
    assert_verified(one, target, shape, sampling)


@pytest.mark.parametrize("shape", [FIXED, DEEP], ids=["fixed", "grown"])
def test_states_go_on_along_a_tree(recurrent, shape):
    """Of what drafts and of what verifies."""
    assert_verified(*recurrent, shape, SAMPLINGS[1], k=4)


def assert_verified(one, target, shape, sampling, k=3):
    sequences = [(3, k, 0.0, SAMPLINGS[1]), (5, 2, 0.0, SAMPLINGS[0])]
    held, sampler = [2, 61], sampling and Sampler(sampling, Scratch(N_LOGITS, N_VOCAB))
    clear(target)
    for _ in range(3):
        run = tree_run(one, sequences, shape)
        places = [outline(shape, k).placeholder for _, k, *_ in sequences]
        planned = [(tree.tokens.tolist(), tree.parent.tolist()) for tree in places]
        batch, first = rows_to_verify(held, planned, sampler)
        for seq, (length, tree) in enumerate(zip(held, places, strict=True)):
            hold(target, seq, length)
            target.memory.reserve({seq: (length, length + 1 + len(tree))})
        verification = Verification(
            plan=target.plan, memory=target.memory, batch=batch, first=first
        )
        grown = one.plan.grow(msgspec.structs.replace(run, verification=verification))
        assert grown == grow_by_hand(one, sequences, shape)
        made = {name: np.array(rows) for name, rows in verification.arrays.items()}
        stored = [target.memory.digest(seq) for seq in range(2)]
        asked, _ = rows_to_verify(held, [tree[:2] for tree in grown], sampler)
        wanted = target.plan.run(asked, target.memory)
        assert {*made} == {*wanted} >= {"hidden", "logits" if sampling is None else CHOSEN}
        for name, rows in wanted.items():
            assert made[name].tobytes() == np.asarray(rows).tobytes(), name
        assert stored == [target.memory.digest(seq) for seq in range(2)]
        assert _is_same(verification.batch, asked)


def test_what_verifies_is_left_out_with_the_last_pass(one, target):
    """Though there are as many nodes as are verified: a token that is wanted once, and no other."""
    shape = TreeShape(depth=3, width=3, n_nodes=1)
    token = next(token for token in range(N_LOGITS) if token not in HISTORY[:3])
    once = Sampling(temperature=0, logit_bias={token: 20.0}, frequency_penalty=40.0)
    sequences = [(3, 3, 0.9, once)]
    for _ in range(3):
        clear(target)
        run = tree_run(one, sequences, shape)
        place = outline(shape, 3).placeholder
        planned = [(place.tokens.tolist(), place.parent.tolist())]
        batch, first = rows_to_verify([2], planned, None)
        target.feed(HISTORY[:2], seq=0, place=0, outputs=[], hidden=HIDDEN[:2])
        target.memory.reserve({0: (2, 3 + len(place))})
        told = Verification(plan=target.plan, memory=target.memory, batch=batch, first=first)
        grown = one.plan.grow(msgspec.structs.replace(run, verification=told))
        assert grown == grow_by_hand(one, sequences, shape) == [([token], [-1], True)]
        assert told.arrays is None


def rounds_of(subject, shape, sampling, p_min, length):
    """Return the trees of some rounds with two sequences, what was accepted, and digests."""
    drafter = msgspec.structs.replace(subject.spec, shape="tree", tree=shape)
    cross = subject.link(96, n_seq_max=2, n_batch=64, drafter=drafter)
    for seq in range(2):
        cross.llm.process(Batch.of(([3, 9, 4, 8] * 16)[: length + seq], seq=seq))
    for _ in range(4):
        trees = cross.draft({0: 3, 1: 2}, sampling=sampling, p_min=p_min)
        verdicts = cross.verify(trees, sampling)
        for seq in range(2):
            cross.accept(seq)
        yield trees, [verdicts[seq] for seq in range(2)], cross.digest(0), cross.digest(1)


BY_NAME = {family.name: family for family in (*FAMILIES, HYBRID)}
WITH_MEMORY = {"demo": 61}
"""Heads that remember, and lengths of texts: the memory of one passes the end of a page."""
WAYS = {
    "fixed": (FIXED, SAMPLINGS[0], 0.0),
    "fixed, p_min": (FIXED, SAMPLINGS[1], 0.03),
    "grown": (GROWN, SAMPLINGS[1], 0.0),
    "grown, p_min": (GROWN, SAMPLINGS[0], 0.02),
    "grown, penalties": (GROWN, SAMPLINGS[4], 0.0),
}
OF_HEADS = [(name, way) for name in SPECS for way in WAYS]
OF_HEADS += [("demo", "grown"), ("demo:mimo", "fixed"), ("demo:mimo", "grown")]
OF_HEADS += [("hybrid", "grown, p_min"), ("recurrent heads", "grown")]


def subject_of(name, folder):
    if name == "recurrent heads":
        return hybrid_family.subject(folder, n_heads=3)
    return BY_NAME.get(name) or written(folder, name)


@pytest.mark.parametrize(("name", "way"), OF_HEADS, ids=map(", ".join, OF_HEADS))
def test_trees_of_heads_are_those_of_the_host(emulated, name, way, tmp_path, monkeypatch):
    """Launched, recorded and replayed: what is made level by level."""
    shape, sampling, p_min = WAYS[way]
    subject, length = subject_of(name, tmp_path), WITH_MEMORY.get(name, 2)
    subject = msgspec.structs.replace(subject, backend=CudaBackend(emulated))
    grow, n_grown = TreeLoop.grow, []

    def counted(self, run):
        n_grown.append(len(run.samplers))
        return grow(self, run)

    monkeypatch.setattr(TreeLoop, "grow", counted)
    made = [*rounds_of(subject, shape, sampling, p_min, length)]
    assert n_grown == [2] * 4 * (not (name == "blind" and sampling.has_penalties))
    monkeypatch.setattr(CudaPlan, "grows_trees", False)
    assert made == [*rounds_of(subject, shape, sampling, p_min, length)]
