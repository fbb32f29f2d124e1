/* Q4_K, Q5_K and IQ4_XS: blocks of 256 columns in chunks of two sub-blocks of 32.
 *
 * The types share all but how codes and sub-scales are unpacked. All sums inside a block are exact
 * integers. Sixteen rows at a time: with more, the accumulators of four tokens would not fit the
 * registers.
 */
#if defined(__GNUC__) && !defined(__clang__)
/* Else gcc puts every addition off until its sum is used, at the end of a block, and meanwhile the
 * parts of all sums, more than there are registers, lie on the stack. */
#pragma GCC optimize("no-tree-ter")
#endif

#include "matmul/kernels_avx512.h"

/* What two sub-blocks are scaled with; what is taken away, as pairs of int16, times the sums of
 * their activations: mins, or for IQ4_XS the scales, since its values are offset by 128. */
typedef struct {
    __m512i scale[2], pair;
} chunk_scales;

/* Numbers of six bits, a byte each: 16 rows of four sub-blocks, of chunks 0 and 1 or 2 and 3. */
typedef struct {
    __m512i scale[2], min[2];
} six_bits;

/* Four bits of each byte of `low`, and above them two of `high`. */
MTP_ALWAYS_INLINE __m512i join_six_bits(__m512i low, __m512i high)
{
    enum { OR_MASKED = 0xf8 }; /* first | (second & third) */
    const __m512i upper = _mm512_and_si512(high, _mm512_set1_epi8(0x30));
    return _mm512_ternarylogic_epi32(upper, low, _mm512_set1_epi8(15), OR_MASKED);
}

MTP_ALWAYS_INLINE six_bits unpack_six_bits(const mtp_six_bit_scales *scales)
{
    const __m512i all = _mm512_load_si512(scales->high);
    /* The upper bits of a chunk's first sub-block lie four places below those of its second. */
    const __m512i places =
        _mm512_broadcast_i64x4(_mm256_setr_m128i(_mm_set1_epi16(4), _mm_setzero_si128()));
    six_bits out;
    MTP_UNROLL
    for (int i = 0; i < 2; i++) {
        const __m512i low = _mm512_load_si512(scales->low[2 * i]);
        const __m512i high = i ? _mm512_shuffle_i32x4(all, all, _MM_SHUFFLE(3, 3, 2, 2))
                               : _mm512_shuffle_i32x4(all, all, _MM_SHUFFLE(1, 1, 0, 0));
        out.scale[i] = join_six_bits(low, _mm512_sllv_epi16(high, places));
        out.min[i] = join_six_bits(_mm512_srli_epi16(low, 4),
                                   _mm512_sllv_epi16(_mm512_srli_epi16(high, 2), places));
    }
    return out;
}

/* Bytes 16s + r as int32 r. */
MTP_ALWAYS_INLINE __m512i widen(__m512i bytes, const int s)
{
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_add_epi32(rows, _mm512_set1_epi32(16 * s));
    return _mm512_maskz_permutexvar_epi8(0x1111111111111111, places, bytes);
}

/* Bytes 16s + r and 16(s + 1) + r as pair r of int16. */
MTP_ALWAYS_INLINE __m512i widen_pairs(__m512i bytes, const int s)
{
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_add_epi32(rows, _mm512_set1_epi32(16 * s));
    const __m512i odd = _mm512_add_epi32(rows, _mm512_set1_epi32(16 * (s + 1)));
    const __m512i places = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, places, bytes);
}

MTP_ALWAYS_INLINE six_bits load_six_bits(const int type, const void *block)
{
    return type == MTP_IQ4_XS ? (six_bits){0} : unpack_six_bits(block);
}

MTP_ALWAYS_INLINE chunk_scales unpack_scales(const int type, const void *block, six_bits six,
                                             const int c)
{
    if (type != MTP_IQ4_XS) {
        const int s = c % 2 * 2;
        return (chunk_scales){{widen(six.scale[c / 2], s), widen(six.scale[c / 2], s + 1)},
                              widen_pairs(six.min[c / 2], s)};
    }
    const __m128i *sub_scale = (const __m128i *)((const mtp_iq4_xs_block *)block)->sub_scale;
    const __m512i scale0 = _mm512_cvtepi8_epi32(_mm_load_si128(sub_scale + 2 * c));
    const __m512i scale1 = _mm512_cvtepi8_epi32(_mm_load_si128(sub_scale + 2 * c + 1));
    return (chunk_scales){{scale0, scale1}, mtp_pair(scale0, scale1)};
}

/* Unsigned codes of line j of the first sub-block and of the second. */
MTP_ALWAYS_INLINE void unpack_codes(const int type, mtp_chunk chunk, const int j, __m512i table,
                                    __m512i codes[2])
{
    const __m512i line = mtp_load_line(chunk.code[j]);
    if (type == MTP_IQ4_XS) {
        codes[0] = mtp_look_up_low(line, table);
        codes[1] = mtp_look_up_high(line, table);
        return;
    }
    codes[0] = mtp_low_nibbles(line);
    codes[1] = mtp_high_nibbles(line);
    if (type == MTP_Q5_K) {
        const __m512i fifth = mtp_load_line(chunk.fifth[j / 4]);
        codes[0] = mtp_add_fifth(codes[0], _mm512_slli_epi16(fifth, 4 - j % 4));
        codes[1] = mtp_add_fifth(codes[1], _mm512_srli_epi16(fifth, j % 4));
    }
}

/* Whether int16 holds the sums of lines: they are at most 4 * 4 * 15 * 127 for Q4_K. */
MTP_ALWAYS_INLINE int fits_int16(const int type) { return type == MTP_Q4_K; }

