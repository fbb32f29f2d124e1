"""Rows that are no plain chain of tokens: embeddings, several axes, draft trees; and views."""

import gc
import tracemalloc

import numpy as np
import pytest
import toy
from harness import seer
from harness.hashed import START, HashBackend, HashModel, advance, logits_of, read_tag
from harness.scripted import cross_of
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.cross import link
from mtpcore.decoding import Generator
from mtpcore.errors import BatchError
from mtpcore.memory import PAGE
from mtpcore.plugin import Outputs
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.prompt import Image, Prompt
from mtpcore.sampling import Sampling

BACKENDS = ["reference", "cpu"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seer")
    return {name: seer.load(folder, name, 3) for name in ("line", "plane")}


def context(model, backend, **settings):
    return Context(model, 200, backend=backend, **{"kv_dtype": "f32", "threads": 1, **settings})


@pytest.mark.parametrize("backend", BACKENDS)
def test_embedding_rows_take_the_place_of_tokens(models, backend):
    """A token's own embedding as a row gives the token's bits, mixed with tokens in one batch."""
    model, tokens = models["line"], np.array([3, 9, 4, 1, 5], np.int32)
    table = model.tensors["token_embd.weight"].array()
    by_token, by_row = context(model, backend), context(model, backend, n_batch=2)
    wanted = by_token.process(Batch.of(tokens, outputs="all"))
    mixed = np.where([True, False, True, False, False], tokens, -1).astype(np.int32)
    made = by_row.process(Batch(mixed, embeddings=table[tokens], outputs="all"))
    assert np.array_equal(made.logits, wanted.logits)
    assert by_row.digest(0) == by_token.digest(0)
    with pytest.raises(BatchError, match="another width"):
        by_row.process(Batch(embeddings=np.zeros((1, 3)), pos=5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_on_several_axes(models, backend):
    """Equal numbers on both axes are one number; others turn other halves; places still count."""
    model, tokens = models["plane"], [3, 9, 4, 1]
    first, second, third = (context(model, backend) for _ in range(3))
    flat = first.process(Batch.of(tokens, outputs="all"))
    both = np.repeat(np.arange(4)[:, None], 2, axis=1)
    assert np.array_equal(
        second.process(Batch(tokens, pos=both, outputs="all")).logits, flat.logits
    )
    grid = np.array([[0, 0], [0, 1], [0, 1], [5, 0]])
    made = third.process(Batch(tokens, pos=grid, outputs="all"))
    assert np.array_equal(made.logits[0], flat.logits[0])
    assert np.abs(made.logits[3] - flat.logits[3]).max() > 1e-4
    assert made.place.tolist() == [0, 1, 2, 3]
    assert third.length(0) == 4
    third.process(Batch(tokens[:1], pos=[[6, 6]]))
    for pos in ([[7, 7, 7]], [[-1, 0]], [[0, 200]]):
        with pytest.raises(BatchError):
            third.process(Batch([1], pos=pos))
        assert third.length(0) == 5


def paths_of(parent):
    """Return each row's path from the root, rows counted in the batch."""
    paths = []
    for row, above in enumerate(parent):
        paths.append([*(paths[above] if above >= 0 else []), row])
    return paths


@searching(25)
@given(
    data=st.data(),
    start=st.sampled_from([0, 3, PAGE - 2]),
    n=st.integers(1, 9),
    backend=st.sampled_from(BACKENDS),
)
def test_a_draft_tree_is_every_one_of_its_paths(models, data, start, n, backend):
    """Each row's logits are those of the chain of its ancestors; what is kept is that chain."""
    model = models["line"]
    parent = [data.draw(st.integers(-1, row - 1)) for row in range(n)]
    tokens = data.draw(st.lists(st.integers(0, 63), min_size=n, max_size=n))
    paths = paths_of(parent)
    prompt = list(range(start))
    tree = context(model, backend)
    if start:
        tree.process(Batch.of(prompt))
    pos = [start + len(path) - 1 for path in paths]
    made = tree.process(Batch(tokens, pos=pos, parent=parent, outputs="all"))
    for row, path in enumerate(paths):
        chain = context(model, backend)
        kept = [tokens[i] for i in path]
        alone = chain.process(Batch.of(prompt + kept, outputs="all")).logits[-1]
        assert np.array_equal(alone, made.logits[row])
    with pytest.raises(BatchError, match="undecided"):
        tree.process(Batch.of([1], pos=start + n))
    with pytest.raises(BatchError, match="undecided"):
        tree.fork(0, 0)
    for length in range(start + 1, start + n + 1):  # a part of a tree is no text
        with pytest.raises(BatchError, match="undecided"):
            tree.rewind(0, length)
    path = data.draw(st.sampled_from([[], *paths]))
    tree.keep(0, path)
    chain = context(model, backend)
    text = prompt + [tokens[i] for i in path]
    if text:
        chain.process(Batch.of(text))
    assert tree.digest(0) == chain.digest(0)
    assert tree.length(0) == len(text)
    more = Batch.of([5, 6], pos=len(text))
    assert np.array_equal(tree.process(more).logits, chain.process(more).logits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_paths_that_are_none_and_a_tree_that_begins_the_text(models, backend):
    tree, chain = context(models["line"], backend), context(models["line"], backend)
    with pytest.raises(BatchError, match="continue"):
        tree.process(Batch([1, 2, 3], pos=[7, 7, 8], parent=[-1, -1, 1]))
    tree.process(Batch([1, 2, 3], pos=[0, 0, 1], parent=[-1, -1, 1]))
    for path in ([2, 1], [0, 3], [-1], [0.0], [True], [[0]]):
        with pytest.raises(BatchError):
            tree.keep(0, path)
    tree.keep(0, [1, 2])
    chain.process(Batch.of([2, 3]))
    assert tree.digest(0) == chain.digest(0)
    assert tree.length(0) == 2


def test_embedding_rows_pause_drafters_visibly(tmp_path, caplog):
    """A drafter that keeps tokens cannot follow them: plain decoding, said and counted."""

    def build(g, inputs, h):
        out = toy.head(g, inputs, h)
        x = g.split_heads(out.rows["hidden"], 2)
        x = g.merge_heads(g.attention(x, x, x, layer=g.n, scale=0.25))
        return Outputs(logits=out.logits, hidden=x)

    keeping = toy.replaced(name="keeping", build=build, acceptance=(0.9, 1.0))
    tensors = {**toy.trunk_tensors(), **toy.head_tensors()}
    model = toy.load(tmp_path, tensors, keeping, heads=1)
    cross = link(context(model, "reference", n_seq_max=2))
    picture = np.random.default_rng(0).normal(size=(4, toy.WIDTH))
    cross.llm.process(Batch([1, 2, -1, -1], embeddings=picture, seq=0))
    cross.llm.process(Batch.of([1, 2], seq=1))
    before = cross.digest(0)
    drafts = cross.draft({0: 3, 1: 3})
    assert (len(drafts[0]), len(drafts[1])) == (0, 3)
    assert cross.paused == 1
    assert "sequence 0, place 2" in caplog.text
    cross.verify(drafts)
    cross.accept(0)
    assert cross.tokens(0)[:4] == [1, 2, -1, -1]
    assert cross.digest(0) != before
    cross.rollback(0, 2)
    cross.llm.process(Batch.of([3], seq=0, pos=2))
    assert len(cross.draft(0, 3)) == 3


# Taps whatever the split, and views that stay as they were


@pytest.mark.parametrize("backend", BACKENDS)
def test_taps_do_not_depend_on_the_split(models, backend):
    model, tokens = models["line"], np.random.default_rng(1).integers(0, 64, 13)
    wanted = context(model, backend, taps=["hidden", "residual"]).process(Batch.of(tokens))
    for n_batch in range(1, 14):
        made = context(model, backend, taps=["hidden", "residual"], n_batch=n_batch)
        found = made.process(Batch.of(tokens, outputs="last"))
        for tap in ("hidden", "residual"):
            assert found.tap(tap).shape == (13, seer.WIDTH)
            assert np.array_equal(found.tap(tap), wanted.tap(tap))
        assert np.array_equal(found.logits, wanted.logits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_somebody_holds_is_never_overwritten(models, backend):
    made = context(models["line"], backend, n_seq_max=2, taps=["hidden"])
    held = [made.process(Batch.of([s, 2, 3], seq=s, outputs="all")) for s in (0, 1)]
    copies = [(o.logits.copy(), o.tap("hidden").copy()) for o in held]
    for step in range(5):
        made.process(Batch([7, 8], seq=[0, 1], pos=[3 + step] * 2, outputs="all"))
    for output, (logits, hidden) in zip(held, copies, strict=True):
        assert np.array_equal(output.logits, logits)
        assert np.array_equal(output.tap("hidden"), hidden)
        assert not output.logits.flags.writeable


def test_rows_of_many_small_batches_are_each_sequences_own():
    """Split batches of several sequences; the double computes in buffers that it poisons."""
    for n_batch in (1, 2, 3, 5, 64):
        cross, _ = cross_of("head", n_batch=n_batch, skill=16)
        rng = np.random.default_rng(n_batch)
        states = [[START] for _ in range(4)]
        held = []
        for _ in range(6):
            seqs, tokens = rng.integers(0, 4, 9), rng.integers(0, 13, 9)
            pos, wanted = [], []
            for seq, token in zip(seqs.tolist(), tokens.tolist(), strict=True):
                pos.append(len(states[seq]) - 1)
                states[seq].append(advance(states[seq][-1], token))
                wanted.append((states[seq][-1], pos[-1]))
            held.append(
                (cross.llm.process(Batch(tokens, seq=seqs, pos=pos, outputs="all")), wanted)
            )
        ready = [seq for seq in range(4) if len(states[seq]) > 2]
        drafts = cross.draft(dict.fromkeys(ready, 3))
        verdicts = cross.verify(drafts)
        assert all(v.accepted == 3 for v in verdicts.values())
        for output, wanted in held:
            assert list(map(read_tag, output.tap("hidden"))) == wanted
            assert np.array_equal(output.logits, [logits_of(state) for state, _ in wanted])


# Closing and leaks


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_goes_first(tmp_path, backend):
    """Model closed, target dropped, or Cross dropped first: what is left runs or says why."""
    model = seer.load(tmp_path, "line")
    llm = context(model, backend, n_seq_max=2)
    cross = link(llm, [])
    generator = Generator(cross, sampling=Sampling.greedy())
    wanted = list(generator.generate([1, 2], max_tokens=5))
    out = llm.process(Batch.of([1, 2]))
    copy = out.logits.copy()
    del llm, cross
    gc.collect()
    assert list(generator.generate([1, 2], max_tokens=5)) == wanted
    model.close()
    model.close()
    del generator, model
    gc.collect()
    assert np.array_equal(out.logits, copy)


def grown(make, n):
    """Return the bytes that ``n`` rounds of making leave behind.

    Automatic collection is off meanwhile: while another thread is in one, ``gc.collect`` of this
    one returns at once and has collected nothing.
    """
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            make()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(n):
            make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_thousand_links_leave_nothing():
    """Counted by what the collector knows, which is quicker than tracing every byte."""
    model, backend = HashModel(), HashBackend()

    def objects(n):
        for _ in range(n):
            cross = link(Context(model, 8, n_batch=4, backend=backend))
            cross.llm.process(Batch.of([1]))
        gc.collect()
        return len(gc.get_objects())

    before = objects(100)
    assert objects(1000) - before < 100


@pytest.mark.parametrize("backend", BACKENDS)
def test_contexts_of_a_file_leave_nothing(models, backend):
    def make():
        context(models["line"], backend).process(Batch.of([1, 2]))

    assert grown(make, 200) < 64_000


def test_what_a_batch_was_given_may_change_afterwards():
    """A batch and a prompt have copies: whoever made them may fill the same arrays again."""
    arrays = {
        "tokens": np.array([-1, 4], np.int32),
        "embeddings": np.ones((2, 3), np.float32),
        "seq": np.array([0, 1], np.int32),
        "pos": np.array([5, 6], np.int32),
        "outputs": np.array([True, False]),
        "parent": np.array([-1, -1], np.int32),
        "until": np.array([7, 8], np.int32),
    }
    hidden, codes = np.ones((2, 3), np.float32), np.ones((2, 4), np.int32)
    batch = Batch(**arrays, codes=codes, slots={"hidden": hidden})
    for array in (*arrays.values(), hidden, codes):
        held = [*vars(batch).values(), *batch.slots.values()]
        assert not any(np.shares_memory(array, one) for one in held if isinstance(one, np.ndarray))
    rows = np.ones((6, 3), np.float32)
    prompt = Prompt([1], Image(rows, nx=3, ny=2))
    rows[:] = 0
    assert prompt.embeddings is not None
    assert (prompt.embeddings[1:] == 1).all()
