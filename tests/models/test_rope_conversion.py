"""What is read of a configuration's rotation, and what is refused."""

import math

import numpy as np
import pytest

from mtpcore.errors import ModelFileError
from mtpcore.plugin import FACTORED_ROPE_KEYS, ROPE_KEYS, Config, long_context_factors

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 512}


def rope_keys(keys=ROPE_KEYS, **values):
    config = Config(SIZES | values)
    found = {}
    for key, source in keys:
        value = source(config)
        if value is not None:
            found[key.removeprefix("{arch}.rope.")] = value
    return found


def test_rotation_is_read_in_the_old_and_the_new_spelling():
    old = {"rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 2}}
    new = {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0}}
    wanted = {"freq_base": 5000.0, "scaling.type": "linear", "scaling.factor": 2.0}
    wanted["scaling.original_context_length"] = 512
    assert rope_keys(**old) == rope_keys(**new) == wanted
    assert rope_keys() == {"freq_base": 10000.0}
    llama3 = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert rope_keys(FACTORED_ROPE_KEYS, **llama3) == {"freq_base": 10000.0}
    with pytest.raises(ModelFileError, match="would not hold"):
        rope_keys(**llama3)


@pytest.mark.parametrize("kind", ["yarn", "linear", "llama3", "dynamic"])
def test_a_scaling_of_some_layers_is_one_that_files_do_not_hold(kind):
    """They hold one for all layers; where a configuration tells layers apart nothing reads it."""
    whole = {"rope_type": "default", "rope_theta": 1e6}
    some = {"full_attention": {"rope_type": kind, "factor": 4.0}, "sliding_attention": whole}
    for keys in (ROPE_KEYS, FACTORED_ROPE_KEYS):
        with pytest.raises(ModelFileError, match="would not hold") as error:
            rope_keys(keys, rope_parameters=some)
        assert error.value.where.endswith("rope_parameters.full_attention.rope_type")
        assert error.value.wanted == "default"
    assert "scaling.type" not in rope_keys(rope_parameters={"full_attention": whole})


def test_layers_that_state_a_base_each_state_the_same():
    """Read from the wrong place the base would be 10000, and the text noise after a while."""
    full, sliding = {"rope_theta": 1e6}, {"rope_theta": 1e4}
    alike = {"full_attention": full, "sliding_attention": full}
    assert rope_keys(rope_parameters=alike) == {"freq_base": 1e6}
    assert rope_keys(rope_parameters=alike, rope_theta=1000000) == {"freq_base": 1e6}
    for other in ({"sliding_attention": sliding}, {"rope_theta": 1e4}):
        with pytest.raises(ModelFileError, match="one base of the rotation") as error:
            rope_keys(rope_parameters={"full_attention": full, **other})
        assert "rope_parameters.full_attention.rope_theta" in error.value.where
        assert {*error.value.got.split(", ")} == {"1000000.0", "10000.0"}
        assert error.value.fix


def test_a_stated_magnitude_counts_beyond_the_one_of_yarn():
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert "scaling.attn_factor" not in rope_keys(rope_scaling=yarn)
    stated = rope_keys(rope_scaling=yarn | {"attention_factor": 1 + 0.1 * math.log(4.0)})
    assert stated["scaling.attn_factor"] == pytest.approx(1.0)


def test_two_mscales_state_a_magnitude():
    """As transformers does it for every family; one of them alone, or 0, says nothing."""
    yarn, rise = {"rope_type": "yarn", "factor": 4.0}, 0.1 * np.log(4.0)
    for ours, all_dims in ((1.0, 1.0), (0.8, 1.3)):
        said = yarn | {"mscale": ours, "mscale_all_dim": all_dims}
        factor = rope_keys(rope_scaling=said)["scaling.attn_factor"]
        wanted = (1 + ours * rise) / (1 + all_dims * rise)
        assert factor * (1 + rise) == pytest.approx(wanted)
        stated = rope_keys(rope_scaling=said | {"attention_factor": 1.0})
        assert stated["scaling.attn_factor"] * (1 + rise) == pytest.approx(1.0)
    for said in ({"mscale": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0}):
        assert "scaling.attn_factor" not in rope_keys(rope_scaling=yarn | said)


def test_long_context_factors_are_one_the_factor_and_a_mix_between():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert long_context_factors(Config(SIZES)) is None
    config = Config(SIZES | {"head_dim": 128, "rope_theta": 500000.0, "rope_scaling": scaling})
    made = long_context_factors(config)
    assert (made.shape, made.dtype) == ((64,), np.float32)
    assert made[0] == 1.0
    assert made[-1] == 8.0
    frequencies = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    wavelengths = 2 * np.pi / frequencies
    for wavelength, factor in zip(wavelengths, made, strict=True):
        if wavelength < 8192 / 4:
            wanted = 1.0
        elif wavelength > 8192:
            wanted = 8.0
        else:
            share = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            wanted = 1 / ((1 - share) / 8.0 + share)
        assert factor == pytest.approx(wanted, rel=1e-6)
    assert ((made > 1.0) & (made < 8.0)).any()
