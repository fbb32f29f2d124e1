"""Post-heads that choose all drafts of a block at once, in passes."""

import types

import msgspec
import mtpcore_dflash
import numpy as np
import pytest
import toy
from harness import dflash
from harness.block_runs import by_the_host
from harness.dflash import VARIANTS
from harness.interrupted import Raiser, recovering

import mtpcore.models
from mtpcore import Batch, Context, Cross, Sampling, link, load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import LinkError, PluginError
from mtpcore.plugin import Block, Feed, Key, Outputs

N_VOCAB, WIDTH, SIZE = toy.N_VOCAB, toy.WIDTH, 4
TEXT = [3, 5, 8, 1, 9, 2, 11, 4]
SETTINGS = {
    "greedy": Sampling.greedy(),
    "coupled": Sampling(temperature=1.3, seed=3),
    "cut and penalised": Sampling(
        temperature=0.9, top_k=9, repetition_penalty=1.6, presence_penalty=0.7, seed=4
    ),
}
LEAST = {"greedy": 0.06, "coupled": 0.02, "cut and penalised": 0.035}
"""Probabilities that some drafts have and others have not."""


# The same post-head in both ways


def declared(name, passes):
    """Return the plugin, with one of its drafters' passes changed."""
    spec = next(spec for spec in mtpcore_dflash.mtpcore_drafters() if spec.name == name)
    changed = msgspec.structs.replace(spec.block, passes=passes)
    plugin = toy.offering(msgspec.structs.replace(spec, block=changed))
    return Registry.of(mtpcore.models, plugin)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with load_model(dflash.write_target(tmp_path_factory.mktemp("target"))) as model:
        yield model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the files of drafters, each written once."""
    made = {}

    def write(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("drafter")
            made[name] = dflash.write_drafter(folder, VARIANTS[name], seed=2)
        return made[name]

    return write


def linked(target, path, plugins=None):
    drafter = load_model(path, plugins=plugins) if plugins else load_model(path)
    return link(Context(target, 64, kv_dtype="f32", threads=1), draft_model=drafter)


def drafts_along_the_text(cross, sampling, p_min=0.0, k=4):
    """Return the drafts behind each token."""
    found = []
    for place, token in enumerate(TEXT):
        cross.llm.process(Batch.of([token], pos=place))
        found.append(cross.draft(0, k, sampling, p_min=p_min))
    return found


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["dspark", "dspark in place"])
def test_as_many_passes_as_drafts_come_to_what_row_after_row_does(name, settings, target, files):
    """Noise belongs to a place, so a token that is settled stays, sampled or not."""
    sampling = SETTINGS[settings]

    def drafts(passes, **more):
        cross = linked(target, files(name), declared("dspark", passes))
        return drafts_along_the_text(cross, sampling, **more)

    k = 4 - VARIANTS[name].first
    wanted = drafts(0, k=k)
    assert [len(ids) for ids in wanted] == [k] * len(TEXT)
    assert drafts(k, k=k) == drafts(64, k=k) == wanted
    least = LEAST[settings]
    ended = drafts(0, k=k, p_min=least)
    assert 0 < sum(map(len, ended)) < k * len(TEXT)
    assert drafts(k, k=k, p_min=least) == ended
    once = drafts(1, k=k)
    assert [ids[0] for ids in once] == [ids[0] for ids in wanted]
    assert once != wanted or settings == "coupled"  # noise decides more than the token before


def test_no_pass_follows_one_that_changed_nothing(target, files):
    cross = by_the_host(linked(target, files("dspark"), declared("dspark", 64)))
    plan, n_run = cross.contexts["draft_markov"].runner.plan, 0
    run = plan.run

    def counted(*given):
        nonlocal n_run
        n_run += 1
        return run(*given)

    plan.run = counted
    drafts_along_the_text(cross, Sampling.greedy())
    assert 2 * len(TEXT) < n_run <= 5 * len(TEXT)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["dspark", "xpress"])
def test_drafts_are_those_of_the_host(name, settings, target, files):
    """With other threads, and in batches of another size."""

    def drafts(change, threads, n_batch):
        llm = Context(target, 64, n_seq_max=3, n_batch=n_batch, kv_dtype="f32", threads=threads)
        cross = change(link(llm, draft_model=load_model(files(name))))
        for seq in range(3):
            llm.process(Batch.of(TEXT[seq:], seq=seq))
        lengths, p_min = {0: 3, 1: 1, 2: 2}, LEAST[settings]
        found = [cross.draft(lengths, sampling=SETTINGS[settings], p_min=p) for p in (0.0, p_min)]
        return found, [cross.digest(seq) for seq in range(3)]

    wanted = drafts(by_the_host, 1, 64)
    assert [*map(len, wanted[0][0].values())] == [3, 1, 2]
    for threads, n_batch in ((1, 64), (2, 64), (3, 11)):
        assert drafts(lambda cross: cross, threads, n_batch) == wanted


def test_an_interrupt_leaves_what_there_was(target, files):
    """At every few lines of a draft, and of what is undone then."""
    cross, fresh = (linked(target, files("xpress")) for _ in range(2))
    for one in (cross, fresh):
        one.llm.process(Batch.of(TEXT))
    wanted, digests, place = fresh.draft(0, 3), fresh.digest(0), 0
    while True:
        raiser = Raiser(place, place % 31)
        with recovering(raiser):
            try:
                with raiser:
                    cross.draft(0, 3)
            except KeyboardInterrupt:
                pass
        cross.journal.settle()
        assert cross.contexts["draft_refiner"].length(0) == 0
        assert cross.digest(0) == digests
        if not raiser.raised:
            break
        place += 257
    assert place > 257 * 4
    assert cross.draft(0, 3) == wanted


def test_post_heads_keep_nothing(target, files):
    cross = linked(target, files("dspark"), declared("dspark", 3))
    cross.llm.process(Batch.of(TEXT))
    drafts, digests = cross.draft(0, 4), cross.digest(0)
    assert cross.contexts["draft_markov"].length(0) == 0
    assert cross.draft(0, 4) == drafts
    assert cross.digest(0) == digests


@pytest.mark.parametrize("settings", SETTINGS)
def test_sequences_in_several_batches_draft_as_alone(settings, target, files):
    """Each of another length, and as many as fit no single batch."""
    drafter = load_model(files("dspark"), plugins=declared("dspark", 3))
    llm = Context(target, 64, n_seq_max=4, n_batch=11, kv_dtype="f32", threads=2)
    cross = link(llm, draft_model=drafter)
    for seq in range(4):
        llm.process(Batch.of(TEXT[seq:], seq=seq))
    lengths = {0: 4, 1: 1, 2: 3, 3: 2}
    together = cross.draft(lengths, sampling=SETTINGS[settings])
    assert {seq: len(ids) for seq, ids in together.items()} == lengths
    for seq, k in lengths.items():
        assert cross.draft({seq: k}, sampling=SETTINGS[settings])[seq] == together[seq]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("at_pass", [1, 2])
def test_logits_that_are_no_numbers_end_a_draft(settings, at_pass, target, files, caplog):
    """All logits of this post-head are written: they are sums of two."""
    cross = by_the_host(linked(target, files("dspark"), declared("dspark", 3)))
    cross.llm.process(Batch.of(TEXT))
    plan, n_run = cross.contexts["draft_markov"].runner.plan, 0
    run = plan.run

    def spoilt(batch, memory):
        nonlocal n_run
        n_run += 1
        arrays = run(batch, memory)
        if n_run == at_pass:
            arrays["logits"][1, 3] = np.nan
        return arrays

    plan.run = spoilt
    drafts = cross.draft(0, 4, SETTINGS[settings])
    assert len(drafts) == 1
    assert cross.paused == 1


@pytest.mark.parametrize("name", ["dspark", "dspark in place", "xpress"])
@pytest.mark.parametrize("place", range(3))
def test_rows_that_are_not_finite_end_what_passes_draft(name, place, target, files, caplog):
    """The pending token's row among them, where it only stands before the first draft."""
    plugins = None if name == "xpress" else declared("dspark", 3)
    cross = by_the_host(linked(target, files(name), plugins))
    cross.llm.process(Batch.of(TEXT))
    k = VARIANTS[name].size - VARIANTS[name].first
    wanted = cross.draft(0, k)
    plan = cross.contexts["draft"].runner.plan
    run = plan.run

    def spoilt(batch, memory):
        arrays = run(batch, memory)
        arrays["logits"][place, 3] = -np.inf
        return arrays

    plan.run = spoilt
    assert len(wanted) == k
    assert cross.draft(0, k) == wanted[: max(place - VARIANTS[name].first, 0)]
    assert cross.paused == 1
    assert "not finite" in caplog.text


