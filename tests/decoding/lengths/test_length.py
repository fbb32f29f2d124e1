"""Draft lengths that change from round to round: texts stay the same, statistics say what was."""

from types import SimpleNamespace

import msgspec
import pytest
from harness.hashed import N_VOCAB, HashBackend, HashModel, HashPlan
from harness.scripted import SCRIPTS, TREES, Scripted, cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import Context, Generator, Sampling, TreeShape, link
from mtpcore.cross import speculation
from mtpcore.decoding import LengthDecision, LengthPolicy, SimulatedAcceptance, stopwatch
from mtpcore.errors import BatchError
from mtpcore.plugin import Proposal

PROMPT, SAMPLING = [3, 1, 4], Sampling(temperature=1.0, seed=8)


class AnyLength(LengthPolicy):
    """Picks the lengths of a list, one after the other, and checks what it is told."""

    def __init__(self, lengths):
        self.lengths, self.turn, self.limits, self.told = lengths, 0, {}, []
        self.forgotten = []

    def choose(self, limits, fixed):
        assert not limits.keys() & fixed.keys()
        self.limits, chosen = dict(limits), {}
        for seq in limits:
            chosen[seq] = self.lengths[self.turn % len(self.lengths)]
            self.turn += 1
        return chosen

    def observe(self, done):
        assert done.asked.keys() == done.made.keys() == done.accepted.keys()
        for seq, k in done.asked.items():
            assert k <= self.limits.get(seq, k)
            assert done.accepted[seq] <= min(k, done.made[seq])
        assert done.rows == len(done.asked) + sum(done.made.values()) + done.prompt_rows
        assert min(done.draft_seconds, done.pass_seconds, done.choose_seconds) >= 0
        self.told.append(done)
        return [
            LengthDecision(len(self.told), seq, k, "a list says so")
            for seq, k in done.asked.items()
        ]

    def forget(self, seq):
        self.limits.pop(seq, None)
        self.forgotten.append(seq)


@searching(120)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    wanted=st.lists(
        st.fixed_dictionaries(
            {
                "prompt": st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=12),
                "sampling": settings(),
                "draft": st.sampled_from(["auto", "auto", 0, 3]),
                "max_tokens": st.integers(1, 24),
                "p_min": st.sampled_from([0.0, 0.1]),
            }
        ),
        min_size=1,
        max_size=4,
    ),
    drafter=st.sampled_from(["head", "right for three", "empty", "tree, right", "tree, wrong"]),
    n_seq_max=st.integers(1, 3),
    n_batch=st.sampled_from([2, 16]),
)
def test_texts_are_the_same_whatever_is_picked(lengths, wanted, drafter, n_seq_max, n_batch):
    truths = [plain(w["prompt"], w["sampling"], w["max_tokens"]) for w in wanted]
    texts = [[*w["prompt"], *t] for w, t in zip(wanted, truths, strict=True)]
    scripts = SCRIPTS | TREES
    one = "head" if drafter == "head" else Scripted(scripts[drafter], texts)
    cross, _ = cross_of(one, n_seq_max=n_seq_max, n_batch=n_batch)
    policy = AnyLength(lengths)
    gen = Generator(cross, lengths=policy)
    made = [gen.add(**w) for w in wanted]
    run(gen)
    assert [r.tokens for r in made] == truths
    passes = sum(gen.stats.lengths.values())
    assert passes >= gen.stats.passes
    if all(w["draft"] == "auto" for w in wanted):
        assert len(policy.told) == gen.stats.passes
        assert (
            gen.stats.decisions
            == [
                c
                for i, done in enumerate(policy.told, 1)
                for c in (
                    LengthDecision(i, seq, k, "a list says so") for seq, k in done.asked.items()
                )
            ][-100:]
        )