/* How many lines are summed before they are scaled, of the eight that have the same scales. */
MTP_ALWAYS_INLINE int lines_summed(const int type) { return fits_int16(type) ? 4 : 8; }

MTP_ALWAYS_INLINE void chunks_half(const int type, const int n_tokens, const char *block,
                                   int64_t n_blocks, int row, const int32_t *words,
                                   float (*out)[32])
{
    const __m512i table = mtp_offset_table(mtp_iq4_values, 128);
    __m512 sum[4];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        __m512i integers[4], taken[4];
        const six_bits six = load_six_bits(type, block);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++)
            integers[t] = taken[t] = _mm512_setzero_si512();
        MTP_UNROLL
        for (int c = 0; c < 4; c++) {
            const int part_bytes = (int)mtp_block256_bytes(type) / 4;
            const int32_t *x = words + 16 * c * n_tokens;
            const int32_t *pair_sums = words + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
            const chunk_scales scales = unpack_scales(type, block, six, c);
            const mtp_chunk chunk = mtp_chunk_of(type, block, c);
            mtp_fetch_ahead(block + c * part_bytes, part_bytes);
            MTP_UNROLL
            for (int first = 0; first < 8; first += lines_summed(type)) {
                __m512i low_sum[4], high_sum[4];
                MTP_UNROLL
                for (int t = 0; t < n_tokens; t++)
                    low_sum[t] = high_sum[t] = _mm512_setzero_si512();
                MTP_UNROLL
                for (int i = 0; i < lines_summed(type); i++) {
                    const int j = first + i;
                    __m512i codes[2];
                    unpack_codes(type, chunk, j, table, codes);
                    MTP_UNROLL
                    for (int t = 0; t < n_tokens; t++) {
                        const int32_t *low = x + j * n_tokens + t, *high = low + 8 * n_tokens;
                        low_sum[t] = mtp_add_word(low_sum[t], codes[0], low);
                        high_sum[t] = mtp_add_word(high_sum[t], codes[1], high);
                    }
                }
                const int fits = fits_int16(type);
                MTP_UNROLL
                for (int t = 0; t < n_tokens; t++) {
                    integers[t] = mtp_add_scaled(fits, integers[t], low_sum[t], scales.scale[0]);
                    integers[t] = mtp_add_scaled(fits, integers[t], high_sum[t], scales.scale[1]);
                }
            }
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                taken[t] = _mm512_dpwssd_epi32(taken[t], scales.pair, mtp_broadcast(pair_sums + t));
        }
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
            if (type == MTP_IQ4_XS) {
                const __m512i offset = _mm512_slli_epi32(taken[t], 7);
                const __m512 scale = _mm512_load_ps((const float *)block);
                sum[t] =
                    mtp_add_block(sum[t], _mm512_sub_epi32(integers[t], offset), scale, x_scale);
            } else {
                const __m512 scale = mtp_load_halves((const uint16_t *)block);
                const __m512 min = mtp_load_halves((const uint16_t *)block + 16);
                sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
                sum[t] = mtp_take_mins(sum[t], taken[t], min, x_scale);
            }
        }
        block += mtp_block256_bytes(type);
        words += MTP_ACT256_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        mtp_store_rows(out[t] + row, sum[t]);
}

MTP_HALVES(q4_k, MTP_Q4_K, chunks_half)
MTP_KERNELS_4(q4_k, avx512)
MTP_HALVES(q5_k, MTP_Q5_K, chunks_half)
MTP_KERNELS_4(q5_k, avx512)
MTP_HALVES(iq4_xs, MTP_IQ4_XS, chunks_half)
MTP_KERNELS_4(iq4_xs, avx512)

/* A pair of scales times what the products of unpacked codes lack: 8, or that the values of a table
 * are offset by 128. */
MTP_ALWAYS_INLINE __m512i missing(const int type, __m512i scales)
{
    if (type == MTP_Q4_K)
        return _mm512_slli_epi16(scales, 3);
    return _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(scales, 7));
}

MTP_ALWAYS_INLINE void unpack(const int type, const void *group, int64_t n_blocks, int64_t b,
                              mtp_unpacked *out)
{
    const __m512i table = mtp_offset_table(mtp_iq4_values, 128);
    for (int row = 0; row < 32; row += 16) {
        const int64_t place = b + (row ? n_blocks : 0);
        const char *block = (const char *)group + place * mtp_block256_bytes(type);
        const six_bits six = load_six_bits(type, block);
        MTP_UNROLL
        for (int c = 0; c < 4; c++) {
            const chunk_scales scales = unpack_scales(type, block, six, c);
            const mtp_chunk chunk = mtp_chunk_of(type, block, c);
            _mm512_store_si512(out->sub_scale[2 * c] + row, scales.scale[0]);
            _mm512_store_si512(out->sub_scale[2 * c + 1] + row, scales.scale[1]);
            if (type != MTP_Q5_K)
                _mm512_store_si512(out->missing[c] + row,
                                   missing(type, mtp_pair(scales.scale[0], scales.scale[1])));
            if (mtp_block256_has_min(type))
                _mm512_store_si512(out->sub_min[c] + row, scales.pair);
            MTP_UNROLL
            for (int j = 0; j < 8; j++) {
                __m512i codes[2];
                unpack_codes(type, chunk, j, table, codes);
                _mm512_store_si512(out->code[16 * c + j] + row, codes[0]);
                _mm512_store_si512(out->code[16 * c + 8 + j] + row, codes[1]);
            }
        }
        mtp_unpack_scales(type, block, row, out);
    }
}

MTP_UNPACK(q4_k, MTP_Q4_K, unpack)
MTP_UNPACK(q5_k, MTP_Q5_K, unpack)
MTP_UNPACK(iq4_xs, MTP_IQ4_XS, unpack)
