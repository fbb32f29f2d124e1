#include "core/cpu.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/features.h"

static const char *const names[MTP_ISA_COUNT] = {"base", "avx2", "avxvnni", "avx512",
                                                 "amx",  "neon", "i8mm"};
static _Atomic int in_use = MTP_ISA_BASE;
static const char *const ways[MTP_FETCH_COUNT] = {"lines", "lines-l2", "pages", "none", "auto"};
static _Atomic int fetch_in_use = MTP_FETCH_AUTO;
static int is_intel = 0;
static int refused = 0, fetch_refused = 0;
#if defined(__aarch64__)
static int first_level_bytes = 64 << 10; /* Neoverse V1 and V2; Apple's cores have more */
#else
static int first_level_bytes = 32 << 10;
#endif

/* The place of a name among n, or -1. */
static int place_of(const char *name, const char *const *all, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, all[i]) == 0)
            return i;
    return -1;
}

/* What the environment says of a variable; NULL where it says nothing. */
static const char *wanted(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

const char *mtp_isa_name(int isa) { return isa >= 0 && isa < MTP_ISA_COUNT ? names[isa] : NULL; }

int mtp_isa_named(const char *name) { return place_of(name, names, MTP_ISA_COUNT); }

#if defined(__x86_64__)
typedef struct {
    unsigned int a, b, c, d;
} words;

/* What the processor says of itself. Compilers have builtins for it, which say no to everything
 * where Zig's library is linked, as on Windows. */
static words ask(unsigned int leaf, unsigned int part)
{
    words said = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaf, part, &said.a, &said.b, &said.c, &said.d))
        return (words){0, 0, 0, 0};
    return said;
}

static int has_all(unsigned int word, unsigned int wanted) { return (word & wanted) == wanted; }

/* Whether the system saves these registers when threads take turns. */
static int saves(unsigned int wanted)
{
    const unsigned int asks_system = 1u << 27; /* OSXSAVE */
    if (!has_all(ask(1, 0).c, asks_system))
        return 0;
    unsigned int low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return has_all(low, wanted);
}

enum {
    YMM = 1 << 1 | 1 << 2,
    ZMM = YMM | 1 << 5 | 1 << 6 | 1 << 7,
};

static int has_avx2(void)
{
    const unsigned int fma_avx_f16c = 1u << 12 | 1u << 28 | 1u << 29, avx2_bmi2 = 1u << 5 | 1u << 8;
    return saves(YMM) && has_all(ask(1, 0).c, fma_avx_f16c) && has_all(ask(7, 0).b, avx2_bmi2);
}

static int has_avxvnni(void) { return has_avx2() && has_all(ask(7, 1).a, 1u << 4); }

static int has_avx512(void)
{
    const unsigned int f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const unsigned int vbmi_vnni = 1u << 1 | 1u << 11;
    const words said = ask(7, 0);
    return has_avx2() && saves(ZMM) && has_all(said.b, f_dq_bw_vl) && has_all(said.c, vbmi_vnni);
}

static int has_tiles(void)
{
    const unsigned int tiles_of_bytes = 1u << 24 | 1u << 25;
    return has_avx512() && has_all(ask(7, 0).d, tiles_of_bytes) && mtp_may_use_tiles();
}

static int is_from_intel(void)
{
    const words name = ask(0, 0);
    return name.b == 0x756e6547 && name.d == 0x49656e69 && name.c == 0x6c65746e;
}
#endif

/* Every extension that the flags of the set's C files let the compiler use must be present, and
 * the operating system must save the registers. */
int mtp_isa_supported(int isa)
{
#if defined(__x86_64__)
    switch (isa) {
    case MTP_ISA_BASE:
        return 1;
    case MTP_ISA_AVX2:
        return has_avx2();
    case MTP_ISA_AVXVNNI:
        return has_avxvnni();
    case MTP_ISA_AVX512:
        return has_avx512();
    case MTP_ISA_AMX:
        return has_tiles();
    default:
        return 0;
    }
#elif defined(__aarch64__)
    switch (isa) {
    case MTP_ISA_BASE:
        return 1;
    case MTP_ISA_NEON:
        return mtp_has_dot_products();
    case MTP_ISA_I8MM:
        return mtp_has_dot_products() && mtp_has_matrix_products();
    default:
        return 0;
    }
#else
    return isa == MTP_ISA_BASE;
#endif
}

int mtp_isa(void) { return atomic_load_explicit(&in_use, memory_order_relaxed); }

int mtp_isa_use(int isa)
{
    if (!mtp_isa_supported(isa))
        return -1;
    atomic_store_explicit(&in_use, isa, memory_order_relaxed);
    return 0;
}

int mtp_isa_refused(void) { return refused; }

__attribute__((constructor)) static void choose_isa(void)
{
    const char *name = wanted("MTPCORE_ISA");
    if (name != NULL) {
        refused = mtp_isa_use(mtp_isa_named(name)) != 0;
        return;
    }
    for (int isa = MTP_ISA_COUNT - 1; mtp_isa_use(isa) != 0; isa--)
        ;
}

const char *mtp_fetch_name(int fetch)
{
    return fetch >= 0 && fetch < MTP_FETCH_COUNT ? ways[fetch] : NULL;
}

int mtp_fetch_named(const char *name) { return place_of(name, ways, MTP_FETCH_COUNT); }

int mtp_fetch(void) { return atomic_load_explicit(&fetch_in_use, memory_order_relaxed); }

int mtp_fetch_use(int fetch)
{
    if (mtp_fetch_name(fetch) == NULL)
        return -1;
    atomic_store_explicit(&fetch_in_use, fetch, memory_order_relaxed);
    return 0;
}

int mtp_fetch_refused(void) { return fetch_refused; }

/* Measured on a Xeon with AMX (reading pages in turn 24.9 GB/s, lines 18.3) and on a Zen 5, where
 * matmuls are a quarter to a third faster with lines. */
int mtp_fetch_default(void)
{
    const int fetch = mtp_fetch();
    if (fetch != MTP_FETCH_AUTO)
        return fetch;
    return is_intel ? MTP_FETCH_PAGES : MTP_FETCH_LINES;
}

__attribute__((constructor)) static void choose_fetch(void)
{
#if defined(__x86_64__)
    is_intel = is_from_intel();
#endif
    const char *name = wanted("MTPCORE_FETCH");
    fetch_refused = name != NULL && mtp_fetch_use(mtp_fetch_named(name)) != 0;
}

int mtp_first_level_bytes(void) { return first_level_bytes; }

#if defined(__x86_64__)
/* Intel lists caches in leaf 4, AMD in leaf 0x8000001d, in the same form: kind and level, lines of so
 * many bytes in groups and ways, and sets, each less one. */
__attribute__((constructor)) static void measure_first_level(void)
{
    enum { DATA = 1, FIRST_LEVEL = 1 };
    const unsigned int leaves[] = {4, 0x8000001d};
    for (int i = 0; i < 2; i++) {
        unsigned int a, b, c, d;
        for (unsigned int cache = 0; __get_cpuid_count(leaves[i], cache, &a, &b, &c, &d); cache++) {
            const unsigned int kind = a & 0x1f, level = a >> 5 & 7;
            if (kind == 0)
                break;
            if (kind == DATA && level == FIRST_LEVEL)
                first_level_bytes =
                    (int)(((b & 0xfff) + 1) * ((b >> 12 & 0x3ff) + 1) * ((b >> 22) + 1) * (c + 1));
        }
    }
}
#endif
