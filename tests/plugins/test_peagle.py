"""P-EAGLE heads and PARD models, from their published layouts, against their formulas in NumPy."""

import numpy as np
import pytest
from harness import eagle3, peagle, trunks
from harness.eagle3 import N_VOCAB, layers_of
from harness.peagle import VARIANTS
from harness.restated import BACKENDS

from mtpcore import Batch, Context, Generator, LinkError, Sampling, link, load_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.vocabulary import NORMAL, UNUSED
from mtpcore.testing import Runner, Subject, check_drafts

TOKENS = np.random.default_rng(7).integers(0, N_VOCAB - 5, 16).astype(np.int32)
K = 5


def seed_of(name):
    return list(VARIANTS).index(name)


def drafts_at_every_place(target, drafter, backend, scores):
    """Compare drafts of two lengths with those that have the best scores; near ties are few."""
    llm = Context(target, 64, kv_dtype="f32", threads=1, backend=backend)
    cross = link(llm, draft_model=drafter)
    rows, near = {}, 0
    for place, token in enumerate(TOKENS):
        made = llm.process(Batch.of([token], pos=place))
        for tap in map(str, llm.taps):
            rows.setdefault(tap, []).append(made.tap(tap)[0])
        pending = cross.pending(0, Sampling.greedy())
        logits = scores(np.append(TOKENS[: place + 1], pending), rows)
        second, first = np.sort(logits, axis=1)[:, -2:].T
        near += (first - second).min() < 1e-2
        if (first - second).min() >= 1e-2:
            assert cross.draft(0, K) == logits.argmax(axis=1).tolist()
            assert cross.draft(0, 2) == logits.argmax(axis=1).tolist()[:2]
    assert near < 8


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_formulas(name, backend, tmp_path):
    """Logits of a block's rows, after entries of random rows."""
    c, (runs, kv_dtype, near) = VARIANTS[name], BACKENDS[backend]
    drafter = load_model(peagle.write_head(tmp_path, c, seed_of(name)))
    with load_model(eagle3.write_target(tmp_path)) as target:
        drafter.borrow_from(target)
        w = peagle.read_weights(c, seed_of(name), target)
        runner = Runner(runs, drafter.program("draft"), drafter, kv_dtype=kv_dtype)
        width = w["mask_hidden"].size
        taps = np.random.default_rng(3).normal(size=(len(TOKENS) - 1, width)).astype(np.float32)
        rows = np.concatenate([taps, np.repeat(w["mask_hidden"].reshape(1, -1), K - 1, axis=0)])
        text = np.append(TOKENS[1:], [peagle.MASK] * (K - 1))
        logits = runner.feed(text, place=1, taps=rows.astype(np.float32))["logits"][-K:]
    wanted = peagle.scores(c, w, TOKENS, taps.astype(np.float64), K)
    drafted = np.isfinite(wanted[0])
    wanted = wanted[:, drafted]
    assert np.abs(wanted).max() > 0.5
    assert np.abs(logits - wanted).max() < near * np.abs(wanted).max()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_drafts_of_a_head(name, backend, tmp_path):
    """At every place of a text: the first row is EAGLE-3's, the others know no token."""
    c = VARIANTS[name]
    drafter = load_model(peagle.write_head(tmp_path, c, seed_of(name)))
    with load_model(eagle3.write_target(tmp_path)) as target:
        w = peagle.read_weights(c, seed_of(name), target)
        taps = [f"layer_input:{n}" for n in layers_of(c.head)]

        def scores(tokens, rows):
            joined = np.concatenate([np.stack(rows[tap]) for tap in taps], axis=1)
            return peagle.scores(c, w, tokens, joined.astype(np.float64), K)

        drafts_at_every_place(target, drafter, backend, scores)


@pytest.mark.parametrize("family", ["llama", "llama 3.1 rotation", "qwen2, tied", "qwen3"])
def test_drafts_of_a_model(family, tmp_path):
    """It reads no rows of the target, whose width is another one."""
    c = trunks.CONFIGS[family]
    drafter = load_model(peagle.write_model(tmp_path, c))
    assert drafter.drafters[0].name == "pard"
    w = trunks.checkpoint(c, 0)
    with load_model(peagle.write_pard_target(tmp_path)) as target:
        drafts_at_every_place(
            target, drafter, "cpu", lambda tokens, rows: peagle.pard_scores(c, w, tokens, K)
        )


