"""Typed metadata."""

from typing import Annotated

import msgspec
import numpy as np
import pytest

from mtpcore.errors import ModelFileError
from mtpcore.gguf import Fields, convert

METADATA = {
    "toy.n": 3,
    "toy.eps": 1e-5,
    "toy.on": True,
    "toy.name": "x",
    "toy.kv": np.array([1, 2, 3], np.uint32),
    "toy.names": ["a", "b"],
    "toy.attention.head_count": 8,
}
FIELDS = Fields(METADATA, "toy", "m.gguf")


def test_values_are_read_by_type():
    assert FIELDS.require("{arch}.n", int) == 3
    assert FIELDS.require("toy.n", float) == 3.0
    assert FIELDS.require("{arch}.kv", list[int]) == [1, 2, 3]
    assert FIELDS.require("{arch}.names", list[str]) == ["a", "b"]
    assert FIELDS.get("{arch}.eps", float, 0.0) == 1e-5
    assert FIELDS.get("{arch}.absent", int, 7) == 7
    assert "{arch}.n" in FIELDS
    assert "{arch}.absent" not in FIELDS


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("toy.on", int),
        ("toy.n", bool),
        ("toy.n", str),
        ("toy.eps", int),
        ("toy.kv", int),
        ("toy.n", list[int]),
        ("toy.names", list[int]),
        ("toy.n", Annotated[int, msgspec.Meta(ge=4)]),
        ("toy.absent", int),
    ],
)
def test_wrong_types_name_the_key(key, kind):
    with pytest.raises(ModelFileError, match=r"m\.gguf: metadata key") as error:
        FIELDS.require(key, kind)
    assert repr(key) in error.value.where


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite(value):
    """A scale of NaN in a damaged file would make all logits NaN."""
    fields = Fields({"toy.scale": value}, "toy", "m.gguf")
    with pytest.raises(ModelFileError, match="finite") as error:
        fields.get("{arch}.scale", float, 1.0)
    assert error.value.where == "m.gguf: metadata key 'toy.scale'"


def test_one_value_or_one_a_layer():
    assert FIELDS.per_layer("{arch}.n", 2, int) == [3, 3]
    assert FIELDS.per_layer("{arch}.kv", 3, int) == [1, 2, 3]
    assert FIELDS.per_layer("{arch}.absent", 2, int, 5) == [5, 5]
    flags = Fields({"toy.on": np.array([0, 1]), "toy.off": False, "toy.all": 1, "toy.no": 2}, "toy")
    assert flags.per_layer("toy.on", 2, bool) == [False, True]
    assert flags.per_layer("toy.off", 2, bool) == [False, False]
    assert flags.per_layer("toy.all", 2, bool) == [True, True]
    with pytest.raises(ModelFileError, match="wrong value"):
        flags.per_layer("toy.no", 2, bool)
    at_least = Annotated[int, msgspec.Meta(ge=1)]
    assert FIELDS.per_layer("{arch}.kv", 3, at_least) == [1, 2, 3]
    for n_layers, kind in ((2, int), (4, int), (3, str)):
        with pytest.raises(ModelFileError, match=r"'toy\.kv'"):
            FIELDS.per_layer("{arch}.kv", n_layers, kind)
    with pytest.raises(ModelFileError, match="missing"):
        FIELDS.per_layer("{arch}.absent", 2, int)


class Hparams(msgspec.Struct, frozen=True):
    n: Annotated[int, msgspec.Meta(ge=1)]
    n_head: int = msgspec.field(name="attention.head_count")
    kv: int | list[int] = 1
    top: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self):
        if self.n_head % 2:
            raise ValueError("odd")


def test_structs_are_filled_from_keys():
    found = convert(FIELDS, Hparams)
    assert found == Hparams(n=3, n_head=8, kv=[1, 2, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"toy.n": 0}, r"'toy\.n'"),
        ({"toy.attention.head_count": None}, r"'toy\.attention\.head_count'.*wrong value"),
        ({"toy.attention.head_count": 3}, "odd"),
        ({"toy.kv": ["a"]}, r"'toy\.kv'"),
    ],
)
def test_structs_with_bad_values(change, message):
    with pytest.raises(ModelFileError, match=message):
        convert(Fields(METADATA | change, "toy"), Hparams)
    left = {key: value for key, value in METADATA.items() if key not in change}
    if "toy.n" in change:
        with pytest.raises(ModelFileError, match="the key is missing"):
            convert(Fields(left, "toy"), Hparams)
