"""Headers: what is read, and that every malformed one is refused by name."""

import random
import struct

import numpy as np
import pytest
from harness.headers import array, build, entry, tensor, text

from mtpcore.errors import ModelFileError
from mtpcore.gguf import parse_header
from mtpcore.gguf.types import type_name

ARCH = entry("general.architecture", 8, text("toy"))
F32, Q8_0 = 0, 8


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(version):
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    entries = [entry(f"n{k}", k, struct.pack("<" + c, 7)) for k, c in numbers.items()]
    entries += [
        entry("yes", 7, b"\1"),
        entry("s", 8, text("ä€")),
        entry("bytes", 8, text(b"\xff\xc3")),
        entry("list", 9, array(8, 3, text("a") + text("") + text(b"\xe2\x82"))),
        entry("ints", 9, array(5, 2, struct.pack("<ii", -1, 2))),
        entry("bools", 9, array(7, 2, b"\0\1")),
        entry("none", 9, array(4, 0, b"")),
        entry("nested", 9, array(9, 2, array(8, 1, text("x")) + array(2, 1, b"\3\0"))),
    ]
    found = parse_header(build(entries, version=version), "f").metadata
    assert [found[f"n{k}"] for k in numbers] == [7] * len(numbers)
    assert type(found["n12"]) is float
    assert type(found["n10"]) is int
    assert found["yes"] is True
    assert found["s"] == "ä€"
    assert found["bytes"].encode("utf-8", "surrogateescape") == b"\xff\xc3"
    assert found["list"] == ["a", "", "\udce2\udc82"]
    assert found["ints"].tolist() == [-1, 2]
    assert found["ints"].dtype == np.int32
    assert found["bools"].tolist() == [False, True]
    assert found["none"].size == 0
    assert found["nested"][0] == ["x"]
    assert found["nested"][1].tolist() == [3]


def test_tensors_are_outermost_first_and_located():
    tensors = [tensor("b", [32, 2], Q8_0, 96), tensor("a", [3, 2, 4], F32, 0)]
    file = build([ARCH], tensors, bytes(96 + 68))
    b, a = parse_header(file, "f").tensors
    assert (a.name, a.shape, a.n_bytes) == ("a", (4, 2, 3), 96)
    assert (b.name, b.shape, b.type, b.n_bytes) == ("b", (2, 32), Q8_0, 68)
    assert b.begin == a.begin + 96
    assert b.begin + b.n_bytes == len(file)


def test_alignment_is_read():
    align = entry("general.alignment", 4, struct.pack("<I", 256))
    file = build([ARCH, align], [tensor("a", [8], F32, 256)])
    file += bytes(1024 - len(file))
    assert parse_header(file, "f").tensors[0].begin == 512


