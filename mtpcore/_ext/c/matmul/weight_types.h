/* The weight types that have kernels: the one list of them. */
#ifndef MTPCORE_WEIGHT_TYPES_H
#define MTPCORE_WEIGHT_TYPES_H

#include <stdint.h>

/* How a weight type wants its activations: as they are, or int8 with a scale per 32 or 256. */
enum { MTP_ACT_F32 = 0, MTP_ACT_Q8_32 = 1, MTP_ACT_Q8_256 = 2 };

/* X(argument, NAME, name, number, block, bytes, activation) for each type: MTP_NAME is its
 * constant, `name` stands in the names of its kernels, `number` is GGUF's (ggml_type); in a GGUF
 * row `block` columns take `bytes` bytes. Block sizes are 1, 32 or 256. */
#define MTP_WEIGHT_TYPES(X, argument)                                                              \
    X(argument, F32, f32, 0, 1, 4, MTP_ACT_F32)                                                    \
    X(argument, F16, f16, 1, 1, 2, MTP_ACT_F32)                                                    \
    X(argument, BF16, bf16, 30, 1, 2, MTP_ACT_F32)                                                 \
    X(argument, Q8_0, q8_0, 8, 32, 34, MTP_ACT_Q8_32)                                              \
    X(argument, Q4_0, q4_0, 2, 32, 18, MTP_ACT_Q8_32)                                              \
    X(argument, Q4_1, q4_1, 3, 32, 20, MTP_ACT_Q8_32)                                              \
    X(argument, Q5_0, q5_0, 6, 32, 22, MTP_ACT_Q8_32)                                              \
    X(argument, Q5_1, q5_1, 7, 32, 24, MTP_ACT_Q8_32)                                              \
    X(argument, IQ4_NL, iq4_nl, 20, 32, 18, MTP_ACT_Q8_32)                                         \
    X(argument, MXFP4, mxfp4, 39, 32, 17, MTP_ACT_Q8_32)                                           \
    X(argument, Q2_K, q2_k, 10, 256, 84, MTP_ACT_Q8_256)                                           \
    X(argument, Q3_K, q3_k, 11, 256, 110, MTP_ACT_Q8_256)                                          \
    X(argument, Q4_K, q4_k, 12, 256, 144, MTP_ACT_Q8_256)                                          \
    X(argument, Q5_K, q5_k, 13, 256, 176, MTP_ACT_Q8_256)                                          \
    X(argument, Q6_K, q6_k, 14, 256, 210, MTP_ACT_Q8_256)                                          \
    X(argument, IQ4_XS, iq4_xs, 23, 256, 136, MTP_ACT_Q8_256)

#define MTP_TYPE_NUMBER(_, NAME, name, number, ...) MTP_##NAME = number,
enum { MTP_WEIGHT_TYPES(MTP_TYPE_NUMBER, ) MTP_TYPES = 64 /* above all numbers */ };
#undef MTP_TYPE_NUMBER

int mtp_type_is_native(int32_t type);       /* whether it has kernels */
int64_t mtp_type_block(int32_t type);       /* columns in one block: 1, 32 or 256 */
int64_t mtp_type_block_bytes(int32_t type); /* bytes of one block in a GGUF row */
int mtp_type_activation(int32_t type);      /* MTP_ACT_* */

/* Bytes of a GGUF row of whole blocks. */
int64_t mtp_row_bytes(int32_t type, int64_t n_cols);

#endif
