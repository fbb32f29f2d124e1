"""Trees on the device: rankings, the best of candidates, and rounds beside their definition."""

import numpy as np
import pytest
from harness.head_runs import HIDDEN, HISTORY, IDS, clear
from harness.hybrids import hybrid
from harness.search import searching
from harness.verifications import check_verified, with_verification
from hypothesis import example, given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head, random_tensors

from mtpcore.backends.base import CheckedBatch, FusedSampling
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.choice import Choice
from mtpcore.backends.cuda.drafts import DraftLoop
from mtpcore.backends.cuda.launch.passes import DRAFT
from mtpcore.backends.cuda.launch.step import start
from mtpcore.backends.cuda.launch.trees import NODE, RANKED, SELECTION, take_best
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import Pass, Schedule, Text
from mtpcore.declarations.spec import TreeShape
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_levels
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
    Sampling(temperature=0, frequency_penalty=-2.0),  # wants what there was
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
    device, logits = backend.device, rows_of(seed, n_logits)
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
    choosing, parts = choice.take(wanted, n_ranks=n_ranks)
    for values, target in parts:
        device.upload(values, target)
    start(device, choice.launches(choosing))
    n_bytes = n * n_ranks * RANKED.itemsize
    made = np.frombuffer(device.read(choice.rankings, 0, n_bytes), RANKED).reshape(n, n_ranks)
    for i in range(n):
        found = sampler.rank(logits[i], TEXT[: i + 1], 1, 7 * i, min(n_ranks, n_logits), ids)
        m = len(found[0])
        for name, column in zip(("token", "probability", "share"), found, strict=True):
            assert made[i][name][:m].tobytes() == column.tobytes(), (i, name)
        assert (made[i]["token"][m:] == -1).all()


@searching(25)
@given(st.integers(0, 999), st.booleans())
def test_the_best_are_taken(backend, seed, goes_on):
    """The best one first, of equal ones the first; to go on, those that can be read."""
    rng, device, n_tokens = np.random.default_rng(seed), backend.device, 2
    drafts, nodes = np.zeros(500, DRAFT), np.zeros(500, NODE)
    drafts["token"][:400] = rng.integers(-1, 4, 400)
    drafts["token"][400:] = -1
    drafts["is_open"] = rng.integers(0, 2, 500)
    nodes["worth"] = rng.choice([0.0, 0.25, 0.5, 1.0], 500)
    nodes["kept"], nodes["best_of"] = rng.integers(0, 99, 500), range(500)
    sizes = [(1, 2), (12, 5), (380, 60)]
    order, at, listed, selections, wanted = rng.permutation(400), 0, [], [], {}
    best = iter(range(400, 500))
    for n, most in sizes:
        candidates, at = order[at : at + n], at + n
        into = [next(best) for _ in range(most)]
        selections.append((len(listed), n, most, goes_on))
        listed += [*candidates, *into]
        able = [i for i in candidates if 0 <= drafts["token"][i] < (n_tokens if goes_on else 9)]
        able.sort(key=lambda i: -nodes["worth"][i])
        wanted |= dict(zip(into, able, strict=False))
    arrays = [
        device.upload(np.array(of, dtype))
        for of, dtype in (
            (selections, SELECTION), (listed, np.int32), (drafts, DRAFT), (nodes, NODE)
        )
    ]  # fmt: skip
    start(device, [take_best(*arrays, len(sizes), n_tokens)])
    made = [device.download(array, 500) for array in arrays[2:]]
    for draft in range(400, 500):
        of = wanted.get(draft, draft)
        assert made[0][draft] == drafts[of]
        assert made[1][draft] == nodes[of]
    assert (made[0][:400] == drafts[:400]).all()


def broken():
    """Return a graph whose hidden rows of some tokens are not finite, and its logits are."""
    tensors = random_tensors(
        5, embd=(N_VOCAB, WIDTH), added=(N_VOCAB, WIDTH), head=(N_LOGITS, WIDTH)
    )
    values = tensors["added.weight"].array().copy()
    values[::3, 5] = np.inf
    tensors["added.weight"] = type(tensors["added.weight"])(values)
    g = GraphBuilder("broken", tensors, slots={"hidden": WIDTH})
    x = g.output_rows(g.embed(g.inputs.tokens, "embd.weight"))
    hidden = g.add(g.inputs["hidden"], g.embed(g.inputs.tokens, "added.weight"))
    return g.finish(Outputs(g.matmul(x, "head.weight"), hidden=hidden)), Weights(tensors)


@pytest.fixture(scope="module")
def graphs(emulated):
    made = {
        "remembers": head(seed=9),
        "windowed": head(seed=4, window=3),
        "broken": broken(),
        "recurrent": hybrid(),
    }
    return {name: Runner(CudaBackend(emulated), *one, n_batch=80) for name, one in made.items()}


