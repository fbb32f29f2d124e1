"""Acts on linked contexts by name: rejection, slots, forks, ties; state as in a fresh Cross."""

import msgspec
import numpy as np
import pytest
from harness import seer
from harness.hashed import N_VOCAB, HashModel, HashPlan
from harness.scripted import SCRIPTS, Scripted, assert_fresh, cross_of, plain

from mtpcore.cross import link
from mtpcore.decoding import Generator
from mtpcore.discovery.loading import load_model
from mtpcore.errors import BatchError, LinkError, SamplingError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

PROMPT, SAMPLING = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, SAMPLING, 60)


def rounds(cross, seq, k, n, sampling=SAMPLING):
    """Draft, verify and accept n times; return the accepted counts."""
    found = []
    for _ in range(n):
        drafts = cross.draft(seq, k, sampling)
        found.append(cross.verify({seq: drafts}, sampling)[seq].accepted)
        cross.accept(seq)
    return found


@pytest.mark.parametrize("k", range(1, 9))
def test_rejected_drafts_leave_no_trace(k):
    """A head that is never right: the state after every step is that of the text alone."""
    cross, _ = cross_of("head", skill=0)
    cross.llm.process(Batch.of(PROMPT))
    greedy = Sampling.greedy()
    text = PROMPT + plain(PROMPT, greedy, 12)
    for n in range(1, 12):
        assert rounds(cross, 0, k, 1, greedy) == [0]
        assert_fresh(cross, 0, text[: len(PROMPT) + n])


def test_two_rejections_in_a_row_and_rewinds_that_go_too_far():
    """Verify, reject, verify, reject, without a commit between; then beyond what there is."""
    cross, _ = cross_of("head", skill=0)
    cross.llm.process(Batch.of(PROMPT))
    greedy = Sampling.greedy()
    for _ in range(2):
        cross.verify({0: cross.draft(0, 4, greedy)}, greedy)
        with pytest.raises(LinkError, match="undecided"):
            cross.verify({0: []}, greedy)
        with pytest.raises(LinkError, match="undecided"):
            cross.llm.process(Batch.of([1], pos=8))
        cross.rollback(0, 2)
        cross.llm.process(Batch.of(PROMPT[2:], pos=2))
        assert_fresh(cross, 0, PROMPT)
    for place in (4, -1):
        with pytest.raises(BatchError):
            cross.rollback(0, place)
    with pytest.raises(LinkError, match="nothing was verified"):
        cross.accept(0)
    assert_fresh(cross, 0, PROMPT)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_equal_shapes_of_alternating_sequences(tmp_path, backend):
    """Two sequences take turns in batches of one shape; each is as if it were alone."""
    model = seer.load(tmp_path, "line")
    made, alone = (Context(model, 64, n_seq_max=2, backend=backend, threads=1) for _ in range(2))
    texts = np.random.default_rng(2).integers(0, seer.N_VOCAB, (2, 12))
    logits = {0: [], 1: []}
    for step in range(0, 12, 3):
        for seq in (0, 1) if step % 2 else (1, 0):
            batch = Batch.of(texts[seq, step : step + 3], seq=seq, pos=step, outputs="all")
            logits[seq].append(made.process(batch).logits)
    for seq in (0, 1):
        wanted = alone.process(Batch.of(texts[seq], seq=seq, outputs="all")).logits
        assert np.array_equal(np.concatenate(logits[seq]), wanted)
        assert made.digest(seq) == alone.digest(seq)


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_sequences_other_than_0(seq):
    """Sequence 0 is never used; what is drafted and accepted is what it would be there."""
    found = []
    for used in (0, seq):
        cross, _ = cross_of("head", skill=10)
        cross.llm.process(Batch.of(PROMPT, seq=used))
        found.append((rounds(cross, used, 4, 10), cross.tokens(used)))
    assert found[0] == found[1]
    assert sum(found[0][0]) > 5
    assert cross.llm.length(0) == 0


def test_interleaved_sequences_with_uneven_acceptance():
    """Four sequences of different length in one batch, each accepting another number."""
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, N_VOCAB, n).tolist() for n in (2, 9, 1, 5)]
    samplings = {s: Sampling(temperature=0.8, seed=s, stream=s) for s in range(4)}
    texts = [p + plain(p, samplings[s], 60) for s, p in enumerate(prompts)]
    cross, _ = cross_of("head", skill=9)
    for seq, prompt in enumerate(prompts):
        cross.llm.process(Batch.of(prompt, seq=seq))
    uneven = 0
    for _ in range(8):
        drafts = cross.draft({s: int(rng.integers(0, 6)) for s in range(4)}, sampling=samplings)
        verdicts = cross.verify(drafts, samplings)
        uneven += len({v.accepted for v in verdicts.values()}) > 1
        for seq in rng.permutation(4).tolist():
            cross.accept(seq, int(rng.integers(0, verdicts[seq].accepted + 1)))
    for seq, text in enumerate(texts):
        assert_fresh(cross, seq, text[: cross.llm.length(seq)])
    assert uneven > 4


