"""Whether all threads or one run a plan, chosen by measuring (``c/core/pace.h``)."""

from mtpcore.errors import BackendError

cdef extern from "core/pace.h" nogil:
    ctypedef enum mtp_way:
        MTP_SHARED
        MTP_ALONE

    ctypedef struct mtp_paces:
        pass

    mtp_way mtp_next_way(const mtp_paces *paces) noexcept
    void mtp_note_pace(mtp_paces *paces, mtp_way way, double pace) noexcept


cdef class Paces:
    cdef mtp_paces paces

    def next_is_shared(self):
        return mtp_next_way(&self.paces) == MTP_SHARED

    def end_run(self, double pace):
        if not 0 < pace < 1e300:
            raise BackendError("no pace", where="end_run", wanted="above 0", got=pace)
        mtp_note_pace(&self.paces, mtp_next_way(&self.paces), pace)
