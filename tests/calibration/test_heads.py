"""Heads read what they read of a prompt: true tokens and the trunk's true rows."""

from contextlib import nullcontext

import numpy as np
import pytest
from harness import dflash
from harness.fixtures import model_file
from harness.gemma4_pairs import write_pair

from mtpcore import Batch, Context, load_model
from mtpcore.calibration.collecting import collect_importance, find_missing, shapes_of
from mtpcore.calibration.reader import ChunkReader
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.sums import TotalSums
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
    """One that fills blocks has begun some."""
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
    assert made.missing == ()
    assert made.perplexity is not None


def read_with_drafter(model, head, chunks):
    reader = ChunkReader(
        model, ImportanceSettings(chunk_size=SIZE, perplexity=False), draft_model=head, threads=1
    )
    total = TotalSums(shapes_of(head))
    for sums, _ in reader.read(chunks):
        total.add(sums)
    return total


def test_a_block_is_the_pending_token_and_masks():
    """A block wherever the last one's drafts would end; entries of the text are another graph's."""
    with load_model("demo") as model, load_model(find_demos()["demo:dflash-draft"]) as head:
        chunks = chunks_of(model, 2)
        total = read_with_drafter(model, head, chunks)
        block, eps = head.drafters[0].block, head.hparams.norm_eps
        embedded = model.tensors["token_embd.weight"].array()
        wanted = 0
        for chunk in chunks:
            for begin in range(block.size, SIZE - block.size + 1, block.size):
                tokens = [chunk[begin], *[block.mask] * (block.size - 1)]
                rows = normed(embedded[tokens], head.tensors["blk.0.attn_norm.weight"], eps)
                wanted = wanted + np.square(rows).sum(axis=0)
    assert total.counts["blk.0.attn_q.weight"].tolist() == [2 * 3 * block.size]
    np.testing.assert_allclose(total.sums["blk.0.attn_q.weight"][0], wanted, rtol=1e-4)
    for name in ("blk.0.ffn_down.weight", "blk.2.ffn_up.weight"):
        assert total.counts[name].tolist() == [2 * 3 * block.size]


@pytest.mark.parametrize(
    ("variant", "chooses"),
    [
        ("windows both ways", ()),
        ("dspark in place", ("markov",)),
        ("xpress", ("refiner.",)),
        ("causal dflash2", ("selector_",)),
        ("convolved lilicorr", ("lilicorr.",)),
    ],
)
def test_what_chooses_drafts_after_a_block_is_named(variant, chooses, tmp_path):
    """Nothing was drafted that it could read; every other matrix of such drafters has weights."""
    drafter = dflash.write_drafter(tmp_path, dflash.VARIANTS[variant])
    with load_model(dflash.write_target(tmp_path)) as model, load_model(drafter) as head:
        chunks = np.random.default_rng(3).integers(5, dflash.N_VOCAB, (2, SIZE)).astype(np.int32)
        missing = find_missing(head, read_with_drafter(model, head, chunks))
    assert bool(missing) == bool(chooses)
    assert all(name.startswith(chooses) for name in missing)


def test_a_drafter_without_entries_begins_at_every_token(tmp_path):
    """With the row before it; Gemma 4's assistant reads what the target has stored."""
    target, drafter = write_pair(tmp_path, "all tokens")
    with load_model(target) as model, load_model(drafter) as head:
        total = read_with_drafter(model, head, chunks_of(model, 2))
        assert find_missing(head, total) == ()
    assert total.counts["blk.0.attn_q.weight"].tolist() == [2 * (SIZE - 1)]


def test_a_language_model_is_no_such_drafter(tmp_path):
    (tmp_path / "text").write_text("words " * 100)
    with pytest.raises(LinkError, match="the draft model is a language model"):
        collect_importance(
            *("demo", [tmp_path / "text"], tmp_path / "a", ImportanceSettings(), None),
            draft_model="demo:small",
        )


def block_of(name):
    return int(name.split(".")[1]) if name.startswith("blk.") else -1
