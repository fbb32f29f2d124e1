/* Unpacked blocks of 256 columns times many tokens, in tile registers.
 *
 * A product of tiles adds up 64 columns of bytes for 16 tokens and 16 rows, but knows no sub-scales.
 * So each code is multiplied with its sub-scale beforehand, once for all tokens: a whole number of 16
 * bits, which is taken as a lower byte without sign and a higher byte with one. Both are multiplied
 * with the activations and added up over a whole block, and low + 256 * high is, exactly, the sum of
 * the other kernels.
 */
#include "matmul/unpacked.h"

#include "matmul/tile_registers.h"

enum { TOKENS_AT_ONCE = 2 * MTP_TILE_REGISTER };

/* Codes times sub-scales of 32 rows: column 4j + i at [j][row][i]. */
typedef struct {
    uint8_t low[64][32][4], high[64][32][4];
} scaled_codes;

/* Up to 32 tokens, in two tiles of activations, and half of a block's rows. */
typedef struct {
    const int32_t *words[2];
    int n_tokens[2];
    int row;
    float (*sum)[32];
    int32_t (*low)[16][16], (*high)[16][16]; /* products of each tile: [token][row] */
} unit;

/* What unpacked codes are too large by. */
MTP_ALWAYS_INLINE int offset_of(const int type)
{
    return type == MTP_IQ4_XS ? 128 : type == MTP_Q4_K ? 0 : mtp_too_large(type);
}

/* The scales of sub-block `sub`, as int16 in both halves of each lane. */
MTP_ALWAYS_INLINE __m512i load_scale_twice(const int type, const mtp_unpacked *block, const int sub,
                                           const int row)
{
    if (type != MTP_Q2_K) {
        const __m512i scale = _mm512_load_si512(block->sub_scale[sub] + row);
        return mtp_pair(scale, scale);
    }
    const __m512i pair = _mm512_load_si512(block->sub_scale[sub / 2] + row);
    const __m512i scale = sub % 2 ? _mm512_srli_epi32(pair, 16) : pair;
    return mtp_pair(scale, scale);
}

MTP_ALWAYS_INLINE void scale_codes(const int type, const mtp_unpacked *block, scaled_codes *out)
{
    const int n_words = mtp_is_of_chunks(type) ? 8 : 4;
    const __m512i lower = _mm512_set1_epi16(0xff), offset = _mm512_set1_epi16(offset_of(type));
    enum { OR_MASKED = 0xf8, OR_UNMASKED = 0xf4 }; /* first | (second & third), second & ~third */
    for (int row = 0; row < 32; row += 16)
        for (int sub = 0; sub < 64 / n_words; sub++) {
            const __m512i scale = load_scale_twice(type, block, sub, row);
            MTP_UNROLL
            for (int i = 0; i < n_words; i++) {
                const int j = n_words * sub + i;
                const __m512i codes = _mm512_load_si512(block->code[j] + row);
                __m512i even = _mm512_and_si512(codes, lower), odd = _mm512_srli_epi16(codes, 8);
                even = _mm512_mullo_epi16(_mm512_sub_epi16(even, offset), scale);
                odd = _mm512_mullo_epi16(_mm512_sub_epi16(odd, offset), scale);
                const __m512i low =
                    _mm512_ternarylogic_epi32(_mm512_slli_epi16(odd, 8), even, lower, OR_MASKED);
                const __m512i high =
                    _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, lower, OR_UNMASKED);
                _mm512_store_si512(out->low[j] + row, low);
                _mm512_store_si512(out->high[j] + row, high);
            }
        }
}

/* Tiles 0-3: low and high products of both tiles of activations; 4, 5: those; 6, 7: weights. */
static void set_shapes(const int n_tokens[2])
{
    _Alignas(64) mtp_tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int n = i < 6 ? n_tokens[i < 4 ? i / 2 : i - 4] : MTP_TILE_REGISTER;
        shapes.row_bytes[i] = 64;
        shapes.n_rows[i] = (uint8_t)(n ? n : 1);
    }
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&shapes);
}