def scheduled(one, shape, texts, *, has_ids, bad):
    """Return the schedule of trees of [(tokens, levels, room, p_min, sampling)].

    Recurrent layers have read the tokens before the last one: they log rows of drafts.
    """
    scratch, program = Scratch(N_LOGITS, N_VOCAB + 3), one.plan.program
    is_fed, n_tokens = "hidden" in program.slots(), program.n_embeddings
    feeds = {"hidden": ("hidden",)} if is_fed else {}
    built = draft_levels(
        RoundInput(
            wanted=[levels for _, levels, *_ in texts],
            room=[room for _, _, room, *_ in texts],
            programs=[program],
            feeds=feeds,
            tree=shape,
        )
    )
    spans = [range(n - 1 if program.states else 0, n) for n, *_ in texts]
    for seq, span in enumerate(spans):
        if span.start:
            one.feed(HISTORY[: span.start] % n_tokens, seq=seq, place=0, outputs=[])
        if one.memory is not None:
            _, ahead = built.ahead.get(0, {}).get(seq, (0, 0))
            one.memory.reserve({seq: (span.start, span.stop + ahead)})
    place = np.concatenate(spans).astype(np.int32)
    hidden = HIDDEN[place].copy()
    hidden[bad : bad + 1] = np.nan
    lengths = [*map(len, spans)]
    batch = CheckedBatch(
        tokens=HISTORY[place] % n_tokens,
        positions=place[:, None].copy(),
        seq=np.repeat(np.arange(len(texts)), lengths).astype(np.int32),
        place=place,
        outputs=np.cumsum(lengths, dtype=np.int32) - np.int32(1),
        slots={slot: hidden for slot in feeds},
    )
    return Schedule(
        round=built,
        passes=[Pass(plan=one.plan, memory=one.memory, batch=batch)],
        texts=[
            Text(Sampler(sampling, scratch), HISTORY[:n], 1, n, p_min)
            for n, *_, p_min, sampling in texts
        ],
        token_ids=IDS if has_ids else None,
    )


paths = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=7
)
shapes = st.one_of(
    st.builds(
        TreeShape, depth=st.integers(1, 4), width=st.integers(1, 4), n_nodes=st.integers(1, 12)
    ),
    paths.map(lambda drawn: TreeShape(paths=tuple(drawn))),
)


GROWN = TreeShape(depth=3, width=3, n_nodes=9)
DEEP = TreeShape(depth=4, width=4, n_nodes=12)
FIXED = TreeShape(paths=((1,), (0, 0), (0, 2), (2, 0), (0, 0, 1), (2, 0, 0)))


@searching(20)
@example("broken", GROWN, [(3, 3, 16, 0.0, SAMPLINGS[1]), (2, 3, 16, 0.0, SAMPLINGS[0])], False, 99)
@example("remembers", GROWN, [(4, 3, 9, 0.02, SAMPLINGS[4]), (1, 2, 3, 0.0, SAMPLINGS[1])], True, 2)
@example(
    "windowed", FIXED, [(5, 3, 16, 0.0, SAMPLINGS[2]), (2, 3, 16, 0.02, SAMPLINGS[0])], False, 99
)
@example(
    "recurrent", DEEP, [(3, 4, 16, 0.0, SAMPLINGS[0]), (2, 4, 16, 0.0, SAMPLINGS[0])], False, 99
)
@given(
    st.sampled_from(["remembers", "windowed", "broken", "recurrent"]),
    shapes,
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 4),
            st.integers(0, 16),
            st.sampled_from([0.0, 0.0, 0.02, 0.1]),
            st.sampled_from(SAMPLINGS),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.integers(0, 20),
)
def test_trees_are_those_of_the_definition(graphs, name, shape, texts, has_ids, bad):
    """Launched, recorded and replayed."""
    one, found = graphs[name], []
    for run in (run_schedule, *[one.plan.run_schedule] * 3):
        schedule = scheduled(one, shape, texts, has_ids=has_ids, bad=bad)
        known = DraftLoop(one.plan).order(schedule) is not None
        assert known == bool(schedule.round.drafts)
        found.append(run(schedule))
        if one.memory is not None:
            clear(one)
    assert found[1:] == found[:1] * 3


@pytest.fixture(scope="module")
def targets(emulated):
    made = {
        "attends": head(seed=77),
        "windowed": head(seed=78, window=4),
        "recurrent": hybrid(seed=7),
        "recurrent alone": hybrid(seed=8, attends=False),
    }
    return {name: Runner(CudaBackend(emulated), *one, n_batch=80) for name, one in made.items()}


@searching(20)
@example("attends", GROWN, [(3, 3, 16, 0.0, SAMPLINGS[1]), (2, 3, 9, 0.0, SAMPLINGS[0])], None)
@example("windowed", FIXED, [(5, 3, 16, 0.0, SAMPLINGS[0])], SAMPLINGS[6])
@example("attends", GROWN, [(2, 3, 9, 0.0, SAMPLINGS[1])], SAMPLINGS[6])
@example("recurrent", DEEP, [(3, 4, 16, 0.0, SAMPLINGS[0])] * 2, SAMPLINGS[1])
@example("attends", GROWN, [(4, 3, 16, 0.4, SAMPLINGS[1])], SAMPLINGS[0])
@given(
    st.sampled_from(["attends", "windowed", "recurrent", "recurrent alone"]),
    shapes,
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 4),
            st.integers(0, 16),
            st.sampled_from([0.0, 0.0, 0.0, 0.02]),
            st.sampled_from(SAMPLINGS),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, *SAMPLINGS]),
)
def test_trees_are_verified_behind_their_drafts(graphs, targets, name, shape, texts, sampling):
    """As if the host had known them; launched, recorded and replayed."""
    one = graphs["recurrent" if "recurrent" in name else "remembers"]  # as many tokens
    target, held = targets[name], [2, 63, 4][: len(texts)]
    for _ in range(3):
        schedule = scheduled(one, shape, texts, has_ids=False, bad=99)
        schedule, batch = with_verification(schedule, target, held, sampling)
        drafted = one.plan.run_schedule(schedule)
        wanted = [drafted.tokens[n] for its in schedule.round.verified.values() for n in its]
        assert check_verified(schedule, batch, drafted) == (min(wanted, default=-1) >= 0)
        clear(one)
        clear(target)
