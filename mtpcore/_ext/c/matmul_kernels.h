/* The table of product kernels: one for each instruction set, weight type and tile width. */
#ifndef MTPCORE_MATMUL_KERNELS_H
#define MTPCORE_MATMUL_KERNELS_H

#include "matmul_layout.h"

/* out[t][r] for the T tokens of a tile and the 32 rows of a group whose rows are `n_blocks` blocks
 * (columns for the float types); `out` is 64-byte aligned. */
typedef void (*mtp_product)(const void *group, int64_t n_blocks, const void *tile,
                            float (*out)[32]);

/* Kernel T - 1 serves tiles of T tokens. */
#define MTP_DECLARE_PRODUCTS(isa)                                                                  \
    extern const mtp_product mtp_f32_##isa[MTP_TILE], mtp_f16_##isa[MTP_TILE],                     \
        mtp_bf16_##isa[MTP_TILE], mtp_q8_0_##isa[MTP_TILE], mtp_q4_0_##isa[MTP_TILE],              \
        mtp_q4_1_##isa[MTP_TILE], mtp_q5_0_##isa[MTP_TILE], mtp_q5_1_##isa[MTP_TILE],              \
        mtp_iq4_nl_##isa[MTP_TILE], mtp_mxfp4_##isa[MTP_TILE], mtp_q2_k_##isa[MTP_TILE],           \
        mtp_q3_k_##isa[MTP_TILE], mtp_q4_k_##isa[MTP_TILE], mtp_q5_k_##isa[MTP_TILE],              \
        mtp_q6_k_##isa[MTP_TILE], mtp_iq4_xs_##isa[MTP_TILE];

MTP_DECLARE_PRODUCTS(portable)
#if defined(__x86_64__)
MTP_DECLARE_PRODUCTS(avx2)
MTP_DECLARE_PRODUCTS(avx512)
#endif

/* Make the kernels of one body `name(n_tokens, group, n_blocks, tile, out)`: with n_tokens a
 * constant, its loops over tokens unroll and its accumulators become registers. */
#define MTP_PRODUCT(name, n)                                                                       \
    static void name##_##n(const void *group, int64_t n_blocks, const void *tile,                  \
                           float (*out)[32])                                                       \
    {                                                                                              \
        name(n, group, n_blocks, tile, out);                                                       \
    }
#define MTP_PRODUCTS_4(name, isa)                                                                  \
    MTP_PRODUCT(name, 1) MTP_PRODUCT(name, 2) MTP_PRODUCT(name, 3) MTP_PRODUCT(name, 4)            \
    const mtp_product mtp_##name##_##isa[MTP_TILE] = {name##_1, name##_2, name##_3, name##_4};
#define MTP_PRODUCTS_8(name, isa)                                                                  \
    MTP_PRODUCT(name, 1) MTP_PRODUCT(name, 2) MTP_PRODUCT(name, 3) MTP_PRODUCT(name, 4)            \
    MTP_PRODUCT(name, 5) MTP_PRODUCT(name, 6) MTP_PRODUCT(name, 7) MTP_PRODUCT(name, 8)            \
    const mtp_product mtp_##name##_##isa[MTP_TILE] = {name##_1, name##_2, name##_3, name##_4,      \
                                                      name##_5, name##_6, name##_7, name##_8};

#define MTP_UNROLL _Pragma("GCC unroll 8")
#define MTP_ALWAYS_INLINE static inline __attribute__((always_inline))

/* Weights are asked for a window ahead, and there a line of each page in turn: the hardware
 * fetches ahead in pages that are read, and of eight at once it brings a third more bytes than of
 * one after the other. Into the second-level cache, since the first has no room for two windows. */
enum { MTP_PAGE_BYTES = 4096, MTP_WINDOW_BYTES = 8 * MTP_PAGE_BYTES };

/* Ask for as many lines as lie in the n bytes here. A few more or less do not matter; that there
 * may be none a window behind the end does no harm. */
MTP_ALWAYS_INLINE void mtp_fetch_ahead(const void *weights, const int n_bytes)
{
    const int step = MTP_WINDOW_BYTES / MTP_PAGE_BYTES * 64, n = (n_bytes + 3 * step / 4) / step;
    MTP_UNROLL for (int i = 0; i < n; i++)
    {
        const uintptr_t here = (uintptr_t)weights + (uintptr_t)(i * n_bytes / n);
        const uintptr_t window = here / MTP_WINDOW_BYTES + 1;
        const uintptr_t line = here % MTP_WINDOW_BYTES / (uintptr_t)step;
        const char *ahead = (const char *)(window * MTP_WINDOW_BYTES + line * 64);
        MTP_UNROLL for (int page = 0; page < MTP_WINDOW_BYTES; page += MTP_PAGE_BYTES)
            __builtin_prefetch(ahead + page, 0, 2);
    }
}

#endif
