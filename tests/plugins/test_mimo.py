"""MiMo-7B and MiMo-V2 against references that other engines computed, from the checkpoint on."""

import numpy as np
import pytest
from harness.fixtures import counts, model_file, references
from harness.reference_model import GREEDY, Published
from harness.scripted import run

from mtpcore import Batch, Context, Generator, link
from mtpcore.errors import CapacityError, LinkError
from mtpcore.gguf import open_model_file
from mtpcore.graph import GraphType

F16_TIE = 0.02
"""Keys and values rounded to f16 may choose differently where the two best are as close."""
MIMO, MIMO2 = Published("mimo-14"), Published("mimo2-15", tap="residual")
both = pytest.mark.parametrize("family", [MIMO, MIMO2], ids=lambda one: one.name)
backends = pytest.mark.parametrize("backend", ["cpu", "reference"])


@pytest.fixture(scope="module")
def models():
    found = {family: family.model() for family in (MIMO, MIMO2)}
    yield found
    for model in found.values():
        model.close()


def test_declared_sizes(models):
    h = models[MIMO2].hparams
    assert (h.n_layers, h.n_drafter_blocks, h.rotary_axes) == (4, 3, 1)
    assert [kind.window for kind in h.kinds] == [0, 40, 40, 0, 40, 40, 40]
    assert [kind.n_kv_heads for kind in h.kinds] == [2, 4, 4, 2, 4, 4, 4]
    assert [d.name for d in models[MIMO].drafters] == ["mimo_mtp"]
    assert models[MIMO2].drafters[0].name == "mimo2_mtp"
    assert models[MIMO2].drafters[0].limit == 3


@both
@backends
def test_numbers(models, family, backend):
    family.check_numbers(models[family], backend)


@both
@pytest.mark.parametrize("draft", [0, 1, 3])
def test_texts_and_acceptance(models, family, draft):
    stats = family.check_texts(models[family], "cpu", draft)
    if draft:
        assert abs(stats.acceptance - family.rate(draft)) < 0.02


@both
def test_f16_keys_and_values(models, family):
    """The text of f32 ones up to the first choice between two that were nearly as good."""
    refs = references(family.name)
    llm = family.context(models[family], kv_dtype="f16", n_seq_max=6)
    generator = Generator(link(llm), sampling=GREEDY, draft=3)
    wanted = refs["greedy"]
    made = [
        generator.add(p.tolist(), max_tokens=wanted.shape[1], ignore_eos=True)
        for p in refs["prompts"]
    ]
    run(generator)
    ends = []
    for i, request in enumerate(made):
        near = np.flatnonzero(refs["greedy_margin"][i] < F16_TIE)
        ends.append(near[0] if len(near) else wanted.shape[1])
        assert request.tokens[: ends[-1]] == wanted[i, : ends[-1]].tolist()
    assert sum(ends) > 100


@both
def test_texts_on_the_reference(models, family):
    family.check_texts(models[family], "reference", 3, n=1)


@both
def test_drafts(models, family):
    table = family.draft_table(models[family])
    family.check_drafts(table)
    for k in range(1, table.shape[2] + 1):
        if (wanted := counts(family.name).get(f"k={k}")) is None:
            continue
        steps, per_position = family.count(table, k)
        assert abs(steps - wanted["verify_steps"]) <= 2
        differ = np.abs(np.array(per_position) - wanted["accepted_per_position"])
        assert differ.max() <= 2


@both
def test_drafts_on_the_reference(models, family):
    family.check_drafts(family.draft_table(models[family], "reference", n=1))


def test_the_published_join_is_turned_round():
    """Files of this convention join [token, hidden]; the checkpoint's columns are swapped."""
    safetensors = pytest.importorskip("safetensors")
    from harness.fixtures import checkpoint

    with safetensors.safe_open(checkpoint("mimo-14") / "model.safetensors", "numpy") as file:
        published = file.get_tensor("model.mtp_layers.0.input_proj.weight")
    with open_model_file(model_file("mimo-14")) as made:
        stored = made.tensors["blk.6.nextn.eh_proj.weight"].array()
    half = published.shape[1] // 2
    assert np.array_equal(stored[:, :half], published[:, half:].astype(np.float32))
    assert np.array_equal(stored[:, half:], published[:, :half].astype(np.float32))


