"""Which tokens of a text a drafter's graph can read."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.kinds import KINDS, N, ends, linked, write_files
from msgspec.structs import replace

from mtpcore import Batch
from mtpcore.drafting.entries import Entries

TEXT = np.array([5, 6, 7], np.int32)


def without_tokens(g, inputs, h):
    """A head of Medusa's kind: it reads the target's row alone."""
    return ends(g, g.matmul(inputs["hidden"], N + "attn_q.weight"))


@pytest.mark.parametrize(("reads_tokens", "readable"), [(True, range(1, 1)), (False, range(1, 3))])
def test_a_small_vocabulary_ends_what_graphs_that_read_tokens_can_read(
    tmp_path, reads_tokens, readable
):
    spec = KINDS["heads"] if reads_tokens else replace(KINDS["heads"], build=without_tokens)
    write_files(tmp_path)
    cross = linked(spec, tmp_path)
    cross.llm.process(Batch.of(TEXT.tolist()))
    runner = cross.contexts["draft"].runner
    names = ("memory", "lengths", "program", "sources")
    few = SimpleNamespace(hparams=SimpleNamespace(n_vocab=4))
    small = SimpleNamespace(model=few, **{name: getattr(runner, name) for name in names})
    upstream = cross.drafters["draft"].upstream
    entries = Entries(small, [feed for feed in spec.feeds if not feed.graph], upstream)
    assert entries.readable(0, range(1, 3), TEXT) == readable


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_head_that_reads_the_target_s_rows_begins_as_many_places_later_as_it_is_ahead(
    tmp_path, ahead
):
    """Its token is paired with the row of so many places before, and the first row is row 0."""
    spec = KINDS["heads"]
    write_files(tmp_path)
    cross = linked(spec, tmp_path)
    text = np.arange(5, 11, dtype=np.int32)
    cross.llm.process(Batch.of(text.tolist()))
    feeds = [feed for feed in spec.feeds if not feed.graph]
    paired = all(feed.pairing == "next-token" for feed in feeds)
    entries = Entries(
        cross.contexts["draft"].runner, feeds, cross.drafters["draft"].upstream, ahead=ahead
    )
    assert paired
    assert entries.first == 1 + ahead
    assert entries.missing(0, len(text)).start >= 1 + ahead
