"""Headers of model files, byte by byte."""

import struct


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def array(kind, n, payload):
    return struct.pack("<IQ", kind, n) + payload


def tensor(name, dims, kind, offset):
    return (
        text(name)
        + struct.pack("<I", len(dims))
        + b"".join(struct.pack("<Q", d) for d in dims)
        + struct.pack("<IQ", kind, offset)
    )


def build(entries=(), tensors=(), data=b"", *, n_entries=None, n_tensors=None, version=3):
    n_entries = len(entries) if n_entries is None else n_entries
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)
    head += b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data
