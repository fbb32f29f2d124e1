"""Arrays of strings against a loop in Python."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext._strings import read_strings


def written(strings):
    return b"".join(struct.pack("<Q", len(one)) + one for one in strings)


@given(st.lists(st.binary(max_size=9), max_size=9), st.binary(max_size=9), st.binary(max_size=9))
def test_strings_come_back_byte_for_byte(strings, before, after):
    """Whatever lies around them, and whatever is not UTF-8 in them."""
    data = before + written(strings) + after
    end = len(data) - len(after)
    found, stop = read_strings(data, len(before), end, len(strings), 9)
    assert stop == end
    assert [one.encode("utf-8", "surrogateescape") for one in found] == strings
    assert found == [one.decode("utf-8", "surrogateescape") for one in strings]


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.data())
def test_only_strings_that_are_there_whole_are_read(strings, data):
    """Cut anywhere; the rest of the bytes is there, and must not be read."""
    whole = written(strings)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [len(written(strings[: i + 1])) for i in range(len(strings))]
    found, _ = read_strings(whole, 0, cut, len(strings), 9)
    assert len(found) == sum(end <= cut for end in ends)
    assert found == [one.decode("utf-8", "surrogateescape") for one in strings[: len(found)]]


@pytest.mark.parametrize("length", [10, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_length_that_lies_ends_the_reading(length):
    data = written([b"good"]) + struct.pack("<Q", length) + bytes(9)
    assert read_strings(data, 0, len(data), 2, 1 << 20)[0] == ["good"]


def test_a_string_that_is_too_long_ends_the_reading():
    data = written([b"good", b"longer"])
    assert read_strings(data, 0, len(data), 2, 6)[0] == ["good", "longer"]
    assert read_strings(data, 0, len(data), 2, 5)[0] == ["good"]


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (0, 4), (3, 2)])
def test_a_range_outside_the_bytes_is_refused(begin, end):
    with pytest.raises(IndexError, match="of 3"):
        read_strings(bytes(3), begin, end, 1, 9)
