/* Activations as the kernels read them: quantised if the weights ask for it, tokens interleaved. */
#include <string.h>

#include "core/cpu.h"
#include "matmul/layout.h"
#include "matmul/quantise.h"

int64_t mtp_activation_block(int activation)
{
    return activation == MTP_ACT_Q8_256 ? 256 : activation == MTP_ACT_Q8_32 ? 32 : 1;
}

size_t mtp_activation_bytes(int activation, int64_t n_tokens, int64_t n_cols)
{
    return (size_t)(n_tokens * mtp_token_bytes(activation, n_cols));
}

static mtp_quantise quantise_in_use(void)
{
#if defined(__x86_64__)
    if (mtp_isa() == MTP_ISA_AVX512 || mtp_isa() == MTP_ISA_AMX)
        return mtp_quantise_avx512;
    if (mtp_isa() >= MTP_ISA_AVX2)
        return mtp_quantise_avx2;
#elif defined(__aarch64__)
    if (mtp_isa() >= MTP_ISA_NEON)
        return mtp_quantise_neon;
#endif
    return mtp_quantise_portable;
}

static void store_words(int32_t *to, int stride, const void *words, int n)
{
    for (int w = 0; w < n; w++)
        memcpy(to + (int64_t)w * stride, (const char *)words + 4 * w, 4);
}

/* The codes of a block, n words, to the token's place in a tile. */
static void store_codes(int32_t *tile, int lane, int width, const int8_t *codes, int n,
                        int together)
{
    if (together == 1) {
        store_words(tile + lane, width, codes, n);
        return;
    }
    for (int w = 0; w < n; w += together)
        memcpy(tile + (int64_t)w * width + together * lane, codes + 4 * w, 4 * (size_t)together);
}

static void prepare_f32(const float *x, int64_t n_cols, int32_t *out, int width)
{
    if (width == 1) {
        memcpy(out, x, (size_t)n_cols * sizeof *x);
        return;
    }
    for (int64_t k = 0; k < n_cols; k++)
        memcpy(out + k * width, x + k, 4);
}

/* Blocks of a row that are quantised together, of those that begin with a column. */
static int blocks_from(int64_t column, int64_t n_cols, int block)
{
    const int64_t left = (n_cols - column) / block;
    return left < MTP_BLOCKS_ABREAST ? (int)left : MTP_BLOCKS_ABREAST;
}

static void prepare_q8_32(const float *x, int64_t n_cols, int32_t *tile, int lane, int width,
                          int together)
{
    const mtp_quantise quantise = quantise_in_use();
    int8_t codes[MTP_BLOCKS_ABREAST][32];
    int32_t minus_sums[MTP_BLOCKS_ABREAST][2];
    float scales[MTP_BLOCKS_ABREAST];
    for (int64_t k = 0, n; k < n_cols; k += 32 * n) {
        n = blocks_from(k, n_cols, 32);
        quantise(x + k, 32, (int)n, codes[0], minus_sums[0], scales);
        for (int64_t b = 0; b < n; b++, tile += MTP_ACT32_WORDS * width) {
            const int32_t minus_sum = minus_sums[b][0] + minus_sums[b][1];
            int32_t *out = tile + lane;
            store_codes(tile, lane, width, codes[b], 8, together);
            store_words(out + MTP_ACT32_MINUS_SUM * width, width, &minus_sum, 1);
            store_words(out + MTP_ACT32_SCALE * width, width, scales + b, 1);
        }
    }
}

static void prepare_q8_256(const float *x, int64_t n_cols, int32_t *tile, int lane, int width,
                           int together)
{
    const mtp_quantise quantise = quantise_in_use();
    int8_t codes[MTP_BLOCKS_ABREAST][256];
    int32_t minus_sums[MTP_BLOCKS_ABREAST][16];
    float scales[MTP_BLOCKS_ABREAST];
    for (int64_t k = 0, n; k < n_cols; k += 256 * n) {
        n = blocks_from(k, n_cols, 256);
        quantise(x + k, 256, (int)n, codes[0], minus_sums[0], scales);
        for (int64_t b = 0; b < n; b++, tile += MTP_ACT256_WORDS * width) {
            int16_t sums[8];
            for (int s = 0; s < 8; s++)
                sums[s] = (int16_t)-(minus_sums[b][2 * s] + minus_sums[b][2 * s + 1]);
            int32_t *out = tile + lane;
            store_codes(tile, lane, width, codes[b], 64, together);
            store_words(out + MTP_ACT256_MINUS_SUM * width, width, minus_sums[b], 16);
            store_words(out + MTP_ACT256_PAIR_SUM * width, width, sums, 4);
            store_words(out + MTP_ACT256_SCALE * width, width, scales + b, 1);
        }
    }
}

void mtp_prepare(int activation, const float *x, int64_t x_stride, const int32_t *rows,
                 int64_t n_tokens, int64_t n_cols, int64_t tile_begin, int64_t tile_end,
                 int64_t col_begin, int64_t col_end, void *prepared)
{
    const int full_width = mtp_tile_width(activation, n_tokens);
    const int together = mtp_words_together(activation, n_tokens);
    const int64_t token_bytes = mtp_token_bytes(activation, n_cols);
    const int64_t bytes_before = mtp_token_bytes(activation, col_begin);
    const int64_t own_cols = col_end - col_begin;
    const int64_t end = tile_end * MTP_TILE < n_tokens ? tile_end * MTP_TILE : n_tokens;
    for (int64_t t = tile_begin * MTP_TILE; t < end; t++) {
        const int lane = (int)(t % full_width);
        const int64_t first = t - lane, left = n_tokens - first;
        const int width = left < full_width ? (int)left : full_width;
        const float *source = x + (rows ? rows[t] : t) * x_stride + col_begin;
        char *whole = (char *)prepared + first * token_bytes;
        int32_t *tile = (int32_t *)(whole + bytes_before * width);
        if (activation == MTP_ACT_Q8_32)
            prepare_q8_32(source, own_cols, tile, lane, width, together);
        else if (activation == MTP_ACT_Q8_256)
            prepare_q8_256(source, own_cols, tile, lane, width, together);
        else
            prepare_f32(source, own_cols, tile + lane, width);
    }
}
