"""What ``verify`` hands out: verdicts, and what the pass computed of every row."""

import numpy as np
import pytest

from mtpcore import Batch, Context, DraftTree, Generator, SamplingError, Verdicts, link, load_model
from mtpcore.errors import MtpcoreError
from mtpcore.sampling import Sampling

PROMPTS = {0: [3, 1, 4, 1, 5], 1: [9, 2, 6]}


def linked(**settings):
    cross = link(Context(load_model("demo"), 64, taps=["hidden"], n_seq_max=3, **settings))
    for seq, prompt in PROMPTS.items():
        cross.llm.process(Batch.of(prompt, seq=seq))
    return cross


def plain(seq, tokens):
    """Return the rows of tokens after a prompt, one after the other."""
    context = Context(load_model("demo"), 64, taps=["hidden"])
    context.process(Batch.of(PROMPTS[seq]))
    return context.process(Batch.of(tokens, pos=len(PROMPTS[seq]), outputs="all"))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("logits", [False, True])
def test_the_output_has_the_rows_of_all_drafts(temperature, logits):
    cross, sampling = linked(), Sampling(temperature=temperature, seed=3)
    drafts = {0: [7, 8], 1: [5]}
    pending = {seq: cross.pending(seq, sampling) for seq in drafts}
    verdicts = cross.verify(drafts, sampling, logits=logits)
    assert isinstance(verdicts, Verdicts)
    assert verdicts.keys() == drafts.keys()
    for seq, ids in drafts.items():
        rows, wanted = verdicts.output.rows_of_seq[seq], plain(seq, [pending[seq], *ids])
        assert np.array_equal(verdicts.output.tap("hidden")[rows], wanted.tap("hidden"))
        if logits:
            assert np.array_equal(verdicts.output.logits[rows], wanted.logits)
    if not logits:
        with pytest.raises(MtpcoreError, match="chosen in place"):
            _ = verdicts.output.logits
    again = linked()
    for seq in drafts:
        again.pending(seq, sampling)
    assert verdicts == again.verify(drafts, sampling, logits=not logits)


def test_of_a_tree_every_node_has_its_row():
    cross = linked()
    pending = cross.pending(0, Sampling.greedy())
    tree = DraftTree([7, 8, 9], [-1, -1, 1])
    output = cross.verify({0: tree}).output
    rows = output.tap("hidden")[output.rows_of_seq[0]]
    assert np.array_equal(rows[[0, 1]], plain(0, [pending, 7]).tap("hidden"))
    assert np.array_equal(rows[[0, 2, 3]], plain(0, [pending, 8, 9]).tap("hidden"))


def test_without_rows_there_is_no_output():
    cross = linked()
    assert cross.verify({}).output is None
    with pytest.raises((MtpcoreError, SamplingError), match="logits is yes or no"):
        cross.verify({0: []}, logits="yes")


def test_a_request_says_which_sequence_is_its_own():
    generator = Generator(linked(), draft=2)
    for seq in PROMPTS:
        generator.cross.remove(seq)
    requests = [generator.add(prompt, max_tokens=6) for prompt in PROMPTS.values()]
    assert [request.seq for request in requests] == [None, None]
    generator.step()
    for request in requests:
        tokens = generator.cross.tokens(request.seq)
        assert list(tokens) == [*request.prompt, *request.tokens][: len(tokens)]
    while not all(request.done for request in requests):
        generator.step()
    assert [request.seq for request in requests] == [None, None]


def test_settings_are_given_once():
    """What drafted verifies, and chooses on; a verdict says what accept adds to the text."""
    settings = {seq: Sampling(temperature=1.3, seed=4, stream=seq) for seq in PROMPTS}
    once, each = linked(), linked()
    made = {seq: [] for seq in PROMPTS}
    for n in range(4):
        given = settings if n == 0 else None
        drafts = once.draft(dict.fromkeys(PROMPTS, 3), sampling=given)
        assert drafts == each.draft(dict.fromkeys(PROMPTS, 3), sampling=settings)
        verdicts = once.verify(drafts)
        assert verdicts == each.verify(drafts, settings)
        for seq, verdict in verdicts.items():
            made[seq] += verdict.committed
            once.accept(seq)
            each.accept(seq)
    for seq, prompt in PROMPTS.items():
        assert once.tokens(seq) == [*prompt, *made[seq]]
