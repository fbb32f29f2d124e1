"""Positions on several axes: text after images and audio, and everything that goes back."""

import numpy as np
import pytest
from harness import seer
from harness.originals import take_apart
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import Batch, Context, DraftTree, Generator, Sampling
from mtpcore.runtime.sequences import Sequences

BACKENDS = ["reference", "cpu"]


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """A trunk whose pairs are rotated by four axes."""
    return seer.load(tmp_path_factory.mktemp("seer"), "space", 3)


def context(model, backend="cpu", **settings):
    return Context(model, 300, backend=backend, kv_dtype="f32", threads=1, **settings)


def image_positions(p, nt, ny, nx):
    """Return the positions of an image's or a video's rows, row by row, as engines number them."""
    t, y, x = np.indices((nt, ny, nx)).reshape(3, -1)
    return np.stack([p + t, p + y, p + x, 0 * t], axis=1)


def audio_positions(p, n):
    i = p + np.arange(n)
    return np.stack([i, i, i, 0 * i], axis=1)


class Written:
    """All rows of a sequence, each with its position: what a context is to hold."""

    def __init__(self):
        self.rows, self.positions = np.zeros((0, seer.WIDTH), np.float32), np.zeros((0, 4), int)

    def add(self, rows, positions):
        self.rows = np.concatenate([self.rows, rows])
        self.positions = np.concatenate([self.positions, positions])

    def cut(self, n):
        self.rows, self.positions = self.rows[:n], self.positions[:n]

    def held_by(self, made, seq=0):
        """Check a sequence against a new context that was given each row with its position."""
        n = len(self.rows)
        fresh = context(made.model, made.backend)
        logits = []
        for one, s in ((made, seq), (fresh, 0)):
            if one is fresh and n:
                one.process(Batch(embeddings=self.rows, pos=self.positions, outputs="none"))
            logits.append(one.explore(Batch.of([7, 8], seq=s, pos=n, outputs="all")).logits)
        assert made.length(seq) == n
        assert made.next_position(seq) == fresh.next_position(0)
        assert made.digest(seq) == fresh.digest(0)
        assert np.array_equal(*logits)


sides = st.integers(1, 4)
parts = st.one_of(
    st.tuples(st.just("text"), st.integers(1, 9)),
    st.tuples(st.just("image"), st.integers(1, 2), sides, sides),
    st.tuples(st.just("audio"), sides),
    st.tuples(st.just("rewind"), st.floats(0, 1)),
    st.tuples(st.just("fork")),
    st.tuples(st.just("save")),
    st.tuples(st.just("fail")),
)


@searching(30)
@given(st.lists(parts, min_size=1, max_size=8), st.sampled_from(BACKENDS), st.sampled_from([5, 64]))
def test_text_goes_on_after_the_largest_position(space, script, backend, n_batch):
    """After p that is p + max(nt, ny, nx) for an image, p + n for audio and text."""
    made, written = context(space, backend, n_seq_max=2, n_batch=n_batch), Written()
    table = space.tensors["token_embd.weight"].array()
    rng, seq = np.random.default_rng(1), 0
    for kind, *numbers in script:
        p, n = made.next_position(seq), made.length(seq)
        if kind == "text":
            tokens = rng.integers(0, seer.N_VOCAB, numbers[0])
            made.process(Batch.of(tokens, seq=seq, pos=n))
            written.add(table[tokens], np.repeat(p + np.arange(numbers[0])[:, None], 4, axis=1))
            assert made.next_position(seq) == p + numbers[0]
        elif kind in ("image", "audio"):
            positions = (image_positions if kind == "image" else audio_positions)(p, *numbers)
            rows = rng.normal(size=(len(positions), seer.WIDTH)).astype(np.float32)
            made.process(Batch(embeddings=rows, seq=seq, pos=positions))
            written.add(rows, positions)
            assert made.next_position(seq) == p + max(numbers)
        elif kind == "rewind":
            made.rewind(seq, int(numbers[0] * n))
            written.cut(int(numbers[0] * n))
        elif kind == "fork":
            made.remove(1 - seq)
            made.fork(seq, 1 - seq)
            made.remove(seq)
            seq = 1 - seq
        elif kind == "save":
            saved = made.save(seq)
            made = context(space, backend, n_seq_max=2, n_batch=n_batch)
            made.load(seq, saved)
        else:
            with pytest.raises(mtpcore.BatchError):
                made.process(Batch([1, 64], seq=seq, pos=[[200] * 4] * 2))
    written.held_by(made, seq)


