"""Which rows the drafter's memory holds after each act: the worked example of deferred entries.

llama.cpp counts an entry by its hidden row: entry P is (token P + 1, row P), and the newest row's
entry is deferred, as its token is not known. Here the same pair is entry P + 1, counted by its
token; entry 0 does not exist, and what was deferred is the pending token's entry, which comes with
the draft. Each test's rows are followed through both graphs.
"""

import numpy as np
import pytest
from harness import eagle3

from mtpcore import Batch, Context, Generator, Sampling, link, load_model
from mtpcore.testing import Runner

GREEDY = Sampling.greedy()


class Entries:
    """A linked head on the reference backend, and the memory that given pairs would leave."""

    def __init__(self, folder):
        self.target = load_model(eagle3.write_target(folder))
        self.head = load_model(eagle3.write_head(folder, eagle3.Variant()))
        llm = Context(self.target, 64, backend="reference", kv_dtype="f32")
        self.cross = link(llm, draft_model=self.head)
        self.draft = self.cross.contexts["draft"]
        self.fusion = self.cross.contexts["draft_fusion"]

    def follow(self, tokens, n):
        """Return n tokens of the target's greedy text after the pending one, and a wrong one."""
        alone = Context(self.target, 64, backend="reference", kv_dtype="f32")
        _, *truth = Generator(alone, sampling=GREEDY).generate(tokens, max_tokens=n + 2)
        return [*truth[:n], (truth[n] + 1) % self.target.hparams.n_vocab]

    def fused(self, tokens):
        """Rows of the fusion over a text that nobody drafted."""
        feed = self.head.drafters[0].feeds[0]
        alone = Context(self.target, 64, backend="reference", kv_dtype="f32", taps=feed.taps)
        made = alone.process(Batch.of(tokens))
        fusion = Runner(alone.backend, self.head.program("fusion", drafter="eagle3"), self.head)
        taps = np.concatenate([made.tap(tap) for tap in feed.taps], axis=1)
        return fusion.feed(tokens, taps=taps)["fused"]

    def holds(self, tokens, rows):
        """Say whether the memory's entries 1, 2, ... are these tokens with these rows."""
        fresh = Context(
            self.head, 64, graph_type="draft", drafter="eagle3", backend="reference", kv_dtype="f32"
        )
        if len(tokens):
            fresh.process(Batch(tokens, pos=1, slots={"fused": rows}, outputs="none"))
        return self.draft.runner.sequences.digest(0) == fresh.digest(0)


@pytest.fixture
def entries(tmp_path):
    return Entries(tmp_path)


def test_the_worked_example(entries):
    """A prompt of four tokens, three drafts, two of them accepted."""
    cross, draft = entries.cross, entries.draft
    prompt = [3, 14, 15, 9]
    cross.llm.process(Batch.of(prompt))
    assert entries.holds([], None)  # nothing runs before it is needed
    x4 = cross.pending(0, GREEDY)
    cross.draft(0, 3)
    rows = entries.fused(prompt)
    # (x1, g0) (x2, g1) (x3, g2), and with the draft (x4, g3); what the drafts wrote is gone.
    assert entries.holds([*prompt[1:], x4], rows)
    assert (draft.length(0), entries.fusion.length(0)) == (5, 4)

    # Two drafts are accepted; what the head says of these random weights is no matter.
    drafts = entries.follow(prompt, 2)
    assert cross.verify({0: drafts})[0].accepted == 2
    cross.accept(0)
    text = [*prompt, x4, *drafts[:2]]
    assert cross.tokens(0) == text
    assert entries.holds([*prompt[1:], x4], rows)  # (x4, g3) survives: it was a true one
    x7 = cross.pending(0)
    cross.draft(0, 3)
    rows = entries.fused(text)
    # (d5, g4) (d6, g5) are made of the target's rows, and (x7, g6) is the pending token's.
    assert entries.holds([*text[1:], x7], rows)
    assert (draft.length(0), entries.fusion.length(0)) == (8, 7)


def test_a_round_in_which_nothing_is_accepted(entries):
    cross = entries.cross
    prompt = [3, 14, 15, 9]
    cross.llm.process(Batch.of(prompt))
    x4 = cross.pending(0, GREEDY)
    cross.draft(0, 3)
    assert cross.verify({0: entries.follow(prompt, 0)})[0].accepted == 0
    cross.accept(0)
    text = [*prompt, x4]
    cross.draft(0, 2)
    assert entries.holds([*text[1:], cross.pending(0)], entries.fused(text))


def test_a_prompt_of_one_token_has_no_entry_but_the_pending_one(entries):
    cross = entries.cross
    cross.llm.process(Batch.of([5]))
    cross.draft(0, 3)
    assert entries.holds([cross.pending(0)], entries.fused([5]))


def test_digests_count_no_pending_token(entries):
    """Settled, the memory holds the entries of processed tokens only: up to N - 2 of theirs."""
    cross = entries.cross
    prompt = [3, 14, 15, 9]
    cross.llm.process(Batch.of(prompt))
    cross.draft(0, 3)
    cross.digest(0)
    assert entries.holds(prompt[1:], entries.fused(prompt)[:-1])
    assert entries.fusion.length(0) == 4
