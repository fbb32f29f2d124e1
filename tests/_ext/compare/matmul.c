/* Packing, prepared activations and products, of every weight type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "core/cpu.h"
#include "matmul/layout.h"

/* Numbers as models have them; the largest codes there are, whose sums are the largest; any bits. */
typedef enum { TAME, LARGEST, WILD, KINDS } kind;
static const char *const kind_names[KINDS] = {"tame", "largest", "wild"};

enum { ROWS = 49, TOKENS = 65 }; /* tokens enough for tile registers */

typedef struct {
    mtp_matrix w;
    int64_t n_tokens;
    const float *x;
} product;

static void pack(const void *of, void *packed)
{
    const mtp_matrix *w = of;
    mtp_pack(w->type, w->n_cols, w->data, 0, w->n_rows, packed);
}

static void prepare(const void *of, void *prepared)
{
    const product *p = of;
    mtp_prepare(mtp_type_activation(p->w.type), p->x, p->w.n_cols, NULL, p->n_tokens, p->w.n_cols,
                0, (p->n_tokens + MTP_TILE - 1) / MTP_TILE, 0, p->w.n_cols, prepared);
}

static size_t prepared_bytes(const product *p)
{
    return mtp_activation_bytes(mtp_type_activation(p->w.type), p->n_tokens, p->w.n_cols);
}

/* Prepared activations, each token's words one after the other: in tiles they lie otherwise for some
 * sets. */
static void prepare_by_token(const void *of, void *words)
{
    const product *p = of;
    const int activation = mtp_type_activation(p->w.type);
    const int64_t n_codes = activation == MTP_ACT_Q8_32 ? 8 : 64;
    const int64_t n_words = activation == MTP_ACT_Q8_32 ? MTP_ACT32_WORDS : MTP_ACT256_WORDS;
    const int64_t n_blocks = p->w.n_cols / (4 * n_codes);
    const int64_t together = mtp_words_together(activation, p->n_tokens);
    if (activation == MTP_ACT_F32) {
        prepare(p, words);
        return;
    }
    int32_t *prepared = zeros(prepared_bytes(p)), *tile = prepared, *to = words;
    prepare(p, prepared);
    for (int64_t first = 0, width; first < p->n_tokens; first += width) {
        width = mtp_tile_width(activation, p->n_tokens);
        width = p->n_tokens - first < width ? p->n_tokens - first : width;
        for (int64_t b = 0; b < n_blocks; b++, tile += n_words * width)
            for (int64_t t = 0; t < width; t++)
                for (int64_t w = 0; w < n_words; w++) {
                    const int64_t side = w < n_codes ? together : 1;
                    to[((first + t) * n_blocks + b) * n_words + w] =
                        tile[w / side * side * width + side * t + w % side];
                }
    }
    free(prepared);
}

static void multiply(const void *of, void *y)
{
    const product *p = of;
    void *prepared = zeros(prepared_bytes(p)), *scratch = zeros(mtp_matmul_scratch_bytes(&p->w));
    prepare(p, prepared);
    mtp_matmul(&p->w, prepared, p->n_tokens, p->n_tokens, y, p->w.n_rows, NULL, 0, p->w.n_rows,
               scratch, (int)(p->n_tokens % MTP_FETCH_WAYS), NULL);
    free(prepared);
    free(scratch);
}

static uint16_t tame_half(void)
{
    return (uint16_t)((random_word() & 0x83ffu) | (6 + random_word() % 10) << 10);
}

/* Scales and mins of random blocks as models have them, else most sums are no numbers. */
static void tame_scales(int32_t type, uint16_t *scales, float *floats)
{
    const int is_32 = mtp_type_block(type) == 32;
    if (!is_32 && !mtp_block256_has_min(type)) {
        for (int r = 0; r < 16; r++)
            floats[r] = random_float();
        return;
    }
    const int n = is_32 && !mtp_block32_has_min(type) ? 32 : is_32 ? 64 : 32;
    for (int r = 0; r < n; r++)
        scales[r] = type == MTP_MXFP4 ? (uint16_t)((120 + random_word() % 8) << 7) : tame_half();
}

