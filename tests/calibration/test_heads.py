"""Heads read what they read of a prompt: true tokens and the trunk's true rows."""

from contextlib import nullcontext

import numpy as np
import pytest
from harness.fixtures import model_file

from mtpcore import Batch, Context, load_model
from mtpcore.calibration.collecting import collect_importance, find_missing
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.conversion.importance_file import read_sums
from mtpcore.discovery.loading import find_demos
from mtpcore.errors import LinkError

SIZE = 24


@pytest.fixture(scope="module")
def glm():
    with load_model(model_file("glm-11", "f32")) as model:
        yield model


def chunks_of(model, n):
    rng = np.random.default_rng(3)
    return rng.integers(5, model.hparams.n_vocab, (n, SIZE)).astype(np.int32)


def normed(rows, weight, eps):
    rows = rows.astype(np.float64)
    return rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + eps) * weight.array()


def test_the_head_reads_each_token_with_the_row_before_it(glm, read):
    """By the formula of NextN heads: the norms of a token's embedding and of the row before it."""
    chunks = chunks_of(glm, 2)
    total = read(glm, chunks)
    tensors, eps = glm.tensors, glm.hparams.norm_eps
    (feed,) = glm.find_drafter().feeds
    wanted = 0
    for chunk in chunks:
        context = Context(glm, SIZE, taps=feed.taps, threads=1)
        rows = context.process(Batch.of(chunk, outputs="none")).tap(feed.taps[0])
        embedded = tensors["token_embd.weight"].array()[chunk]
        token = normed(embedded[1:], tensors["blk.4.nextn.enorm.weight"], eps)
        hidden = normed(rows[:-1], tensors["blk.4.nextn.hnorm.weight"], eps)
        wanted = wanted + np.square(np.concatenate([token, hidden], axis=1)).sum(axis=0)
    name = "blk.4.nextn.eh_proj.weight"
    np.testing.assert_array_equal(total.counts[name], [len(chunks) * (SIZE - 1)])
    np.testing.assert_allclose(total.sums[name][0], wanted, rtol=1e-4)


def test_experts_of_heads_are_counted_by_routing(glm, read):
    total = read(glm, chunks_of(glm, 2))
    n_used = glm.metadata["glm4moe.expert_used_count"]
    for block, n_rows in ((3, 2 * SIZE), (4, 2 * (SIZE - 1))):
        counts = total.counts[f"blk.{block}.ffn_up_exps.weight"]
        assert counts.sum() == n_used * n_rows
        assert total.counts[f"blk.{block}.ffn_gate_inp.weight"].tolist() == [n_rows]


def test_the_trunk_is_read_the_same_without_heads(glm, read):
    with_heads, without = (read(glm, chunks_of(glm, 2), heads=heads) for heads in (True, False))
    assert {name for name in with_heads.sums if name not in without.sums} == {
        name for name in with_heads.sums if name.startswith("blk.4.")
    }
    for name, sums in without.sums.items():
        np.testing.assert_array_equal(sums, with_heads.sums[name])


@pytest.mark.parametrize("name", ["mimo-14", "qwen35-16", "mimo2-15"])
def test_every_head_of_a_file_has_weights(name, read_file):
    """One after the other, as MiMo's, or one alone."""
    with read_file(model_file(name, "f16"), n_chunks=2) as (model, total):
        assert find_missing(model, total) == ()
        assert any(block >= model.hparams.n_layers for block in map(block_of, total.sums))


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_a_drafter_in_a_file_of_its_own_is_weighed_alone(name, tmp_path):
    """Of one that fills blocks only what makes entries of the text: it reads no masks."""
    (tmp_path / "text").write_text("def add(a, b):\n    return a + b\n" * 40)
    head = find_demos()[f"demo:{name}-draft"]
    made = collect_importance(
        *("demo:eagle3" if name == "eagle3" else "demo", [tmp_path / "text"], tmp_path / "a"),
        *(ImportanceSettings(chunk_size=SIZE, n_chunks=2), lambda _: nullcontext(lambda *_: None)),
        draft_model=head,
        threads=1,
    )  # fmt: skip
    found = read_sums(tmp_path / "a")
    with load_model(head) as model:
        assert found.sums.keys() <= model.tensors.keys()
    assert found.counts["fc.weight"].tolist() == [2 * SIZE]
    assert bool(made.missing) == (name == "dflash")
    assert made.perplexity is not None


def test_a_language_model_is_no_such_drafter(tmp_path):
    (tmp_path / "text").write_text("words " * 100)
    with pytest.raises(LinkError, match="the draft model is a language model"):
        collect_importance(
            *("demo", [tmp_path / "text"], tmp_path / "a", ImportanceSettings(), None),
            draft_model="demo:small",
        )


def block_of(name):
    return int(name.split(".")[1]) if name.startswith("blk.") else -1
