"""Sampling while logits are made: where a Cross leaves them to the pass, and that nothing shows."""

import pytest
from harness.families import FAMILIES

from mtpcore.backends.base import CHOSEN, FusedSampling
from mtpcore.decoding import Generator
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampler, Sampling, Scratch

PROMPT = [7, 3, 9, 12, 4, 8]
RACE = Sampling(temperature=1.0, seed=3)
CUTS = Sampling(temperature=1.0, seed=3, min_p=0.05)
OTHER = Sampling(temperature=2.0, seed=11)


class Noting:
    """A plan that notes of every run whether it chose, and how many rows of logits it wrote."""

    def __init__(self, plan):
        self.plan, self.asked, self.written = plan, [], []

    def __getattr__(self, name):
        return getattr(self.plan, name)

    def run(self, rows, memory):
        made = self.plan.run(rows, memory)
        self.asked.append(CHOSEN in made)
        self.written.append(len(made["logits"]))
        return made


def noting(cross, role="llm"):
    runner = cross.contexts[role].runner
    runner._plan = Noting(runner.plan)
    return runner.plan


def linked(**settings):
    return FAMILIES[0].link(threads=1, **settings)


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_pass_chooses_where_choices_are_races(temperature, draft):
    """A bias of nothing makes a choice none: the text is the same."""
    race = Sampling(temperature=temperature, seed=3)
    biased = Sampling(temperature=temperature, seed=3, logit_bias={5: 0.0})
    assert written(race, draft, True) == written(biased, draft, False)


def written(sampling, draft, in_the_pass):
    cross = linked()
    asked = noting(cross).asked
    generator = Generator(cross, sampling=sampling, draft=draft)
    text = list(generator.generate(PROMPT, max_tokens=24, ignore_eos=True))
    assert not asked[0]  # the prompt's last logits are kept until somebody chooses
    assert len(asked) > 5
    assert set(asked[1:]) == {in_the_pass}
    return text


def test_beside_drafts_a_prompt_has_its_own_logits_written():
    cross, alone = linked(n_seq_max=2), linked()
    for one in (cross, alone):
        one.llm.process(Batch.of(PROMPT))
    plan = noting(cross)
    verdicts = cross.verify({0: [5, 6]}, RACE, prefill={1: PROMPT[::-1]})
    assert plan.asked == [True]
    assert plan.written == [1]
    assert verdicts[0] == alone.verify({0: [5, 6]}, RACE)[0]
    fresh = linked()
    fresh.llm.process(Batch.of(PROMPT[::-1]))
    assert cross.pending(1, CUTS) == fresh.pending(0, CUTS)


def test_what_a_linked_target_chose_is_pending():
    """As if it had been chosen from the logits that the Cross keeps otherwise."""
    chosen, kept = linked(), linked()
    sampler = Sampler(RACE, Scratch(chosen.llm.model.hparams.n_vocab))
    samplers = FusedSampling(samplers=[sampler], indices=[len(PROMPT)])
    chosen.llm.process(Batch.of(PROMPT), samplers)
    kept.llm.process(Batch.of(PROMPT))
    assert chosen.pending(0) == kept.pending(0, RACE)
    for cross in (chosen, kept):
        cross.verify({0: cross.draft(0, 3, RACE)}, RACE)
        cross.accept(0)
    assert chosen.tokens(0) == kept.tokens(0)
    assert chosen.digest(0) == kept.digest(0)


def test_a_prompt_that_goes_on_has_no_logits():
    """Nor a token to continue from, before it ended; the text is that of one batch."""
    cross, alone = linked(n_seq_max=2), linked()
    plan = noting(cross)
    assert cross.verify({}, prefill={0: PROMPT[:2], 1: PROMPT[:3]}, unfinished=[0]) == {}
    assert plan.written == [1]
    assert cross.pending(0, RACE) is None
    with pytest.raises(BatchError, match="nothing to continue from"):
        cross.draft(0, 2, RACE)
    cross.verify({}, prefill={0: PROMPT[2:4]}, unfinished={0})
    cross.verify({}, prefill={0: PROMPT[4:]})
    assert plan.written == [1, 0, 1]
    alone.llm.process(Batch.of(PROMPT))
    assert cross.pending(0, RACE) == alone.pending(0, RACE)
    assert cross.draft(0, 3, RACE) == alone.draft(0, 3, RACE)