@pytest.mark.parametrize("tree", [None, TreeShape(depth=3, width=2, n_nodes=5)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_auto_writes_the_text_of_plain_decoding(tree, temperature):
    """With the product's own controller, which times real rounds; of trees it picks the depth."""
    sampling = Sampling(temperature=temperature, seed=4)
    cross, _ = cross_of("head", skill=14, n_batch=64, tree=tree)
    gen = Generator(cross, sampling=sampling, draft="auto")
    for prompt in ([1, 2, 3], [4], [5, 6]):
        assert list(gen.generate(prompt, max_tokens=70)) == plain(prompt, sampling, 70)
    assert sum(gen.stats.lengths.values()) == gen.stats.passes
    assert gen.stats.length_seconds > 0
    if tree:
        assert max(gen.stats.lengths) <= 3


def test_requests_choose_for_themselves():
    cross, _ = cross_of("head", skill=16, n_seq_max=3)
    gen = Generator(cross, sampling=SAMPLING, lengths=AnyLength([5]))
    kinds = {"auto": gen.add([1], draft="auto", max_tokens=7), 2: gen.add([2], draft=2)}
    kinds[0] = gen.add([3])
    gen.step()
    gen.step()
    assert gen.stats.lengths == {5: 1, 2: 1, 0: 1}
    assert [len(r.tokens) for r in kinds.values()] == [7, 4, 2]


@pytest.mark.parametrize("bad", ["automatic", "", -1, 1.5, True, None, "auto"])
def test_what_is_no_length_is_refused(bad):
    """What chooses lengths cannot leave it to "auto"."""
    cross, _ = cross_of("head")
    if bad not in (None, "auto"):
        for make in (Generator, lambda c, draft: Generator(c).add([1], draft=draft)):
            with pytest.raises(BatchError, match="'auto'"):
                make(cross, draft=bad)
    gen = Generator(cross, draft="auto", lengths=AnyLength([bad]))
    request = gen.add(PROMPT, max_tokens=9)
    gen.step()
    with pytest.raises(BatchError, match="draft is a number of tokens; wanted >= 0; got"):
        gen.step()
    gen.lengths.lengths = [2]
    run(gen)
    assert len(request.tokens) == 9
    with pytest.raises(BatchError, match="LengthPolicy"):
        Generator(cross, lengths=3)


class Keeping(AnyLength):
    """Asks for five and verifies as deep as a list says; 0 lets the next drafter have its turn."""

    def __init__(self, depths):
        super().__init__([5])
        self.depths, self.n_kept, self.seen, self.made = depths, 0, [], []

    def keep(self, role, proposed):
        self.seen.append((role, dict(proposed)))
        kept = {}
        for seq in proposed:
            kept[seq] = self.depths[self.n_kept % len(self.depths)]
            self.n_kept += 1
        return kept

    def observe(self, done):
        self.made.append((dict(done.made), dict(done.makers), dict(done.confidences)))
        return super().observe(done)


class Sure(mtpcore.Proposer):
    """Says how sure it is of what a script proposes."""

    def __init__(self, scripted, confidence):
        self.scripted, self.confidence = scripted, confidence

    def propose(self, seq, tokens, k):
        return Proposal(self.scripted.propose(seq, tokens, k), self.confidence)


@pytest.mark.parametrize("script", ["right", "tree, right"])
@pytest.mark.parametrize("depth", [0, 1, 2, 5, 9])
def test_drafts_are_verified_as_deep_as_is_chosen(script, depth):
    truth = plain(PROMPT, SAMPLING, 30)
    scripts = SCRIPTS | TREES
    cross, _ = cross_of(Sure(Scripted(scripts[script], [[*PROMPT, *truth]]), 0.75))
    policy = Keeping([depth])
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=policy)
    assert list(gen.generate(PROMPT, max_tokens=30)) == truth
    assert max(gen.stats.lengths) == min(
        depth, max(d.depth for _, p in policy.seen for d in p.values())
    )
    assert {one.confidence for _, p in policy.seen for one in p.values()} == {0.75}
    assert {c for _, _, said in policy.made for c in said.values()} == ({0.75} if depth else set())
    if not depth:
        assert gen.stats.passes == 29


def test_a_draft_that_is_not_verified_lets_the_next_drafter_draft():
    truth = plain(PROMPT, SAMPLING, 30)
    texts = [[*PROMPT, *truth]]
    both = [Scripted(SCRIPTS["right"], texts), Scripted(SCRIPTS["right"], texts)]
    cross = link(Context(HashModel(), 128, backend=HashBackend()), both)
    for depths, makers in (([0, 3], {"draft2"}), ([3], {"draft"})):
        policy = Keeping(depths)
        gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=policy)
        assert list(gen.generate(PROMPT, max_tokens=30)) == truth
        assert {role for _, by, _ in policy.made for role in by.values()} == makers


