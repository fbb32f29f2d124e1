"""Links that are not a drafter's, and rows that come from elsewhere."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from harness import seer
from harness.hashed import SOURCES, SPEC, HashBackend, HashModel, read_tag
from harness.scripted import Scripted, cross_of, plain

from mtpcore.cross import Cross, link
from mtpcore.declarations.spec import Feed, Link
from mtpcore.errors import BatchError, GraphError, LinkError, MtpcoreError
from mtpcore.graph import GraphType
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

PICTURE = Link(src="eye", tap="hidden", dst="llm", slot="picture", pairing="same-token")
GREEDY = Sampling.greedy()


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    return request.param


def context(model, backend, **settings):
    return Context(model, 64, backend=backend, **{"kv_dtype": "f32", "threads": 1, **settings})


@pytest.fixture
def seeing(tmp_path, backend):
    """A Cross of an encoder and a language model, and a function that makes its like."""
    eye, llm = seer.load(tmp_path, "eye", 1), seer.load(tmp_path, "seer", 2)

    def make(*proposers):
        roles = {f"draft{i}": one for i, one in enumerate(proposers)}
        cross = Cross(
            llm=context(llm, backend, n_seq_max=3),
            eye=context(eye, backend, n_seq_max=3, graph_type=GraphType.ENCODER),
            **roles,
        )
        cross.connect(PICTURE)
        return cross

    return make


def look(cross, seq, n=20, seed=5):
    """Let the encoder see n patches; return its rows."""
    patches = np.random.default_rng([seed, seq]).normal(size=(n, seer.WIDTH))
    batch = Batch(embeddings=patches, seq=seq, outputs="none")
    return cross.contexts["eye"].process(batch).tap("hidden")


def test_an_encoder_feeds_a_language_model(seeing, backend):
    """Row p meets token p, for interleaved sequences and any split."""
    cross, tokens = seeing(), np.arange(12, dtype=np.int32)
    rows = [look(cross, seq) for seq in range(3)]
    free = context(cross.llm.model, backend, n_seq_max=3)
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        part = np.tile(tokens[begin:end], 3)
        seqs = np.repeat([2, 0, 1], end - begin)
        pos = np.tile(np.arange(begin, end), 3)
        given = np.concatenate([rows[s][begin:end] for s in (2, 0, 1)])
        made = cross.llm.process(Batch(part, seq=seqs, pos=pos, outputs="all"))
        wanted = free.process(
            Batch(part, seq=seqs, pos=pos, outputs="all", slots={"picture": given})
        )
        assert np.array_equal(made.logits, wanted.logits)
    assert [cross.llm.digest(s) for s in range(3)] == [free.digest(s) for s in range(3)]


def test_a_missing_row_is_named_and_nothing_changes(seeing):
    cross = seeing()
    look(cross, 1, n=4)
    cross.llm.process(Batch.of([1, 2, 3], seq=1))
    before = cross.digest(1)
    with pytest.raises(LinkError) as caught:
        cross.llm.process(Batch.of([4, 5], seq=1, pos=3))
    assert "sequence 1, place 4" in caught.value.where
    assert cross.digest(1) == before
    with pytest.raises(LinkError, match="missing"):
        cross.llm.process(Batch.of([4], seq=0))
    cross.llm.process(Batch.of([4], seq=1, pos=3))


def test_acts_reach_the_encoder_too(seeing):
    cross = seeing(Scripted(lambda truth, k: [1, 2, 3][:k]))
    look(cross, 0)
    cross.llm.process(Batch.of([1, 2, 3]))
    for _ in range(3):
        cross.verify({0: cross.draft(0, 3)})
        cross.accept(0)
    tokens = cross.tokens(0)
    cross.fork(0, 2)
    assert cross.digest(2) == cross.digest(0)
    cross.rollback(0, 4)
    assert cross.contexts["eye"].length(0) == 20
    cross.llm.process(Batch.of(tokens[4:], pos=4))
    assert cross.digest(0) == cross.digest(2)
    cross.remove(0)
    assert [c.length(0) for c in cross.contexts.values()] == [0, 0]
    with pytest.raises(LinkError, match="missing"):
        cross.llm.process(Batch.of([1]))
    look(cross, 0, seed=6)
    cross.llm.process(Batch.of(tokens))
    assert cross.digest(0) != cross.digest(2)
    fresh = seeing()
    look(fresh, 0, seed=6)
    fresh.llm.process(Batch.of(tokens))
    assert fresh.digest(0) == cross.digest(0)


def test_rows_of_an_outside_engine(seeing):
    """Fed rows, as arrays and by DLPack, do what the encoder's own would have done."""
    inside, outside = seeing(), seeing()
    rows = look(inside, 1)
    outside.feed("eye", "hidden", 1, 0, rows[:7])
    outside.feed("eye", "hidden", 1, 7, Foreign(rows[7:]))
    for cross in (inside, outside):
        cross.llm.process(Batch.of(range(20), seq=1))
    assert outside.llm.digest(1) == inside.llm.digest(1)


