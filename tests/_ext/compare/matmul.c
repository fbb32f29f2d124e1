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

#if defined(__x86_64__)
enum { ROWS = 49, TOKENS = 65 }; /* tokens enough for tile registers */
#else
enum { ROWS = 49, TOKENS = 21 }; /* two groups that run together, and some */
#endif

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
    int32_t *prepared = zeros(prepared_bytes(p), sizeof(float)), *tile = prepared, *to = words;
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
    release(prepared);
}

static void multiply(const void *of, void *y)
{
    const product *p = of;
    void *prepared = zeros(prepared_bytes(p), sizeof(float));
    void *scratch = zeros(mtp_matmul_scratch_bytes(&p->w), LINE);
    prepare(p, prepared);
    mtp_matmul(&p->w, prepared, p->n_tokens, p->n_tokens, y, p->w.n_rows, NULL, 0, p->w.n_rows,
               scratch, (int)(p->n_tokens % MTP_FETCH_WAYS), NULL);
    release(prepared);
    release(scratch);
}

/* Where blocks in a file have their float16 scales and mins, of MXFP4 a byte, and sub-scales. */
typedef struct {
    int scales, n_scales, sub_scales, n_sub_scale_bytes;
} places;

static places places_of(int32_t type)
{
    switch (type) {
    case MTP_Q4_1:
    case MTP_Q5_1:
        return (places){0, 2, 0, 0};
    case MTP_Q2_K:
        return (places){80, 2, 0, 16};
    case MTP_Q3_K:
        return (places){108, 1, 96, 12};
    case MTP_Q4_K:
    case MTP_Q5_K:
        return (places){0, 2, 4, 12};
    case MTP_Q6_K:
        return (places){208, 1, 192, 16};
    case MTP_IQ4_XS:
        return (places){0, 1, 2, 6};
    default:
        return (places){0, 1, 0, 0};
    }
}

/* Scales and mins as models have them, else most sums are no numbers. */
static void tame_scales(int32_t type, uint8_t *block)
{
    const places at = places_of(type);
    if (type == MTP_MXFP4)
        block[0] = (uint8_t)(120 + random_word() % 8);
    for (int i = 0; i < at.n_scales && type != MTP_MXFP4; i++) {
        const uint16_t half =
            (uint16_t)((random_word() & 0x83ffu) | (6 + random_word() % 10) << 10);
        memcpy(block + at.scales + 2 * i, &half, sizeof half);
    }
}

/* Largest codes with each of the largest sub-scales. */
static void fill_block(int32_t type, int64_t row, kind kind, uint8_t *block)
{
    static const uint8_t largest[6] = {0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0};
    const places at = places_of(type);
    for (int64_t i = 0; i < mtp_type_block_bytes(type); i++)
        block[i] = kind == LARGEST ? largest[row % 6] : (uint8_t)random_word();
    if (kind == LARGEST)
        memset(block + at.sub_scales, largest[row / 6 % 6], (size_t)at.n_sub_scale_bytes);
    if (kind != WILD)
        tame_scales(type, block);
}

static void fill_float(int32_t type, kind kind, uint8_t *value)
{
    const float x = kind == WILD ? random_bits() : random_float();
    const uint32_t bits = mtp_bits_from_float(x);
    const uint16_t half = type == MTP_F16 ? mtp_half_from_float(x) : (uint16_t)(bits >> 16);
    memcpy(value, type == MTP_F32 ? (const void *)&bits : &half,
           (size_t)mtp_type_block_bytes(type));
}

static void fill_weights(const mtp_matrix *w, kind kind, uint8_t *rows)
{
    const int64_t block = mtp_type_block(w->type), bytes = mtp_type_block_bytes(w->type);
    for (int64_t i = 0; i < w->n_rows * w->n_cols / block; i++) {
        if (block == 1)
            fill_float(w->type, kind, rows + i * bytes);
        else
            fill_block(w->type, i / (w->n_cols / block), kind, rows + i * bytes);
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
    uint8_t *rows = zeros((size_t)(ROWS * mtp_row_bytes(type, n_cols)), ANYWHERE);
    float *x = zeros((size_t)(TOKENS * n_cols) * sizeof *x, sizeof *x);
    fill_weights(&w, kind, rows);
    fill_tokens(x, n_cols, kind);
    w.data = rows;
    const size_t packed_bytes = mtp_packed_bytes(type, ROWS, n_cols);
    snprintf(what, sizeof what, "packing %s, %s", name, kind_names[kind]);
    compare(what, pack, &w, packed_bytes, EVERY_BIT);
    void *packed = zeros(packed_bytes, LINE);
    pack(&w, packed);
    for (int64_t n = 1; n <= TOKENS; n += n < 9 ? 1 : TOKENS - 9) {
        product p = {w, n, x};
        snprintf(what, sizeof what, "%s, %s: %d columns, %d tokens", name, kind_names[kind],
                 (int)n_cols, (int)n);
        compare(what, prepare_by_token, &p, prepared_bytes(&p), EVERY_BIT);
        compare(what, multiply, &p, (size_t)(n * ROWS) * sizeof(float), EVERY_BIT);
        p.w.is_mapped = 0;
        p.w.data = packed;
        compare(what, multiply, &p, (size_t)(n * ROWS) * sizeof(float), EVERY_BIT);
    }
    release(packed);
    release(rows);
    release(x);
}

/* One block, and an odd number of them. */
static void compare_type(int32_t type, const char *name)
{
    const int64_t block = mtp_type_block(type);
    for (kind k = TAME; k < KINDS; k++) {
        compare_kind(type, name, k, block);
        compare_kind(type, name, k, block == 1 ? 131 : block == 32 ? 25 * 32 : 3 * 256);
    }
}

#define COMPARE(_, NAME, name, ...) compare_type(MTP_##NAME, #NAME);
void compare_matmuls(void) { MTP_WEIGHT_TYPES(COMPARE, ) }