# Sliding windows and heads with memories of their own


def text():
    """288 tokens: seven windows."""
    return references("mimo2-15")["prompts"].reshape(-1)


def linked(model, drafter="auto", n_ctx=512, **settings):
    return link(Context(model, n_ctx, **{"threads": 2, "n_seq_max": 2, **settings}), drafter)


@pytest.mark.parametrize("drafter", ["mimo2_mtp", "mimo2_mtp_target_fed", "mimo2_mtp_first_head"])
def test_every_head_holds_the_accepted_text_alone(models, drafter):
    """Drafts at every few places, accepted or not; at page edges and window edges of every role."""
    model, place = models[MIMO2], 30
    tokens = text()[:place].tolist()
    plain = Generator(Context(model, 512, threads=2), sampling=GREEDY)
    tokens += plain.generate(tokens, max_tokens=220, ignore_eos=True)
    rng = np.random.default_rng(0)
    cross = linked(model, drafter)
    cross.llm.process(Batch.of(tokens[:place], seq=0))
    n_compared = 0
    while place < 240:
        cross.pending(0, GREEDY)
        cross.draft(0, 3)
        ids = tokens[place + 1 : place + 4]
        m = int(rng.integers(0, 4))
        if m < 3:
            ids[m] = (ids[m] + 1) % model.hparams.n_vocab
        assert cross.verify({0: ids})[0].accepted == m
        cross.accept(0)
        place = cross.llm.length(0)
        if place % 64 in (0, 1, 2, 62, 63) or place % 40 < 2:
            fresh = linked(model, drafter, n_batch=33)
            fresh.llm.process(Batch.of(cross.tokens(0), seq=1))
            assert cross.digest(0) == fresh.digest(1)
            n_compared += 1
    assert n_compared > 10


@pytest.mark.parametrize("n_batch", [1, 7, 64, 512])
def test_long_prompts_in_any_pieces(models, n_batch):
    """Every layer's window is filled several times; rows and states are the same to the bit."""
    tokens = text()
    one = linked(models[MIMO2])
    wanted = one.llm.process(Batch.of(tokens, outputs="all")).logits
    other = linked(models[MIMO2], n_batch=n_batch)
    assert np.array_equal(other.llm.process(Batch.of(tokens, outputs="all")).logits, wanted)
    assert other.digest(0) == one.digest(0)
    assert other.draft(0, 3) == one.draft(0, 3)


def test_going_back_beyond_the_windows_is_refused_for_all_roles(models):
    cross = linked(models[MIMO2], n_batch=16)
    cross.llm.process(Batch.of(text(), seq=0))
    cross.draft(0, 3)
    before = cross.digest(0)
    with pytest.raises(CapacityError, match="role llm: sequence 0, place 60") as caught:
        cross.rollback(0, 100)
    assert "process its tokens again" in caught.value.fix
    assert cross.digest(0) == before
    assert len(cross.tokens(0)) == len(text())
    cross.rollback(0, len(text()) - 60)
    fresh = linked(models[MIMO2])
    fresh.llm.process(Batch.of(text()[:-60], seq=0))
    assert cross.digest(0) == fresh.digest(0)


def test_forks_and_removals_reach_every_head(models):
    cross = linked(models[MIMO2])
    cross.llm.process(Batch.of(text()[:100], seq=0))
    drafts = cross.draft(0, 3)
    cross.fork(0, 1)
    assert cross.digest(0) == cross.digest(1)
    cross.pending(1, GREEDY)
    assert cross.draft(1, 3) == drafts
    cross.llm.process(Batch.of(text()[:20], seq=0, pos=100))
    cross.remove(0)
    empty = linked(models[MIMO2])
    assert cross.digest(0) == empty.digest(0)
    fresh = linked(models[MIMO2])
    fresh.llm.process(Batch.of(text()[:100], seq=0))
    assert cross.digest(1) == fresh.digest(0)