def test_no_rows_replace_none():
    """An engine that made nothing this time changes nothing, wherever it says so."""
    cross, _ = cross_of("head")
    cross.llm.process(Batch.of([1, 2, 3, 4]))
    inbox = next(iter(cross.links._inboxes.values()))
    held = inbox.get(0, 0, 4)
    for place in range(5):
        cross.feed("llm", "hidden", 0, place, np.zeros((0, 4), np.float32))
    with pytest.raises(LinkError, match="another width"):
        cross.feed("llm", "hidden", 0, 4, np.zeros((0, 5), np.float32))
    assert inbox.length(0) == 4
    assert np.array_equal(inbox.get(0, 0, 4), held)


class Foreign:
    """Rows of another library: only DLPack is spoken."""

    def __init__(self, rows):
        self.rows = rows.copy()

    def __dlpack__(self, **options):
        return self.rows.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.rows.__dlpack_device__()


def test_taps_are_views_for_outside_engines():
    cross, _ = cross_of("head")
    made = cross.llm.process(Batch.of([1, 2, 3])).tap("hidden")
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 0
    copied = np.array(made)
    assert copied.flags.writeable
    cross.llm.process(Batch.of([4, 5], pos=3))
    assert np.array_equal(made, copied)


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="older NumPy has no read-only DLPack"
)
def test_taps_and_logits_are_shared_by_dlpack():
    """What another library gets is the very memory, read-only, and never written again."""
    cross, _ = cross_of("head")
    output = cross.llm.process(Batch.of([1, 2, 3], outputs="all"))
    for made in (output.tap("hidden"), output.logits):
        shared, copied = np.from_dlpack(made), made.copy()
        assert np.shares_memory(shared, made)
        assert not shared.flags.writeable
        cross.llm.process(Batch.of([4, 5], seq=1))
        cross.remove(1)
        assert np.array_equal(shared, copied)


def test_a_drafter_on_fed_rows_drafts_as_on_delivered_ones():
    """The rows of a prompt come from outside; the pairing is the same."""
    cross, _ = cross_of("head", skill=16)
    rows = cross.llm.process(Batch.of([3, 1, 4])).tap("hidden")
    drafts = cross.draft(0, 4)
    cross.feed("llm", "hidden", 0, 0, rows)
    assert cross.draft(0, 4) == drafts
    cross.feed("llm", "hidden", 0, 0, rows[:2])
    cross.contexts["draft"].runner.sequences.rewind(0, 0)
    with pytest.raises(LinkError) as caught:
        cross.draft(0, 4)
    assert "sequence 0, place 2" in caught.value.where


def test_several_drafters_on_one_target():
    """The first that proposes drafts; all keep up with what was accepted."""
    prompt, sampling = [3, 1, 4], Sampling(temperature=0.8, seed=4)
    truth = plain(prompt, sampling, 40)
    every_second = Scripted(lambda t, k: t[:k] if len(t) % 2 else [], [[*prompt, *truth]])
    cross, _ = cross_of(every_second, "head", skill=16)
    cross.llm.process(Batch.of(prompt))
    made = []
    while len(made) < 30:
        drafts = cross.draft(0, 2, sampling)
        assert len(drafts) == 2
        verdict = cross.verify({0: drafts}, sampling)[0]
        assert verdict.accepted == 2
        made += [cross.pending(0), *drafts]
        cross.accept(0)
    assert made == truth[: len(made)]
    assert every_second.calls > 0
    fresh, _ = cross_of("head")
    fresh.llm.process(Batch.of([*prompt, *made]))
    assert cross.contexts["draft2"].digest(0) == fresh.contexts["draft"].digest(0)
    assert cross.llm.digest(0) == fresh.llm.digest(0)


