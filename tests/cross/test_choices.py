"""Choices while logits are made: where a Cross leaves them to the pass, and that nothing shows."""

import pytest
from harness.families import FAMILIES

from mtpcore.backends.base import Choices
from mtpcore.batch import Batch
from mtpcore.decoding import Generator
from mtpcore.sampling import Sampler, Sampling, Scratch

PROMPT = [7, 3, 9, 12, 4, 8]
RACE = Sampling(temperature=1.0, seed=3)
CUTS = Sampling(temperature=1.0, seed=3, min_p=0.05)


class Noting:
    """A plan that notes of every run whether it was asked to choose."""

    def __init__(self, plan):
        self.plan, self.asked = plan, []

    def __getattr__(self, name):
        return getattr(self.plan, name)

    def run(self, rows, memory):
        made = self.plan.run(rows, memory)
        self.asked.append("chosen" in made)
        return made


def noting(cross, role="llm"):
    context = cross.contexts[role]
    context.plan = Noting(context.plan)
    return context.plan.asked


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
    asked = noting(cross)
    generator = Generator(cross, sampling=sampling, draft=draft)
    text = list(generator.generate(PROMPT, max_tokens=24, ignore_eos=True))
    assert not asked[0]  # the prompt's last logits are kept until somebody chooses
    assert len(asked) > 5
    assert set(asked[1:]) == {in_the_pass}
    return text


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("sampling", [RACE, Sampling.greedy()])
def test_a_watched_target_writes_the_same_text(family, sampling):
    """Somebody who may look at the logits gets them, and the same tokens come of it."""
    texts = []
    for watched in (False, True):
        cross = family.link(threads=1)
        asked = noting(cross)
        if watched:
            cross.llm.watchers.append(lambda batch, output: output.logits)
        generator = Generator(cross, sampling=sampling, draft=3)
        texts.append(list(generator.generate(PROMPT, max_tokens=40, ignore_eos=True)))
        assert any(asked) != watched
    assert texts[0] == texts[1]


def test_beside_a_prompt_logits_are_written():
    cross = linked(n_seq_max=2)
    cross.llm.process(Batch.of(PROMPT))
    asked = noting(cross)
    cross.verify({0: []}, RACE, prefill={1: PROMPT})
    assert asked == [False]
    alone = linked()
    alone.llm.process(Batch.of(PROMPT))
    assert cross.pending(1, RACE) == alone.pending(0, RACE)


def test_what_a_linked_target_chose_is_pending():
    """As if it had been chosen from the logits that the Cross keeps otherwise."""
    chosen, kept = linked(), linked()
    sampler = Sampler(RACE, Scratch(chosen.llm.model.hparams.n_vocab))
    choices = Choices(samplers=[sampler], indices=[len(PROMPT)])
    chosen.llm.process(Batch.of(PROMPT), choices)
    kept.llm.process(Batch.of(PROMPT))
    assert chosen.pending(0) == kept.pending(0, RACE)
    for cross in (chosen, kept):
        cross.verify({0: cross.draft(0, 3, RACE)}, RACE)
        cross.accept(0)
    assert chosen.tokens(0) == kept.tokens(0)
    assert chosen.digest(0) == kept.digest(0)


def test_one_sequence_that_needs_logits_is_enough():
    cross = linked(n_seq_max=2)
    for seq in (0, 1):
        cross.llm.process(Batch.of(PROMPT, seq=seq))
    asked = noting(cross)
    cross.verify({0: [5], 1: []}, {0: RACE, 1: CUTS})
    assert asked == [False]


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
