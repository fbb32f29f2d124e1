/* Unpacked blocks of 256 columns times tiles of tokens.
 *
 * All 32 rows at a time: each broadcast activation serves two multiplications, and the accumulators
 * of four tokens fit the registers, since nothing is unpacked here.
 */
#include "matmul_unpacked.h"

#include "matmul_avx512.h"

/* Whether a sub-block has 16 columns, else 32. */
MTP_ALWAYS_INLINE int is_of_quarters(const int type)
{
    return type == MTP_Q2_K || type == MTP_Q3_K || type == MTP_Q6_K;
}

/* Minus what the unsigned codes of a sub-block are too large by, times the activations. */
MTP_ALWAYS_INLINE __m512i first_integers(const int type, const int32_t *minus_sum)
{
    if (type == MTP_Q3_K || type == MTP_Q6_K)
        return _mm512_slli_epi32(mtp_broadcast(minus_sum), type == MTP_Q6_K ? 5 : 2);
    return _mm512_setzero_si512();
}

/* What a block adds to the sums of a token in 16 rows. */
MTP_ALWAYS_INLINE void add_block(const int type, const mtp_unpacked *block, const int row,
                                 __m512i total, __m512i taken, __m512 x_scale, float *sum)
{
    const __m512 scale = _mm512_load_ps(block->scale + row);
    __m512 value = _mm512_load_ps(sum + row);
    if (type == MTP_IQ4_XS)
        total = _mm512_sub_epi32(total, _mm512_slli_epi32(taken, 7));
    value = mtp_add_block(value, total, scale, x_scale);
    if (mtp_block256_has_min(type))
        value = mtp_take_mins(value, taken, _mm512_load_ps(block->min + row), x_scale);
    _mm512_store_ps(sum + row, value);
}

MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const mtp_unpacked *block,
                                const int32_t *words, float (*sum)[32], const char *ahead)
{
    const int n_lines = is_of_quarters(type) ? 4 : 8; /* of a sub-block */
    const int32_t *x = words, *minus_sums = words + MTP_ACT256_MINUS_SUM * n_tokens;
    __m512i total0[4], total1[4], taken0[4], taken1[4];
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        total0[t] = total1[t] = taken0[t] = taken1[t] = _mm512_setzero_si512();
    for (int s = 0; s < 64 / n_lines; s++) {
        const uint8_t(*code)[32][4] = block->code + s * n_lines;
        __m512i integers0[4], integers1[4];
        if (ahead != NULL) /* in all 48 or 56 lines; a block has up to 53 */
            for (int i = 0; i < n_lines - 1; i++, ahead += 64)
                __builtin_prefetch(ahead);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            integers0[t] = integers1[t] = first_integers(type, minus_sums + s * n_tokens + t);
        MTP_UNROLL for (int j = 0; j < n_lines; j++, x += n_tokens)
        {
            const __m512i w0 = _mm512_load_si512(code[j]), w1 = _mm512_load_si512(code[j] + 16);
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i value = mtp_broadcast(x + t);
                integers0[t] = _mm512_dpbusd_epi32(integers0[t], w0, value);
                integers1[t] = _mm512_dpbusd_epi32(integers1[t], w1, value);
            }
        }
        const __m512i scale0 = _mm512_load_si512(block->sub_scale[s]);
        const __m512i scale1 = _mm512_load_si512(block->sub_scale[s] + 16);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            total0[t] = mtp_add_scaled(type, total0[t], integers0[t], scale0);
            total1[t] = mtp_add_scaled(type, total1[t], integers1[t], scale1);
        }
    }
    if (type != MTP_Q3_K && type != MTP_Q6_K) {
        /* Sums of 16 activations fit int16, and the upper half of a min of Q2_K is zero. */
        const int first = type == MTP_Q2_K ? MTP_ACT256_MINUS_SUM : MTP_ACT256_PAIR_SUM;
        const int n = type == MTP_Q2_K ? 16 : 4;
        for (int i = 0; i < n; i++) {
            const __m512i pair0 = _mm512_load_si512(block->taken[i]);
            const __m512i pair1 = _mm512_load_si512(block->taken[i] + 16);
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i sums = mtp_broadcast(words + (first + i) * n_tokens + t);
                taken0[t] = _mm512_dpwssd_epi32(taken0[t], pair0, sums);
                taken1[t] = _mm512_dpwssd_epi32(taken1[t], pair1, sums);
            }
        }
    }
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
    {
        const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
        if (type == MTP_Q2_K) { /* the sums came negative */
            taken0[t] = _mm512_sub_epi32(_mm512_setzero_si512(), taken0[t]);
            taken1[t] = _mm512_sub_epi32(_mm512_setzero_si512(), taken1[t]);
        }
        add_block(type, block, 0, total0[t], taken0[t], x_scale, sum[t]);
        add_block(type, block, 16, total1[t], taken1[t], x_scale, sum[t]);
    }
}

#define MULTIPLY(name, type, n)                                                                    \
    static void name##_##n(const mtp_unpacked *block, const int32_t *words, float (*sum)[32],      \
                           const char *ahead)                                                      \
    {                                                                                              \
        multiply(type, n, block, words, sum, ahead);                                               \
    }
#define MULTIPLY_4(name, type)                                                                     \
    MULTIPLY(name, type, 1) MULTIPLY(name, type, 2) MULTIPLY(name, type, 3) MULTIPLY(name, type, 4)

MULTIPLY_4(q2_k, MTP_Q2_K)
MULTIPLY_4(q3_k, MTP_Q3_K)
MULTIPLY_4(q4_k, MTP_Q4_K) /* and Q5_K, whose unpacked blocks are the same */
MULTIPLY_4(q6_k, MTP_Q6_K)
MULTIPLY_4(iq4_xs, MTP_IQ4_XS)

#define PRODUCT(name, multiply)                                                                    \
    {                                                                                              \
        mtp_unpack_##name##_avx512, { multiply##_1, multiply##_2, multiply##_3, multiply##_4 }     \
    }

const mtp_unpacked_product mtp_unpacked_avx512[MTP_TYPES] = {
    [MTP_Q2_K] = PRODUCT(q2_k, q2_k), [MTP_Q3_K] = PRODUCT(q3_k, q3_k),
    [MTP_Q4_K] = PRODUCT(q4_k, q4_k), [MTP_Q5_K] = PRODUCT(q5_k, q4_k),
    [MTP_Q6_K] = PRODUCT(q6_k, q6_k), [MTP_IQ4_XS] = PRODUCT(iq4_xs, iq4_xs),
};