def test_what_cannot_be_connected(seeing, tmp_path, backend):
    cross = seeing()
    links = [
        ({"src": "ear"}, "no such role"),
        ({"dst": "ear"}, "no such role"),
        ({"slot": "sound"}, "no such slot"),
        ({"src": "llm", "tap": "residual"}, "one source"),
        ({"pairing": "next-token"}, "one pairing"),
        ({}, "wider than the slot"),
        ({"tap": "layer_input:7"}, "does not offer"),
    ]
    taps = {name: c.taps for name, c in cross.contexts.items()}
    for changes, what in links:
        with pytest.raises(MtpcoreError, match=what):
            cross.connect(Link(**{**as_dict(PICTURE), **changes}))
        assert {name: c.taps for name, c in cross.contexts.items()} == taps
    with pytest.raises(LinkError, match="another Cross"):
        Cross(llm=cross.llm)
    with pytest.raises(LinkError, match="every sequence"):
        Cross(
            llm=context(cross.llm.model, backend, n_seq_max=3),
            eye=context(cross.contexts["eye"].model, backend, graph_type="encoder"),
        )


def as_dict(one):
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_linking_a_context_that_holds_tokens():
    llm = Context(HashModel(), 40, backend=HashBackend())
    llm.process(Batch.of([1, 2]))
    with pytest.raises(LinkError) as caught:
        link(llm)
    assert "link before the first process()" in caught.value.fix
    assert llm.owner is None
    assert llm.taps == ()
    llm.remove(0)
    link(llm)


def test_rows_from_before_the_link_are_unknown_and_say_so(caplog):
    """A context made with the taps may hold tokens: those sequences decode plainly, visibly."""
    llm = Context(HashModel(), 40, n_seq_max=2, backend=HashBackend(), taps=["hidden"])
    llm.process(Batch.of([1, 2]))
    cross = link(llm)
    llm.process(Batch.of([3], pos=2))
    assert cross.draft(0, 3) == []
    assert cross.paused == 1
    assert "sequence 0, place 0" in caplog.text
    cross.verify({0: []})
    cross.accept(0)
    llm.process(Batch.of([5], seq=1))
    assert len(cross.draft(1, 3)) == 3


def test_rows_that_are_not_finite_pause_the_drafter(caplog):
    """Reported once, counted, and no other sequence is touched."""
    cross, _ = cross_of("head", skill=16)
    for seq in (0, 1):
        cross.llm.process(Batch.of([1, 2, 3], seq=seq))
    inbox = cross.links.inboxes("draft")["hidden"]
    row = inbox.get(0, 2, 3)
    row[0, 1] = np.inf
    inbox.put(0, 2, row)
    drafts = cross.draft({0: 3, 1: 3})
    assert drafts[0] == []
    assert len(drafts[1]) == 3
    assert cross.paused == 1
    assert "sequence 0, place 3" in caplog.text
    cross.verify(drafts)
    cross.accept(0)
    assert cross.contexts["draft"].length(0) <= 3
    with pytest.raises(BatchError, match="finite"):
        cross.feed("llm", "hidden", 0, 2, row)


def test_rows_of_a_pass_that_are_not_finite_are_known_where_they_wait():
    """Of sequences that have some of its rows each, neighbours or not."""
    cross, _ = cross_of("head", skill=16)
    inbox = cross.links.inboxes("draft")["hidden"]
    hidden = np.ones((7, inbox.width), np.float32)
    hidden[[1, 2, 5], 0] = np.nan
    output = SimpleNamespace(as_computed=lambda tap: hidden, place=np.array([0, 1, 1, 2, 0, 1, 2]))
    cross.links.post("llm", output, {0: np.array([0, 2, 3]), 1: np.array([4, 5, 6])})
    for seq in (0, 1):
        assert inbox.finite_until(seq, 0, 3) == 1
        assert inbox.finite_until(seq, 2, 3) == 3


