"""Published drafters can be declared: every axis on which they differ is a field."""

import msgspec
import numpy as np
import published_drafters as published
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.errors import PluginError
from mtpcore.plugin import DrafterSpec, Heads, Key, KVPolicy, Tap, first_of, hookimpl
from mtpcore.runtime.fit import fits


@pytest.mark.parametrize("spec", published.ALL, ids=lambda spec: spec.name)
def test_declaration_is_well_formed(spec):
    check_spec(spec)


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
    spec=st.sampled_from(published.ALL),
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
    spec = msgspec.structs.replace(spec, **{field: junk})
    other, refusal = toy.offering(spec), None
    try:
        (found,) = Registry.of(other).drafters
    except PluginError as error:
        refusal = error
    if refusal is None:
        assert msgspec.structs.replace(found, plugin=spec.plugin) == spec
    else:
        assert "'other'" in refusal.where


def test_all_of_them_live_in_one_process():
    class Plugin:
        __name__ = "published"

        @staticmethod
        @hookimpl
        def mtpcore_drafters():
            return published.ALL

    found = Registry.of(Plugin())
    assert {spec.name for spec in found.drafters} == {spec.name for spec in published.ALL}


def taps(spec):
    return {tap for feed in spec.feeds for tap in feed.taps}


def recycled(spec):
    return {feed.recycle for feed in spec.feeds}


AXES = {
    "hidden state read": {
        "after the final norm": "hidden" in taps(published.DEEPSEEK_MTP),
        "before the final norm": "residual" in taps(published.MIMO_V2),
        "several layers joined": "layer_input:{arch}.target_layers" in taps(published.EAGLE3),
    },
    "order in the concatenation (a line of build; a checkpoint's other order)": {
        "embedding first": not published.DEEPSEEK_MTP.checkpoint.tensors[0].change,
        "hidden first": published.MIMO_7B.checkpoint.tensors[0].change is published.swap_halves,
    },
    "norm weights": {
        "plain": not published.DEEPSEEK_MTP.checkpoint.tensors[0].change,
        "stored minus one": published.QWEN_MTP.checkpoint.tensors[0].change is published.plus_one,
    },
    "state handed to the next step": {
        "after the last norm": recycled(published.DEEPSEEK_MTP) == {"hidden"},
        "before it": recycled(published.MIMO_V2) == {"residual"},
        "projected": recycled(published.GEMMA4_ASSISTANT) == {"projected"},
        "of another width": published.MLP_SPECULATOR.feeds[0].recycle_width is not None,
        "nothing": recycled(published.MIMO_V2_TARGET) == {None},
    },
    "first entry": {
        "embedding zeroed": published.DEEPSEEK_MTP.first_embedding == "zeros",
        "embedding kept": published.MIMO_V2.first_embedding == "kept",
        "no entry without a row": published.EAGLE3.feeds[1].first == "none",
    },
    "embedding and output matrix": {
        "own or borrowed": len(published.DEEPSEEK_MTP.ties[1].candidates) == 3,
        "a norm in between": len(published.MIMO_V2.ties[2].candidates) == 3,
        "of the target's file": published.EAGLE3.ties[1].candidates[1] == "target:output.weight",
        "of another head": "{n}" not in published.MLP_SPECULATOR.ties[0].candidates[1],
        "in another type": first_of("a", "b", retype="Q4_0").retype == "Q4_0",
    },
    "draft vocabulary": {
        "full": published.MIMO_V2.vocabulary is None,
        "absolute ids": published.EAGLE3.vocabulary.values == "absolute",
        "offsets": published.EAGLE3_CHECKPOINT.values == "offset",
    },
    "heads in a round": {
        "one repeated": published.DEEPSEEK_MTP.heads == Heads(),
        "one for each step": published.MIMO_V2.heads.order == "each-step",
        "all at once": published.MEDUSA.heads.order == "parallel",
        "later heads get the previous row": published.MIMO_V2.heads.hidden_from == "previous",
        "later heads get the target's row": published.MIMO_V2_TARGET.heads.hidden_from == "target",
        "the prefix is read again": published.MIMO_V2.heads.rereads,
    },
    "keys and values": {
        "own": published.DEEPSEEK_MTP.kv.source == "own",
        "own for each head": published.MIMO_V2.kv.per_head,
        "the target's": published.GEMMA4_ASSISTANT.kv.source == "shared",
        "of its last layers": dict(published.GEMMA4_ASSISTANT.kv.layer_map)["sliding"] == 2,
        "injected": published.DFLASH.kv.source == "injected",
        "none": published.MEDUSA.kv.source == "none",
        "a window": published.MIMO_V2.kv.window == "{arch}.attention.sliding_window",
    },
    "position of drafted rows": {
        "advancing": published.DEEPSEEK_MTP.positions == "advance",
        "all the same": published.GEMMA4_ASSISTANT.positions == "same",
    },
    "accepted rows": {
        "recomputed": published.DEEPSEEK_MTP.kv.refresh,
        "kept": not published.DFLASH.kv.refresh,
        "warm-up over the prompt": published.DEEPSEEK_MTP.kv.warm_up,
        "no warm-up": not published.GEMMA4_ASSISTANT.kv.warm_up,
    },
    "residual in the first block (a line of build, chosen by hyper-parameters)": {
        "of the file": published.EAGLE3.hparams is not None,
    },
    "shape of a draft": {
        "chain": published.DEEPSEEK_MTP.shape == "chain",
        "grown tree": published.EAGLE1.tree.n_nodes == 60,
        "fixed tree": (0, 0, 0) in published.MEDUSA.tree.paths,
        "block": published.DFLASH.block.size == Key("{arch}.block_size", 16),
        "block, causal or not": published.DFLASH.block.causal
        == Key("{arch}.attention.causal", False),
        "slot 0 predicts": published.DSPARK.block.anchor_predicts.default is True,
        "own mask row": published.DFLASH.block.mask_tensor is not None,
        "chain inside a block": published.DSPARK.block.chain == "markov",
        "walk over candidates": published.DFLASH2.block.candidates == "{arch}.selector_top_k",
        "confidence": published.DSPARK.block.confidence == "confidence",
    },
    "pairing": {
        "token with the row that predicted it": published.DEEPSEEK_MTP.feeds[0].pairing
        == "next-token",
        "token with its own row": published.DFLASH.feeds[0].pairing == "same-token",
        "a row without a token": published.MEDUSA.feeds[0].pairing == "none",
    },
    "where it lies": {
        "in the trunk's file": not published.DEEPSEEK_MTP.standalone,
        "in a file of its own": published.EAGLE3.standalone,
        "made for these targets": published.EAGLE3.fit.targets == {"llama", "qwen3"},
    },
}