/* Multiply quarter k of a block's columns: 64 of them. */
MTP_ALWAYS_INLINE void multiply_quarter(const unit *now, const scaled_codes *codes, const int k)
{
    const int32_t *first = now->words[0] + 16 * k * now->n_tokens[0];
    _tile_loadd(4, first, 64);
    _tile_loadd(6, codes->low[16 * k] + now->row, sizeof codes->low[0]);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, codes->high[16 * k] + now->row, sizeof codes->high[0]);
    _tile_dpbssd(1, 4, 7);
    if (now->n_tokens[1]) {
        _tile_loadd(5, now->words[1] + 16 * k * now->n_tokens[1], 64);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
}

MTP_ALWAYS_INLINE void store_products(const unit *now)
{
    _tile_stored(0, now->low[0], 64);
    _tile_stored(1, now->high[0], 64);
    if (now->n_tokens[1]) {
        _tile_stored(2, now->low[1], 64);
        _tile_stored(3, now->high[1], 64);
    }
}

/* The sums of 16 activations, 2i and 2i + 1, as a pair of int16. */
MTP_ALWAYS_INLINE int32_t pair_of_16(const int32_t *words, const int n_tokens, const int i)
{
    const int32_t *minus_sums = words + (MTP_ACT256_MINUS_SUM + 2 * i) * n_tokens;
    const uint32_t even = (uint16_t)-minus_sums[0];
    return (int32_t)((uint32_t)-minus_sums[n_tokens] << 16 | even);
}

/* What is taken from the sums of a token, times min: sub-mins times sums of activations. */
MTP_ALWAYS_INLINE __m512i multiply_mins(const int type, const mtp_unpacked *block, const int row,
                                        const int32_t *words, const int n_tokens)
{
    const int n_pairs = type == MTP_Q2_K ? 8 : 4;
    __m512i mins = _mm512_setzero_si512();
    for (int i = 0; i < n_pairs; i++) {
        const __m512i pair = _mm512_load_si512(block->sub_min[i] + row);
        const int32_t sums = type == MTP_Q2_K ? pair_of_16(words, n_tokens, i)
                                              : words[(MTP_ACT256_PAIR_SUM + i) * n_tokens];
        mins = _mm512_dpwssd_epi32(mins, pair, _mm512_set1_epi32(sums));
    }
    return mins;
}

/* Add a block's products to the sums of token t of a tile of n. */
MTP_ALWAYS_INLINE void add_token(const int type, const mtp_unpacked *block, const unit *done,
                                 const int tile, const int t, const int n_tokens)
{
    const int row = done->row;
    const int32_t *words = done->words[tile] + t;
    float *sum = done->sum[MTP_TILE_REGISTER * tile + t] + row;
    const __m512 scale = _mm512_load_ps(block->scale + row);
    const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens);
    const __m512i low = _mm512_load_si512(done->low[tile][t]);
    const __m512i high = _mm512_slli_epi32(_mm512_load_si512(done->high[tile][t]), 8);
    __m512 value = mtp_add_block(_mm512_load_ps(sum), _mm512_add_epi32(low, high), scale, x_scale);
    if (mtp_block256_has_min(type)) {
        const __m512i mins = multiply_mins(type, block, row, words, n_tokens);
        value = mtp_take_mins(value, mins, _mm512_load_ps(block->min + row), x_scale);
    }
    _mm512_store_ps(sum, value);
}

/* Add those of up to eight tokens, from token `begin` of a tile on. */
MTP_ALWAYS_INLINE void add_products(const int type, const mtp_unpacked *block, const unit *done,
                                    const int tile, const int begin)
{
    const int n_tokens = done->n_tokens[tile];
    if (n_tokens == MTP_TILE_REGISTER) { /* places that the compiler knows */
        MTP_UNROLL
        for (int t = 0; t < 8; t++)
            add_token(type, block, done, tile, begin + t, MTP_TILE_REGISTER);
        return;
    }
    for (int t = begin; t < begin + 8 && t < n_tokens; t++)
        add_token(type, block, done, tile, t, n_tokens);
}

/* Multiply a unit, and meanwhile scale and add the products of the one before. */
MTP_ALWAYS_INLINE void multiply_unit(const int type, const mtp_unpacked *block,
                                     const scaled_codes *codes, const unit *now, const unit *before)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    MTP_UNROLL
    for (int k = 0; k < 4; k++) {
        multiply_quarter(now, codes, k);
        if (before != NULL)
            add_products(type, block, before, k / 2, k % 2 * 8);
    }
    store_products(now);
}

