"""Graphs between the target and the graph that drafts: their rows, and acts that reach them."""

import functools

import msgspec
import numpy as np
import pytest
import toy
from harness.hashed import FUSED, WIDTH, HashBackend, HashModel
from harness.scripted import SCRIPTS, Scripted, plain

from mtpcore import Batch, Context, Cross, Generator, LinkError, Sampling, link
from mtpcore.plugin import Feed, Outputs
from mtpcore.testing.deliveries import intercept

SAMPLING = Sampling(temperature=0.9, seed=3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]


def hashed(n_batch=16, backend=None, **changes):
    model = HashModel(msgspec.structs.replace(FUSED, **changes))
    llm = Context(model, 60, n_seq_max=3, n_batch=n_batch, backend=backend or HashBackend(16))
    return link(llm)


def write(cross, n, k=3, seq=0):
    """Write n tokens with drafts."""
    made = []
    while len(made) < n:
        drafts = cross.draft(seq, k, SAMPLING)
        verdict = cross.verify({seq: drafts}, SAMPLING)[seq]
        made += [cross.pending(seq), *verdict.tokens[:-1]]
        cross.accept(seq)
    return made


def test_a_context_for_each_graph():
    cross = hashed()
    assert list(cross.contexts) == ["llm", "draft", "draft_fusion"]
    assert list(cross.drafters) == ["draft"]
    made = [(one.src, one.tap, one.dst, one.slot, one.pairing) for one in cross.links]
    assert made == [
        ("draft_fusion", "fused", "draft", "hidden", "next-token"),
        ("llm", "hidden", "draft_fusion", "taps", "same-token"),
        ("llm", "residual", "draft_fusion", "taps", "same-token"),
    ]


def test_the_second_drafter_has_graphs_of_its_own():
    """The first proposes nothing; each drafter's rows are its own."""
    llm = Context(HashModel(FUSED), 60, backend=HashBackend(16))
    cross = link(llm, [Scripted(SCRIPTS["empty"]), "hashed", "hashed"])
    assert list(cross.contexts) == ["llm", "draft2", "draft2_fusion", "draft3", "draft3_fusion"]
    llm.process(Batch.of(PROMPT))
    assert cross.draft(0, 3, SAMPLING) == plain(PROMPT, SAMPLING, 4)[1:]
    assert cross.contexts["draft2_fusion"].length(0) == len(PROMPT)
    assert cross.contexts["draft3_fusion"].length(0) == 0  # nobody asked it
    assert len(set(cross.digest(0).values())) == 3


def test_it_runs_before_drafts_and_only_for_what_is_new():
    """The double asserts that row p is made of the rows of place p."""
    backend = HashBackend(16)
    cross = hashed(backend=backend)
    fusion = cross.contexts["draft_fusion"]
    seen = []
    look = intercept(fusion, lambda batch, output: seen.append(batch.pos.tolist()))
    with look:
        cross.llm.process(Batch.of(PROMPT))
        assert fusion.length(0) == 0
        drafts = cross.draft(0, 3, SAMPLING)
        assert seen == [list(range(7))]
        assert drafts == plain(PROMPT, SAMPLING, 4)[1:]
        cross.draft(0, 3, SAMPLING)
        assert len(seen) == 1
        cross.verify({0: drafts}, SAMPLING)
        cross.accept(0, 1)
        assert fusion.length(0) == 7
        cross.draft(0, 3, SAMPLING)
        assert seen[1:] == [[7, 8]]


def test_sequences_run_together():
    cross = hashed()
    for seq in range(3):
        cross.llm.process(Batch.of(PROMPT[: seq + 2], seq=seq))
    batches = []
    look = intercept(
        cross.contexts["draft_fusion"], lambda batch, output: batches.append(len(batch))
    )
    with look:
        cross.draft({0: 2, 1: 2, 2: 2}, sampling=SAMPLING)
    assert batches == [2 + 3 + 4]


