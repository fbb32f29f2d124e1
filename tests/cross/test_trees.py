"""Draft trees in a Cross: the way through them, and that what was not taken leaves no trace."""

from contextlib import nullcontext

import numpy as np
import pytest
from harness import seer
from harness.hashed import N_VOCAB, Planted
from harness.scripted import assert_fresh, cross_of, plain, trees_around
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, Context, Cross, DraftTree, Sampling
from mtpcore.cross import speculation
from mtpcore.errors import BatchError, CapacityError, LinkError
from mtpcore.testing.deliveries import intercept

PROMPT = [3, 1, 4]
SAMPLINGS = [
    Sampling.greedy(),
    Sampling(temperature=0.7, seed=3, stream=2),
    Sampling(temperature=1.5, seed=8, repetition_penalty=1.4, frequency_penalty=0.3),
]


@searching(60)
@given(
    data=st.data(),
    samplings=st.permutations(SAMPLINGS * 2),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    n_batch=st.sampled_from([10, 14, 64]),
)
def test_trees_beside_chains_and_prompts(data, samplings, lengths, n_batch):
    """One batch of all kinds: texts are plain decoding's, states those of the accepted tokens."""
    cross, _ = cross_of("head", n_batch=n_batch)
    prompts = [list(range(n)) for n in lengths]
    samplings = dict(enumerate(samplings[:3]))
    truths = [plain(p, samplings[s], 60) for s, p in enumerate(prompts)]
    for seq, prompt in enumerate(prompts):
        cross.llm.process(Batch.of(prompt, seq=seq))
    made = [0] * len(prompts)
    late = data.draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=2, max_size=12))
    for step in range(3):
        drafts = {}
        for seq, truth in enumerate(truths):
            ahead = truth[made[seq] + 1 :]
            kind = data.draw(st.sampled_from(["tree", "tree", "chain", "head", "none"]))
            drafts[seq] = {
                "tree": lambda ahead=ahead: data.draw(trees_around(ahead)),
                "chain": lambda ahead=ahead: [*ahead[:2], 0],
                "head": lambda seq=seq: cross.draft(seq, 3, samplings[seq]),
                "none": list,
            }[kind]()
        prefill = {3: late[4 * step : 4 * step + 4]}
        verdicts = cross.verify(drafts, samplings, prefill=prefill)
        for seq, verdict in verdicts.items():
            ahead = truths[seq][made[seq] + 1 :]
            assert list(verdict.tokens) == ahead[: verdict.accepted + 1]
            assert verdict.next_token == verdict.tokens[-1]
            assert len(verdict.path) == verdict.accepted
            if isinstance(drafts[seq], DraftTree):
                follow = [drafts[seq].tokens[node] for node in verdict.path]
                assert follow == list(verdict.tokens[:-1])
                last = verdict.path[-1] if verdict.path else -1
                below = drafts[seq].tokens[drafts[seq].children(last)]
                assert verdict.next_token not in below
            n = data.draw(st.integers(0, verdict.accepted))
            cross.accept(seq, n)
            made[seq] += 1 + n
            assert cross.pending(seq) == truths[seq][made[seq]]
    for seq, prompt in enumerate(prompts):
        assert_fresh(cross, seq, prompt + truths[seq][: made[seq]])
    assert_fresh(cross, 3, late[:12])


def ready(**settings):
    cross, backend = cross_of("head", **settings)
    cross.llm.process(Batch.of(PROMPT))
    return cross, backend, plain(PROMPT, SAMPLINGS[1], 90)


def around(ahead, n=3):
    """The truth on the second branch of each level."""
    tokens, parent, above = [], [], -1
    for token in ahead[:n]:
        tokens += [(token + 1) % N_VOCAB, token]
        parent += [above, above]
        above = len(tokens) - 1
    return DraftTree(tokens, parent)


