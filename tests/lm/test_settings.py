"""Sampling by name, or as a Sampling."""

import inspect

import pytest

from mtpcore import Generator, Sampling, SamplingError
from mtpcore.decoding import REQUEST_DEFAULTS, RequestOptions
from mtpcore.lm.settings import TEXT_DEFAULTS, SamplingOptions, TextOptions, read_sampling

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
    assert defaults(lm.chat) == TEXT_DEFAULTS | own
    for method in (Generator.add, Generator.request, Generator.generate):
        assert defaults(method) == REQUEST_DEFAULTS
    named = {name: TEXT_DEFAULTS[name] for name in SamplingOptions.__annotations__}
    assert Sampling(**named | {"seed": 1}) == Sampling(seed=1)


def test_what_is_left_out_is_the_default(lm):
    """A text is the same where every default is given."""
    given = {name: TEXT_DEFAULTS[name] for name in TEXT_DEFAULTS if name != "seed"}
    whole = {**given, "max_tokens": 6, "seed": 5}
    assert lm.generate("x", **whole).text == lm.generate("x", max_tokens=6, seed=5).text


def test_settings_come_by_name_or_as_one():
    named = read_sampling(None, {"temperature": 0.8, "top_p": 0.9, "seed": 1}, None)
    assert named == Sampling(temperature=0.8, top_p=0.9, seed=1)
    assert read_sampling(DEFAULT, {}, None) is DEFAULT
    assert read_sampling(None, {}, DEFAULT) is DEFAULT
    assert read_sampling(None, {"top_k": 3}, DEFAULT) == Sampling(temperature=0.4, seed=9, top_k=3)
    drawn = read_sampling(None, {}, None)
    assert drawn.temperature == Sampling().temperature
    assert drawn.seed != read_sampling(None, {}, None).seed


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