/* Add block b's products with all tokens to their sums. */
MTP_ALWAYS_INLINE void multiply_block(const int type, const void *group, int64_t n_blocks,
                                      int64_t b, const char *prepared, int64_t n_tokens,
                                      float (*sum)[32])
{
    const int64_t block_bytes = mtp_block256_bytes(type);
    const int64_t token_bytes = mtp_token_bytes(MTP_ACT_Q8_256, 256);
    _Alignas(64) mtp_unpacked block;
    _Alignas(64) scaled_codes codes;
    _Alignas(64) int32_t products[2][2][2][16][16]; /* [unit % 2][low, high][tile][token][row] */
    unit units[2];
    int n_units = 0;
    for (int half = 0; half < 2; half++)
        mtp_fetch_ahead((const char *)group + (half * n_blocks + b) * block_bytes,
                        (int)mtp_block256_bytes(type));
    mtp_unpacked_avx512[type].unpack(group, n_blocks, b, &block);
    scale_codes(type, &block, &codes);
    __asm__ volatile("" ::: "memory"); /* tiles are loaded unseen by the compiler */
    int shape[2] = {MTP_TILE_REGISTER, MTP_TILE_REGISTER};
    for (int64_t first = 0; first < n_tokens; first += TOKENS_AT_ONCE) {
        const int64_t left = n_tokens - first;
        const int n = left < TOKENS_AT_ONCE ? (int)left : TOKENS_AT_ONCE;
        const int n0 = n < MTP_TILE_REGISTER ? n : MTP_TILE_REGISTER;
        const char *tile0 = prepared + first * n_blocks * token_bytes + b * n0 * token_bytes;
        const char *tile1 =
            prepared + (first + n0) * n_blocks * token_bytes + b * (n - n0) * token_bytes;
        if (n < TOKENS_AT_ONCE) {
            shape[0] = n0, shape[1] = n - n0;
            set_shapes(shape);
        }
        for (int row = 0; row < 32; row += 16, n_units++) {
            const int own = n_units % 2;
            units[own] = (unit){{(const int32_t *)tile0, (const int32_t *)tile1},
                                {n0, n - n0},
                                row,
                                sum + first,
                                products[own][0],
                                products[own][1]};
            multiply_unit(type, &block, &codes, units + own, n_units ? units + !own : NULL);
        }
    }
    const unit *last = units + (n_units - 1) % 2;
    for (int i = 0; i < 4; i++)
        add_products(type, &block, last, i / 2, i % 2 * 8);
    if (shape[0] + shape[1] < TOKENS_AT_ONCE)
        set_shapes((int[2]){MTP_TILE_REGISTER, MTP_TILE_REGISTER});
}

MTP_ALWAYS_INLINE void multiply_blocks(const int type, const void *group, int64_t n_blocks,
                                       const char *prepared, int64_t n_tokens, float (*sum)[32])
{
    for (int64_t b = 0; b < n_blocks; b++)
        multiply_block(type, group, n_blocks, b, prepared, n_tokens, sum);
}

void mtp_multiply_block256_amx(int type, const void *group, int64_t n_blocks, const void *prepared,
                               int64_t n_tokens, float (*sum)[32])
{
    set_shapes((int[2]){MTP_TILE_REGISTER, MTP_TILE_REGISTER});
    switch (type) {
    case MTP_Q2_K:
        multiply_blocks(MTP_Q2_K, group, n_blocks, prepared, n_tokens, sum);
        break;
    case MTP_Q3_K:
        multiply_blocks(MTP_Q3_K, group, n_blocks, prepared, n_tokens, sum);
        break;
    case MTP_Q4_K:
        multiply_blocks(MTP_Q4_K, group, n_blocks, prepared, n_tokens, sum);
        break;
    case MTP_Q5_K:
        multiply_blocks(MTP_Q5_K, group, n_blocks, prepared, n_tokens, sum);
        break;
    case MTP_Q6_K:
        multiply_blocks(MTP_Q6_K, group, n_blocks, prepared, n_tokens, sum);
        break;
    default: /* MTP_IQ4_XS */
        multiply_blocks(MTP_IQ4_XS, group, n_blocks, prepared, n_tokens, sum);
    }
    _tile_release(); /* a thread without tiles is switched faster */
}
