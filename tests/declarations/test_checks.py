"""Declarations are checked at the door, and say no more than heads differ in."""

import importlib
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import mtpcore_csm
import mtpcore_deepseek_mtp
import mtpcore_dflash
import mtpcore_eagle3
import mtpcore_gemma4
import mtpcore_glm_nextn
import mtpcore_gpt_oss
import mtpcore_mimo_mtp
import mtpcore_peagle
import mtpcore_qwen_mtp
import mtpcore_qwen_tts
import mtpcore_t5
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st

import mtpcore.models
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.errors import PluginError
from mtpcore.plugin import DrafterSpec, Fit, Proposer, Tap
from mtpcore.runtime.fit import fits

PLUGINS = [
    mtpcore_glm_nextn,
    mtpcore_deepseek_mtp,
    mtpcore_mimo_mtp,
    mtpcore_eagle3,
    mtpcore_qwen_mtp,
    mtpcore_gpt_oss,
    mtpcore_gemma4,
    mtpcore_t5,
    mtpcore_csm,
    mtpcore_qwen_tts,
    mtpcore_dflash,
    mtpcore_peagle,
]
for module in sorted((Path(__file__).parents[2] / "examples").glob("*/src/*/__init__.py")):
    sys.path.append(str(module.parents[1]))
    PLUGINS.append(importlib.import_module(module.parent.name))
DECLARED = Registry.of(mtpcore.models, *PLUGINS)
SCRIPT = DrafterSpec(
    name="script", fit=Fit(), shape="proposer", proposer=lambda model: Proposer(), limit=16
)


@pytest.mark.parametrize("spec", [*DECLARED.drafters, SCRIPT], ids=lambda spec: spec.name)
def test_declaration_is_well_formed(spec):
    check_spec(spec)


ALONE = "one family alone comes in two files"
NO_AXES = {
    "Companion.architecture": ALONE,
    "Companion.file": ALONE,
    "Companion.metadata": ALONE,
    "Companion.tensors": ALONE,
    "Feed.missing": "no family here has rows for some tokens alone, as DeepStack has for images",
    "DrafterSpec.version": "is filled in at load, from the distribution",
    "Noise.first": "one drafter alone has noise for masks",
    "ModelSpec.version": "is filled in at load, from the distribution",
    "Shards.parts": "one family alone has shards",
    "SharedMemory.layers": "one family alone has a drafter that reads the target's memory",
}
"""Fields in which no two declarations of this repository differ, and why they are there."""


def collect(declared, found):
    """Note every value of every field, of structs inside too."""
    if isinstance(declared, (list, tuple)):
        for one in declared:
            collect(one, found)
    elif isinstance(declared, msgspec.Struct):
        for name in declared.__struct_fields__:
            value = getattr(declared, name)
            values = found[f"{type(declared).__name__}.{name}"]
            if value not in values:
                values.append(value)
            collect(value, found)


def same_everywhere(*declared):
    found = defaultdict(list)
    collect(declared, found)
    return {field for field, values in found.items() if len(values) == 1}


def test_a_field_of_a_declaration_exists_where_two_differ_in_it():
    assert same_everywhere(*DECLARED.models, *DECLARED.drafters, SCRIPT) == NO_AXES.keys()


def test_a_field_that_nobody_needs_is_seen():
    idle = msgspec.defstruct("Idle", [("mode", str, "plain")])
    assert same_everywhere(idle(), idle()) == {"Idle.mode"}


JUNK = [
    None,
    True,
    -1,
    1e9,
    "",
    "{n}",
    "two words",
    b"x",
    (),
    ("",),
    [],
    {},
    frozenset({1}),
    len,
    object(),
]


@given(
    spec=st.sampled_from([*DECLARED.drafters, SCRIPT]),
    field=st.sampled_from([f.name for f in msgspec.structs.fields(DrafterSpec)]),
    inner=st.integers(0, 20),
    junk=st.sampled_from(JUNK),
)
def test_junk_in_a_declaration_is_refused_or_harmless(spec, field, inner, junk):
    """Nothing but PluginError leaves the door, wherever the junk lies, one struct deep."""
    value = getattr(spec, field)
    if isinstance(value, msgspec.Struct):
        names = [f.name for f in msgspec.structs.fields(type(value))]
        junk = msgspec.structs.replace(value, **{names[inner % len(names)]: junk})
    spec = msgspec.structs.replace(spec, **{"variant_of": "", field: junk})
    other, refusal = toy.offering(spec), None
    try:
        (found,) = Registry.of(other).drafters
    except PluginError as error:
        refusal = error
    if refusal is None:
        assert msgspec.structs.replace(found, plugin=spec.plugin, version=spec.version) == spec
    else:
        assert "'other'" in refusal.where


@pytest.mark.parametrize("name", ["csm", "qwen3-tts", "t5"])
def test_a_further_graph_feeds_the_first_or_is_fed_by_it(name):
    (spec,) = (model for model in DECLARED.models if model.name == name)
    (feed,) = spec.feeds
    ((other, build),) = spec.graphs
    graphs = ((other, build), ("another", build))
    for src, graph, is_sound in (
        (other, "", True),
        ("llm", other, True),
        ("target", "", True),
        (other, other, False),
        (other, "another", False),
        ("llm", "", False),
        ("target", other, False),
    ):
        made = msgspec.structs.replace(feed, slot="rows", src=src, graph=graph)
        changed = msgspec.structs.replace(spec, graphs=graphs, feeds=(made,))
        if is_sound:
            check_spec(changed)
            continue
        with pytest.raises(PluginError, match="a further graph feeds"):
            check_spec(changed)


def test_one_architecture_two_heads_told_apart_by_tensors():
    plain = Fit(tensors=("fc.weight",), absent=("markov.weight",))
    chained = Fit(tensors=("fc.weight", "markov.weight"))
    for tensors, wanted in (({"fc.weight"}, plain), ({"fc.weight", "markov.weight"}, chained)):
        fitting = [fit for fit in (plain, chained) if fits(toy.replaced(fit=fit), "toy", tensors)]
        assert fitting == [wanted]


@pytest.mark.parametrize(
    ("text", "point", "layer"),
    [("hidden", "hidden", None), ("layer_input:3", "layer_input", 3), ("a.b_2", None, None)],
)
def test_tap_spellings(text, point, layer):
    if point is None:
        with pytest.raises(PluginError):
            Tap.parse(text + " ")
    else:
        assert Tap.parse(text) == Tap(point, layer)
        assert str(Tap.parse(text)) == text


@pytest.mark.parametrize("text", ["layer_input", "hidden:3", "", "9", "Hidden", "hidden:"])
def test_bad_tap_spellings(text):
    with pytest.raises(PluginError):
        Tap.parse(text)
