"""A setting that config.json lacks means what transformers' configuration classes make of it.

Or its lack is an error that names it. ``tests/data/configurations/absent.json`` says what the
classes make of small models' settings without one of them.
"""

import json

import numpy as np
import pytest
from conversion.test_settings import nested, opened
from harness.fixtures import DATA

from mtpcore.conversion.unread import refuse_unread
from mtpcore.errors import ModelFileError

FORMS = json.loads((DATA / "configurations" / "absent.json").read_text())
GIVEN = {
    # Refused without.
    "MistralForCausalLM": {"sliding_window": None},
    "Mistral3ForConditionalGeneration": {"text_config.sliding_window": None},
    "Exaone4ForCausalLM": {"sliding_window": None},
    # More than the layers of a small model.
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 2},
    "Gemma3nForConditionalGeneration": {"text_config.num_kv_shared_layers": 2},
    # No default.
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 3},
}
"""What is not as by default, by class."""
REFUSED = (ModelFileError, ValueError)


def plain(value):
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def outcome(name, paths):
    """Return what a checkpoint of these settings becomes, as far as they say it."""
    config, tables, found = opened(name, nested(paths))
    refuse_unread(tables, config)
    for table in tables:
        found |= {key: make(config) for key, make in table.made}
        for rename in table.tensors:
            key = f"{rename.source}, {rename.tensor}"
            found[key] = None if rename.layers is None else [*rename.layers(config)]
            found[f"{key}: optional"] = callable(rename.optional) and rename.optional(config)
    return config, tables, with_heads({key: plain(value) for key, value in found.items()})


def with_heads(found):
    """Return metadata with the sizes of heads that a file means which does not say them."""
    for key in [key for key in found if key.endswith(".attention.head_count")]:
        n_heads, width = found[key], found[key.replace("attention.head_count", "embedding_length")]
        if not n_heads or isinstance(n_heads, list):
            continue  # no layer attends, or layers differ
        meant = {"head_count_kv": n_heads}
        meant |= dict.fromkeys(("key_length", "value_length"), width // n_heads)
        for name, value in meant.items():
            key_of = key.replace("head_count", name)
            found[key_of] = value if found.get(key_of) is None else found[key_of]
    return found


def without(paths, path):
    """Return settings without one, or without an object."""
    return {p: v for p, v in paths.items() if p != path and not p.startswith(f"{path}.")}


def around(paths):
    """Return paths, and those of the objects around them."""
    return {
        ".".join(parts[:n])
        for parts in (path.split(".") for path in paths)
        for n in range(1, len(parts) + 1)
    }


def names(error, path, settings):
    """Say whether an error names a setting, or one of an object."""
    inside = [p for p in settings if p == path or p.startswith(f"{path}.")]
    return any(p.split(".")[-1] in str(error) for p in [path, *inside])


def matters(path, settings, config, tables):
    """Say whether anything looks at a setting, or at one of an object."""
    constants = {path for table in tables for path, _ in table.constants}
    inside = {p for p in settings if p == path or p.startswith(f"{path}.")}
    short = {p.removeprefix(f"{name}.") for p in inside for t in tables for name in t.nested}
    return any(config.has_read(p) or p in constants for p in inside | short)


def difference(name, settings, meant):
    """Say how what a checkpoint becomes differs from what the class takes it for; "" if not."""
    lacking = outcome(name, settings)[2]
    try:
        wanted = outcome(name, meant)[2]
    except REFUSED as error:
        return f"taken, though the class means what is refused: {error}"
    return ", ".join(
        f"{key}: {lacking.get(key)}, to the class {wanted.get(key)}"
        for key in sorted(lacking.keys() | wanted.keys())
        if lacking.get(key) != wanted.get(key)
    )


def differences(name):
    """Yield the settings of a class whose absence we take for something else than it does."""
    given = GIVEN.get(name, {})
    now, before = FORMS[name]
    whole = now["settings"] | given
    config, tables, found = outcome(name, whole)
    assert outcome(name, before["settings"] | given)[2] == found
    for form in (now, before):
        settings = form["settings"] | given
        for path in sorted(around(settings) if form is now else around(settings.keys() - whole)):
            changed = form["absent"].get(path, {})
            if "refused" in changed or (
                form is now and not changed and not matters(path, whole, config, tables)
            ):
                continue
            meant = {p: v for p, v in (whole | changed).items() if changed.get(p, 0) is not None}
            try:
                said = difference(name, without(settings, path), meant)
            except REFUSED as error:
                said = "" if names(error, path, settings) else f"refused by: {error}"
            if said:
                yield f"without {path}: {said}"


@pytest.mark.parametrize("name", FORMS)
def test_absent_settings_mean_what_the_class_makes_of_them(name):
    """In the spelling of transformers 5, and in that before."""
    assert [*differences(name)] == []


def test_mimo_of_transformers():
    """Its layers with a window have twice the key heads, which only its own spelling says."""
    settings = FORMS["MiMoV2FlashForCausalLM"][0]["settings"]
    found = outcome("MiMoV2FlashForCausalLM", settings)[2]
    assert found["mimo2.attention.head_count_kv"] == [6, 12, 12, 12, 12, 6]
    assert found["mimo2.attention.sliding_window_pattern"] == [0, 1, 1, 1, 1, 0]
    named = settings | {"layer_types": ["full_attention"] * 5 + ["linear_attention"]}
    with pytest.raises(ModelFileError, match="layer_types are not all"):
        outcome("MiMoV2FlashForCausalLM", named)


@pytest.mark.parametrize("tied", [True, False, None])
def test_the_last_state_of_mt5_is_as_it_is(tied):
    """MT5Model multiplies it by nothing; transformers 5 writes that the tables are tied."""
    settings = FORMS["MT5ForConditionalGeneration"][0]["settings"] | {"tie_word_embeddings": tied}
    assert outcome("MT5ForConditionalGeneration", settings)[2]["t5.logit_scale"] == 1
