"""Arrays as plain addresses, checked: a typed memoryview costs several times as much a call.

Whoever asks keeps the array alive, and writes only to one that it made.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t


cdef struct int32s:
    int32_t *data
    int64_t n      # along the first axis
    int64_t width  # along the second; 1 where there is none


cdef struct bools:
    unsigned char *data
    int64_t n


cdef inline int check_buffer(const Py_buffer *found, array, int n_axes, char kind) except -1:
    cdef Py_ssize_t size = sizeof(int32_t) if kind == b"i" else 1
    if (found.ndim != n_axes or found.itemsize != size or found.format[0] != kind
            or found.format[1] != 0):
        from mtpcore.errors import BackendError  # a .pxd has no module to keep the name in
        raise BackendError("not what compiled code reads", got=f"{array.dtype}{list(array.shape)}",
                           wanted=f"{n_axes} axes of {'int32' if size > 1 else 'bool'}")
    return 0


cdef inline int32s int32s_of(array, int n_axes) except *:
    """Return the values of a C-contiguous array of int32 with one axis, or two."""
    cdef Py_buffer found
    PyObject_GetBuffer(array, &found, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    try:
        check_buffer(&found, array, n_axes, b"i")
        return int32s(<int32_t *> found.buf, found.shape[0], found.shape[1] if n_axes > 1 else 1)
    finally:
        PyBuffer_Release(&found)


cdef inline bools bools_of(array) except *:
    """Return the values of a C-contiguous array of bool with one axis."""
    cdef Py_buffer found
    PyObject_GetBuffer(array, &found, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    try:
        check_buffer(&found, array, 1, b"?")
        return bools(<unsigned char *> found.buf, found.shape[0])
    finally:
        PyBuffer_Release(&found)