def test_chunks_of_any_size_give_the_same():
    """Prompts in pieces, more rows than a batch, drafts rejected in between."""
    digests = []
    for chunk, n_batch in ((7, 16), (1, 3), (3, 2)):
        cross = hashed(n_batch=n_batch)
        for begin in range(0, 7, chunk):
            cross.llm.process(Batch.of(PROMPT[begin : begin + chunk], pos=begin))
        assert write(cross, 20, k=n_batch - 1)[:20] == plain(PROMPT, SAMPLING, 20)
        cross.rollback(0, 20)
        digests.append(cross.digest(0))
    assert digests[0] == digests[1] == digests[2]


def test_acts_reach_it():
    cross = hashed()
    cross.llm.process(Batch.of(PROMPT))
    write(cross, 9)
    tokens = cross.tokens(0)
    cross.fork(0, 2)
    assert cross.digest(2) == cross.digest(0)
    cross.rollback(0, 5)
    assert cross.contexts["draft_fusion"].length(0) == 5
    assert cross.links.inboxes("draft")["hidden"].length(0) == 5
    cross.llm.process(Batch.of(tokens[5:], pos=5))
    assert cross.digest(0) == cross.digest(2)
    cross.remove(0)
    assert [one.length(0) for one in cross.contexts.values()] == [0, 0, 0]
    write_on = plain(PROMPT, SAMPLING, 24)
    assert write(cross, 6, seq=2)[:6] == write_on[len(tokens) - 7 : len(tokens) - 1]


def test_rows_that_were_read_are_given_up():
    """Of the wide rows of the taps nothing stays; those of the drafter's slot do."""
    cross = hashed()
    cross.llm.process(Batch.of(PROMPT))
    write(cross, 9)
    cross.draft(0, 3, SAMPLING)
    n = cross.llm.length(0)
    taps = cross.links.inboxes("draft_fusion")["taps"]
    assert (taps.length(0), taps.get(0, n, n).shape) == (n, (0, 2 * WIDTH))
    with pytest.raises(LinkError, match="missing"):
        taps.get(0, n - 1, n)
    assert cross.links.inboxes("draft")["hidden"].get(0, 0, n).shape == (n, WIDTH)


def test_a_row_that_is_not_finite_ends_what_is_made(caplog):
    cross = hashed()
    for seq in (0, 1):
        cross.llm.process(Batch.of(PROMPT, seq=seq))
    inbox = cross.links.inboxes("draft_fusion")["taps"]
    rows = inbox.get(0, 4, 7)
    rows[0, 1] = np.nan
    inbox.put(0, 4, rows)
    drafts = cross.draft({0: 3, 1: 3}, sampling=SAMPLING)
    assert (len(drafts[0]), len(drafts[1]), cross.paused) == (0, 3, 1)
    assert "sequence 0, place 5" in caplog.text
    assert cross.contexts["draft_fusion"].length(0) == 4
    cross.digest(0)
    assert cross.contexts["draft"].length(0) == 5
    cross.rollback(0, 4)
    cross.llm.process(Batch.of(PROMPT[4:], pos=4))
    assert cross.draft(0, 3, SAMPLING) == drafts[1]


def test_fed_rows_of_joined_taps():
    cross, other = hashed(), hashed()
    for one in (cross, other):
        made = one.llm.process(Batch.of(PROMPT))
    rows = np.concatenate([made.tap("hidden"), made.tap("residual")], axis=1)
    other.feed("llm", ("hidden", "residual"), 0, 0, rows)
    assert other.draft(0, 3, SAMPLING) == cross.draft(0, 3, SAMPLING)
    with pytest.raises(LinkError, match="nothing reads"):
        other.feed("llm", ("residual", "hidden"), 0, 0, rows)
    with pytest.raises(LinkError, match="nothing reads"):
        other.feed("llm", "hidden", 0, 0, rows)