# What cannot run


def of_block(g, inputs, h):
    """Read the block's rows, later ones too."""
    return chosen_by(g, inputs, g.block_mean(token(g, inputs), SIZE))


def of_rows_before(g, inputs, h):
    return chosen_by(g, inputs, g.block_mix(token(g, inputs), "blk.{n}.mixer.weight"))


def token(g, inputs):
    return g.embed(inputs.tokens, "blk.{n}.embed.weight")


def chosen_by(g, inputs, x):
    suggested = g.matmul(g.output_rows(x), "blk.{n}.head.weight")
    return Outputs(logits=g.add(g.output_rows(inputs["base"]), suggested))


def block(g, inputs, h):
    x = g.matmul(g.concat(token(g, inputs), inputs["hidden"]), "blk.{n}.join.weight")
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"))


def in_passes(build, passes):
    feeds = (
        Feed(slot="hidden", mask="blk.{n}.mask.weight"),
        Feed(slot="base", graph="post", src="draft", taps=("logits",), pairing="same-token"),
    )
    return toy.replaced(
        name="toy_passes",
        build=block,
        graphs=(("post", build),),
        shape="block",
        block=Block(size=SIZE, mask=N_VOCAB - 1, post_head="post", passes=passes),
        feeds=feeds,
        unread=(("blk.{n}.mixer.weight", "post-heads that do not mix have no use for it"),),
    )