@pytest.mark.parametrize("unfinished", [5, None, "0", [0, 7], [[]], {2}])
def test_unfinished_prompts_are_of_sequences_that_have_one(unfinished):
    cross = linked(n_seq_max=3)
    cross.llm.process(Batch.of(PROMPT, seq=2))
    before = cross.digest(2)
    with pytest.raises(BatchError, match="unfinished"):
        cross.verify({2: []}, RACE, prefill={0: PROMPT, 1: []}, unfinished=unfinished)
    assert cross.llm.runner.lengths == [0, 0, len(PROMPT)]
    assert cross.digest(2) == before


def test_unfinished_prompts_may_be_told_in_any_order():
    cross = linked(n_seq_max=2)
    cross.verify({}, prefill={1: PROMPT, 0: PROMPT}, unfinished=iter([0, 1]))
    assert cross.pending(0, RACE) is None
    assert cross.pending(1, RACE) is None


def test_a_generator_asks_for_logits_where_prompts_end():
    cross = linked(n_batch=4, n_seq_max=2)
    plan = noting(cross)
    generator = Generator(cross, sampling=RACE, draft=0)
    requests = [generator.add(PROMPT * 3, max_tokens=2), generator.add(PROMPT, max_tokens=2)]
    while not all(request.done for request in requests):
        generator.step()
    assert sum(plan.written) == 2


@pytest.mark.parametrize(
    ("kinds", "n_written"),
    [((RACE, CUTS), 2), ((CUTS, RACE), 2), ((CUTS, CUTS), 4), ((RACE, OTHER), 0)],
)
def test_a_sequence_that_needs_logits_has_its_own_written(kinds, n_written):
    cross, alone = linked(n_seq_max=2), [linked(), linked()]
    drafts = {0: [5], 1: [7]}
    for seq, one in enumerate(alone):
        for place, linked_one in ((seq, cross), (0, one)):
            linked_one.llm.process(Batch.of(PROMPT[seq:], seq=place))
    plan = noting(cross)
    verdicts = cross.verify(drafts, dict(enumerate(kinds)))
    assert plan.asked == [n_written < 4]
    assert plan.written == [n_written]
    for seq, one in enumerate(alone):
        assert verdicts[seq] == one.verify({0: drafts[seq]}, kinds[seq])[0]


def test_more_rows_than_a_unit_choose_in_the_pass():
    _, *draft = Generator(linked(), sampling=RACE).generate(PROMPT, max_tokens=11)
    found = []
    for sampling in (RACE, Sampling(temperature=1.0, seed=3, logit_bias={5: 0.0})):
        cross = linked()
        cross.llm.process(Batch.of(PROMPT))
        plan = noting(cross)
        found.append(cross.verify({0: draft}, sampling)[0])
        assert plan.written == [0 if sampling is RACE else 11]
    assert found[0] == found[1]
    assert found[0].accepted == len(draft)


def test_heads_of_their_own_steps_choose_in_the_pass():
    """The drafts are those of a floor that asks for probabilities and drops none."""
    family = next(one for one in FAMILIES if one.spec.heads.order == "each-step")
    found = []
    for p_min in (0.0, 1e-9):
        cross = family.link(threads=1)
        cross.llm.process(Batch.of(PROMPT))
        drafts = []
        for _ in range(6):
            drafts.append(cross.draft(0, len(cross.contexts) - 1, RACE, p_min=p_min))
            cross.verify({0: drafts[-1]}, RACE)
            cross.accept(0)
        found.append(drafts)
    assert found[0] == found[1]
    assert max(map(len, found[0])) > 1
