"""``process`` with fused sampling: tokens in place of logits, on every backend alike."""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from harness import seer
from harness.generated import N_VOCAB, QUANTISED, write_generated

from mtpcore import load_model
from mtpcore.backends.base import FusedSampling
from mtpcore.errors import BatchError, SamplingError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampler, Sampling, Scratch

TOKENS = [3, 9, 4, 1, 5, 30, 2]
IDS = np.arange(seer.N_VOCAB, dtype=np.int32)
SAMPLINGS = [Sampling.greedy(), Sampling(temperature=1.0, seed=5)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seer")
    return {name: seer.load(folder, name, 3) for name in ("line", "eye")}


def context(model, backend="cpu", **settings):
    return Context(model, 64, backend=backend, kv_dtype="f32", threads=1, **settings)


def fused_sampling(n, settings=SAMPLINGS):
    scratch = Scratch(seer.N_VOCAB)
    return FusedSampling(
        samplers=[Sampler(settings[i % len(settings)], scratch) for i in range(n)],
        indices=[i + 1 for i in range(n)],
    )


def tokens_of(logits, wanted):
    before = np.zeros(0, np.int32)
    return [
        sampler.choose(row, before, 0, index)
        for sampler, index, row in zip(wanted.samplers, wanted.indices, logits, strict=True)
    ]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("n_batch", [64, 3])
def test_chosen_tokens_are_those_of_the_logits(models, backend, n_batch):
    """In one pass or in parts; what is stored stays the same."""
    one, other = (context(models["line"], backend, n_batch=n_batch) for _ in range(2))
    wanted, batch = fused_sampling(len(TOKENS)), Batch.of(TOKENS, outputs="all")
    plain, made = one.process(batch), other.process(batch, wanted)
    assert plain.chosen is None
    assert made.chosen.dtype == np.int32
    assert made.chosen.tolist() == tokens_of(plain.logits, wanted)
    assert not made.chosen.flags.writeable
    assert len(set(made.chosen.tolist())) > 1
    assert one.digest(0) == other.digest(0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("n_batch", [64, 3])
def test_with_texts_any_sampler_chooses(models, backend, n_batch):
    """After penalties of the tokens before each row, some of which do not count a prompt."""
    settings = [
        Sampling(temperature=1.0, seed=5, repetition_penalty=1.5, presence_penalty=0.7),
        Sampling(temperature=2.0, seed=6, top_k=3, logit_bias={4: 1.5}),
        Sampling.greedy(),
    ]
    one, other = (context(models["line"], backend, n_batch=n_batch) for _ in range(2))
    wanted, batch = fused_sampling(len(TOKENS), settings), Batch.of(TOKENS, outputs="all")
    texts = [np.array(TOKENS[: i + 1], np.int32) for i in range(len(TOKENS))]
    samplers = [*wanted.samplers[:-1], None]
    wanted = msgspec.structs.replace(
        wanted, samplers=samplers, texts=texts, n_prompt=[min(i, 2) for i in range(len(TOKENS))]
    )
    plain, made = one.process(batch).logits, other.process(batch, wanted)
    rows = zip(samplers[:-1], wanted.indices, plain, texts, wanted.n_prompt, strict=False)
    assert made.chosen.tolist() == [
        *(sampler.choose(row, text, n, index) for sampler, index, row, text, n in rows),
        -1,
    ]
    assert np.array_equal(made.logits_at(len(TOKENS) - 1), plain[-1])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("n_batch", [64, 3])
def test_with_texts_the_end_of_a_prompt_chooses(models, backend, n_batch):
    """Of some parts of the batch no row chooses."""
    settings = [Sampling(temperature=1.0, seed=5, repetition_penalty=1.5)]
    one, other = (context(models["line"], backend, n_batch=n_batch) for _ in range(2))
    text = np.array(TOKENS, np.int32)
    wanted = msgspec.structs.replace(fused_sampling(1, settings), texts=[text], n_prompt=[3])
    (row,) = one.process(Batch.of(TOKENS)).logits
    made = other.process(Batch.of(TOKENS), wanted)
    assert made.chosen.tolist() == [wanted.samplers[0].choose(row, text, 3, wanted.indices[0])]


@pytest.mark.parametrize(
    ("texts", "n_prompt", "error", "match"),
    [
        ([np.zeros(2, np.int32)], [], BatchError, "one text an output"),
        ([np.zeros(2, np.int32)] * 2, [0, 0], BatchError, "one text an output"),
        (7, [0], BatchError, "no sequences of texts"),
        ([[1, 2]], [0], BatchError, "no array of int32"),
        ([np.zeros(2)], [0], BatchError, "no array of int32"),
        ([np.zeros(4, np.int32)[::2]], [0], BatchError, "side by side"),
        ([np.zeros((2, 2), np.int32)], [0], BatchError, "side by side"),
        ([np.zeros(2, np.int32)], [3], SamplingError, "not a part of the text"),
        ([np.zeros(2, np.int32)], [-1], SamplingError, "not a part of the text"),
        ([np.zeros(2, np.int32)], [0.5], BatchError, "no number of tokens"),
    ],
)
def test_texts_that_do_not_fit_are_refused(models, texts, n_prompt, error, match):
    one = context(models["line"])
    wanted = msgspec.structs.replace(fused_sampling(1), texts=texts, n_prompt=n_prompt)
    with pytest.raises(error, match=match):
        one.process(Batch.of(TOKENS), wanted)
    assert one.length(0) == 0


@pytest.mark.parametrize(
    ("kind", "n"),
    [*((kind, 130) for kind in QUANTISED), *(("Q8_0", n) for n in (64, 65, 128, 200))],
)
def test_tokens_of_many_rows_are_those_of_the_logits(tmp_path, kind, n):
    """Logits of 64 rows at a time are made and looked at; the last are fewer."""
    model = load_model(write_generated(tmp_path / "model.gguf", "llama", kind))
    one, other = (Context(model, n, n_batch=n) for _ in range(2))
    scratch = Scratch(N_VOCAB)
    wanted = FusedSampling(
        samplers=[Sampler(SAMPLINGS[i % 2], scratch) for i in range(n)], indices=[*range(n)]
    )
    batch = Batch.of(np.arange(n) % N_VOCAB, outputs="all")
    plain, made = one.process(batch), other.process(batch, wanted)
    assert made.chosen.tolist() == tokens_of(plain.logits, wanted)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("n_batch", [64, 3, 1])
def test_only_the_logits_that_are_wanted_are_there(models, backend, n_batch):
    """Those of outputs without a sampler, by place and by position; others are chosen from."""
    one, other = (context(models["line"], backend, n_batch=n_batch) for _ in range(2))
    batch, wanted = Batch.of(TOKENS, outputs="all"), fused_sampling(len(TOKENS))
    samplers = [None if i in (1, 2, 5) else s for i, s in enumerate(wanted.samplers)]
    mixed = FusedSampling(samplers=samplers, indices=wanted.indices)
    plain, made = one.process(batch).logits, other.process(batch, mixed)
    expected = tokens_of(plain, wanted)
    assert made.chosen.tolist() == [-1 if i in (1, 2, 5) else t for i, t in enumerate(expected)]
    with pytest.raises(BatchError, match="chosen in place") as caught:
        _ = made.logits  # one row an output, or none
    assert "logits_at" in caught.value.fix
    for i in range(len(TOKENS)):
        if i in (1, 2, 5):
            assert np.array_equal(made.logits_at(i), plain[i])
            assert np.array_equal(made.logits_of(0, i), plain[i])
        else:
            with pytest.raises(BatchError, match="chosen in place"):
                made.logits_at(i)
    for wrong in (-1, len(TOKENS), 1.0, True, "1"):
        with pytest.raises(BatchError, match="no such output"):
            made.logits_at(wrong)


def test_logits_are_not_there_where_they_were_not_written(models):
    made = context(models["line"]).process(Batch.of(TOKENS), fused_sampling(1))
    with pytest.raises(BatchError, match="chosen in place"):
        _ = made.logits
    with pytest.raises(BatchError, match="chosen in place"):
        made.logits_of(0, len(TOKENS) - 1)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_outputs_choose_nothing(models, backend):
    one = context(models["line"], backend)
    made = one.process(Batch.of(TOKENS, outputs="none"), fused_sampling(0))
    assert made.chosen.shape == (0,)
    assert made.logits.shape == (0, seer.N_VOCAB)


class Lazy(Sequence):
    """Makes its samplers anew whenever one is looked at."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        return Sampler(SAMPLINGS[i % 2], Scratch(seer.N_VOCAB))


@pytest.mark.parametrize("n_batch", [64, 3])
@pytest.mark.parametrize("make", [Lazy, lambda n: deque(Lazy(n)), lambda n: iter(Lazy(n))])
def test_any_sequence_of_samplers_is_read_once(models, make, n_batch):
    """And kept until the tokens are chosen, with any kind of whole numbers as indices."""
    batch, n = Batch.of(TOKENS, outputs="all"), len(TOKENS)
    wanted = context(models["line"]).process(batch, fused_sampling(n)).chosen
    indices = np.arange(1, n + 1, dtype=np.uint64)
    made = context(models["line"], n_batch=n_batch).process(
        batch, FusedSampling(samplers=make(n), indices=indices)
    )
    assert made.chosen.tolist() == wanted.tolist()


class TwoFaced(dict):
    """Holds samplers as its keys, and None by their indices."""

    def __missing__(self, key):
        return None


def test_samplers_are_what_they_are_when_read_in_turn(models):
    wanted, batch = fused_sampling(len(TOKENS)), Batch.of(TOKENS, outputs="all")
    held = TwoFaced(dict.fromkeys(wanted.samplers))
    made = context(models["line"]).process(
        batch, FusedSampling(samplers=held, indices=wanted.indices)
    )
    assert made.chosen.tolist() == context(models["line"]).process(batch, wanted).chosen.tolist()


def test_choices_that_do_not_fit_change_nothing(models):
    one = context(models["line"])
    one.process(Batch.of(TOKENS))
    before = one.digest(0), one.length(0)
    more = Batch.of([8, 7], pos=len(TOKENS), outputs="all")
    good = fused_sampling(2)
    for wrong, error, words in (
        (fused_sampling(1), BatchError, "one choice an output"),
        (FusedSampling(samplers=good.samplers, indices=[1]), BatchError, "one choice an output"),
        (FusedSampling(samplers=good.samplers, indices=[1, -1]), SamplingError, "out of range"),
        (FusedSampling(samplers=good.samplers, indices=[1, 2**64]), SamplingError, "out of range"),
        (fused_sampling(2, [Sampling(seed=1, top_k=3)]), SamplingError, "text before it"),
    ):
        with pytest.raises(error, match=words):
            one.process(more, wrong)
        assert (one.digest(0), one.length(0)) == before
    assert len(one.process(more, good).chosen) == 2


def test_what_is_no_choice_is_an_error_of_the_family(models):
    one = context(models["line"])
    (sampler,) = fused_sampling(1).samplers
    for wrong, words in (
        (3, "takes FusedSampling"),
        (FusedSampling(samplers=[5], indices=[1]), "no Sampler"),
        (FusedSampling(samplers=[sampler], indices=["a"]), "no index"),
        (FusedSampling(samplers=[sampler], indices=[True]), "no index"),
        (
            FusedSampling(samplers=[sampler], indices=[1], token_ids=list(range(64))),
            "array of int32",
        ),
        (
            FusedSampling(samplers=[sampler], indices=[1], token_ids=np.arange(64.0)),
            "array of int32",
        ),
        (FusedSampling(samplers=[sampler], indices=[1], token_ids=IDS[::2]), "side by side"),
        (
            FusedSampling(samplers=[sampler], indices=[1], token_ids=IDS.reshape(2, -1)),
            "side by side",
        ),
        (FusedSampling(samplers=5, indices=[1]), "no sequences"),
        (FusedSampling(samplers=[sampler], indices=None), "no sequences"),
    ):
        with pytest.raises(BatchError, match=words):
            one.process(Batch.of([8, 7]), wrong)
        assert one.length(0) == 0


def test_ids_of_other_logits_are_an_error_whoever_chooses(models):
    one = context(models["line"])
    for sampler in (None, *fused_sampling(1).samplers):
        wrong = FusedSampling(samplers=[sampler], indices=[1], token_ids=IDS[:-1])
        with pytest.raises(SamplingError, match="does not fit"):
            one.process(Batch.of([8, 7]), wrong)
    assert one.length(0) == 0


def test_a_graph_without_logits_chooses_nothing(models):
    one = context(models["eye"], graph_type="encoder")
    with pytest.raises(BatchError, match="no logits"):
        one.process(Batch.of([1, 2], outputs="all"), fused_sampling(2))
    assert one.length(0) == 0