def load(folder, spec, **keys):
    rng = np.random.default_rng(5)
    tensors = toy.trunk_tensors() | toy.head_tensors(
        mask=np.linspace(-1, 1, WIDTH, dtype=np.float32),
        mixer=rng.normal(0, 1, (SIZE, SIZE, WIDTH)).astype(np.float32),
    )
    trunk = types.ModuleType("toy_trunk")
    trunk.mtpcore_models = toy.mtpcore_models
    path = toy.write(folder / "toy.gguf", tensors, heads=1, **keys)
    return load_model(path, plugins=Registry.of(trunk, toy.offering(spec)))


@pytest.mark.parametrize(
    ("build", "passes", "what"),
    [
        (of_block, 2, "see more than they may"),
        (of_block, 0, "see more than they may"),
        (of_rows_before, 0, "see more than they may"),
    ],
)
def test_what_cannot_run_is_refused_when_linked(build, passes, what, tmp_path):
    llm = Context(load(tmp_path, in_passes(build, passes)), 32)
    with pytest.raises(LinkError, match=what):
        link(llm)
    assert llm.owner is None


def test_rows_that_see_those_before_run(tmp_path):
    """Also where each row is a block's in a graph that makes its own entries."""
    cross = link(Context(load(tmp_path, in_passes(of_rows_before, 2)), 32))
    cross.llm.process(Batch.of([5, 6, 7]))
    assert len(cross.draft(0, 8)) == SIZE


def test_passes_come_from_the_file(tmp_path, caplog):
    spec = in_passes(of_rows_before, Key("{arch}.passes", 3))
    assert load(tmp_path, spec).drafters[0].block.passes == 3
    assert load(tmp_path, spec, **{"toy.passes": 7}).drafters[0].block.passes == 7
    for wrong in (0, -1, 1 << 20):
        assert not load(tmp_path, spec, **{"toy.passes": wrong}).drafters
    assert "metadata key 'toy.passes'" in caplog.text


def test_passes_are_those_of_a_post_head():
    spec = in_passes(of_rows_before, 2)
    alone = msgspec.structs.replace(
        spec, graphs=(), feeds=spec.feeds[:1], block=Block(size=SIZE, mask=1, passes=2)
    )
    with pytest.raises(PluginError, match="passes are those of a post-head"):
        Registry.of(toy.offering(alone))


def test_a_pass_is_one_batch(target, files):
    drafter = load_model(files("dspark"), plugins=declared("dspark", 3))
    drafter.borrow_from(target)
    draft = Context(drafter, 64, graph_type="draft")
    named = {"drafter": "dspark"}
    made = {
        "llm": Context(target, 64),
        "draft": draft,
        "draft_entries": Context(drafter, 64, graph_type="entries", host=draft, **named),
        "draft_markov": Context(drafter, 64, graph_type="markov", n_batch=4, **named),
    }
    with pytest.raises(LinkError, match="a block runs in one piece"):
        Cross(**made)