def test_each_entry_is_paired_with_the_row_before_its_token():
    """Over prefill in chunks, drafts, rejection and a fork; the first token has no entry."""
    cross, backend = cross_of("head", skill=8)
    cross.llm.process(Batch.of([1, 2, 3, 4], seq=3))
    cross.llm.process(Batch.of([5, 6], seq=3, pos=4))
    for _ in range(4):
        cross.verify({3: cross.draft(3, 3)})
        cross.accept(3)
    cross.fork(3, 0)
    cross.verify({s: cross.draft(s, 2) for s in (0, 3)})
    tokens = cross.tokens(3)
    seen = {place: (token, hidden) for token, place, hidden in backend.pairs if place < 6}
    assert sorted(seen) == [1, 2, 3, 4, 5]
    assert [seen[p][0] for p in sorted(seen)] == tokens[1:6]
    inbox = cross.links.inboxes("draft")["hidden"]
    for place, (_, hidden) in seen.items():
        assert (hidden, place - 1) == read_tag(inbox.get(3, place - 1, place)[0])


@pytest.mark.parametrize("tap", ["hidden", "residual"])
def test_a_tap_is_what_was_declared(tap):
    """Its rows are linked and read, not those of another tap; what is not there is named."""
    feed = Feed(slot="hidden", taps=(tap,), recycle="carry")
    backend = HashBackend(skill=16)
    model = HashModel(msgspec.structs.replace(SPEC, feeds=(feed,)))
    cross = link(Context(model, 40, backend=backend))
    assert [(one.src, one.tap, one.slot) for one in cross.links] == [("llm", tap, "hidden")]
    output = cross.llm.process(Batch.of([3, 1, 4]))
    rows = cross.links.inboxes("draft")["hidden"].get(0, 0, 3)
    assert np.array_equal(rows, output.tap(tap))
    assert set(rows[:, 3]) == {SOURCES[tap]}
    cross.draft(0, 3)  # two rows of the prompt, the pending token, and two drafts
    assert backend.sources == [SOURCES[tap]] * 3 + [SOURCES["carry"]] * 2
    other = {"hidden": "residual", "residual": "hidden"}[tap]
    with pytest.raises(LinkError, match="nothing reads this tap"):
        cross.feed("llm", other, 0, 0, rows)
    with pytest.raises(LinkError, match="wider"):
        cross.connect(Link(src="llm", tap=other, dst="draft", slot="hidden"))
    with pytest.raises(LinkError, match="no such slot"):
        cross.connect(Link(src="llm", tap=tap, dst="draft", slot="residual"))


@pytest.mark.parametrize("tap", ["layer_input:0", "before_the_norm"])
def test_a_tap_that_the_target_does_not_supply(tap):
    """Refused by name when it is linked; the context is as it was."""
    feed = Feed(slot="hidden", taps=(tap,), recycle="carry")
    model = HashModel(msgspec.structs.replace(SPEC, feeds=(feed,)))
    llm = Context(model, 40, backend=HashBackend())
    with pytest.raises(GraphError, match=tap):
        link(llm)
    assert llm.owner is None
    assert llm.taps == ()


def test_roles_that_do_not_fit_leave_no_links():
    """A drafter before them was linked already: contexts are as if nobody had tried."""
    backend = HashBackend()
    llm = Context(HashModel(), 64, backend=backend)
    draft = Context(HashModel(), 64, backend=backend, graph_type=GraphType.DRAFT)
    small = Context(HashModel(), 32, backend=backend, graph_type=GraphType.DRAFT)
    for wrong in (small, 5):
        with pytest.raises(LinkError):
            Cross(llm=llm, draft=draft, draft2=wrong)
        for one in (llm, draft, small):
            assert (one.owner, one.runner.deliver) == (None, None)
            assert one.taps == ()
            assert one.runner.sources == {}
    assert Cross(llm=llm, draft=draft).drafters.keys() == {"draft"}
