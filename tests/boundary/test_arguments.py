"""One reader for arguments: numbers of any library in, plain values or one clear error out."""

import decimal
import enum
import fractions
import math
from pathlib import Path

import msgspec
import mtpcore_glm_nextn
import numpy as np
import pytest
import toy
from harness.world import Policy
from harness.zoo import HUGE, raising

import mtpcore
import mtpcore.models
from mtpcore.backends.base import FusedSampling
from mtpcore.boundary.arguments import Length, Probability, Temperature, Whole64, read, read_below
from mtpcore.boundary.paths import take_path
from mtpcore.decoding import SimulatedAcceptance
from mtpcore.discovery.registry import Registry
from mtpcore.plugin import DrafterSpec, Feed, Fit, Outputs, hookimpl


def str_of(value):
    return type(value).__name__


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (3, Length, 3),
        (np.int32(3), Length, 3),
        (Level.HIGH, Length, 3),
        (1, Probability, 1.0),
        (np.float32(0.5), Probability, 0.5),
        (fractions.Fraction(1, 2), Probability, 0.5),
        (decimal.Decimal("0.5"), Probability, 0.5),
        (2**64 - 1, Whole64, 2**64 - 1),
        (0, Temperature, 0.0),
    ],
)
def test_numbers_of_any_library_become_plain(value, kind, found):
    made = read(value, kind, "no number")
    assert made == found
    assert type(made) is type(found)


@pytest.mark.parametrize(
    "value", [True, np.True_, "1", b"1", None, math.nan, -1, 2**64, HUGE, 1j], ids=str_of
)
def test_what_is_no_number_is_refused_in_one_way(value):
    for kind in (Probability, Whole64):
        with pytest.raises(mtpcore.BatchError, match=r"no number; wanted a .*number.*; got"):
            read(value, kind, "no number")


def test_a_value_that_cannot_be_shown_does_not_hide_the_error():
    value = raising("__repr__", "__index__", "__float__")
    with pytest.raises(mtpcore.BatchError, match="that cannot be shown"):
        read(value, Length, "no number")
    with pytest.raises(mtpcore.BatchError, match="that cannot be shown"):
        raise mtpcore.BatchError("x", got=HUGE)


