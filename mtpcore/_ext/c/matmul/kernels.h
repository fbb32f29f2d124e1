/* The table of matmul kernels: one for each instruction set, weight type and tile width. */
#ifndef MTPCORE_MATMUL_KERNELS_H
#define MTPCORE_MATMUL_KERNELS_H

#include "matmul/fetch.h"
#include "matmul/layout.h"

/* out[t][r] for the T tokens of a tile and the 32 rows of a group whose rows are `n_blocks` blocks
 * (columns for the float types); `out` is 64-byte aligned. */
typedef void (*mtp_kernel)(const void *group, int64_t n_blocks, const void *tile, float (*out)[32]);

/* Kernel T - 1 serves tiles of T tokens. */
#define MTP_DECLARE_KERNELS(isa, NAME, name, ...)                                                  \
    extern const mtp_kernel mtp_##name##_##isa[MTP_TILE];
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, portable)
#if defined(__x86_64__)
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, avx2)
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, avxvnni)
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, avx512)
#elif defined(__aarch64__)
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, neon)
MTP_WEIGHT_TYPES(MTP_DECLARE_KERNELS, i8mm)
#endif

/* Make the kernels of one body `name(n_tokens, group, n_blocks, tile, out)`: with n_tokens a
 * constant, its loops over tokens unroll and its accumulators become registers. */
#define MTP_KERNEL(name, n)                                                                        \
    static void name##_##n(const void *group, int64_t n_blocks, const void *tile,                  \
                           float (*out)[32])                                                       \
    {                                                                                              \
        name(n, group, n_blocks, tile, out);                                                       \
    }
#define MTP_KERNELS_4(name, isa)                                                                   \
    MTP_KERNEL(name, 1)                                                                            \
    MTP_KERNEL(name, 2)                                                                            \
    MTP_KERNEL(name, 3)                                                                            \
    MTP_KERNEL(name, 4)                                                                            \
    const mtp_kernel mtp_##name##_##isa[MTP_TILE] = {name##_1, name##_2, name##_3, name##_4};
#define MTP_KERNELS_8(name, isa)                                                                   \
    MTP_KERNEL(name, 1)                                                                            \
    MTP_KERNEL(name, 2)                                                                            \
    MTP_KERNEL(name, 3)                                                                            \
    MTP_KERNEL(name, 4)                                                                            \
    MTP_KERNEL(name, 5)                                                                            \
    MTP_KERNEL(name, 6)                                                                            \
    MTP_KERNEL(name, 7)                                                                            \
    MTP_KERNEL(name, 8)                                                                            \
    const mtp_kernel mtp_##name##_##isa[MTP_TILE] = {name##_1, name##_2, name##_3, name##_4,       \
                                                     name##_5, name##_6, name##_7, name##_8};

#define MTP_UNROLL _Pragma("GCC unroll 8")
#define MTP_ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
