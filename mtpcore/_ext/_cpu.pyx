"""The kernels' instruction set, and how they prefetch weights (``c/core/cpu.h``)."""

import os

from mtpcore.errors import BackendError

cdef extern from "core/cpu.h" nogil:
    const char *mtp_isa_name(int isa) noexcept
    int mtp_isa_named(const char *name) noexcept
    int mtp_isa_supported(int isa) noexcept
    int mtp_isa() noexcept
    int mtp_isa_use(int isa) noexcept
    int mtp_isa_refused() noexcept
    int MTP_ISA_COUNT
    const char *mtp_fetch_name(int fetch) noexcept
    int mtp_fetch_named(const char *name) noexcept
    int mtp_fetch() noexcept
    int mtp_fetch_use(int fetch) noexcept
    int mtp_fetch_refused() noexcept
    int MTP_FETCH_COUNT
    int mtp_first_level_bytes() noexcept


def isa():
    return mtp_isa_name(mtp_isa()).decode()


def available_isas():
    return tuple(
        mtp_isa_name(i).decode() for i in range(MTP_ISA_COUNT) if mtp_isa_supported(i)
    )


def use_isa(str name not None):
    previous = isa()
    if name not in available_isas() or mtp_isa_use(mtp_isa_named(name.encode())) != 0:
        raise unusable_isa("use_isa", name)
    return previous


def unusable_isa(where, name):
    return BackendError(
        "this machine cannot use the instruction set", where=where,
        wanted=" or ".join(available_isas()), got=repr(name),
        fix="name one of these, or leave it to mtpcore, which takes the best",
    )


def fetch():
    return mtp_fetch_name(mtp_fetch()).decode()


def available_fetches():
    return tuple(mtp_fetch_name(i).decode() for i in range(MTP_FETCH_COUNT))


def use_fetch(str name not None):
    previous = fetch()
    if name not in available_fetches() or mtp_fetch_use(mtp_fetch_named(name.encode())) != 0:
        raise unusable_fetch("use_fetch", name)
    return previous


def unusable_fetch(where, name):
    return BackendError(
        "no such way to prefetch weights", where=where,
        wanted=" or ".join(available_fetches()), got=repr(name),
        fix="name one of these, or leave it to mtpcore, which takes the fastest",
    )


def first_level_bytes():
    return mtp_first_level_bytes()


def check_environment():
    if mtp_isa_refused():
        raise unusable_isa("environment variable MTPCORE_ISA", os.environ.get("MTPCORE_ISA"))
    if mtp_fetch_refused():
        raise unusable_fetch("environment variable MTPCORE_FETCH", os.environ.get("MTPCORE_FETCH"))
