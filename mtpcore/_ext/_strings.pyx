"""Arrays of strings as GGUF stores them: vocabularies hold hundreds of thousands."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy


def read_strings(
    const unsigned char[::1] data not None, int64_t begin, int64_t end, int64_t n, int64_t longest
):
    cdef list found = []
    cdef uint64_t length
    if not 0 <= begin <= end <= data.shape[0]:
        raise IndexError(f"bytes {begin} to {end} of {data.shape[0]}")
    while len(found) < n:
        if end - begin < <int64_t> sizeof(length):
            break
        memcpy(&length, &data[begin], sizeof(length))
        begin += sizeof(length)
        if length > <uint64_t> longest or length > <uint64_t> (end - begin):
            break
        # An empty string at the end begins past the last byte, where C lets a pointer be.
        found.append(
            PyUnicode_DecodeUTF8(
                <const char *> &data[0] + begin, <Py_ssize_t> length, "surrogateescape"
            )
        )
        begin += <int64_t> length
    return found, begin
