"""A language model that drafts for another one of its vocabulary."""

import logging

import gguf
import msgspec
import numpy as np
import pytest
import toy
from harness import hybrid_family, seer
from harness.families import DRAFT_MODEL
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Context, Generator, LinkError, Sampling, link, load_model
from mtpcore.declarations.spec import TreeShape
from mtpcore.discovery.registry import Registry
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.gguf import write_model_file
from mtpcore.testing import Subject, Texts, check_drafts, check_texts, cover_texts
from mtpcore.testing.machine import machine_of

NORMAL, UNUSED = 1, 5
PLUGINS = Registry.of(hybrid_family.Plugin(), toy, seer)
SAMPLED = Sampling(temperature=0.9, seed=3)


def dequantized():
    """The packaged draft model's weights, as the gguf package reads them."""
    reader = gguf.GGUFReader(DRAFT_MODEL.draft_path)
    kinds = {t.name: t.tensor_type for t in reader.tensors}
    return {
        t.name: gguf.quants.dequantize(t.data, kinds[t.name]).reshape(t.shape[::-1])
        for t in reader.tensors
    }


def llama_logits(w, tokens, n_head=3, width=32, eps=1e-5, base=1e4):
    """A Llama with one head of keys, written down once more: logits [n, n_vocab]."""

    def norm(x, name):
        return w[name] * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)

    def rotate(x):
        angle = np.arange(n)[:, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = x[..., 0::2], x[..., 1::2]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)

    n = len(tokens)
    x = w["token_embd.weight"][tokens].astype(np.float64)
    for i in range(2):
        a = norm(x, f"blk.{i}.attn_norm.weight")
        q, k, v = ((a @ w[f"blk.{i}.attn_{part}.weight"].T).reshape(n, -1, width) for part in "qkv")
        q, k = rotate(q), rotate(k)
        scores = np.einsum("qhd,kd->hqk", q, k[:, 0]) / width**0.5
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        seen = np.einsum("hqk,kd->qhd", p, v[:, 0]).reshape(n, n_head * width)
        x = x + seen @ w[f"blk.{i}.attn_output.weight"].T
        f = norm(x, f"blk.{i}.ffn_norm.weight")
        gate, up = (f @ w[f"blk.{i}.ffn_{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ w["output.weight"].T


def test_drafts_are_those_of_a_plain_llama():
    weights = dequantized()
    subject = Subject("small", "demo", draft_path=DRAFT_MODEL.draft_path)

    def scores(tokens, rows, drafts):
        text = np.array([*tokens, *drafts[:-1]])
        return llama_logits(weights, text)[len(tokens) - 1 :]

    assert check_drafts(subject, scores, n_tokens=10, kv_dtype="f32") == 60


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """A model with recurrent layers and attention, and another one that is nearly the same."""
    folder = tmp_path_factory.mktemp("recurrent")
    weights, noise = hybrid_family.tensors(5), np.random.default_rng(6)
    other = {
        name: values + noise.normal(size=values.shape).astype(np.float32) * 0.1 * values.std()
        for name, values in weights.items()
    }
    target, draft = (
        toy.write(folder / name, tensors, n_blocks=hybrid_family.N_LAYERS, architecture="hybrid")
        for name, tensors in (("target.gguf", weights), ("draft.gguf", other))
    )
    return Subject("recurrent", str(target), str(draft), plugins=PLUGINS)


def test_a_recurrent_one_drafts_and_changes_no_text(recurrent):
    assert recurrent.spec.name == "draft_model"
    assert check_drafts(recurrent, n_tokens=8) == 48
    rates = [check_texts(recurrent, texts) for texts in cover_texts(8)[::3]]
    assert max(rates) > 0.2
    tree = TreeShape(depth=3, width=2, n_nodes=5)
    spec = msgspec.structs.replace(recurrent.spec, shape="tree", tree=tree)
    check_texts(recurrent, Texts(k=3, sampling=SAMPLED), spec)


@pytest.mark.hypothesis
@pytest.mark.parametrize("n_bytes", [None, 0])
def test_a_recurrent_one_keeps_in_step(recurrent, n_bytes):
    few = searching(12, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    machine = machine_of(recurrent, checkpoint_bytes=n_bytes)
    run_state_machine_as_test(machine, settings=few)


def test_one_that_is_its_target_is_always_right(recurrent):
    """Greedy and sampled, by itself and with a head before it in the file."""
    for path, plugins in ((recurrent.draft_path, PLUGINS), ("demo", None)):
        model = load_model(path, plugins=plugins)
        for sampling in (Sampling.greedy(), SAMPLED):
            cross = link(Context(model, 64), draft_model=model)
            assert cross.drafters["draft"].spec.name == "draft_model"
            generator = Generator(cross, sampling=sampling, draft=4)
            list(generator.generate([5, 6, 7], max_tokens=21, ignore_eos=True))
            assert generator.stats.accepted == generator.stats.drafted == 16


def test_shared_by_several_targets():
    """It borrows nothing, so one may draft for many."""
    small = load_model("demo:small")
    for name in ("demo", "demo:mimo"):
        cross = link(Context(load_model(name), 64), draft_model=small)
        cross.llm.process(Batch.of([5, 6, 7]))
        assert len(cross.draft(0, 3)) == 3
    assert small.target is None


def test_a_head_and_a_draft_model_side_by_side():
    """By name each is found where it is; the draft model's own head is none for the target."""
    model, small = load_model("demo"), load_model("demo:small")
    cross = link(Context(model, 64), ["glm_nextn", "draft_model"], draft_model=small)
    names = [drafter.spec.name for drafter in cross.drafters.values()]
    assert names == ["glm_nextn", "draft_model"]
    assert cross.contexts["draft"].model is model
    assert cross.contexts["draft2"].model is small
    with pytest.raises(LinkError, match="made for"):
        link(Context(model, 64), "mimo_mtp", draft_model=load_model("demo:mimo"))


def named(folder, name, tokens, kinds=None, family="toy"):
    """Write a trunk with these tokens: ``toy`` has no memory, ``line`` a KV cache."""
    tensors = toy.trunk_tensors() if family == "toy" else seer.tensors()
    for table in {"token_embd.weight", "output.weight"} & tensors.keys():
        tensors[table] = np.resize(tensors[table], (len(tokens), toy.WIDTH))
    metadata = {f"{family}.block_count": toy.N_LAYERS, f"{family}.embedding_length": toy.WIDTH}
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = kinds or [NORMAL] * len(tokens)
    write_model_file(folder / name, family, metadata, tensors)
    return load_model(folder / name, plugins=PLUGINS)


TOKENS = [f"t{i}" for i in range(40)]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([*TOKENS[:7], "x", *TOKENS[8:]], ["token 7", "'t7'", "'x'"]),
        (TOKENS[:-1], ["token 39", "40 tokens, 't39'", "39 tokens, none"]),
        ([*TOKENS, "more"], ["token 40", "40 tokens, none", "41 tokens, 'more'"]),
    ],
)
def test_another_vocabulary_is_refused_with_its_first_difference(tmp_path, tokens, said):
    target, other = named(tmp_path, "a.gguf", TOKENS), named(tmp_path, "b.gguf", tokens)
    llm = Context(target, 32)
    with pytest.raises(LinkError, match="vocabulary is another one") as caught:
        link(llm, draft_model=other)
    assert all(part in str(caught.value) for part in said)
    assert llm.owner is None


PADDED = [*TOKENS, "[PAD0]", "[PAD1]"]
KINDS = [NORMAL] * 40 + [UNUSED] * 2


@pytest.mark.parametrize("short_one", ["target", "draft"])
@pytest.mark.parametrize("restricted", [False, True])
def test_padding_makes_no_difference(tmp_path, short_one, restricted, caplog):
    """Unused tokens of one are never drafted, and end drafts where a text has one."""
    short, padded = named(tmp_path, "a.gguf", TOKENS), named(tmp_path, "b.gguf", PADDED, KINDS)
    target, small = (short, padded) if short_one == "target" else (padded, short)
    few = DraftVocabulary(np.arange(0, target.hparams.n_vocab, 2), tokenizer="")
    cross = link(
        Context(target, 64), draft_model=small, draft_vocabulary=few if restricted else None
    )
    bias = {token: 50.0 for token in range(40, target.hparams.n_vocab)}
    for sampling in (SAMPLED, Sampling(temperature=0.9, seed=3, logit_bias=bias or None)):
        text = list(Generator(cross, sampling=sampling, draft=3).generate([3, 4], max_tokens=9))
        plain = Generator(Context(target, 64), sampling=sampling)
        assert text == list(plain.generate([3, 4], max_tokens=9))
    assert cross.invalid == 0
    assert (cross.paused > 0) == (short_one == "draft")
    assert ("does not have" in caplog.text) == (short_one == "draft")


def test_a_sequence_with_unknown_tokens_goes_on_without_drafts(tmp_path, caplog):
    target = named(tmp_path, "a.gguf", PADDED, KINDS)
    small = named(tmp_path, "b.gguf", TOKENS, family="line")
    cross = link(Context(target, 64, n_seq_max=2), draft_model=small)
    cross.llm.process(Batch.of([1, 2, 41, 3], seq=0))
    cross.llm.process(Batch.of([1, 2, 3], seq=1))
    with caplog.at_level(logging.WARNING, "mtpcore"):
        drafts = cross.draft({0: 3, 1: 3})
    assert (len(drafts[0]), len(drafts[1]), cross.paused) == (0, 3, 1)
    before = cross.digest(0)
    assert cross.contexts["draft"].length(0) == 2
    cross.rollback(0, 2)
    cross.llm.process(Batch.of([5], seq=0, pos=2))
    assert len(cross.draft(0, 3)) == 3
    assert cross.digest(0) != before