def test_contexts_made_by_hand(models):
    model = models[MIMO2]
    spec = model.find_drafter("mimo2_mtp")

    def roles(*heads):
        contexts = {
            "draft" if head == 0 else f"draft_head{head}": Context(
                model, 128, graph_type=GraphType.DRAFT, drafter=spec, head=head
            )
            for head in heads
        }
        return {"llm": Context(model, 128, taps=["residual"]), **contexts}

    from mtpcore import Cross

    cross, linked_cross = Cross(**roles(0, 1, 2)), linked(model, n_ctx=128)
    for one in (cross, linked_cross):
        one.llm.process(Batch.of(text()[:60], seq=0))
    assert cross.draft(0, 3) == linked_cross.draft(0, 3)
    assert cross.digest(0).keys() == {"llm", "draft", "draft_head1", "draft_head2"}
    with pytest.raises(LinkError, match="head 2 in the role draft_head2"):
        Cross(**roles(0, 1))


def test_target_fed_heads_restated(models):
    """SGLang's way: head t meets token p with the target's row p - 1 - t, for every place."""
    model, n = models[MIMO2], 70
    cross = linked(model, "mimo2_mtp_target_fed", kv_dtype="f32")
    rows = cross.llm.process(Batch.of(text()[:n], seq=0)).tap("residual")
    drafts = cross.draft(0, 3)
    tokens = [*text()[:n].tolist(), cross.pending(0)]
    for head in range(3):
        alone = Context(
            model,
            128,
            graph_type=GraphType.DRAFT,
            drafter="mimo2_mtp_target_fed",
            head=head,
            kv_dtype="f32",
        )
        first = 1 + head
        batch = Batch(tokens[first:], pos=first, slots={"hidden": rows[: len(tokens) - first]})
        assert len(batch) == n
        assert int(alone.process(batch).logits[0].argmax()) == drafts[head]
        tokens.append(drafts[head])


def test_first_head_restated(models):
    """vLLM's way: one head, fed its own normed state."""
    model, n = models[MIMO2], 70
    cross = linked(model, "mimo2_mtp_first_head", kv_dtype="f32")
    rows = cross.llm.process(Batch.of(text()[:n], seq=0)).tap("residual")
    drafts = cross.draft(0, 3)
    alone = Context(
        model, 128, graph_type=GraphType.DRAFT, drafter="mimo2_mtp_first_head", kv_dtype="f32"
    )
    tokens, fed = [*text()[1:n].tolist(), cross.pending(0)], rows
    for place, draft in zip((1, n + 1, n + 2), drafts, strict=True):
        out = alone.process(Batch(tokens, pos=place, slots={"hidden": fed}))
        assert int(out.logits[0].argmax()) == draft
        tokens, fed = [draft], out.tap("hidden")[-1:]


def test_heads_that_look_back_further_than_the_text(models):
    """A text shorter than a head's first entry gets the drafts of the heads before it."""
    cross = linked(models[MIMO2], "mimo2_mtp_target_fed")
    lengths = []
    for place in range(5):
        cross.llm.process(Batch.of(text()[place : place + 1], pos=place))
        cross.pending(0, GREEDY)
        lengths.append(len(cross.draft(0, 3)))
    assert lengths == [3] * 5
    cross.rollback(0, 1)
    assert [cross.contexts[role].length(0) for role in cross.contexts] == [1, 0, 0, 0]
    fresh = linked(models[MIMO2], "mimo2_mtp_target_fed")
    fresh.llm.process(Batch.of(text()[:1]))
    assert cross.digest(0) == fresh.digest(0)


@pytest.mark.parametrize("back", ["sliding_window", "sliding_window_size"])
def test_the_window_in_a_configuration(back):
    """``sliding_window_size`` alone is so many places before the row; files count the row too."""
    from mtpcore_mimo_mtp.checkpoint import window

    from mtpcore.plugin import Config

    assert window(Config({back: 128})) == (128 if back == "sliding_window" else 129)
    assert window(Config({"sliding_window": 128, "sliding_window_size": 128})) == 128
