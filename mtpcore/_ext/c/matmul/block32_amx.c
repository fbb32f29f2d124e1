/* Types in blocks of 32 columns times many tokens, in tile registers.
 *
 * Some blocks at a time are unpacked, into the first-level cache, and multiplied with all tokens there.
 * A product of tiles adds up the columns of a block for 16 tokens and 16 rows; what is left for vector
 * registers is to scale it and to add it to the sums, which stay in them meanwhile.
 */
#include "matmul/unpacked.h"

#include "matmul/tile_registers.h"

enum { BLOCKS_AT_ONCE = 16 };

#define UNROLL_16 _Pragma("GCC unroll 16")

/* Tiles 0 and 1: products of n tokens with 16 rows of weights; 2 and 3: their codes; 4 and 5: weights. */
static void set_shapes(int n_tokens)
{
    const uint8_t n = (uint8_t)n_tokens;
    _Alignas(64) mtp_tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {64, 64, 32, 32, 64, 64},
        .n_rows = {n, n, n, n, 8, 8},
    };
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&shapes);
}

/* Scale a block's products with 16 rows, and add them to the sums. `words` are the tile's of it. */
MTP_ALWAYS_INLINE void add_products(const int has_min, const int n_tokens,
                                    const mtp_unpacked_block32 *block, const int row,
                                    const int32_t *words, int32_t (*products)[16], __m512 *sum)
{
    const __m512 scale = _mm512_load_ps(block->scale + row);
    const __m512 min = has_min ? _mm512_load_ps(block->min + row) : scale;
    UNROLL_16
    for (int t = 0; t < n_tokens; t++) {
        const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT32_SCALE * n_tokens + t);
        sum[t] = mtp_add_block(sum[t], _mm512_load_si512(products[t]), scale, x_scale);
        if (has_min) {
            const __m512i minus_sum = mtp_broadcast(words + MTP_ACT32_MINUS_SUM * n_tokens + t);
            sum[t] = mtp_take_mins(sum[t], minus_sum, min, x_scale);
        }
    }
}

/* Multiply a block's codes of tokens and of 16 rows. */
#define MULTIPLY(product, tokens, weights, words, block)                                           \
    do {                                                                                           \
        _tile_loadd(tokens, words, 32);                                                            \
        _tile_loadd(weights, (block)->code[0] + row, sizeof(block)->code[0]);                      \
        _tile_zero(product);                                                                       \
        _tile_dpbssd(product, tokens, weights);                                                    \
    } while (0)

/* Add the products of 16 rows of n blocks with a tile of tokens to their sums. */
MTP_ALWAYS_INLINE void multiply(const int has_min, const int n_tokens,
                                const mtp_unpacked_block32 *blocks, int n, const int row,
                                const int32_t *words, float (*sums)[32])
{
    _Alignas(64) int32_t products[2][MTP_TILE_REGISTER][16];
    const int step = MTP_ACT32_WORDS * n_tokens;
    __m512 sum[MTP_TILE_REGISTER];
    UNROLL_16
    for (int t = 0; t < MTP_TILE_REGISTER; t++)
        sum[t] = t < n_tokens ? _mm512_load_ps(sums[t] + row) : _mm512_setzero_ps();
    for (int b = 0; b < n; b += 2) {
        const int32_t *x = words + b * step;
        MULTIPLY(0, 2, 4, x, blocks + b);
        if (b > 0) {
            add_products(has_min, n_tokens, blocks + b - 2, row, x - 2 * step, products[0], sum);
            _tile_stored(1, products[1], 64);
        }
        if (b + 1 < n)
            MULTIPLY(1, 3, 5, x + step, blocks + b + 1);
        if (b > 0)
            add_products(has_min, n_tokens, blocks + b - 1, row, x - step, products[1], sum);
        _tile_stored(0, products[0], 64);
    }
    const int last = (n - 1) / 2 * 2;
    add_products(has_min, n_tokens, blocks + last, row, words + last * step, products[0], sum);
    if (last + 1 < n) {
        _tile_stored(1, products[1], 64);
        add_products(has_min, n_tokens, blocks + last + 1, row, words + (last + 1) * step,
                     products[1], sum);
    }
    UNROLL_16
    for (int t = 0; t < n_tokens; t++)
        _mm512_store_ps(sums[t] + row, sum[t]);
}

MTP_ALWAYS_INLINE void multiply_blocks(const int has_min, int type, const char *group,
                                       int64_t n_blocks, const char *prepared, int64_t n_tokens,
                                       float (*sums)[32])
{
    _Alignas(64) mtp_unpacked_block32 blocks[BLOCKS_AT_ONCE];
    const int64_t token_bytes = n_blocks * MTP_ACT32_WORDS * 4;
    const int64_t n_whole = n_tokens / MTP_TILE_REGISTER * MTP_TILE_REGISTER;
    const int n_left = (int)(n_tokens - n_whole);
    set_shapes(MTP_TILE_REGISTER);
    for (int64_t first = 0; first < n_blocks; first += BLOCKS_AT_ONCE) {
        const int64_t left = n_blocks - first;
        const int n = left < BLOCKS_AT_ONCE ? (int)left : BLOCKS_AT_ONCE;
        mtp_unpack_block32_avx512(type, group + first * mtp_block32_bytes(type), n, blocks);
        __asm__ volatile("" ::: "memory"); /* tiles are loaded unseen by the compiler */
        const char *tile = prepared + first * MTP_ACT32_WORDS * 4 * MTP_TILE_REGISTER;
        for (int64_t t = 0; t < n_whole; t += MTP_TILE_REGISTER)
            for (int row = 0; row < 32; row += 16)
                multiply(has_min, MTP_TILE_REGISTER, blocks, n, row,
                         (const int32_t *)(tile + t * token_bytes), sums + t);
        if (n_left > 0) {
            tile = prepared + n_whole * token_bytes + first * MTP_ACT32_WORDS * 4 * n_left;
            set_shapes(n_left);
            for (int row = 0; row < 32; row += 16)
                multiply(has_min, n_left, blocks, n, row, (const int32_t *)tile, sums + n_whole);
            set_shapes(MTP_TILE_REGISTER);
        }
    }
}

void mtp_multiply_block32_amx(int type, const void *group, int64_t n_blocks, const void *prepared,
                              int64_t n_tokens, float (*sum)[32])
{
    if (mtp_block32_has_min(type))
        multiply_blocks(1, type, group, n_blocks, prepared, n_tokens, sum);
    else
        multiply_blocks(0, type, group, n_blocks, prepared, n_tokens, sum);
    _tile_release(); /* a thread without tiles is switched faster */
}
