/* Types in blocks of 32 columns with one scale, and for some a min.
 *
 * The multiply instruction wants unsigned weights, so codes are stored with an offset, or looked up
 * with one; an accumulator that starts at minus offset times the sum of the activation codes takes
 * it away.
 */
#include "matmul/kernels_avx512.h"

MTP_ALWAYS_INLINE void q8_0(const int n_tokens, const void *group, int64_t n_blocks,
                            const void *tile, float (*out)[32])
{
    const mtp_q8_0_block *block = group;
    const int32_t *words = tile;
    __m512 sum0[MTP_TILE], sum1[MTP_TILE];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        sum0[t] = sum1[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT32_WORDS * n_tokens) {
        __m512i integers0[MTP_TILE], integers1[MTP_TILE];
        mtp_fetch_ahead(block, sizeof *block);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const int32_t *minus_sum = words + MTP_ACT32_MINUS_SUM * n_tokens + t;
            integers0[t] = integers1[t] = _mm512_slli_epi32(mtp_broadcast(minus_sum), 7);
        }
        MTP_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m512i w0 = mtp_load_line(block->code[j]);
            const __m512i w1 = mtp_load_line(block->code[j] + 16);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++) {
                const __m512i x = mtp_broadcast(words + j * n_tokens + t);
                integers0[t] = _mm512_dpbusd_epi32(integers0[t], w0, x);
                integers1[t] = _mm512_dpbusd_epi32(integers1[t], w1, x);
            }
        }
        const __m512 scale0 = mtp_load_halves(block->scale);
        const __m512 scale1 = mtp_load_halves(block->scale + 16);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT32_SCALE * n_tokens + t);
            sum0[t] = mtp_add_block(sum0[t], integers0[t], scale0, x_scale);
            sum1[t] = mtp_add_block(sum1[t], integers1[t], scale1, x_scale);
        }
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        mtp_store_rows(out[t], sum0[t]);
        mtp_store_rows(out[t] + 16, sum1[t]);
    }
}
MTP_KERNELS_8(q8_0, avx512)

/* What is added to codes to make them unsigned is 1 << this; nothing for types with mins. */
MTP_ALWAYS_INLINE int offset_bits(const int type)
{
    return type == MTP_Q4_0 ? 3 : type == MTP_IQ4_NL ? 7 : 4;
}

MTP_ALWAYS_INLINE __m512i table_of(const int type)
{
    const int8_t *values = type == MTP_IQ4_NL ? mtp_iq4_values : mtp_mxfp4_values;
    return mtp_offset_table(values, 1 << offset_bits(type));
}

MTP_ALWAYS_INLINE __m512 load_scales(const int type, const uint16_t *scales)
{
    if (type != MTP_MXFP4)
        return mtp_load_halves(scales);
    const __m512i upper = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)scales));
    return _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16));
}

/* Unsigned codes of low and of high nibbles j of the 16 rows from r. */
MTP_ALWAYS_INLINE void unpack_codes(const int type, mtp_nibbles lines, const int j, const int r,
                                    __m512i table, __m512i codes[2])
{
    const __m512i line = mtp_load_line(lines.code[j] + r);
    if (type == MTP_IQ4_NL || type == MTP_MXFP4) {
        codes[0] = mtp_look_up_low(line, table);
        codes[1] = mtp_look_up_high(line, table);
        return;
    }
    codes[0] = mtp_low_nibbles(line);
    codes[1] = mtp_high_nibbles(line);
    if (type == MTP_Q5_0 || type == MTP_Q5_1) {
        const __m512i fifth = mtp_load_line(lines.fifth + r);
        codes[0] = mtp_add_fifth(codes[0], _mm512_slli_epi16(fifth, 4 - j));
        codes[1] = mtp_add_fifth(codes[1], _mm512_srli_epi16(fifth, j));
    }
}

/* Tokens that a block is multiplied with at a time: half a tile, so that products of one half keep
 * the units busy while sums of the other are scaled, unless there is too much to unpack twice. */
MTP_ALWAYS_INLINE int tokens_at_once(const int type) { return type == MTP_Q5_1 ? 8 : 4; }