def test_the_conformance_kit_agrees_with_the_formulas(tmp_path):
    c = VARIANTS["two layers"]
    target, head = eagle3.write_target(tmp_path), peagle.write_head(tmp_path, c)
    with load_model(target) as model:
        w = peagle.read_weights(c, 0, model)
    taps = [f"layer_input:{n}" for n in layers_of(c.head)]

    def scores(tokens, rows, drafts):
        joined = np.concatenate([rows[tap] for tap in taps], axis=1).astype(np.float64)
        return peagle.scores(c, w, tokens, joined, len(drafts))

    subject = Subject("peagle", str(target), str(head))
    assert check_drafts(subject, scores, k=4, n_tokens=12) == 2 * 12 * 4


TEXTS = [f"t{i}" for i in range(trunks.N_VOCAB)]
PADDED = [*TEXTS, "[PAD0]", "[PAD1]"]
TABLES = ("token_embd.weight", "output.weight")


def spelled(path, texts):
    """Write the model with these tokens, those called PAD as unused, and tables as long."""
    with open_model_file(path) as file:
        tensors = {name: t.array() for name, t in file.tensors.items()}
        metadata = file.metadata | {
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": [UNUSED if "PAD" in text else NORMAL for text in texts],
        }
        metadata.pop("tokenizer.ggml.model", None)  # no text is read or written
        metadata.pop(f"{file.architecture}.vocab_size", None)
        for name in TABLES & tensors.keys():
            tensors[name] = np.resize(tensors[name], (len(texts), tensors[name].shape[1]))
        write_model_file(path.with_suffix(".spelled"), file.architecture, metadata, tensors)
    return path.with_suffix(".spelled")


def pard_pair(folder, ours, theirs):
    drafter = spelled(peagle.write_model(folder, trunks.CONFIGS["qwen3"]), theirs)
    return load_model(spelled(peagle.write_pard_target(folder), ours)), load_model(drafter)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([*TEXTS[:7], "x", *TEXTS[8:]], ["token 7", "'t7'", "'x'"]),
        ([*TEXTS, "more"], [f"token {len(TEXTS)}", "none of this number", "'more'"]),
    ],
)
def test_a_model_of_other_tokens_is_refused_with_the_first_difference(texts, said, tmp_path):
    target, drafter = pard_pair(tmp_path, TEXTS, texts)
    llm = Context(target, 64)
    with pytest.raises(LinkError, match="vocabulary is another one") as caught:
        link(llm, draft_model=drafter)
    assert all(part in str(caught.value) for part in said)
    assert (llm.owner, drafter.target) == (None, None)


@pytest.mark.parametrize("short_one", ["target", "draft"])
def test_padding_makes_no_difference(short_one, tmp_path, caplog):
    """Unused tokens of one are never drafted, and end drafts where a text has one."""
    sizes = (TEXTS, PADDED) if short_one == "target" else (PADDED, TEXTS)
    target, drafter = pard_pair(tmp_path, *sizes)
    cross = link(Context(target, 64), draft_model=drafter)
    n_accepted, bias = 0, {token: 50.0 for token in range(len(TEXTS), target.hparams.n_vocab)}
    for sampling in (
        Sampling(temperature=0.9, seed=3),
        Sampling(temperature=0.9, seed=3, logit_bias=bias or None),
    ):
        generator = Generator(cross, sampling=sampling, draft=3)
        text = list(generator.generate([3, 4], max_tokens=24))
        plain = Generator(Context(target, 64), sampling=sampling)
        assert text == list(plain.generate([3, 4], max_tokens=24))
        n_accepted += generator.stats.accepted
    assert n_accepted > 0
    assert cross.invalid == 0
    assert (cross.paused > 0) == (short_one == "draft")
    assert ("does not have" in caplog.text) == (short_one == "draft")


@pytest.mark.parametrize(
    ("texts", "said"), [(PADDED, ""), ([*TEXTS[:7], "x", *TEXTS[8:]], "token 7")]
)
def test_a_model_beside_its_target_is_found_by_its_tokens(texts, said, tmp_path):
    drafter = spelled(peagle.write_model(tmp_path, trunks.CONFIGS["qwen3"]), texts)
    drafter.rename(tmp_path / "pard-big.gguf")
    spelled(peagle.write_pard_target(tmp_path), TEXTS).rename(tmp_path / "big.gguf")
    with load_model(tmp_path / "big.gguf") as target:
        (beside,) = (one for one in target.sidecars if one.path.name == "pard-big.gguf")
        assert said in beside.reason
        assert beside.used is not bool(said)
        assert (target.open_draft_model() is None) is bool(said)
