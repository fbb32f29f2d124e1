"""Statistics: one acceptance rate, and sums of several runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Context, Sampling, link, load_model
from mtpcore.decoding import Generator, Stats

DRAFTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=20)


def counted(drafts):
    """Return the statistics of chains of some length, of which some drafts were accepted."""
    stats = Stats()
    for n, accepted in drafts:
        stats.count(n, n, min(n, accepted))
    return stats


@given(st.lists(DRAFTS, max_size=4))
def test_a_sum_of_runs_is_the_run_of_all(runs):
    found = Stats.sum(counted(drafts) for drafts in runs)
    assert found == counted([one for drafts in runs for one in drafts])
    n_drafted = sum(n for drafts in runs for n, _ in drafts)
    n_accepted = sum(min(n, accepted) for drafts in runs for n, accepted in drafts)
    assert found.acceptance == (n_accepted / n_drafted if n_drafted else 0)


def test_a_sum_adds_every_count_and_time():
    names = [
        name for name, value in zip(Stats.__struct_fields__, Stats().save()[0], strict=True)
        if isinstance(value, int | float)
    ]  # fmt: skip
    one = Stats(**{name: i + 1 for i, name in enumerate(names)}, lengths={1: 2, 3: 4})
    found = Stats.sum([one, one, Stats(lengths={3: 1})])
    assert {name: getattr(found, name) for name in names} == {
        name: 2 * (i + 1) for i, name in enumerate(names)
    }
    assert found.lengths == {1: 4, 3: 9}
    assert one.lengths == {1: 2, 3: 4}
    assert Stats.sum([]) == Stats()


@pytest.mark.parametrize("n_batch", [4, 32])
def test_the_speed_of_prompts_counts_what_was_read_for_them_alone(n_batch):
    """A prompt that is read beside another one's drafts is none of it."""
    generator = Generator(link(Context(load_model("demo"), 64, n_seq_max=2, n_batch=n_batch)))
    first = generator.add([7] * 10, max_tokens=20, sampling=Sampling.greedy(), ignore_eos=True)
    while not first.tokens:
        generator.step()
    stats = generator.stats
    assert stats.prefill_tokens == stats.prompt_tokens == 10
    assert stats.prefill_tokens_per_second == pytest.approx(10 / stats.prefill_seconds)
    generator.add([8] * 10, max_tokens=2)
    while generator.active:
        generator.step()
    assert (stats.prefill_tokens, stats.prompt_tokens) == (10, 20)
