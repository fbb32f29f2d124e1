"""Arrays as plain addresses, checked: a typed memoryview costs several times as much a call.

Whoever asks keeps the array alive, and writes only to one that it made.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t


cdef struct int32s:
    int32_t *data
    int64_t n      # along the first axis
    int64_t width  # along the second; 1 where there is none


cdef struct bools:
    unsigned char *data
    int64_t n


cdef struct floats:
    float *data
    int64_t n  # of all axes


cdef struct doubles:
    double *data
    int64_t n


cdef struct memory:
    char *data
    int64_t n_bytes


cdef inline int get_buffer(array, Py_buffer *found, char kind, int n_axes, int flags) except -1:
    """Get the values of a C-contiguous array of one kind; n_axes below 0 stands for any number."""
    cdef Py_ssize_t size = 1 if kind == b"?" else 8 if kind == b"d" else 4
    PyObject_GetBuffer(array, found, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags)
    if (found.itemsize == size and found.format != NULL and found.format[0] == kind
            and found.format[1] == 0 and (n_axes < 0 or found.ndim == n_axes)):
        return 0
    shape = [found.shape[i] for i in range(found.ndim)]
    got = f"{getattr(array, 'dtype', type(array).__name__)}{shape}"
    PyBuffer_Release(found)
    from mtpcore.errors import BackendError  # a .pxd has no module to keep the name in
    names = {b"i": "int32", b"?": "bool", b"f": "float32", b"d": "float64"}
    raise BackendError("not what compiled code reads", got=got,
                       wanted=names[bytes([kind])] + (f", {n_axes} axes" if n_axes >= 0 else ""))


cdef inline int32s int32s_of(array, int n_axes) except *:
    """Return the values of a C-contiguous array of int32 with one axis, or two."""
    cdef Py_buffer found
    get_buffer(array, &found, b"i", n_axes, 0)
    cdef int32s values = int32s(<int32_t *> found.buf, found.shape[0],
                                found.shape[1] if n_axes > 1 else 1)
    PyBuffer_Release(&found)
    return values


cdef inline bools bools_of(array) except *:
    """Return the values of a C-contiguous array of bool with one axis."""
    cdef Py_buffer found
    get_buffer(array, &found, b"?", 1, 0)
    cdef bools values = bools(<unsigned char *> found.buf, found.shape[0])
    PyBuffer_Release(&found)
    return values


cdef inline floats floats_of(array, bint writable) except *:
    """Return the values of a C-contiguous array of float32; ``writable`` where they are written."""
    cdef Py_buffer found
    get_buffer(array, &found, b"f", -1, PyBUF_WRITABLE if writable else 0)
    cdef floats values = floats(<float *> found.buf, found.len // 4)
    PyBuffer_Release(&found)
    return values


cdef inline doubles doubles_of(array) except *:
    """Return the values of a C-contiguous array of float64 with one axis."""
    cdef Py_buffer found
    get_buffer(array, &found, b"d", 1, 0)
    cdef doubles values = doubles(<double *> found.buf, found.shape[0])
    PyBuffer_Release(&found)
    return values


cdef inline memory memory_of(array) except *:
    """Return the bytes of a C-contiguous array that is written."""
    cdef Py_buffer found
    PyObject_GetBuffer(array, &found, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    cdef memory block = memory(<char *> found.buf, found.len)
    PyBuffer_Release(&found)
    return block
