/* Prefetching weights.
 *
 * Some processors prefetch only within pages that are read, at most so many lines of each: of eight
 * pages at once they bring a third more bytes than of one after the other. Others bring one stream
 * at full speed, and less of it if it jumps between pages, or if it is prefetched by instructions at
 * all. `benchmarks/reading.py` shows what a machine does; fetch_choice.h says how a way is chosen.
 */
#ifndef MTPCORE_FETCH_H
#define MTPCORE_FETCH_H

#include <stdint.h>

#include "core/cpu.h"

enum {
    MTP_LINES_AHEAD_BYTES = 8192,
    MTP_LINES_L2_AHEAD_BYTES = 16384,
    MTP_PAGE_BYTES = 4096,
    MTP_WINDOW_BYTES = 8 * MTP_PAGE_BYTES
};

/* GNU's loader keeps room for such variables, so that reading one is a single instruction. */
#ifdef __GLIBC__
#define MTP_FETCH_TLS __attribute__((tls_model("initial-exec")))
#else
#define MTP_FETCH_TLS
#endif

/* The way of the matmul that this thread computes: an MTP_FETCH_*. */
extern _Thread_local int mtp_fetch_way MTP_FETCH_TLS;

/* Ask for as many lines as lie in the n bytes here, past the end of the weights as well: asking
 * for what is not there does nothing. Lines that come next go into the first-level cache or, further
 * ahead, into the second. The first has no room for two windows, so those go into the second; they
 * are asked for eight lines at a time, so that where n is no multiple of 512 some are left to the
 * hardware (one in nine for n = 576) and some are asked for twice. */
static inline __attribute__((always_inline)) void mtp_fetch_ahead(const void *weights,
                                                                  const int n_bytes)
{
    const int way = mtp_fetch_way;
    if (way == MTP_FETCH_NONE)
        return;
    if (way == MTP_FETCH_LINES) {
        const char *next = (const char *)((uintptr_t)weights + MTP_LINES_AHEAD_BYTES);
        _Pragma("GCC unroll 16") for (int i = 0; i < n_bytes; i += MTP_LINE)
            __builtin_prefetch(next + i, 0, 3);
        return;
    }
    if (way == MTP_FETCH_LINES_L2) {
        const char *next = (const char *)((uintptr_t)weights + MTP_LINES_L2_AHEAD_BYTES);
        _Pragma("GCC unroll 16") for (int i = 0; i < n_bytes; i += MTP_LINE)
            __builtin_prefetch(next + i, 0, 2);
        return;
    }
    const int step = MTP_WINDOW_BYTES / MTP_PAGE_BYTES * MTP_LINE;
    const int n = (n_bytes + 3 * step / 4) / step;
    _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
    {
        const uintptr_t here = (uintptr_t)weights + (uintptr_t)(i * n_bytes / n);
        const uintptr_t window = here / MTP_WINDOW_BYTES + 1;
        const uintptr_t line = here % MTP_WINDOW_BYTES / (uintptr_t)step;
        const char *next = (const char *)(window * MTP_WINDOW_BYTES + line * MTP_LINE);
        _Pragma("GCC unroll 8") for (int page = 0; page < MTP_WINDOW_BYTES; page += MTP_PAGE_BYTES)
            __builtin_prefetch(next + page, 0, 2);
    }
}

#endif
