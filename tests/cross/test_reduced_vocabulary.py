"""Drafters that may draft a part of their vocabulary."""

import numpy as np
import pytest
import toy

from mtpcore import Batch, Context, DraftVocabulary, LinkError, Sampling, Tap, TreeShape, link
from mtpcore.plugin import Outputs

SAMPLINGS = (Sampling.greedy(), Sampling(temperature=1.3, seed=3))
TEXT = [7, 3, 21, 60, 2, 44]
FEW = np.arange(1, toy.N_VOCAB, 3)
HEAD = np.random.default_rng(4).normal(size=(toy.N_VOCAB, toy.WIDTH))


def drafts(cross, p_min=0.0):
    """Drafts at each place of a text, greedy and sampled."""
    found = []
    for place, token in enumerate(TEXT):
        cross.llm.process(Batch.of([token], pos=place))
        found += [cross.draft(0, 3, sampling, p_min=p_min) for sampling in SAMPLINGS]
        cross.rollback(0, place + 1)
    return found


def context(model, backend="cpu"):
    return Context(model, 40, backend=backend, kv_dtype="f32", threads=1)


def own_head(folder, backend="cpu", **tensors):
    tensors = toy.trunk_tensors() | toy.head_tensors(head=HEAD) | tensors
    return context(toy.load(folder, tensors, heads=1), backend)


def tied_head(folder, backend="cpu"):
    return context(
        toy.load(folder, toy.trunk_tensors(output=False) | toy.head_tensors(), heads=1), backend
    )


def mapped_head(folder, backend, d2t, rows):
    """A head whose file holds these rows of the matrix only."""
    spec = toy.replaced(name="few", vocabulary="d2t")
    tensors = toy.trunk_tensors() | toy.head_tensors(head=HEAD[rows]) | {"d2t": np.asarray(d2t)}
    return context(toy.load(folder, tensors, spec, heads=1), backend)


def tapped(g, inputs, h):
    """The toy's head, its output offered as a tap."""
    made = toy.head(g, inputs, h)
    g.tap("joined", made.rows["hidden"])
    return made


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("p_min", [0.0, 0.04])
def test_it_is_the_head_without_the_other_rows(tmp_path, backend, p_min):
    """The same drafts, sampled too and cut by their probability, as of a file with those rows."""
    wanted = drafts(link(mapped_head(tmp_path, backend, FEW, FEW), "few"), p_min)
    shuffled = DraftVocabulary(np.random.default_rng(1).permutation(FEW), tokenizer="")
    found = drafts(link(own_head(tmp_path, backend), draft_vocabulary=shuffled), p_min)
    assert found == wanted
    assert len({token for one in found for token in one}) > 8
    every = DraftVocabulary(range(toy.N_VOCAB), tokenizer="")
    whole = drafts(link(own_head(tmp_path, backend)), p_min)
    assert drafts(link(own_head(tmp_path, backend), draft_vocabulary=every), p_min) == whole
    assert whole != wanted


def test_a_tied_matrix_stays_whole_for_those_who_read_tokens(tmp_path):
    few = DraftVocabulary(FEW, tokenizer="")
    cross = link(tied_head(tmp_path), draft_vocabulary=few)
    found = {token for one in drafts(cross) for token in one}
    assert len(found) > 8
    assert found <= set(FEW.tolist())
    assert cross.llm.process(Batch.of([5], pos=6)).logits.shape == (1, toy.N_VOCAB)
    assert cross.contexts["draft"].program.shape("logits") == ("n_outputs", len(FEW))


def test_of_a_head_with_a_map_it_keeps_what_the_map_names(tmp_path):
    rows = np.arange(0, toy.N_VOCAB, 2)
    both = np.intersect1d(rows, FEW)
    few = DraftVocabulary(FEW, tokenizer="")
    wanted = drafts(link(mapped_head(tmp_path, "cpu", both, both), "few"))
    cut = link(mapped_head(tmp_path, "cpu", rows, rows), "few", draft_vocabulary=few)
    assert drafts(cut) == wanted
    odd = DraftVocabulary([1, 3, 5], tokenizer="")
    with pytest.raises(LinkError, match="none of the draft vocabulary"):
        link(mapped_head(tmp_path, "cpu", rows, rows), "few", draft_vocabulary=odd)


@pytest.mark.parametrize("tokens", [[5], [5, 63]])
@pytest.mark.parametrize("tree", [None, TreeShape(depth=3, width=4, n_nodes=12)])
def test_one_token_is_enough(tmp_path, tokens, tree):
    """Also for trees that are wider than the vocabulary."""
    few = DraftVocabulary(tokens, tokenizer="")
    cross = link(own_head(tmp_path), tree=tree, draft_vocabulary=few)
    cross.llm.process(Batch.of(TEXT))
    draft = cross.draft(0, 3, SAMPLINGS[1])
    if tree is None:
        assert len(draft) == 3
        assert set(draft) <= set(tokens)
    else:
        assert set(draft.tokens.tolist()) == set(tokens)
        assert len(draft) == {1: 3, 2: 12}[len(tokens)]
        assert max(draft.depth) == 3
    cross.verify({0: draft}, SAMPLINGS[1])
    cross.accept(0)


def test_a_graph_without_logits_has_nothing_to_choose_from(tmp_path):
    def build(g, inputs, h):
        return Outputs(hidden=toy.head(g, inputs, h).rows["hidden"])

    tensors = toy.trunk_tensors() | toy.head_tensors(head=HEAD)
    model = toy.load(tmp_path, tensors, toy.replaced(name="mute", build=build), heads=1)
    with pytest.raises(LinkError, match="makes no logits") as caught:
        link(context(model), "mute", draft_vocabulary=DraftVocabulary(FEW, tokenizer=""))
    assert "drafter 'mute' of plugin 'other'" in caught.value.where


def test_taps_that_are_added_later_change_nothing(tmp_path):
    few = DraftVocabulary(FEW, tokenizer="")
    tensors = toy.trunk_tensors() | toy.head_tensors(head=HEAD)
    model = toy.load(tmp_path, tensors, toy.replaced(name="tapped", build=tapped), heads=1)
    cross, other = (link(context(model), "tapped", draft_vocabulary=few) for _ in range(2))
    drafter = cross.contexts["draft"]
    drafter.add_taps([Tap("joined")])
    assert "joined" in drafter.program.outputs
    assert drafter.program.shape("logits") == ("n_outputs", len(FEW))
    assert drafts(cross) == drafts(other)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (DraftVocabulary([toy.N_VOCAB], tokenizer=""), "unknown tokens"),
        (DraftVocabulary([1], tokenizer="00"), "another tokenizer"),
        (5, "no draft vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, given, what):
    with pytest.raises(LinkError, match=what):
        link(own_head(tmp_path), draft_vocabulary=given)