static void tame_blocks(mtp_matrix *w, void *packed)
{
    const int64_t n_groups = (w->n_rows + MTP_GROUP_ROWS - 1) / MTP_GROUP_ROWS;
    const int64_t block = mtp_type_block(w->type);
    const int64_t bytes = block == 32 ? mtp_block32_bytes(w->type) : mtp_block256_bytes(w->type);
    const int64_t n = n_groups * mtp_group_bytes(w->type, w->n_cols) / bytes;
    for (int64_t b = 0; b < n; b++) {
        void *at = (char *)packed + b * bytes;
        tame_scales(w->type, at, at);
    }
}

static void fill_weights(mtp_matrix *w, kind kind, uint8_t *rows)
{
    static const uint8_t largest[6] = {0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0};
    const int64_t n = w->n_cols / mtp_type_block(w->type) * mtp_type_block_bytes(w->type);
    for (int64_t r = 0; r < w->n_rows; r++)
        for (int64_t i = 0; i < n; i++)
            rows[r * n + i] = kind == LARGEST ? largest[r % 6] : (uint8_t)random_word();
    if (mtp_type_block(w->type) > 1 || kind == WILD)
        return;
    for (int64_t i = 0; i < w->n_rows * w->n_cols; i++) {
        const float value = random_float();
        const uint32_t bits = mtp_bits_from_float(value);
        const uint16_t half = w->type == MTP_F16 ? mtp_half_from_float(value) : bits >> 16;
        memcpy(rows + i * (n / w->n_cols), w->type == MTP_F32 ? (const void *)&bits : &half,
               (size_t)(n / w->n_cols));
    }
}

static void fill_tokens(float *x, int64_t n_cols, kind kind)
{
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t k = 0; k < n_cols; k++) {
            const int is_negative = t % 4 == 1 || (t % 4 == 2 && k % 2);
            x[t * n_cols + k] = kind == LARGEST                       ? (is_negative ? -2 : 2)
                                : kind == TAME || random_word() % 128 ? random_float()
                                                                      : random_bits();
        }
}

static void compare_kind(int32_t type, const char *name, kind kind, int64_t n_cols)
{
    char what[100];
    mtp_matrix w = {type, 1, ROWS, n_cols, NULL, NULL};
    uint8_t *rows = zeros((size_t)(ROWS * n_cols * 4));
    float *x = zeros((size_t)(TOKENS * n_cols) * sizeof *x);
    fill_weights(&w, kind, rows);
    fill_tokens(x, n_cols, kind);
    w.data = rows;
    const size_t packed_bytes = mtp_packed_bytes(type, ROWS, n_cols);
    snprintf(what, sizeof what, "packing %s, %s", name, kind_names[kind]);
    compare(what, pack, &w, packed_bytes, EVERY_BIT);
    void *packed = zeros(packed_bytes);
    pack(&w, packed);
    if (mtp_type_block(type) > 1 && kind != WILD)
        tame_blocks(&w, packed);
    for (int64_t n = 1; n <= TOKENS; n += n < 9 ? 1 : n < 17 ? 8 : TOKENS - 17) {
        product p = {w, n, x};
        snprintf(what, sizeof what, "%s, %s: %d tokens", name, kind_names[kind], (int)n);
        compare(what, prepare_by_token, &p, prepared_bytes(&p), EVERY_BIT);
        compare(what, multiply, &p, (size_t)(n * ROWS) * sizeof(float), EVERY_BIT);
        p.w.is_mapped = 0;
        p.w.data = packed;
        compare(what, multiply, &p, (size_t)(n * ROWS) * sizeof(float), EVERY_BIT);
    }
    free(packed);
    free(rows);
    free(x);
}

#define COMPARE(_, NAME, name, ...)                                                                \
    for (kind k = TAME; k < KINDS; k++)                                                            \
        compare_kind(MTP_##NAME, #NAME, k, mtp_type_block(MTP_##NAME) == 1 ? 131 : 768);
void compare_matmuls(void) { MTP_WEIGHT_TYPES(COMPARE, ) }