def test_contexts_made_by_hand():
    def contexts(**roles):
        model = HashModel(FUSED)
        make = functools.partial(Context, model, 60, backend=HashBackend(16))
        kinds = {name: {"graph_type": kind, "drafter": "hashed"} for name, kind in roles.items()}
        return {"llm": make(), **{name: make(**kind) for name, kind in kinds.items()}}

    cross = Cross(**contexts(draft_fusion="fusion", draft="draft"))
    cross.llm.process(Batch.of(PROMPT))
    linked = hashed()
    linked.llm.process(Batch.of(PROMPT))
    assert cross.digest(0) == linked.digest(0)  # whichever role is asked first
    assert cross.draft(0, 3, SAMPLING) == plain(PROMPT, SAMPLING, 4)[1:]
    for wrong in ({"draft": "draft"}, {"draft": "draft", "draft_fusion": "draft"},
                  {"draft": "draft", "fusion": "fusion"}):  # fmt: skip
        with pytest.raises(LinkError, match="no context") as caught:
            Cross(**contexts(**wrong))
        assert "in the role draft_fusion" in caught.value.wanted
    mixed = contexts(draft="draft") | {"draft_fusion": contexts(f="fusion")["f"]}
    with pytest.raises(LinkError, match="no context"):
        Cross(**mixed)
    small = contexts(draft="draft", draft_fusion="fusion")
    small["draft_fusion"].runner.n_ctx = 59
    with pytest.raises(LinkError, match="smaller than the target's") as caught:
        Cross(**small)
    assert caught.value.where == "draft_fusion"


FUSION = Feed(slot="taps", graph="fusion", pairing="same-token")
MAIN = Feed(slot="hidden", src="fusion", taps=("fused",), recycle="carry")


@pytest.mark.parametrize(
    "feeds",
    [
        (FUSION, Feed(slot="hidden", recycle="carry")),
        (MAIN, msgspec.structs.replace(FUSION, src="draft")),
        (MAIN, msgspec.structs.replace(FUSION, src="fusion", taps=("fused",))),
        (MAIN, msgspec.structs.replace(FUSION, pairing="next-token")),
        (MAIN, msgspec.structs.replace(FUSION, recycle="fused")),
    ],
    ids=["unread", "reads the drafts", "reads itself", "reads the row before", "recycles"],
)
def test_graphs_that_cannot_run_first_are_refused(feeds):
    with pytest.raises(LinkError, match="cannot run before") as caught:
        hashed(feeds=feeds)
    assert "graph 'fusion'" in caught.value.where


def test_rows_narrower_than_the_slot():
    with pytest.raises(LinkError, match="narrower than the slot"):
        hashed(feeds=(MAIN, FUSION))


def scaled(factor, name):
    def build(g, inputs, h):
        return Outputs(**{name: g.scale(inputs["rows"], factor)})

    return build


def head_of_two(g, inputs, h):
    """The toy's head on half of one slot and half of another; reads positions nowhere."""
    halves = [g.scale(inputs[slot], 0.5) for slot in ("hidden", "again")]
    token = g.embed(inputs.tokens, "blk.{n}.embed.weight")
    x = g.matmul(g.concat(token, g.add(*halves)), "blk.{n}.join.weight")
    x = g.rms_norm(x, "blk.{n}.norm.weight", toy.EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"), hidden=x)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_several_graphs_and_feeds(tmp_path, backend):
    """Doubled, halved again, and joined with the row itself: the drafts of the plain head."""
    spec = toy.replaced(
        name="two",
        build=head_of_two,
        graphs=(("halved", scaled(0.5, "half")), ("doubled", scaled(2.0, "twice"))),
        feeds=(
            Feed(slot="again", src="halved", taps=("half",), recycle="hidden"),
            Feed(slot="hidden", recycle="hidden"),
            Feed(slot="rows", graph="halved", src="doubled", taps=("twice",), pairing="same-token"),
            Feed(slot="rows", graph="doubled", pairing="same-token"),
        ),
    )
    model = toy.load(tmp_path, {**toy.trunk_tensors(), **toy.head_tensors()}, spec, heads=1)
    made = {}
    for name in ("toy_head", "two"):
        llm = Context(model, 64, backend=backend, kv_dtype="f32", threads=1, n_seq_max=2)
        cross = link(llm, name)
        generator = Generator(cross, sampling=SAMPLING, draft=3)
        requests = [generator.add(p, max_tokens=20) for p in ([1, 2, 3], [7, 8])]
        while generator.active:
            generator.step()
        stats = generator.stats
        made[name] = [r.tokens for r in requests], stats.accepted_per_position, stats.drafted
    assert list(cross.contexts) == ["llm", "draft", "draft_halved", "draft_doubled"]
    assert made["two"] == made["toy_head"]
