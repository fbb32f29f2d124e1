"""Saved states that somebody has tampered with: bytes, parts, and what the parts say.

Parts are changed with their checksums made right again, so that what is after these is reached.
"""

import io
import random

import msgspec

from harness.damage import NUMBERS
from mtpcore.boundary.sections import read_sections, write_sections

VERSION = 2
VALUES = (
    *NUMBERS,
    *(None, True, "", "x", b"", b"x", b"\xff" * 16, [], [1], {}, {"a": 1}, ["a"] * 300),
)


def damage(states, others, seed):
    """Return one of ``states``, damaged in one to three ways; the same seed, the same bytes.

    Parts are exchanged with states of both kinds.
    """
    chance = random.Random(seed)
    data, other = chance.choice(states), chance.choice((*states, *others))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if chance.random() < 0.12:
            data = chance.choice((_flip, _cut, _extend, _overwrite))(chance, data)
            return data  # its parts can no longer be told
        parts = {name: bytes(part) for name, part in read_sections(data, VERSION).items()}
        others = {name: bytes(part) for name, part in read_sections(other, VERSION).items()}
        chance.choice(ACTS)(chance, parts, others)
        data = written(parts, chance.choice((VERSION,) * 150 + (0, 2, 2**31)))
        if data[len(b"mtpcore state\n")] != VERSION:
            return data
    return data


def written(parts, version=VERSION):
    """Return a state of these parts, with right checksums."""
    file = io.BytesIO()
    write_sections(file, version, ((name, [part]) for name, part in parts.items()))
    return file.getvalue()


# Bytes, whatever they mean


def _flip(chance, data):
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance, data):
    begin = chance.randrange(len(data) + 1)
    return data[:begin] if chance.random() < 0.7 else data[:begin] + data[begin + 8 :]


def _extend(chance, data):
    return data + chance.randbytes(chance.choice((1, 8, 100)))


def _overwrite(chance, data):
    """Put a number into eight bytes, mostly among the first or last, where sizes are."""
    if len(data) < 8:
        return data
    at = chance.choice((0, 8, 16, len(data) - 24, len(data) - 8, chance.randrange(len(data))))
    number = int(chance.choice([n for n in NUMBERS if isinstance(n, int)])) % (1 << 64)
    at = min(max(at, 0), len(data) - 8)
    return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]


# Parts


def _drop(chance, parts, others):
    del parts[chance.choice(list(parts))]


def _swap(chance, parts, others):
    first, second = chance.choice(list(parts)), chance.choice(list(parts))
    parts[first], parts[second] = parts[second], parts[first]


def _borrow(chance, parts, others):
    """Take a part of another state: of another text, another kind, or another model."""
    name = chance.choice(list(others))
    parts[name if chance.random() < 0.5 else chance.choice(list(parts))] = others[name]


def _add(chance, parts, others):
    parts[chance.choice(("more", "", "draft: memory 1", "llm: memory 7"))] = chance.randbytes(9)


def _damage_part(chance, parts, others):
    name = chance.choice(list(parts))
    act = chance.choice((_flip, _cut, _extend, _overwrite, _overwrite))
    parts[name] = act(chance, parts[name])


def _change_value(chance, parts, others):
    """Replace something in a part that is one value, wherever in it."""
    names = [one for one in parts if _decoded(parts[one]) is not None]
    name = chance.choice(names[1:] * 4 + names[:1] or [""])  # the first says what it is of
    if not name:
        return
    value = _decoded(parts[name])
    holder, key = value, chance.choice(list(value))
    while isinstance(holder[key], dict) and holder[key] and chance.random() < 0.8:
        holder = holder[key]
        key = chance.choice(list(holder))
    kind = chance.random()
    if kind < 0.03:
        del holder[key]
    elif kind < 0.06:
        holder["more"] = 1
    elif isinstance(holder[key], bytes) and kind < 0.8:
        act = chance.choice((_flip, _cut, _extend, _overwrite))
        holder[key] = act(chance, holder[key])
    elif isinstance(holder[key], int) and kind < 0.8:
        holder[key] += chance.choice((-2, -1, 1, 2, 7, 64))
    else:
        holder[key] = chance.choice(VALUES)
    try:
        parts[name] = msgspec.msgpack.encode(value)
    except (OverflowError, TypeError):  # numbers that the format does not have
        parts[name] = b""


def _decoded(part):
    """Return a part that is a mapping; None of anything else."""
    try:
        value = msgspec.msgpack.decode(part)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) and value else None


ACTS = (_drop, _swap, _borrow, _add, _damage_part, _damage_part, *[_change_value] * 5)