def test_a_fork_mid_draft_outlives_its_parent():
    """The pending token and its hidden row are copied; each goes on with noise of its own."""
    cross, _ = cross_of("head", skill=12)
    cross.llm.process(Batch.of(PROMPT, seq=2))
    rounds(cross, 2, 3, 2)
    drafts = cross.draft(2, 4, SAMPLING)
    cross.fork(2, 0)
    assert cross.pending(0) == cross.pending(2)
    assert cross.draft(0, 4, SAMPLING) == drafts
    cross.verify({2: drafts}, SAMPLING)
    with pytest.raises(LinkError, match="undecided"):
        cross.fork(2, 3)
    cross.remove(2)
    other = Sampling(temperature=1.0, seed=8, stream=77)
    rounds(cross, 0, 4, 6, other)
    tokens = cross.tokens(0)
    begun = len(PROMPT) + len(tokens[len(PROMPT) :])
    assert_fresh(cross, 0, tokens)
    assert begun > len(PROMPT) + 6
    cross.llm.process(Batch.of(PROMPT, seq=2))
    assert_fresh(cross, 2, PROMPT)


def going_on(cross, seq, n, sampling=SAMPLING):
    """Decode with drafts until n tokens follow the prompt; return them."""
    while len(cross.tokens(seq)) < len(PROMPT) + n:
        rounds(cross, seq, 3, 1, sampling)
    return cross.tokens(seq)[len(PROMPT) :][:n]


def request(stream, n, sampling=SAMPLING):
    """The text of a request with this stream, in a Cross of its own."""
    settings = msgspec.structs.replace(sampling, stream=stream)
    return plain(PROMPT, settings, n)


@pytest.mark.parametrize("drafter", ["head", "right for one"])
def test_forks_draw_from_streams_of_their_own(drafter):
    """One prompt, four texts by the same settings: each is that of a request with its stream."""
    cross, _ = cross_of("head" if drafter == "head" else Scripted(SCRIPTS[drafter]))
    cross.llm.process(Batch.of(PROMPT))
    cross.fork(0, 1, stream=5)
    cross.fork(0, 2, stream=2**64 - 1)
    cross.fork(1, 3)  # as its parent does
    texts = [going_on(cross, seq, 20) for seq in range(4)]
    assert texts == [request(stream, 20) for stream in (0, 5, 2**64 - 1, 5)]
    assert len(set(map(tuple, texts))) == 3
    assert going_on(cross, 1, 30, Sampling(temperature=1.0, seed=8, stream=9)) == request(5, 30)


def test_a_fork_drafts_with_its_own_noise():
    """A head that is always right is so for the fork too, or it would follow its parent's."""
    cross, _ = cross_of("head", skill=16)
    cross.llm.process(Batch.of(PROMPT))
    cross.draft(0, 4, SAMPLING)  # a sampler of the parent's stream is at hand
    cross.rollback(0, 2)
    cross.llm.process(Batch.of(PROMPT[2:], pos=2))
    cross.fork(0, 1, stream=5)
    assert rounds(cross, 1, 4, 6) == [4] * 6
    assert rounds(cross, 0, 4, 6) == [4] * 6


def test_a_stream_lasts_as_long_as_its_sequence():
    """A pending token is kept; a stream goes with its sequence, and a bad one changes nothing."""
    cross, _ = cross_of("head")
    cross.llm.process(Batch.of(PROMPT))
    token = cross.pending(0, SAMPLING)
    for bad in (-1, 2**64, 1.0, True, "1"):
        with pytest.raises(SamplingError, match="stream"):
            cross.fork(0, 1, stream=bad)
        assert [one.length(1) for one in cross.contexts.values()] == [0, 0]
    cross.fork(0, 1, stream=5)
    assert cross.pending(1) == token == TRUTH[0]
    rounds(cross, 1, 2, 2)
    cross.rollback(1, len(PROMPT) - 1)
    cross.llm.process(Batch.of(PROMPT[-1:], seq=1, pos=len(PROMPT) - 1))
    assert going_on(cross, 1, 12) == request(5, 12)
    cross.remove(1)
    cross.llm.process(Batch.of(PROMPT, seq=1))
    assert going_on(cross, 1, 12) == TRUTH[:12]


