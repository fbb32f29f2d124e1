"""Sampling by name, or as a Sampling."""

import pytest

from mtpcore import Sampling, SamplingError
from mtpcore.lm.settings import CALL_OPTIONS, SamplingOptions, read_sampling

DEFAULT = Sampling(temperature=0.4, seed=9)


def test_names_are_the_fields_of_sampling():
    assert {*SamplingOptions.__annotations__} == {*Sampling.__struct_fields__} - {"stream"}


def test_options_of_a_call_are_those_of_the_lm(lm):
    given = lm.generate.__kwdefaults__.keys() - {"progress"}
    assert given == {*CALL_OPTIONS} == lm.stream.__kwdefaults__.keys()
    assert given == lm.astream.__kwdefaults__.keys()


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