def test_only_the_rows_of_the_path_reach_a_link(monkeypatch):
    """The inbox of a drafter after each act: a row for each token of the text, and no other."""
    cross, _, truth = ready()
    (box,) = cross.links.inboxes("draft").values()
    cross.draft(0, 2, SAMPLINGS[1])
    seen = []

    def look(*arguments, match_drafts=speculation.match_drafts):
        seen.append(box.length(0))
        return match_drafts(*arguments)

    monkeypatch.setattr(speculation, "match_drafts", look)
    verdict = cross.verify({0: around(truth[1:])}, SAMPLINGS[1])[0]
    assert seen == [len(PROMPT)]  # nothing before the way is known
    assert verdict.path == (1, 3, 5)
    fresh, _ = cross_of("head")
    fresh.llm.process(Batch.of([*PROMPT, *truth[:4]]))
    (wanted,) = fresh.links.inboxes("draft").values()
    assert box.length(0) == len(PROMPT) + 4
    assert np.array_equal(box.get(0, 0, 7), wanted.get(0, 0, 7))
    cross.accept(0, 1)
    assert box.length(0) == len(PROMPT) + 2
    assert np.array_equal(box.get(0, 0, 5), wanted.get(0, 0, 5))
    cross.draft(0, 2, SAMPLINGS[1])  # its pairs are asserted inside the double
    assert_fresh(cross, 0, [*PROMPT, *truth[:2]])


def test_an_undecided_tree_can_be_rolled_back_and_nothing_else():
    cross, _, truth = ready()
    before = cross.digest(0)
    cross.verify({0: around(truth[1:])}, SAMPLINGS[1])
    for act in (
        lambda: cross.verify({0: []}, SAMPLINGS[1]),
        lambda: cross.llm.process(Batch.of([1], pos=4)),
        lambda: cross.fork(0, 1),
        lambda: cross.llm.keep(0, [0]),
        lambda: cross.accept(0, 4),
    ):
        with pytest.raises((LinkError, BatchError)):
            act()
    cross.rollback(0, len(PROMPT))
    assert cross.digest(0) == before
    cross.rollback(0, 2)
    cross.llm.process(Batch.of(PROMPT[2:], pos=2))
    verdict = cross.verify({0: around(truth[1:])}, SAMPLINGS[1])[0]
    cross.accept(0)
    assert_fresh(cross, 0, [*PROMPT, *truth[: verdict.accepted + 1]])
    cross.verify({0: around(truth[5:])}, SAMPLINGS[1])
    cross.remove(0)
    cross.llm.process(Batch.of(PROMPT))
    assert_fresh(cross, 0, PROMPT)


@pytest.mark.parametrize("fault", ["backend", "delivery", "choice"])
def test_whatever_raises_leaves_the_state_as_it_was(fault, monkeypatch):
    """In the run, in a callback of the batch, and after it; chains and prompts beside it."""
    cross, backend, truth = ready()
    cross.llm.process(Batch.of([5, 6], seq=1))
    cross.pending(1, SAMPLINGS[1])
    before = [(cross.digest(s), cross.tokens(s), cross.pending(s)) for s in range(4)]

    def fail(*_):
        raise Planted

    def verify():
        drafts = {0: around(truth[1:]), 1: [2, 3]}
        return cross.verify(drafts, SAMPLINGS[1], prefill={2: [1, 2, 3]})

    backend.fail_at = 5 if fault == "backend" else None
    raising = intercept(cross.llm, fail) if fault == "delivery" else nullcontext()
    with monkeypatch.context() as patched, raising:
        if fault == "choice":
            patched.setattr(speculation, "match_drafts", fail)
        with pytest.raises(Planted):
            verify()
    assert [(cross.digest(s), cross.tokens(s), cross.pending(s)) for s in range(4)] == before
    assert not cross.llm.runner.sequences.undecided
    assert verify()[0].accepted == 3
    cross.accept(0)
    cross.accept(1)
    assert_fresh(cross, 0, [*PROMPT, *truth[:4]])
    assert_fresh(cross, 2, [1, 2, 3])


