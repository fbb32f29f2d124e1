"""Sampling by name, or as a Sampling."""

import inspect

import pytest

from mtpcore import LM, Context, Generator, Sampling, SamplingError, load_model
from mtpcore.decoding import REQUEST_DEFAULTS, RequestOptions
from mtpcore.discovery.loading import find_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.lm.settings import TEXT_DEFAULTS, SamplingOptions, TextOptions, read_sampling
from mtpcore.sampling import USUAL

DEFAULT = Sampling(temperature=0.4, seed=9)


def test_names_are_the_fields_of_sampling():
    assert {*SamplingOptions.__annotations__} == {*Sampling.__struct_fields__} - {"stream"}


def test_each_option_has_a_default_and_no_other_name_has_one():
    assert TEXT_DEFAULTS.keys() == TextOptions.__annotations__.keys()
    assert REQUEST_DEFAULTS.keys() == RequestOptions.__annotations__.keys()


def defaults(function):
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if one.kind is one.KEYWORD_ONLY}


def test_signatures_show_all_options_with_their_defaults(lm):
    assert defaults(lm.stream) == defaults(lm.astream) == TEXT_DEFAULTS
    assert defaults(lm.generate) == TEXT_DEFAULTS | {"progress": None}
    own = {"stream": False, "tools": None, "template_options": None}
    own |= {"reasoning_effort": None, "continue_final_message": False, "response_format": None}
    own |= {"tool_choice": "auto"}
    assert defaults(lm.chat) == TEXT_DEFAULTS | own
    for method in (Generator.add, Generator.request, Generator.generate):
        assert defaults(method) == REQUEST_DEFAULTS
    named = {name: TEXT_DEFAULTS[name] for name in SamplingOptions.__annotations__}
    assert read_sampling(None, named | {"seed": 1}, {}) == Sampling(seed=1)


def test_what_is_left_out_is_the_default(lm):
    """A text is the same where every default is given."""
    given = {name: TEXT_DEFAULTS[name] for name in TEXT_DEFAULTS if name != "seed"}
    whole = {**given, "max_tokens": 6, "seed": 5}
    assert lm.generate("x", **whole).text == lm.generate("x", max_tokens=6, seed=5).text


def test_settings_come_by_name_or_as_one():
    named = read_sampling(None, {"temperature": 0.8, "top_p": 0.9, "seed": 1}, USUAL)
    assert named == Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, seed=1)
    assert read_sampling(DEFAULT, {"temperature": None}, USUAL) is DEFAULT
    assert read_sampling(None, {}, DEFAULT) is DEFAULT
    assert read_sampling(None, {"top_k": 3}, DEFAULT) == Sampling(temperature=0.4, seed=9, top_k=3)
    assert read_sampling(None, {"top_k": None}, DEFAULT) == DEFAULT
    drawn = read_sampling(None, {}, USUAL)
    assert drawn.temperature == USUAL["temperature"]
    assert drawn.seed != read_sampling(None, {}, USUAL).seed


def test_an_lm_takes_what_the_file_recommends(tmp_path, caplog):
    """llama.cpp's settings fill what the file leaves open; a ``Sampling`` is whole."""
    with open_model_file(find_model("demo")) as file:
        raw = {name: one.raw() for name, one in file.tensors.items()}
        types = {name: one.type for name, one in file.tensors.items()}
        keys = {"temp": 0.25, "penalty_repeat": 1.5, "mirostat": 2}
        metadata = file.metadata | {f"general.sampling.{key}": keys[key] for key in keys}
        write_model_file(tmp_path / "m.gguf", file.architecture, metadata, raw, types)
    with LM(tmp_path / "m.gguf", n_ctx=60) as lm:
        assert lm.sampling == USUAL | {"temperature": 0.25, "repetition_penalty": 1.5}
        assert "general.sampling.mirostat is not taken" in caplog.text
        taken = lm.generate("x", max_tokens=2, top_k=3, seed=1).sampling
        wanted = {**USUAL, "temperature": 0.25, "repetition_penalty": 1.5, "top_k": 3, "seed": 1}
        assert taken == Sampling(**wanted)
        assert lm.generate("x", max_tokens=2, sampling=DEFAULT).sampling == DEFAULT
    with LM("demo", n_ctx=60) as lm:
        assert lm.sampling == USUAL
    with LM.of(Generator(Context(load_model("demo"), 60), sampling=DEFAULT)) as lm:
        assert Sampling(**lm.sampling) == DEFAULT


NEAREST = {
    "temprature": "temperature",
    "temp": "temperature",
    "topp": "top_p",
    "max_token": "max_tokens",
    "stops": "stop",
    "logprob": "logprobs",
    "draftsampler": "draft_sampler",
}


@pytest.mark.parametrize(("given", "nearest"), NEAREST.items())
def test_an_unknown_name_is_refused_with_the_nearest(lm, given, nearest):
    with pytest.raises(SamplingError) as caught:
        lm.generate("x", **{given: 1})
    assert caught.value.where == repr(given)
    assert f"nearest is {nearest}=" in caught.value.fix


def test_a_stream_of_noise_is_no_stream_of_pieces(lm):
    with pytest.raises(SamplingError) as caught:
        lm.generate("x", stream=True)
    assert "LM.stream()" in caught.value.fix


def test_both_are_refused_and_so_is_what_is_out_of_range(lm):
    with pytest.raises(SamplingError, match="twice") as caught:
        lm.generate("x", sampling=DEFAULT, top_k=3)
    assert "top_k" in caught.value.fix
    with pytest.raises(SamplingError, match="temperature"):
        lm.generate("x", temperature=-1)
    with pytest.raises(SamplingError, match="settings are a Sampling"):
        lm.generate("x", sampling=3)
    assert lm.n_running == 0


def test_a_generator_refuses_an_unknown_name_as_python_does(lm):
    for method in (lm.generator.add, lm.generator.request, lm.generator.generate):
        with pytest.raises(TypeError, match=r"no such option: 'max_token'; .* max_tokens="):
            method([1], max_token=3)
    assert lm.n_running == 0


@pytest.mark.parametrize("given", [3, {"temperature": -1}, {"heat": 1}, {"stream": 2}, [("a",)]])
def test_settings_for_calls_that_give_none_are_checked(lm, given):
    with pytest.raises(SamplingError):
        LM.of(lm.generator, given)


def test_settings_for_calls_that_give_none_draw_a_seed_for_each_text(lm):
    of = LM.of(lm.generator, {"temperature": 2.0})
    texts = {of.generate("x", max_tokens=12, ignore_eos=True).text for _ in range(4)}
    assert len(texts) > 1
    assert of.sampling == {"temperature": 2.0}
