"""The names that users write, used exactly as they are promised, on the model in the package."""

import inspect
from importlib import metadata

import numpy as np
import pytest

import mtpcore

PROMPT = "def read_config(path):"


@pytest.fixture(scope="module")
def model():
    return mtpcore.load_model("demo")


@pytest.fixture(scope="module")
def prompt_tokens(model):
    return model.tokenizer.encode(PROMPT)


def test_a_model_tells_what_it_is(model):
    assert model.architecture == "glm4moe"
    assert model.hparams.n_vocab == model.tokenizer.n_vocab
    assert model.tokenizer.decode(model.tokenizer.encode(PROMPT)) == PROMPT
    assert [drafter.name for drafter in model.drafters] == ["glm_nextn"]


def test_a_context_takes_the_promised_keywords(model):
    promised = {
        "graph_type": mtpcore.GraphType.LLM,
        "n_batch": 512,
        "kv_dtype": "f16",
        "threads": None,
        "backend": "cpu",
        "taps": (),
    }
    parameters = inspect.signature(mtpcore.Context).parameters
    assert {name: parameters[name].default for name in promised} == promised
    given = mtpcore.Context(model, n_ctx=512, n_seq_max=4, **promised)
    assert (given.n_ctx, given.n_seq_max) == (512, 4)
    assert given.guarantee == "exact"


def test_process_gives_logits_and_taps(model, prompt_tokens):
    llm = mtpcore.Context(model, n_ctx=512, n_seq_max=4, taps=["hidden"])
    out = llm.process(mtpcore.Batch.of(prompt_tokens, seq=0, pos=0, outputs="all"))
    n, hparams = len(prompt_tokens), model.hparams
    assert (out.logits.shape, out.logits.dtype) == ((n, hparams.n_vocab), np.float32)
    hidden = out.tap("hidden")
    assert (hidden.shape, hidden.dtype) == ((n, hparams.width), np.float32)
    assert np.isfinite(out.logits).all()
    assert np.isfinite(hidden).all()


def test_generate_for_one_request(model, prompt_tokens):
    llm = mtpcore.Context(model, n_ctx=512, n_seq_max=4)
    cross = mtpcore.link(llm, drafter="auto")
    gen = mtpcore.Generator(
        cross,
        sampling=mtpcore.Sampling(temperature=0.8, top_k=40, seed=7),
        draft=3,
        draft_sampler="coupled",
    )
    tokens = list(gen.generate(prompt_tokens, max_tokens=64, stop=(), ignore_eos=False))
    assert 0 < len(tokens) <= 64
    assert not model.tokenizer.end_tokens & set(tokens)
    assert [llm.length(seq) for seq in range(4)] == [0] * 4
    stats = gen.stats
    assert stats.drafted >= stats.accepted == sum(stats.accepted_per_position) > 0
    assert 0 < stats.verify_steps < len(tokens)
    assert len(stats.accepted_per_position) == 3
    assert stats.invalid == 0

    for source, draft in ((cross, 0), (mtpcore.Context(model, n_ctx=512), 3)):
        plain = mtpcore.Generator(source, sampling=gen.sampling, draft=draft)
        assert list(plain.generate(prompt_tokens, max_tokens=64)) == tokens
        assert plain.stats.drafted == 0


def test_step_for_many_requests(model, prompt_tokens):
    gen = mtpcore.Generator(mtpcore.link(mtpcore.Context(model, n_ctx=512, n_seq_max=4)))
    requests = [
        gen.add(
            prompt_tokens,
            sampling=mtpcore.Sampling(temperature=0.8, seed=7, stream=stream),
            draft=2,
            max_tokens=64,
            stop=("\n\n",),
        )
        for stream in range(3)
    ]
    while not all(req.finish_reason for req in requests):
        gen.step()
    for req in requests:
        assert req.finish_reason in ("stop", "length", "end")
        assert "\n\n" not in req.text
        assert model.tokenizer.decode(req.tokens).startswith(req.text)
    assert gen.stats.accepted > 0


def test_sampling_has_the_promised_settings():
    parameters = inspect.signature(mtpcore.Sampling).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "top_n_sigma": 0.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "penalty_last_n": -1,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ("\n", ":", '"', "*"),
        "logit_bias": None,
        "grammar": None,
        "seed": None,
        "stream": 0,
    }


def test_the_module_exports_what_it_names():
    assert all(hasattr(mtpcore, name) for name in mtpcore.__all__)
    errors = [
        e for e in vars(mtpcore).values() if inspect.isclass(e) and e.__name__[-5:] == "Error"
    ]
    assert len(errors) > 5
    assert all(issubclass(e, mtpcore.MtpcoreError) for e in errors)


def test_the_version_is_that_of_the_installed_distribution():
    assert mtpcore.__version__ == metadata.version("mtpcore")
    assert "__version__" not in vars(mtpcore)  # importing mtpcore does not look for it
    with pytest.raises(AttributeError, match=r"mtpcore.*no attribute 'verison'"):
        _ = mtpcore.verison
