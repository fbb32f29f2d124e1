#include "cpu.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[MTP_ISA_COUNT] = {"base", "avx2", "avx512"};
static _Atomic int in_use = MTP_ISA_BASE;
static const char *const ways[MTP_FETCH_COUNT] = {"lines", "pages"};
_Atomic int mtp_fetch_in_use = MTP_FETCH_LINES;
static int refused = 0, fetch_refused = 0;

const char *mtp_isa_name(int isa)
{
    return isa >= 0 && isa < MTP_ISA_COUNT ? names[isa] : NULL;
}

int mtp_isa_named(const char *name)
{
    for (int isa = 0; isa < MTP_ISA_COUNT; isa++)
        if (strcmp(name, names[isa]) == 0)
            return isa;
    return -1;
}

/* Every extension that the flags of the set's C files let the compiler use must be present; the
 * builtin also asks whether the operating system saves the registers. */
int mtp_isa_supported(int isa)
{
#if defined(__x86_64__)
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    switch (isa) {
    case MTP_ISA_BASE:
        return 1;
    case MTP_ISA_AVX2:
        return avx2;
    case MTP_ISA_AVX512:
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    default:
        return 0;
    }
#else
    return isa == MTP_ISA_BASE;
#endif
}

int mtp_isa(void)
{
    return atomic_load_explicit(&in_use, memory_order_relaxed);
}

int mtp_isa_use(int isa)
{
    if (!mtp_isa_supported(isa))
        return -1;
    atomic_store_explicit(&in_use, isa, memory_order_relaxed);
    return 0;
}

int mtp_isa_refused(void)
{
    return refused;
}

__attribute__((constructor)) static void choose_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    const char *wanted = getenv("MTPCORE_ISA");
    if (wanted != NULL && wanted[0] != '\0') {
        refused = mtp_isa_use(mtp_isa_named(wanted)) != 0;
        return;
    }
    for (int isa = MTP_ISA_COUNT - 1; mtp_isa_use(isa) != 0; isa--)
        ;
}

const char *mtp_fetch_name(int fetch)
{
    return fetch >= 0 && fetch < MTP_FETCH_COUNT ? ways[fetch] : NULL;
}

int mtp_fetch_named(const char *name)
{
    for (int fetch = 0; fetch < MTP_FETCH_COUNT; fetch++)
        if (strcmp(name, ways[fetch]) == 0)
            return fetch;
    return -1;
}

int mtp_fetch(void)
{
    return atomic_load_explicit(&mtp_fetch_in_use, memory_order_relaxed);
}

int mtp_fetch_use(int fetch)
{
    if (mtp_fetch_name(fetch) == NULL)
        return -1;
    atomic_store_explicit(&mtp_fetch_in_use, fetch, memory_order_relaxed);
    return 0;
}

int mtp_fetch_refused(void)
{
    return fetch_refused;
}

/* Measured on a Xeon with AMX (reading pages in turn 24.9 GB/s, lines 18.3) and on a Zen 5, where
 * products are a quarter to a third faster with lines. Of others nobody knows yet: `python
 * benchmarks/matmul.py --fetch pages` and `--fetch lines` tell. */
__attribute__((constructor)) static void choose_fetch(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    (void)mtp_fetch_use(__builtin_cpu_is("intel") ? MTP_FETCH_PAGES : MTP_FETCH_LINES);
#endif
    const char *wanted = getenv("MTPCORE_FETCH");
    if (wanted != NULL && wanted[0] != '\0')
        fetch_refused = mtp_fetch_use(mtp_fetch_named(wanted)) != 0;
}