def test_a_draft_that_nobody_verified_leaves_no_trace():
    """Another token takes the pending one's place: its entry in the head's memory goes too."""
    cross, _ = cross_of("head", skill=16)
    cross.llm.process(Batch.of(PROMPT))
    before = cross.digest(0)
    drafts = cross.draft(0, 3)
    assert cross.digest(0) == before
    assert cross.draft(0, 3) == drafts
    instead = (cross.pending(0) + 1) % N_VOCAB
    cross.llm.process(Batch.of([instead], pos=3))
    cross.pending(0, SAMPLING)
    cross.draft(0, 3, SAMPLING)
    cross.verify({0: []}, SAMPLING)
    cross.accept(0)
    assert_fresh(cross, 0, [*PROMPT, instead, cross.tokens(0)[-1]])


@pytest.mark.parametrize("n", [3, 4, 5])
def test_embedding_rows_that_were_taken_back_are_not_drafted_from(n):
    """Tokens in their places are what the head reads there, though it had read none of the rows."""
    with load_model("demo") as model:
        cross, fresh = (link(Context(model, 64, threads=1)) for _ in range(2))
        rows = np.random.default_rng(0).normal(size=(3, model.hparams.width)).astype(np.float32)
        for one, n_rows in ((cross, 3), (fresh, n - 3)):
            one.llm.process(Batch.of(PROMPT))
            if n_rows:
                one.llm.process(Batch(embeddings=rows[:n_rows], pos=range(3, 3 + n_rows)))
        cross.rollback(0, n)
        for one in (cross, fresh):
            one.llm.process(Batch.of([8, 9], pos=n))
            one.pending(0, Sampling.greedy())
        assert cross.draft(0, 3) == fresh.draft(0, 3) != []
        assert cross.digest(0) == fresh.digest(0)


def test_a_prompt_beside_a_round_takes_the_place_of_the_pending_token():
    """As above, where the other token comes with a round of another sequence."""
    cross, _ = cross_of("head", skill=16)
    cross.llm.process(Batch.of(PROMPT, seq=0))
    cross.llm.process(Batch.of(PROMPT, seq=1))
    assert cross.draft(0, 3, SAMPLING)
    instead = (cross.pending(0) + 1) % N_VOCAB
    cross.verify({1: []}, SAMPLING, prefill={0: [instead, 5]})
    assert_fresh(cross, 0, [*PROMPT, instead, 5])


class TiedPlan(HashPlan):
    """Logits in which two tokens share the first place."""

    def run(self, rows, memory):
        arrays = super().run(rows, memory)
        if "logits" in arrays:
            logits = arrays["logits"]
            at = logits.argmax(axis=1)
            logits[np.arange(len(logits)), (at + 5) % N_VOCAB] = logits.max(axis=1)
        return arrays


def test_ties_go_to_the_lowest_id_in_verify_and_decode():
    """Two equal top logits at every place: the same pick with and without drafts."""
    texts = []
    for draft, n_batch in ((0, 16), (3, 16), (5, 2)):
        cross, backend = cross_of(n_batch=n_batch)
        backend.plan = lambda program, source, *, stores, backend=backend, **sizes: TiedPlan(
            program, stores[0], backend
        )
        llm = Context(HashModel(), 90, n_batch=n_batch, backend=backend, taps=["hidden"])
        cross = link(llm)
        generator = Generator(cross, sampling=Sampling.greedy(), draft=draft)
        texts.append(list(generator.generate(PROMPT, max_tokens=40)))
        assert bool(generator.stats.accepted) == bool(draft)
        llm.process(Batch.of(PROMPT))
        logits = llm.process(Batch.of(texts[-1], pos=len(PROMPT), outputs="all")).logits
        picks = [int(np.flatnonzero(row == row.max())[0]) for row in logits]
        assert all((row == row.max()).sum() == 2 for row in logits)
        assert picks[:-1] == texts[-1][1:]
    assert texts[0] == texts[1] == texts[2]


def test_scripts_and_heads_leave_the_same_state():
    """What drafts has no say in what is stored."""
    digests = []
    for name in ("right", "wrong", "right for one"):
        cross, _ = cross_of(Scripted(SCRIPTS[name], [[*PROMPT, *TRUTH]]))
        cross.llm.process(Batch.of(PROMPT))
        while cross.llm.length(0) < 30:
            rounds(cross, 0, min(3, 29 - cross.llm.length(0)), 1)
        digests.append((cross.digest(0), cross.tokens(0)))
    assert digests[0] == digests[1] == digests[2]
    assert digests[0][1] == [*PROMPT, *TRUTH][:30]
