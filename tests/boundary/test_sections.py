"""Files of sections: what is read is what was written, or the error says which part is wrong."""

import hashlib
import io

import msgspec
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.boundary.sections import read_sections, write_sections
from mtpcore.errors import StateError

VERSION = 3
PARTS = {"first": [b"abc", b"", b"de"], "empty": [], "last": [bytes(300)]}


def written(parts, version=VERSION):
    file = io.BytesIO()
    write_sections(file, version, parts.items())
    return file.getvalue()


def reads(data):
    return {name: bytes(part) for name, part in read_sections(data, VERSION).items()}


named = st.dictionaries(st.text(max_size=20), st.lists(st.binary(max_size=40), max_size=4))


@searching(100)
@given(parts=named)
def test_sections_come_back(parts):
    assert reads(written(parts)) == {name: b"".join(pieces) for name, pieces in parts.items()}


def test_every_changed_byte_and_every_cut_is_noticed():
    whole = written(PARTS)
    for at in range(len(whole)):
        with pytest.raises(StateError):
            reads(whole[:at])
        with pytest.raises(StateError):
            reads(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(StateError):
        reads(whole + b"x")


def test_the_damaged_section_is_named():
    whole = written(PARTS)
    at = whole.index(b"abcde")
    with pytest.raises(StateError, match=r"^first: a part of the state is damaged"):
        reads(whole.replace(b"abcde", b"abcdf"))
    with pytest.raises(StateError, match=r"^last: "):
        reads(whole[: at + 100] + b"!" + whole[at + 101 :])


def test_another_version_is_named():
    with pytest.raises(StateError, match="another format; wanted version 3; got version 4"):
        reads(written(PARTS, 4))


def forged(table, body=b"abcde"):
    """A file with a table of its own, whose hash is right."""
    encoded = msgspec.msgpack.encode(table)
    head = written({})[: len(b"mtpcore state\n") + 4]
    hashed = hashlib.blake2b(encoded, digest_size=16).digest()
    return head + body + encoded + len(encoded).to_bytes(8, "little") + hashed


def entry(name="first", size=5, body=b"abcde"):
    return {
        "name": name,
        "size": size,
        "hash": hashlib.blake2b(body, digest_size=16).digest(),
    }


def test_a_forged_table_is_read_where_it_is_right():
    assert reads(forged([entry()])) == {"first": b"abcde"}


@pytest.mark.parametrize(
    "table",
    [
        [entry(size=4)],
        [entry(size=2**63)],
        [entry(size=-1)],
        [entry(name="x" * 300)],
        [entry(), entry(size=0, body=b"")],
        [],
        {"first": 5},
        [{"name": "first", "size": 5}],
        [entry() | {"more": 1}],
        7,
    ],
)
def test_a_forged_table_is_refused(table):
    with pytest.raises(StateError):
        reads(forged(table))


def test_other_files_are_no_states():
    for data in (b"", b"GGUF", b"mtpcore state", bytes(1000)):
        with pytest.raises(StateError, match="not a saved state"):
            reads(data)