@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_at_the_end_of_the_context(left):
    """A tree needs a place for each node; drafts are cut to what there is, worst nodes first."""
    n_ctx = 24
    prompt = list(range(n_ctx - 1 - left))

    class Bushy:
        def propose(self, seq, tokens, k):
            return around(truth[1:], k)

    cross, _ = cross_of(Bushy(), n_ctx=n_ctx, n_batch=64)
    truth = plain([t % N_VOCAB for t in prompt], SAMPLINGS[1], 9)
    cross.llm.process(Batch.of([t % N_VOCAB for t in prompt]))
    tree = cross.draft(0, 6, SAMPLINGS[1])
    assert len(tree) == min(left, 2 * min(6, left))
    before = cross.digest(0)
    with pytest.raises((CapacityError, BatchError)):
        cross.verify({0: around([*truth, *truth], left + 1)}, SAMPLINGS[1])
    assert cross.digest(0) == before
    verdict = cross.verify({0: tree}, SAMPLINGS[1])[0]
    assert verdict.accepted == left // 2
    cross.accept(0)
    assert_fresh(cross, 0, cross.tokens(0), n_ctx=n_ctx)


def test_a_tree_that_no_pass_can_hold():
    cross, _, truth = ready(n_batch=6)
    with pytest.raises(BatchError, match="one piece"):
        cross.verify({0: around(truth[1:])}, SAMPLINGS[1])
    assert cross.verify({0: around(truth[1:], 2)}, SAMPLINGS[1])[0].accepted == 2
    with pytest.raises(LinkError, match="verify"):
        cross.contexts["draft"].process(
            Batch([1, 2], pos=[1, 1], parent=[-1, -1], slots={"hidden": np.zeros((2, 4))})
        )


TEXTS = [("line", 1), ("line", 61), ("slit", 61), ("slit", 194)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("name", "start"), TEXTS)
def test_rows_of_a_tree_are_those_of_its_paths(tmp_path, backend, name, start):
    """Bit for bit, across pages, beside a chain and a prompt, split where sequences end.

    Also where a window has given up the first pages.
    """
    model = seer.load(tmp_path, name)
    n = 9
    parent = [-1, -1, 0, 0, 1, 2, 2, 5, 4]
    tokens = np.random.default_rng(1).permutation(64)[:n]
    depth = DraftTree(tokens, parent).depth

    # A bias of nothing: all logits are written, none is chosen from while it is computed.
    sampling = Sampling(temperature=1.0, seed=1, logit_bias={5: 0.0})

    def make(n_batch):
        llm = Context(model, 300, n_seq_max=3, n_batch=n_batch, backend=backend, taps=["hidden"])
        cross = Cross(llm=llm)
        llm.process(Batch.of(np.arange(start) % 64))
        llm.process(Batch.of([7], seq=1))
        return cross

    def verify(cross, *args, **options):
        outputs = []
        with intercept(cross.llm, lambda batch, output: outputs.append(output)):
            return cross.verify(*args, **options), outputs[-1]

    for n_batch in (10, 64):
        cross = make(n_batch)
        drafts = {0: DraftTree(tokens, parent), 1: [5, 6]}
        verdicts, output = verify(cross, drafts, sampling, prefill={2: list(range(14))})
        for node in range(n):
            path, at = [], node
            while at >= 0:
                path, at = [tokens[at], *path], parent[at]
            _, chain = verify(make(64), {0: path}, sampling)
            row = 1 + node
            assert np.array_equal(output.logits[row], chain.logits[depth[node]])
            assert np.array_equal(output.tap("hidden")[row], chain.tap("hidden")[depth[node]])
        for seq, verdict in verdicts.items():
            cross.accept(seq)
            fresh = make(64)
            fresh.remove(seq)
            fresh.llm.process(Batch.of(cross.tokens(seq), seq=seq))
            assert cross.digest(seq) == fresh.digest(seq)
            assert verdict.accepted <= 4