@pytest.mark.parametrize("value", [1.0, 3, "x", None])
@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_no_value_is_to_blame_for_stays_what_it_is(monkeypatch, value, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(msgspec, "convert", fail)
    with pytest.raises(error):
        read(value, Probability, "bad top_p")
    if error is RecursionError:
        with pytest.raises(mtpcore.BatchError, match="bad top_p"):
            read([], Probability, "bad top_p")


@pytest.mark.parametrize("name", ["__array__", "__dlpack_device__"])
def test_memory_that_an_array_lacks_is_not_called_a_wrong_array(name):
    def fail(*_, **options):
        raise MemoryError

    given = type("Given", (), {"__dlpack__": fail, name: fail})()
    with pytest.raises(MemoryError):
        mtpcore.Batch([-1], embeddings=given)


def test_memory_that_lacks_is_nobodys_wrong_argument():
    """Wherever whatever a caller's object raises becomes an error of ours."""
    found, wrong = 0, []
    for path in Path(mtpcore.__file__).parent.rglob("*.py"):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if "except Exception" in line and "caller's" in line and path.name != "errors.py":
                before = [one.strip() for one in lines[max(i - 5, 0) : i]]
                found += 1
                if "except MemoryError:" not in before:
                    wrong.append(f"{path.name}:{i + 1}")
    assert found > 15
    assert wrong == []


def test_a_sequence_that_is_too_long_is_not_read():
    with pytest.raises(mtpcore.BatchError, match="at most"):
        mtpcore.Batch.of(range(10**15))


def test_kinds_without_bounds_are_made_once(monkeypatch):
    for kind in (str, list[int]):
        read(kind(), kind, "no value")
    monkeypatch.setattr(msgspec, "defstruct", lambda *fields: pytest.fail("made once more"))
    assert read("x", str, "no text") == "x"
    assert read([3], list[int], "no numbers") == [3]
    with pytest.raises(mtpcore.BatchError, match="no text"):
        read(3, str, "no text")


def test_slots_of_a_batch_are_read_by_a_kind_made_once(monkeypatch):
    """Making one reads annotations, which takes longer than the rest of a small batch."""
    slots = {"hidden": np.zeros((1, 2), np.float32)}
    mtpcore.Batch([1], slots=slots)
    monkeypatch.setattr(msgspec, "defstruct", lambda *fields: pytest.fail("made once more"))
    assert list(mtpcore.Batch([1], slots=slots).slots) == ["hidden"]


def test_a_number_below_another():
    assert read_below(np.int64(2), 3, "no") == 2
    for value in (3, -1, True, 1.0, HUGE):
        with pytest.raises(mtpcore.LinkError, match=r"no; wanted 0\.\.2; got"):
            read_below(value, 3, "no", error=mtpcore.LinkError)


@pytest.mark.parametrize("value", [None, 3, b"x", "a\0b", raising("__fspath__")])
def test_paths(value):
    with pytest.raises(mtpcore.ModelFileError, match="not a path"):
        take_path(value)


@pytest.fixture(scope="module")
def model():
    return mtpcore.load_model("demo")


@pytest.fixture
def cross(model):
    made = mtpcore.link(mtpcore.Context(model, 32, n_seq_max=2, threads=1))
    made.llm.process(mtpcore.Batch.of([1, 2, 3]))
    return made


BFLOAT16 = type(
    "Tensor",
    (),
    {
        "__dlpack__": lambda self, **_: (_ for _ in ()).throw(BufferError("unsupported dtype")),
        "__dlpack_device__": lambda self: (1, 0),
    },
)
DOORS = {
    "a temperature of 400 digits": lambda c: mtpcore.Sampling(temperature=10**400),
    "a bias beyond float32": lambda c: mtpcore.Sampling(logit_bias={1: 1e308}),
    "a bias below float32": lambda c: mtpcore.Sampling(logit_bias={1: -1e308}),
    "a penalty beyond float32": lambda c: mtpcore.Sampling(frequency_penalty=-1e308),
    "a layer of 5000 digits": lambda c: c.llm.add_taps([mtpcore.Tap("layer_input", HUGE)]),
    "a tap of 5000 digits": lambda c: mtpcore.Tap.parse("layer_input:" + "9" * 5000),
    "a tree of broken depth": lambda c: mtpcore.link(
        mtpcore.Context(c.llm.model), tree=mtpcore.TreeShape(depth=1.5, width=2, n_nodes=4)
    ),
    "nan as least probability": lambda c: c.draft(0, 2, p_min=math.nan),
    "least probabilities without one": lambda c: c.draft(0, 2, p_min={1: 0.5}),
    "a simulated acceptance of a number": lambda c: SimulatedAcceptance([0.5]).install(5),
    "nothing to keep of a vocabulary": lambda c: mtpcore.DraftVocabulary([1, 2], "").cut(-1),
    "a rate of 400 digits": lambda c: SimulatedAcceptance([10**400]),
    "a sequence that is a list": lambda c: c.draft([0], 2),
    "a prompt of 400 digits": lambda c: mtpcore.Generator(c).add([10**400]),
    "a prompt with two axes": lambda c: mtpcore.Generator(c).add([[1, 2], [3, 4]]),
    "a prompt of arrays": lambda c: c.verify({0: [1]}, prefill=np.ones((2, 2))),
    "an endless array": lambda c: mtpcore.Batch(np.broadcast_to(np.int8(1), (10**12,))),
    "bfloat16": lambda c: c.feed("llm", "hidden", 0, 0, BFLOAT16()),
    "samplers that are a number": lambda c: c.llm.process(
        mtpcore.Batch.of([4], seq=1),
        FusedSampling(samplers=raising("__iter__", base=list), indices=[0]),
    ),
    "lengths that are no mapping": lambda c: run(c, Policy([1])),
    "lengths of 400 digits": lambda c: run(c, Policy({0: 10**400})),
    "decisions that are none": lambda c: run(c, Policy({0: 1}, [3])),
    "a link of numbers": lambda c: c.connect(mtpcore.Link(src=1, tap=2, dst=3, slot=4)),
    "a head of a trunk": lambda c: c.llm.model.program(head=7),
    "a graph type that is a list": lambda c: mtpcore.GraphType([]),
    "a path that is a number": lambda c: mtpcore.load_model(7),
}


def run(cross, lengths):
    cross.remove(0)
    generator = mtpcore.Generator(cross, draft="auto", lengths=lengths)
    list(generator.generate([1, 2, 3], max_tokens=4))


@pytest.mark.parametrize("name", DOORS)
def test_doors_refuse(cross, name):
    with pytest.raises(mtpcore.MtpcoreError):
        DOORS[name](cross)


def test_rows_of_bfloat16_are_answered_with_what_to_call(cross):
    with pytest.raises(mtpcore.BatchError, match=r"\.float\(\)"):
        cross.feed("llm", "hidden", 0, 0, BFLOAT16())


def test_a_generator_that_is_refused_does_not_take_the_context(model):
    llm = mtpcore.Context(model, 32, threads=1)
    with pytest.raises(mtpcore.BatchError):
        mtpcore.Generator(llm, p_min=2)
    assert llm.owner is None


# What a plugin declares and what its functions return.


@pytest.fixture
def trunk(tmp_path):
    path = tmp_path / "trunk.gguf"
    toy.write(path, toy.trunk_tensors())
    return path


def declaring(**changes):
    spec = toy.msgspec.structs.replace(toy.TRUNK, **changes)
    hook = hookimpl(lambda: [spec], specname="mtpcore_models")
    return Registry.of(
        type("Plugin", (), {"__name__": "broken", "mtpcore_models": staticmethod(hook)})()
    )


def _raise(*_):
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize(
    ("hparams", "said"),
    [
        (_raise, "raised ZeroDivisionError: planted"),
        (lambda *_: None, "n_vocab: no such size"),
        (lambda *_: {"n_vocab": 3}, "n_vocab: no such size"),
        (lambda *_: raising("__getattr__", "__getattribute__"), "raised Hostile"),
    ],
)
def test_hyper_parameters_that_fail_name_the_plugin(trunk, hparams, said):
    with pytest.raises(mtpcore.PluginError, match=said) as caught:
        mtpcore.load_model(trunk, plugins=declaring(hparams=hparams))
    assert "'toy' of plugin 'broken'" in caught.value.where


@pytest.mark.parametrize("build", [_raise, lambda *_: 3, lambda *_: Outputs(logits=3)])
def test_a_build_that_fails_names_the_plugin(trunk, build):
    model = mtpcore.load_model(trunk, plugins=declaring(build=build))
    with pytest.raises(mtpcore.MtpcoreError, match="'toy' of plugin 'broken'"):
        mtpcore.Context(model)


def test_a_feed_that_needs_its_own_width():
    feeds = (Feed(slot="more", taps=("wide",), src="llm"),)
    with pytest.raises(mtpcore.PluginError, match="'broken': 'toy': feed of slot 'more'"):
        declaring(feeds=feeds)


@pytest.mark.parametrize(
    "make", [_raise, lambda _: None, lambda _: type("P", (), {"propose": _raise})()]
)
def test_a_proposer_that_fails_names_the_plugin(model, make):
    spec = DrafterSpec(name="guesser", fit=Fit(), shape="proposer", proposer=make)
    known = Registry.of(toy.offering(spec, name="broken"), mtpcore.models, mtpcore_glm_nextn)
    made = mtpcore.load_model("demo", plugins=known)
    with pytest.raises(mtpcore.PluginError, match="'guesser' of plugin 'broken'"):
        run_plainly(made)


def run_plainly(model):
    generator = mtpcore.Generator(mtpcore.link(mtpcore.Context(model, 32), "guesser"), draft=2)
    list(generator.generate([1, 2, 3], max_tokens=4))