@pytest.mark.parametrize(
    ("axis", "value"), [(axis, value) for axis, values in AXES.items() for value in values]
)
def test_axis_is_carried_by_a_field(axis, value):
    assert AXES[axis][value]


def test_every_field_of_a_drafter_is_used_by_a_published_one():
    default = DrafterSpec(name="default", fit=published.EAGLE3.fit)
    unused = [
        field.name
        for field in msgspec.structs.fields(DrafterSpec)
        if all(getattr(s, field.name) == getattr(default, field.name) for s in published.ALL)
    ]
    # Proposers have none here; the registry fills in the plugin.
    assert unused == ["proposer", "graph_type", "plugin"]


def test_one_architecture_two_drafters_told_apart_by_tensors():
    plain = {"fc.weight", "enc.output_norm.weight"}
    chained = plain | {"markov_w1.weight"}
    assert fits(published.DFLASH, "dflash", plain)
    assert not fits(published.DFLASH, "dflash", chained)
    assert fits(published.DSPARK, "dflash", chained)
    assert not fits(published.DSPARK, "dflash", plain)


def test_changes_restore_what_a_checkpoint_stores():
    assert published.plus_one(np.float32(-0.5), None) == 0.5
    assert published.swap_halves(np.arange(4)[None], None).tolist() == [[2, 3, 0, 1]]


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


def test_kinds_of_memory_have_defaults_of_an_own_memory():
    assert KVPolicy() == KVPolicy(source="own", refresh=True, warm_up=True)
