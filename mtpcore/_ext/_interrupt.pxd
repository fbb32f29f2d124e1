"""Runs that end early."""

from libc.stdint cimport int64_t


cdef extern from "core/interrupt.h" nogil:
    ctypedef struct mtp_interrupt:
        int (*is_wanted)(void *argument) noexcept nogil
        void *argument
        int is_set
        int64_t n_begun

    void mtp_interrupt_begin(mtp_interrupt *self)