MTP_ALWAYS_INLINE void nibbles(const int type, const int n_tokens, const void *group,
                               int64_t n_blocks, const void *tile, float (*out)[32])
{
    const int at_once = tokens_at_once(type);
    const __m512i table = table_of(type);
    const char *block = group;
    const int32_t *words = tile;
    __m512 sum0[MTP_TILE], sum1[MTP_TILE];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        sum0[t] = sum1[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        mtp_fetch_ahead(block, (int)mtp_block32_bytes(type));
        const mtp_nibbles lines = mtp_nibbles_of(type, block);
        const int32_t *minus_sums = words + MTP_ACT32_MINUS_SUM * n_tokens;
        const uint16_t *scales = (const uint16_t *)block; /* 32, and 32 mins if it has them */
        __m512i integers0[MTP_TILE], integers1[MTP_TILE];
        MTP_UNROLL
        for (int first = 0; first < n_tokens; first += at_once) {
            const int end = n_tokens - first < at_once ? n_tokens : first + at_once;
            MTP_UNROLL
            for (int t = first; t < end; t++)
                integers0[t] = integers1[t] =
                    mtp_block32_has_min(type)
                        ? _mm512_setzero_si512()
                        : _mm512_slli_epi32(mtp_broadcast(minus_sums + t), offset_bits(type));
            MTP_UNROLL
            for (int j = 0; j < 4; j++) {
                __m512i codes0[2], codes1[2];
                unpack_codes(type, lines, j, 0, table, codes0);
                unpack_codes(type, lines, j, 16, table, codes1);
                MTP_UNROLL
                for (int i = 0; i < 2; i++) {
                    MTP_UNROLL
                    for (int t = first; t < end; t++) {
                        const __m512i x = mtp_broadcast(words + (4 * i + j) * n_tokens + t);
                        integers0[t] = _mm512_dpbusd_epi32(integers0[t], codes0[i], x);
                        integers1[t] = _mm512_dpbusd_epi32(integers1[t], codes1[i], x);
                    }
                }
            }
            MTP_UNROLL
            for (int t = first; t < end; t++) {
                const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT32_SCALE * n_tokens + t);
                sum0[t] = mtp_add_block(sum0[t], integers0[t], load_scales(type, scales), x_scale);
                sum1[t] =
                    mtp_add_block(sum1[t], integers1[t], load_scales(type, scales + 16), x_scale);
                if (mtp_block32_has_min(type)) {
                    const __m512i minus_sum = mtp_broadcast(minus_sums + t);
                    sum0[t] =
                        mtp_take_mins(sum0[t], minus_sum, mtp_load_halves(scales + 32), x_scale);
                    sum1[t] =
                        mtp_take_mins(sum1[t], minus_sum, mtp_load_halves(scales + 48), x_scale);
                }
            }
        }
        block += mtp_block32_bytes(type);
        words += MTP_ACT32_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        mtp_store_rows(out[t], sum0[t]);
        mtp_store_rows(out[t] + 16, sum1[t]);
    }
}

#define NIBBLES(name, type)                                                                        \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        nibbles(type, n_tokens, group, n_blocks, tile, out);                                       \
    }                                                                                              \
    MTP_KERNELS_8(name, avx512)

NIBBLES(q4_0, MTP_Q4_0)
NIBBLES(q4_1, MTP_Q4_1)
NIBBLES(q5_0, MTP_Q5_0)
NIBBLES(q5_1, MTP_Q5_1)
NIBBLES(iq4_nl, MTP_IQ4_NL)
NIBBLES(mxfp4, MTP_MXFP4)

MTP_ALWAYS_INLINE void unpack(const int type, const void *block, __m512i table,
                              mtp_unpacked_block32 *out)
{
    const uint16_t *scales = block;
    const int too_large = mtp_block32_has_min(type) ? 0 : 1 << offset_bits(type);
    const __m512i offset = _mm512_set1_epi8((char)too_large);
    for (int r = 0; r < 32; r += 16) {
        MTP_UNROLL
        for (int j = 0; j < 4; j++) {
            __m512i codes[2];
            unpack_codes(type, mtp_nibbles_of(type, block), j, r, table, codes);
            _mm512_store_si512(out->code[j] + r, _mm512_sub_epi8(codes[0], offset));
            _mm512_store_si512(out->code[4 + j] + r, _mm512_sub_epi8(codes[1], offset));
        }
        _mm512_store_ps(out->scale + r, load_scales(type, scales + r));
        if (mtp_block32_has_min(type))
            _mm512_store_ps(out->min + r, mtp_load_halves(scales + 32 + r));
    }
}

static void unpack_q8_0(const mtp_q8_0_block *block, mtp_unpacked_block32 *out)
{
    const __m512i offset = _mm512_set1_epi8((char)128);
    for (int r = 0; r < 32; r += 16) {
        MTP_UNROLL
        for (int j = 0; j < 8; j++)
            _mm512_store_si512(out->code[j] + r,
                               _mm512_sub_epi8(mtp_load_line(block->code[j] + r), offset));
        _mm512_store_ps(out->scale + r, mtp_load_halves(block->scale + r));
    }
}

#define UNPACK(NAME)                                                                               \
    case NAME: {                                                                                   \
        const __m512i table = table_of(NAME);                                                      \
        for (; n > 0; n--, block += mtp_block32_bytes(NAME), out++) {                              \
            mtp_fetch_ahead(block, (int)mtp_block32_bytes(NAME));                                  \
            unpack(NAME, block, table, out);                                                       \
        }                                                                                          \
        break;                                                                                     \
    }

void mtp_unpack_block32_avx512(int type, const void *blocks, int n, mtp_unpacked_block32 *out)
{
    const char *block = blocks;
    switch (type) {
        UNPACK(MTP_Q4_0)
        UNPACK(MTP_Q4_1)
        UNPACK(MTP_Q5_0)
        UNPACK(MTP_Q5_1)
        UNPACK(MTP_IQ4_NL)
        UNPACK(MTP_MXFP4)
    default: /* MTP_Q8_0 */
        for (; n > 0; n--, block += sizeof(mtp_q8_0_block), out++) {
            mtp_fetch_ahead(block, sizeof(mtp_q8_0_block));
            unpack_q8_0((const void *)block, out);
        }
    }
}