U32 = struct.pack("<I", 1)
HUGE = 1 << 62
ONE = [tensor("t", [8], F32, 0)]
MALFORMED = {
    "empty": (b"", "GGUF"),
    "magic": (b"GGML" + bytes(40), "got 'GGML'\n  fix: give a GGUF"),
    "short": (b"GGUF\3\0", "header"),
    "version 1": (build(version=1), "version"),
    "version 9": (build(version=9), "version"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "key count": (build([ARCH], n_entries=2), "key"),
    "huge key count": (build([ARCH], n_entries=HUGE), "too many metadata keys"),
    "tensor count": (build([ARCH], n_tensors=1), "tensor"),
    "huge tensor count": (build([ARCH], n_tensors=HUGE), "too many tensors"),
    "key twice": (build([ARCH, ARCH]), "'general.architecture': the key occurs twice"),
    "empty key": (build([entry("", 4, U32)]), "length of a key"),
    "long key": (build([struct.pack("<Q", HUGE)]), "length of a key"),
    "key not utf-8": (build([entry(b"\xff", 4, U32)]), "not UTF-8"),
    "value type": (build([entry("k", 13, U32)]), "'k': unknown type"),
    "array type": (build([entry("k", 9, array(77, 1, U32))]), "'k': unknown type"),
    "bool": (build([entry("k", 7, b"\2")]), "'k': bad truth value"),
    "bool array": (build([entry("k", 9, array(7, 2, b"\0\2"))]), "'k': bad truth value"),
    "long string": (build([entry("k", 8, struct.pack("<Q", HUGE))]), "'k': string too long"),
    "string over the end": (build([entry("k", 8, struct.pack("<Q", 4096))]), "'k'"),
    "huge array": (build([entry("k", 9, array(6, HUGE, U32))]), "'k'"),
    "huge string array": (build([entry("k", 9, array(8, HUGE, b""))]), "'k'"),
    "string in array": (build([entry("k", 9, array(8, 1, struct.pack("<Q", HUGE)))]), "'k'"),
    "huge nested array": (build([entry("k", 9, array(9, HUGE, b""))]), "'k'"),
    "deep arrays": (build([entry("k", 9, array(9, 1, b"") * 5 + array(4, 0, b""))]), "too deep"),
    "alignment 0": (build([entry("general.alignment", 4, bytes(4))]), "general.alignment"),
    "alignment 48": (
        build([entry("general.alignment", 4, struct.pack("<I", 48))]),
        "general.alignment",
    ),
    "alignment text": (build([entry("general.alignment", 8, text("x"))]), "general.alignment"),
    "tensor twice": (build([], ONE * 2, bytes(64)), "'t': the tensor occurs twice"),
    "empty name": (build([], [tensor("", [8], F32, 0)], bytes(32)), "length of a tensor name"),
    "dimensions": (build([], [tensor("t", [1] * 5, F32, 0)], bytes(32)), "too many dimensions"),
    "no elements": (build([], [tensor("t", [0], F32, 0)], bytes(32)), "empty dimension"),
    "rows": (build([], [tensor("t", [40], Q8_0, 0)], bytes(64)), "not whole Q8_0 blocks"),
    "offset": (build([], [tensor("t", [8], F32, 8)], bytes(64)), "unaligned"),
    "huge offset": (build([], [tensor("t", [8], F32, HUGE)], bytes(64)), "'t': the tensor ends"),
    "truncated": (build([], ONE, bytes(31)), "'t': the tensor ends"),
    "product overflows": (
        build([], [tensor("t", [1 << 33, 1 << 33], F32, 0)], bytes(32)),
        "'t': the tensor ends",
    ),
    "overlap": (
        build([], [tensor("t", [16], F32, 0), tensor("u", [8], F32, 32)], bytes(64)),
        "'u': the tensor overlaps tensor 't'",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name):
    file, message = MALFORMED[name]
    with pytest.raises(ModelFileError, match=r"some\.gguf") as error:
        parse_header(file, "some.gguf")
    assert message in str(error.value)


NEWER = build([], [tensor("t", [8], F32, 0), *(tensor(f"n{i}", [7], 99, 32) for i in range(3))],
              bytes(64))  # fmt: skip


def test_a_newer_tensor_type_is_no_damage():
    with pytest.raises(ModelFileError, match=r"some\.gguf: tensor 'n0'") as error:
        parse_header(NEWER, "some.gguf")
    assert error.value.what == "this version does not know the tensor type"
    assert error.value.got == "type 99; so have 2 further tensors"
    assert "damaged" not in str(error.value)


def test_tensors_of_newer_types_can_be_listed():
    found = parse_header(NEWER, "f", any_type=True).tensors
    assert [(one.name, one.shape, one.type, one.n_bytes) for one in found] == [
        ("t", (8,), F32, 32),
        *((f"n{i}", (7,), 99, 0) for i in range(3)),
    ]
    assert [type_name(one.type) for one in found[:2]] == ["F32", "type 99"]
    outside = build([], [tensor("t", [8], 99, 64)], bytes(32))
    with pytest.raises(ModelFileError, match="after the end of the file"):
        parse_header(outside, "f", any_type=True)


def test_every_truncation_of_a_header_is_refused():
    entries = [ARCH, entry("k", 9, array(8, 2, text("ab") + text("c")))]
    file = build(entries, ONE, bytes(32))
    assert parse_header(file, "f").tensors
    for end in range(len(file)):
        with pytest.raises(ModelFileError):
            parse_header(file[:end], "f")


def test_many_small_objects_are_bounded():
    # Two-letter strings take ten bytes here and fifty as objects; empty arrays likewise.
    for payload in (array(8, 3 << 20, bytes(8) * (3 << 20)), array(9, 3 << 20, bytes(36 << 20))):
        with pytest.raises(ModelFileError, match="too many strings"):
            parse_header(build([entry("k", 9, payload)]), "f")


def test_mutations_end_in_success_or_refusal():
    entries = [
        ARCH,
        entry("general.alignment", 4, struct.pack("<I", 32)),
        entry("list", 9, array(8, 3, text("a") + text("bc") + text("def"))),
        entry("nested", 9, array(9, 2, array(8, 1, text("x")) + array(2, 1, b"\3\0"))),
        entry("floats", 9, array(6, 4, bytes(16))),
    ]
    tensors = [tensor("a", [32, 2], Q8_0, 0), tensor("b", [4, 2, 3], F32, 96)]
    whole = build(entries, tensors, bytes(192))
    head = len(whole) - 192
    chance, refused = random.Random(5), 0
    for _ in range(4000):
        file = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(4, head)
            if chance.random() < 0.3:  # a length or count becomes huge or slightly off
                value = chance.choice([0, 1, 255, 1 << 31, 1 << 32, HUGE, (1 << 64) - 1])
                file[at : at + 8] = struct.pack("<Q", value)
            elif chance.random() < 0.2:
                del file[at : at + chance.randint(1, 9)]
            else:
                file[at] = chance.randrange(256)
        try:
            parse_header(bytes(file), "f")
        except ModelFileError:
            refused += 1
    assert 1000 < refused < 4000
