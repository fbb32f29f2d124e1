"""How weights are prefetched, chosen by measuring (``c/matmul/fetch_choice.h``)."""

from libc.stdint cimport int32_t

from mtpcore.errors import BackendError

cdef extern from "core/cpu.h" nogil:
    const char *mtp_fetch_name(int fetch) noexcept
    int mtp_fetch_named(const char *name) noexcept
    int MTP_FETCH_WAYS, MTP_FETCH_AUTO

cdef extern from "matmul/weight_types.h" nogil:
    int MTP_TYPES

cdef extern from "matmul/fetch_choice.h" nogil:
    int MTP_FETCH_CLASSES, MTP_FETCH_TRIALS, MTP_FETCH_SOON, MTP_FETCH_PASSES

    ctypedef struct mtp_fetch_result:
        int way
        double speeds[4]

    ctypedef struct mtp_fetch_choice:
        int way
        bint is_timed
        bint is_used
        double n_bytes
        double ns

    mtp_fetch_choice mtp_fetch_choice_new(int32_t type, int32_t rows) noexcept
    int mtp_fetch_choice_next(mtp_fetch_choice *choice, int fetch,
                              mtp_fetch_result *result) noexcept
    int mtp_fetch_recall(int32_t type, int32_t rows, mtp_fetch_result *result) noexcept
    void mtp_fetch_remember(int32_t type, int32_t rows, const mtp_fetch_result *result) noexcept
    void mtp_fetch_forget() noexcept

WAYS = tuple(mtp_fetch_name(way).decode() for way in range(MTP_FETCH_WAYS))
ROWS = ("1", "2-4", "5-8", "9-16")
TRIALS, SOON, PASSES, TYPES = MTP_FETCH_TRIALS, MTP_FETCH_SOON, MTP_FETCH_PASSES, MTP_TYPES


cdef as_python(const mtp_fetch_result *result):
    return WAYS[result.way], {way: result.speeds[i] for i, way in enumerate(WAYS)}


def recall():
    cdef mtp_fetch_result result
    return {
        (type, ROWS[rows]): as_python(&result)
        for type in range(MTP_TYPES)
        for rows in range(MTP_FETCH_CLASSES)
        if mtp_fetch_recall(type, rows, &result)
    }


def remember(int type, str rows not None, speeds):
    cdef mtp_fetch_result result
    if not 0 <= type < MTP_TYPES:
        raise BackendError("no such weight type", where="remember", got=type)
    if rows not in ROWS:
        raise BackendError("no such class of rows", where="remember",
                           wanted=" or ".join(ROWS), got=repr(rows))
    for i, way in enumerate(WAYS):
        result.speeds[i] = speeds[way]
    result.way = max(range(MTP_FETCH_WAYS), key=lambda i: speeds[WAYS[i]])
    mtp_fetch_remember(type, ROWS.index(rows), &result)


def forget():
    mtp_fetch_forget()


cdef class Choice:
    cdef mtp_fetch_choice choice

    def __cinit__(self, int type, str rows not None):
        if not 0 <= type < MTP_TYPES or rows not in ROWS:
            raise BackendError("no such weight type or class of rows", where="Choice",
                               got=(type, rows))
        self.choice = mtp_fetch_choice_new(type, ROWS.index(rows))
        mtp_fetch_choice_next(&self.choice, MTP_FETCH_AUTO, NULL)

    @property
    def way(self):
        return WAYS[self.choice.way]

    @property
    def is_trial(self):
        return bool(self.choice.is_timed)

    def end_pass(self, double speed, str fetch not None="auto"):
        cdef mtp_fetch_result result
        if mtp_fetch_named(fetch.encode()) < 0:
            raise BackendError("no such way to prefetch weights", where="end_pass",
                               wanted=" or ".join((*WAYS, "auto")), got=repr(fetch))
        self.choice.is_used = True
        if self.choice.is_timed:
            self.choice.n_bytes, self.choice.ns = 1000 * speed, 1000
        if mtp_fetch_choice_next(&self.choice, mtp_fetch_named(fetch.encode()), &result):
            return as_python(&result)
        return None
