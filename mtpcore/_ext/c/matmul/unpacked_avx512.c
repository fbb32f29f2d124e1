/* Unpacked blocks of 256 columns times tiles of tokens.
 *
 * All 32 rows at a time: each broadcast activation serves two multiplications, and the accumulators
 * of four tokens fit the registers, since nothing is unpacked here.
 */
#include "matmul/unpacked.h"

#include "matmul/kernels_avx512.h"

/* What a block adds to the sums of a token in 16 rows. */
MTP_ALWAYS_INLINE void add_block(const int type, const mtp_unpacked *block, const int row,
                                 __m512i total, __m512i mins, __m512 x_scale, float *sum)
{
    const __m512 scale = _mm512_load_ps(block->scale + row);
    __m512 value = mtp_add_block(_mm512_load_ps(sum + row), total, scale, x_scale);
    if (mtp_block256_has_min(type))
        value = mtp_take_mins(value, mins, _mm512_load_ps(block->min + row), x_scale);
    _mm512_store_ps(sum + row, value);
}

/* Add n pairs of int16, times sums of activations, to the totals of the lower and upper 16 rows. */
MTP_ALWAYS_INLINE void add_pairs(const int n_tokens, const int n, const int32_t (*pair)[32],
                                 const int32_t *sums, __m512i *total0, __m512i *total1)
{
    for (int i = 0; i < n; i++) {
        const __m512i pair0 = _mm512_load_si512(pair[i]), pair1 = _mm512_load_si512(pair[i] + 16);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m512i value = mtp_broadcast(sums + i * n_tokens + t);
            total0[t] = _mm512_dpwssd_epi32(total0[t], pair0, value);
            total1[t] = _mm512_dpwssd_epi32(total1[t], pair1, value);
        }
    }
}

/* The sums of 16 activations, as pairs of int16. */
MTP_ALWAYS_INLINE void pair_sums_of_16(const int n_tokens, const int32_t *words, int32_t *pairs)
{
    const int32_t *minus_sums = words + MTP_ACT256_MINUS_SUM * n_tokens;
    for (int i = 0; i < 8; i++, minus_sums += 2 * n_tokens)
        for (int t = 0; t < n_tokens; t++) {
            const uint32_t even = (uint16_t)-minus_sums[t];
            pairs[i * n_tokens + t] = (int32_t)((uint32_t)-minus_sums[n_tokens + t] << 16 | even);
        }
}

/* Words of four columns that are summed before they are scaled: as many as have one sub-scale. */
MTP_ALWAYS_INLINE int words_summed(const int type) { return mtp_is_of_chunks(type) ? 8 : 4; }

/* Whether int16 holds those sums: taken around zero, they are at most 127 times 32 * 8 (Q4_K), 16 *
 * 4 (Q3_K), and 16 * 3 (Q2_K). Halves of those of Q5_K would fit, but a 32-bit multiplication of the
 * whole costs AMD's processors less than two of 16 bits, and needs no correction for the centre. */
MTP_ALWAYS_INLINE int fits_int16(const int type)
{
    return type == MTP_Q2_K || type == MTP_Q3_K || type == MTP_Q4_K;
}

MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const mtp_unpacked *block,
                                const int32_t *words, float (*sum)[32], const char *packed)
{
    const int n_words = words_summed(type), fits = fits_int16(type);
    const int part_bytes = (int)mtp_block256_bytes(type) * n_words / 32;
    const int32_t *pair_sums = words + MTP_ACT256_PAIR_SUM * n_tokens;
    __m512i total0[4], total1[4], mins0[4], mins1[4];
    int32_t first[16 * 4];
    mtp_first_sums(type, n_words, n_tokens, words, first);
    int32_t pairs_of_16[8 * 4];
    if (type == MTP_Q2_K)
        pair_sums_of_16(n_tokens, words, pairs_of_16);
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        total0[t] = total1[t] = mins0[t] = mins1[t] = _mm512_setzero_si512();
    for (int k = 0; k < 64 / n_words; k += 2) {
        const uint8_t (*code)[32][4] = block->code + k * n_words;
        const int32_t *x = words + k * n_words * n_tokens;
        __m512i sum0[2][4], sum1[2][4]; /* two at a time: more chains keep the units busy */
        if (packed != NULL)
            mtp_fetch_ahead(packed + k / 2 * part_bytes, part_bytes);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            sum0[0][t] = sum1[0][t] = mtp_first_sum(type, first + k * n_tokens + t);
            sum0[1][t] = sum1[1][t] = mtp_first_sum(type, first + (k + 1) * n_tokens + t);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < 2 * n_words; i++)
        {
            const int p = i % 2, j = p * n_words + i / 2; /* the two in turn */
            const __m512i w0 = _mm512_load_si512(code[j]), w1 = _mm512_load_si512(code[j] + 16);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++) {
                const __m512i value = mtp_broadcast(x + j * n_tokens + t);
                sum0[p][t] = _mm512_dpbusd_epi32(sum0[p][t], w0, value);
                sum1[p][t] = _mm512_dpbusd_epi32(sum1[p][t], w1, value);
            }
        }
        if (type == MTP_Q2_K) { /* both with one multiplication */
            const __m512i scale0 = _mm512_load_si512(block->sub_scale[k / 2]);
            const __m512i scale1 = _mm512_load_si512(block->sub_scale[k / 2] + 16);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++) {
                const __m512i pair0 = mtp_pair(sum0[0][t], sum0[1][t]);
                const __m512i pair1 = mtp_pair(sum1[0][t], sum1[1][t]);
                total0[t] = _mm512_dpwssd_epi32(total0[t], pair0, scale0);
                total1[t] = _mm512_dpwssd_epi32(total1[t], pair1, scale1);
            }
            continue;
        }
        MTP_UNROLL
        for (int p = 0; p < 2; p++) {
            const __m512i scale0 = _mm512_load_si512(block->sub_scale[k + p]);
            const __m512i scale1 = _mm512_load_si512(block->sub_scale[k + p] + 16);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++) {
                total0[t] = mtp_add_scaled(fits, total0[t], sum0[p][t], scale0);
                total1[t] = mtp_add_scaled(fits, total1[t], sum1[p][t], scale1);
            }
        }
    }
    if (type == MTP_Q4_K || type == MTP_IQ4_XS)
        add_pairs(n_tokens, 4, block->missing, pair_sums, total0, total1);
    if (type == MTP_Q2_K)
        add_pairs(n_tokens, 8, block->sub_min, pairs_of_16, mins0, mins1);
    else if (mtp_block256_has_min(type))
        add_pairs(n_tokens, 4, block->sub_min, pair_sums, mins0, mins1);
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
        add_block(type, block, 0, total0[t], mins0[t], x_scale, sum[t]);
        add_block(type, block, 16, total1[t], mins1[t], x_scale, sum[t]);
    }
}

#define MULTIPLY(name, type, n)                                                                    \
    static void name##_##n(const mtp_unpacked *block, const int32_t *words, float (*sum)[32],      \
                           const char *packed)                                                     \
    {                                                                                              \
        multiply(type, n, block, words, sum, packed);                                              \
    }
#define MULTIPLY_4(name, type)                                                                     \
    MULTIPLY(name, type, 1) MULTIPLY(name, type, 2) MULTIPLY(name, type, 3) MULTIPLY(name, type, 4)

/* Types for which unpacking once pays, and up to how many tokens it is faster to do it for each. */
#define UNPACKED_TYPES(X)                                                                          \
    X(Q2_K, q2_k, 8)                                                                               \
    X(Q3_K, q3_k, 8)                                                                               \
    X(Q4_K, q4_k, 8)                                                                               \
    X(Q5_K, q5_k, 8)                                                                               \
    X(Q6_K, q6_k, 4)                                                                               \
    X(IQ4_XS, iq4_xs, 8)

#define MULTIPLY_TYPE(NAME, name, most_direct)                                                     \
    void mtp_unpack_##name##_avx512(const void *group, int64_t n_blocks, int64_t b,                \
                                    mtp_unpacked *block);                                          \
    MULTIPLY_4(name, MTP_##NAME)
UNPACKED_TYPES(MULTIPLY_TYPE)

#define KERNEL(NAME, name, most_direct)                                                            \
    [MTP_##NAME] = {                                                                               \
        mtp_unpack_##name##_avx512, {name##_1, name##_2, name##_3, name##_4}, most_direct},
const mtp_unpacked_kernel mtp_unpacked_avx512[MTP_TYPES] = {UNPACKED_TYPES(KERNEL)};