@searching(20)
@given(st.data(), st.sampled_from(BACKENDS))
def test_a_path_of_a_tree_goes_on_after_its_own_rows(space, data, backend):
    """Rows of a tree that have positions of their own, and then one that has not."""
    made, written = context(space, backend), Written()
    table = space.tensors["token_embd.weight"].array()
    for own in (True, False):
        begin, p = made.length(0), made.next_position(0)
        parent = [data.draw(st.integers(-1, row - 1)) for row in range(4)]
        paths = [[]]
        for row, above in enumerate(parent):
            paths.append([*paths[above + 1], row])
        depth = np.array([len(path) - 1 for path in paths[1:]])
        positions = np.repeat(p + depth[:, None], 4, axis=1)
        if own:
            positions[:, 1] += data.draw(st.integers(0, 5))
        made.process(Batch([1, 2, 3, 4], pos=positions if own else begin + depth, parent=parent))
        path = data.draw(st.sampled_from(paths))
        made.keep(0, path)
        written.add(table[[1, 2, 3, 4]][path], positions[path])
    written.held_by(made)


def test_what_was_noted_can_be_forked_and_taken_back():
    sequences = Sequences(2, None, 4)
    image = image_positions(0, 1, 2, 5)
    sequences.extend({0: (0, 10), 1: (0, 10)}, {0: image}, branching=False)
    assert [sequences.next_position(seq) for seq in (0, 1)] == [5, 10]
    assert sequences.digest(0) != sequences.digest(1)
    sequences.rewind(1, 0)
    sequences.fork(0, 1)
    assert sequences.next_position(1) == 5
    assert sequences.digest(0) == sequences.digest(1)
    sequences.rewind(1, 0)
    saved = sequences.save()
    sequences.rewind(0, 3)
    sequences.extend({0: (3, 5), 1: (0, 10)}, {0: image[:2] + 50, 1: image}, branching=True)
    sequences.decide(0, [1])()
    assert [sequences.next_position(seq) for seq in (0, 1)] == [52, 10]
    for _ in range(2):
        sequences.restore(saved)
        assert [sequences.next_position(seq) for seq in (0, 1)] == [5, 0]
        sequences.rewind(0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_after_an_image(space, backend):
    """Drafts are verified, accepted and taken back where the text would have gone without them."""
    table = space.tensors["token_embd.weight"].array()
    image = np.random.default_rng(5).normal(size=(12, seer.WIDTH)).astype(np.float32)
    cross = mtpcore.link(context(space, backend), [])
    written = Written()
    cross.llm.process(Batch.of([3, 4]))
    cross.llm.process(Batch(embeddings=image, pos=image_positions(2, 1, 3, 4)))
    cross.llm.process(Batch.of([5], pos=14))
    written.add(table[[3, 4]], np.repeat(np.arange(2)[:, None], 4, axis=1))
    written.add(image, image_positions(2, 1, 3, 4))
    written.add(table[[5]], np.full((1, 4), 6))
    plain = context(space, backend)
    logits = plain.process(Batch(embeddings=written.rows, pos=written.positions)).logits
    text = []
    for place in range(15, 23):
        text.append(int(logits[-1].argmax()))
        logits = plain.process(Batch([text[-1]], pos=[[place - 8] * 4])).logits
    greedy = Sampling.greedy()
    assert cross.pending(0, greedy) == text[0]
    wrong = (text[2] + 1) % seer.N_VOCAB
    assert cross.verify({0: [text[1], wrong, 3]}, greedy)[0].tokens == tuple(text[1:3])
    cross.accept(0)
    tree = DraftTree([wrong, text[3], text[4]], [-1, -1, 1])
    assert cross.verify({0: tree}, greedy)[0].tokens == tuple(text[3:6])
    cross.accept(0)
    written.add(table[text[:5]], np.repeat(np.arange(7, 12)[:, None], 4, axis=1))
    assert cross.tokens(0)[-5:] == text[:5]
    assert cross.llm.next_position(0) == 12
    assert cross.draft(0, 3) == []  # there is nothing that drafts
    cross.rollback(0, 16)
    assert cross.llm.next_position(0) == 8
    cross.rollback(0, 9)  # within the image, whose largest position so far is 5
    assert cross.llm.next_position(0) == 6
    written.cut(9)
    written.held_by(cross.llm)


@pytest.mark.parametrize(("name", "head"), [("demo", None), ("demo:eagle3", "demo:eagle3-draft")])
def test_text_on_four_axes_is_text_on_one(tmp_path, name, head):
    """Generator, drafters and links: where all axes are equal nothing may differ."""
    parts = take_apart(name)
    sections = np.array([2, 3, 1, 1], np.int32)
    parts.metadata[f"{parts.architecture}.rope.dimension_sections"] = sections
    found = []
    for path in (name, parts.write(tmp_path / "four.gguf")):
        llm = Context(mtpcore.load_model(path), 128, n_seq_max=3, n_batch=8)
        cross = mtpcore.link(llm, draft_model=head and mtpcore.load_model(head))
        generator = Generator(cross, sampling=Sampling(seed=1), draft=3)
        requests = [generator.add([5, 6, 7 + i], max_tokens=30, ignore_eos=True) for i in (0, 1)]
        while generator.active:
            generator.step()
        found.append(([r.tokens for r in requests], generator.stats.accepted, llm.program.n_axes))
    assert (found[0][2], found[1][2]) == (1, 4)
    assert found[0][:2] == found[1][:2]
    assert found[0][1] > 0
