"""Drafters that know only some of the target's tokens."""

import numpy as np
import pytest
import toy

from mtpcore import Batch, Context, LinkError, Sampling, link

SAMPLINGS = (Sampling.greedy(), Sampling(temperature=1.3, seed=3))
TEXT = [7, 3, 21, 60, 2, 44]


def rows(ids, seed=4):
    """The output matrix of a whole vocabulary, in the order of these ids."""
    return np.random.default_rng(seed).normal(size=(toy.N_VOCAB, toy.WIDTH))[ids]


def cross_of(folder, ids, backend="reference", d2t=None, head=None):
    """Link a head with these ids and, as ``d2t``, a map (None: no tensor of that name)."""
    spec = toy.replaced(name="few", vocabulary="d2t")
    tensors = toy.trunk_tensors() | toy.head_tensors(head=rows(ids) if head is None else head)
    if d2t is not None:
        tensors["d2t"] = np.asarray(d2t)
    model = toy.load(folder, tensors, spec, heads=1)
    llm = Context(model, 40, backend=backend, kv_dtype="f32", threads=1)
    return link(llm, "few")


def drafts(cross):
    """Drafts at each place of a text, greedy and sampled."""
    found = []
    for place, token in enumerate(TEXT):
        cross.llm.process(Batch.of([token], pos=place))
        found += [cross.draft(0, 3, sampling) for sampling in SAMPLINGS]
        cross.rollback(0, place + 1)
    return found


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_noise_is_that_of_the_target_s_ids(tmp_path, backend):
    """The same head with its rows in another order drafts the same, sampled too."""
    every = np.arange(toy.N_VOCAB)
    whole = drafts(cross_of(tmp_path, every, backend))
    mixed = np.random.default_rng(1).permutation(toy.N_VOCAB)
    assert drafts(cross_of(tmp_path, mixed, backend, mixed.astype(np.int64))) == whole
    assert whole[0] != whole[1]


def test_only_mapped_tokens_are_drafted(tmp_path):
    ids = np.arange(1, toy.N_VOCAB, 3)
    found = drafts(cross_of(tmp_path, ids, d2t=ids))
    tokens = {token for one in found for token in one}
    assert len(tokens) > 8
    assert tokens <= set(ids.tolist())


FEW = np.arange(1, toy.N_VOCAB, 3)


@pytest.mark.parametrize(
    ("d2t", "what"),
    [
        (None, "no map says"),
        (FEW[:-1], "one id for each logit"),
        (np.stack([FEW, FEW]), "one id for each logit"),
        (np.where(FEW == 4, toy.N_VOCAB, FEW), "unknown tokens"),
        (np.where(FEW == 4, -1, FEW), "unknown tokens"),
        (np.where(FEW == 4, 7, FEW), "names a token twice"),
    ],
    ids=["missing", "short", "a matrix", "beyond", "below", "twice"],
)
def test_maps_that_do_not_fit_are_refused(tmp_path, d2t, what):
    with pytest.raises(LinkError, match=what) as caught:
        cross_of(tmp_path, FEW, d2t=d2t)
    assert "toy.gguf" in caught.value.where
