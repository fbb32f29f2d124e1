"""Columns of a batch: however numbers are given, the same int32 or the same refusal."""

from __future__ import annotations

import numpy as np
import pytest

from mtpcore.boundary.arrays import integers
from mtpcore.errors import BatchError
from mtpcore.runtime.batch import Batch

LARGEST, LEAST = 2**31 - 1, -(2**31)


@pytest.mark.parametrize("numbers", [[5], [0, -1, 7], [LARGEST, LEAST], list(range(600))])
@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: np.array(x, np.int64)])
def test_numbers_are_the_same_however_they_are_given(numbers, kind):
    found = integers(kind(numbers), "tokens")
    assert found.dtype == np.int32
    assert found.flags.writeable
    assert found.tolist() == numbers


@pytest.mark.parametrize(
    "numbers",
    [[LARGEST + 1], [LEAST - 1, 0], [2**70], [1.5], ["1"], [True, False], [None], [[1], 2]],
)
def test_what_is_no_such_number_is_refused(numbers):
    with pytest.raises(BatchError):
        integers(numbers, "tokens")


@pytest.mark.parametrize("numbers", [[np.int32(3), 4], [True, 2], [np.uint8(3)]])
def test_numbers_of_other_types_are_taken(numbers):
    assert integers(numbers, "tokens").tolist() == [int(number) for number in numbers]


def test_one_number_stands_for_every_row():
    for seq, pos in [(1, 5), (np.int64(1), np.array(5)), ([1, 1, 1], [5, 6, 7])]:
        batch = Batch([7, 8, 9], seq=seq, pos=pos)
        assert batch.seq.tolist() == [1, 1, 1]
        assert batch.pos.tolist() == [5, 6, 7]
        assert batch.outputs.tolist() == [False, False, True]
    assert Batch([7, 8, 9], seq=[0, 1, 0], pos=4).pos.tolist() == [4, 4, 5]
    assert Batch([7, 8, 9], seq=[0, 1, 0], pos=4).outputs.tolist() == [False, True, True]
    with pytest.raises(BatchError):
        Batch([1], pos=LARGEST)
    with pytest.raises(BatchError):
        Batch([1], seq=2**31)


@pytest.mark.parametrize("outputs", ["all", "last", "none"])
@pytest.mark.parametrize(("seq", "pos", "n"), [(0, 0, 1), (2, 40, 5), (LARGEST, LARGEST - 9, 9)])
def test_a_plain_chain_is_any_other_batch(outputs, seq, pos, n):
    tokens = list(range(n))
    plain = Batch(tokens, seq=seq, pos=pos, outputs=outputs)
    other = Batch(np.array(tokens), seq=np.int64(seq), pos=np.array(pos), outputs=outputs)
    for column in ("tokens", "seq", "pos", "outputs"):
        found, wanted = getattr(plain, column), getattr(other, column)
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()
        assert found.flags.writeable


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [LARGEST + 1]},
        {"tokens": [True]},
        {"seq": -(2**40)},
        {"seq": True},
        {"pos": 2**70},
        {"pos": LARGEST},
        {"pos": 0.5},
        {"outputs": "some"},
        {"outputs": 1},
    ],
)
def test_what_is_not_plain_is_refused_as_ever(wrong):
    with pytest.raises(BatchError):
        Batch(**({"tokens": [1], "seq": 0, "pos": 0} | wrong))
