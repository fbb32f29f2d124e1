"""A slot whose rows belong to some tokens alone: the others read zeros."""

import msgspec
import numpy as np
import pytest
from harness import seer

from mtpcore import Batch, Context, LinkError, PluginError, link, load_model
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.plugin import Feed, hookimpl

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def loaded(folder, missing):
    """A language model that is fed by an encoder of its own file."""
    (reader,) = (spec for spec in seer.SPECS if spec.name == "seer")
    feed = Feed(
        slot="picture", src="encoder", taps=("hidden",), pairing="same-token", missing=missing
    )
    spec = msgspec.structs.replace(reader, graphs=(("encoder", seer.encode),), feeds=(feed,))

    class Plugin:
        __name__ = "gaps"
        mtpcore_models = staticmethod(hookimpl(lambda: [spec]))

    seer.load(folder, "seer")
    return load_model(folder / "seer.gguf", plugins=Registry.of(Plugin()))


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, seer.WIDTH)).astype(np.float32)


def test_tokens_without_a_row_read_zeros(tmp_path):
    cross = link(Context(loaded(tmp_path, "zeros"), 32))
    picture = rows(2)
    cross.feed("encoder", "hidden", 0, 3, picture)
    found = cross.llm.process(Batch.of(TOKENS[:5], outputs="all")).logits
    cross.feed("encoder", "hidden", 0, 6, picture)
    later = cross.llm.process(Batch.of(TOKENS[5:], pos=5, outputs="all")).logits
    every = np.zeros((len(TOKENS), seer.WIDTH), np.float32)
    every[3:5] = every[6:8] = picture
    wanted = Context(cross.llm.model, 32).process(
        Batch(TOKENS, outputs="all", slots={"picture": every})
    )
    assert np.array_equal(np.concatenate([found, later]), wanted.logits)
    cross.rollback(0, 4)
    again = cross.llm.process(Batch.of(TOKENS[4:], pos=4, outputs="all")).logits
    assert np.array_equal(again, wanted.logits[4:])  # what an encoder made stays


def test_otherwise_they_are_refused(tmp_path):
    cross = link(Context(loaded(tmp_path, "refused"), 32))
    cross.feed("encoder", "hidden", 0, 3, rows(2))
    with pytest.raises(LinkError, match="a hidden row is missing"):
        cross.llm.process(Batch.of(TOKENS[:5]))


def test_only_rows_of_single_tokens_may_be_missing():
    for spec in seer.SPECS:
        for feed in spec.feeds:
            whole = msgspec.structs.replace(feed, pairing="whole-sequence", missing="zeros")
            with pytest.raises(PluginError, match="lacks no row"):
                check_spec(msgspec.structs.replace(spec, feeds=(whole,)))
