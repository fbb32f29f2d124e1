"""Arrays that are handed to other libraries, and taken from them, by DLPack."""

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.object cimport PyObject
from cpython.pycapsule cimport (
    PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

cdef extern from "Python.h":
    int Py_IsInitialized() nogil

# What follows up to "Given" is DLPack's binary interface, version 1.


cdef struct Device:
    int32_t kind
    int32_t number


cdef struct Type:
    uint8_t code
    uint8_t bits
    uint16_t lanes


cdef struct Array:
    void *data
    Device device
    int32_t ndim
    Type type
    int64_t *shape
    int64_t *strides
    uint64_t byte_offset


cdef struct Managed:
    Array array
    void *owner
    void (*deleter)(Managed *) noexcept nogil


cdef struct Versioned:
    uint32_t major
    uint32_t minor
    void *owner
    void (*deleter)(Versioned *) noexcept nogil
    uint64_t flags
    Array array


cdef enum:
    READ_ONLY = 1
    COPIED = 2

cdef const char *NAME = "dltensor"
cdef const char *USED = "used_dltensor"
cdef const char *VERSIONED = "dltensor_versioned"
cdef const char *USED_VERSIONED = "used_dltensor_versioned"
cdef dict CODES = {"i": 0, "u": 1, "f": 2}


cdef struct Given:
    # One of the two is in use. The axes of the array come after the struct.
    Managed managed
    Versioned versioned


cdef void release(void *owner) noexcept nogil:
    """Let go of an owner, from any thread; at the end of the process it is gone already."""
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object> owner)


cdef void delete_managed(Managed *managed) noexcept nogil:
    release(managed.owner)
    free(<char *> managed - <size_t> &(<Given *> NULL).managed)


cdef void delete_versioned(Versioned *managed) noexcept nogil:
    release(managed.owner)
    free(<char *> managed - <size_t> &(<Given *> NULL).versioned)


cdef void drop(object capsule) noexcept:
    """Free what nobody took; while an exception is on its way, too."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    cdef Managed *managed
    cdef Versioned *versioned
    PyErr_Fetch(&kind, &error, &trace)
    if PyCapsule_IsValid(capsule, NAME):
        managed = <Managed *> PyCapsule_GetPointer(capsule, NAME)
        managed.deleter(managed)
    elif PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <Versioned *> PyCapsule_GetPointer(capsule, VERSIONED)
        versioned.deleter(versioned)
    PyErr_Restore(kind, error, trace)


def make_capsule(
    object owner, uintptr_t address, tuple shape not None, str kind not None, int n_bits,
    tuple device not None, *, bint versioned, bint read_only, bint copied
):
    cdef Py_ssize_t ndim = len(shape), i
    cdef int64_t stride = 1
    cdef int64_t *axes
    cdef Array *array
    cdef uint8_t code = CODES[kind]
    cdef int32_t device_kind = device[0], number = device[1]
    cdef list sizes = [<int64_t> n for n in shape]
    cdef Given *given = <Given *> malloc(sizeof(Given) + 2 * (ndim + 1) * sizeof(int64_t))
    if given == NULL:
        raise MemoryError
    axes = <int64_t *> (given + 1)
    array = &given.versioned.array if versioned else &given.managed.array
    array.data, array.ndim, array.byte_offset = <void *> address, <int32_t> ndim, 0
    array.device.kind, array.device.number = device_kind, number
    array.type.code, array.type.bits, array.type.lanes = code, <uint8_t> n_bits, 1
    array.shape, array.strides = axes, axes + ndim
    for i in range(ndim - 1, -1, -1):
        axes[i], axes[ndim + i] = sizes[i], stride
        stride *= axes[i]
    given.versioned.major, given.versioned.minor = 1, 0
    given.versioned.flags = (READ_ONLY if read_only else 0) | (COPIED if copied else 0)
    given.versioned.owner = given.managed.owner = <void *> owner
    given.versioned.deleter, given.managed.deleter = delete_versioned, delete_managed
    Py_INCREF(owner)
    try:
        if versioned:
            return PyCapsule_New(&given.versioned, VERSIONED, drop)
        return PyCapsule_New(&given.managed, NAME, drop)
    except BaseException:
        Py_DECREF(owner)
        free(given)
        raise


cdef class Taken:
    cdef Managed *_managed
    cdef Versioned *_versioned
    cdef readonly object address, shape, strides, code, bits, lanes, device

    def __cinit__(self, object capsule):
        cdef Array *array
        if PyCapsule_IsValid(capsule, VERSIONED):
            self._versioned = <Versioned *> PyCapsule_GetPointer(capsule, VERSIONED)
            PyCapsule_SetName(capsule, USED_VERSIONED)
            if self._versioned.major > 1:  # only where its deleter is has not changed
                raise BufferError(f"DLPack {self._versioned.major}, of which 1 is known")
            array = &self._versioned.array
        elif PyCapsule_IsValid(capsule, NAME):
            self._managed = <Managed *> PyCapsule_GetPointer(capsule, NAME)
            PyCapsule_SetName(capsule, USED)
            array = &self._managed.array
        else:
            raise BufferError("no capsule of DLPack, or one that was taken before")
        self.address = <uintptr_t> array.data + array.byte_offset
        self.shape = tuple([array.shape[i] for i in range(array.ndim)])
        self.strides = None
        if array.strides != NULL:
            self.strides = tuple([array.strides[i] for i in range(array.ndim)])
        self.code, self.bits, self.lanes = array.type.code, array.type.bits, array.type.lanes
        self.device = (array.device.kind, array.device.number)

    def __dealloc__(self):
        if self._versioned != NULL and self._versioned.deleter != NULL:
            self._versioned.deleter(self._versioned)
        if self._managed != NULL and self._managed.deleter != NULL:
            self._managed.deleter(self._managed)