@pytest.mark.parametrize("bad", [None, 3, {}, {0: -1}, {0: "all"}])
def test_what_is_no_depth_is_refused(bad):
    cross, _ = cross_of(Scripted(SCRIPTS["right"], [[*PROMPT, *plain(PROMPT, SAMPLING, 9)]]))
    policy = AnyLength([2])
    policy.keep = lambda role, proposed: bad
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=policy)
    gen.add(PROMPT, max_tokens=9)
    gen.step()
    with pytest.raises(BatchError, match="dept"):
        gen.step()


@pytest.mark.parametrize("confidence", [1.5, -0.1, float("nan"), "sure", [0.5]])
def test_what_is_no_confidence_is_left_out(confidence):
    truth = plain(PROMPT, SAMPLING, 12)
    cross, _ = cross_of(Sure(Scripted(SCRIPTS["right"], [[*PROMPT, *truth]]), confidence))
    policy = Keeping([5])
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=policy)
    assert list(gen.generate(PROMPT, max_tokens=12)) == truth
    assert {one.confidence for _, p in policy.seen for one in p.values()} == {None}


def test_a_text_is_forgotten_as_soon_as_it_ends():
    """After its last round was told; so the next generator begins with no text of this one."""
    cross, _ = cross_of("head", skill=16, n_seq_max=2)
    policy = AnyLength([1])
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=policy)
    first, second = gen.add([1], max_tokens=3), gen.add([2], max_tokens=30)
    while not first.done:
        gen.step()
    assert policy.forgotten == [0]
    assert 0 in policy.told[-1].asked
    gen.cancel(second)
    assert policy.forgotten == [0, 1]


def test_an_error_of_what_chooses_lengths_loses_nothing():
    """The round that it is told of is done: tokens and statistics stand, and the text goes on."""

    class Failing(AnyLength):
        def observe(self, done):
            raise OSError("no space left to log it")

    cross, _ = cross_of(Scripted(SCRIPTS["minus one"], [[*PROMPT, *plain(PROMPT, SAMPLING, 12)]]))
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=Failing([2]))
    request = gen.add(PROMPT, max_tokens=12)
    gen.step()
    while not request.done:
        before = len(request.tokens)
        with pytest.raises(OSError, match="no space"):
            gen.step()
        assert len(request.tokens) > before
        assert gen.stats.tokens == len(request.tokens)
        assert gen.stats.invalid == gen.cross.invalid > 0
    assert request.tokens == plain(PROMPT, SAMPLING, 12)
    assert gen.stats.commit_seconds > 0


def test_without_a_drafter_auto_decodes_plainly():
    gen = Generator(Context(HashModel(), 64, backend=HashBackend()), sampling=SAMPLING)
    assert list(gen.generate([1, 2], max_tokens=20, draft="auto")) == plain([1, 2], SAMPLING, 20)
    assert gen.stats.lengths == {0: 19}
    assert gen.stats.decisions == []


class Clock:
    """A clock that stands still but for what moves it on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class TimedPlan(HashPlan):
    """Takes the time that its backend says."""

    def run(self, rows, memory):
        target = self.program.name == "llm"
        n = len(rows.tokens)
        self.backend.clock.now += self.backend.verify(n) if target else self.backend.step
        return super().run(rows, memory)


class TimedBackend(HashBackend):
    def __init__(self, clock, verify, step):
        super().__init__(skill=16)
        self.clock, self.verify, self.step = clock, verify, step

    def plan(self, program, source, *, n_batch, n_ctx, threads, stores, states=None):
        return TimedPlan(program, stores[0] if stores else None, self)


@pytest.mark.parametrize(
    ("verify", "step", "length", "usual"),
    [
        (lambda n: 1 + 0.05 * (n - 1), 0.1, 3.5, range(3, 7)),
        (lambda n: float(n), 0.3, 2.0, range(1)),
    ],
)
def test_a_generator_finds_what_pays(monkeypatch, verify, step, length, usual):
    """Through the whole round: what it is told is what the clock said, and it acts on it."""
    clock = Clock()
    monkeypatch.setattr(stopwatch, "perf_counter", clock)
    monkeypatch.setattr(speculation, "perf_counter", clock)
    backend, text, found = TimedBackend(clock, verify, step), [], {}
    for draft in (0, 1, 3, 5, 8, "auto"):
        cross = link(Context(HashModel(), 4096, backend=backend))
        simulated = SimulatedAcceptance.of_length(length, 8, seed=5)
        simulated.install(cross)
        simulated.expect([1, 2, *text])
        gen = Generator(cross, sampling=SAMPLING, draft=draft)
        text = list(gen.generate([1, 2], max_tokens=2500))
        found[draft] = gen.stats.tokens_per_second
    best = max(found[k] for k in (0, 1, 3, 5, 8))
    assert found["auto"] > 0.94 * best
    stats = gen.stats
    assert sum(n for k, n in stats.lengths.items() if k in usual) > 0.8 * stats.passes
    costs = gen.lengths.describe()
    assert costs["pass_seconds"][2] == pytest.approx(verify(2), rel=0.1)
    assert costs["drafters"]["draft"]["draft_seconds"][1] == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("cold", ["llm", "draft"])
def test_a_round_is_warm_where_all_that_ran_in_it_is(cold, monkeypatch):
    """A drafter's last pass says nothing of rounds in which it does not draft."""
    cross, _ = cross_of("head", skill=16, n_ctx=500)
    seen = []

    class Watching(AnyLength):
        def observe(self, done):
            seen.append((done.asked[0] > 0, done.is_warm))
            return super().observe(done)

    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=Watching([0, 1]))
    cross.prepare()
    runner = cross.contexts[cold].runner
    monkeypatch.setattr(
        type(runner.plan), "is_warm", property(lambda plan: plan is not runner.plan)
    )
    list(gen.generate([1], max_tokens=100))
    assert {asked for asked, _ in seen} == {False, True}
    assert all(is_warm is (cold == "draft" and not asked) for asked, is_warm in seen)


def test_statistics_stay_bounded():
    cross, _ = cross_of("head", skill=16, n_ctx=500)
    gen = Generator(cross, sampling=SAMPLING, draft="auto", lengths=AnyLength([0, 1]))
    list(gen.generate([1], max_tokens=400))
    assert len(gen.stats.decisions) == 100
    assert gen.stats.decisions[-1].round == gen.stats.passes
    assert msgspec.json.decode(msgspec.json.encode(gen.stats))["decisions"][0]["reason"]


def test_a_proposer_without_a_declaration_is_tried_with_up_to_eight():
    truth = plain(PROMPT, SAMPLING, 60)
    cross, _ = cross_of(Scripted(SCRIPTS["right"], [[*PROMPT, *truth]]))
    gen = Generator(cross, sampling=SAMPLING, draft="auto")
    assert list(gen.generate(PROMPT, max_tokens=60)) == truth
    assert SimpleNamespace(**gen.lengths.describe()).rounds == gen.stats.passes
    assert max(gen.stats.lengths) <= 8
