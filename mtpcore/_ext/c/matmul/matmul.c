/* The loops around the kernels. */
#include "matmul/matmul.h"

#include <string.h>

#include "core/cpu.h"
#include "matmul/kernels.h"
#include "matmul/unpacked.h"
#include "matmul/pack.h"
#include "matmul/packing.h"

/* Prepared activations that one group is multiplied with before the next; they stay in L2. */
enum { TOKEN_BLOCK_BYTES = 512 * 1024 };

/* The same for tile registers: processors that have them have more L2, and unpacking takes a
 * larger part of the time. */
enum { TILE_BLOCK_BYTES = 1536 * 1024 };

/* Tokens whose sums are kept while a group is unpacked block by block. */
enum { MOST_SUMS = 512 };

#define ENTRY(isa, NAME, name, ...) [MTP_##NAME] = mtp_##name##_##isa,
/* AVX-VNNI and I8MM have nothing for floats. */
#define VNNI_1(name) mtp_##name##_avx2
#define VNNI_32(name) mtp_##name##_avxvnni
#define VNNI_256(name) mtp_##name##_avxvnni
#define VNNI_ENTRY(_, NAME, name, number, block, ...) [MTP_##NAME] = VNNI_##block(name),
#define I8MM_1(name) mtp_##name##_neon
#define I8MM_32(name) mtp_##name##_i8mm
#define I8MM_256(name) mtp_##name##_i8mm
#define I8MM_ENTRY(_, NAME, name, number, block, ...) [MTP_##NAME] = I8MM_##block(name),
static const mtp_kernel *const tables[MTP_ISA_COUNT][MTP_TYPES] = {
    [MTP_ISA_BASE] = {MTP_WEIGHT_TYPES(ENTRY, portable)},
#if defined(__x86_64__)
    [MTP_ISA_AVX2] = {MTP_WEIGHT_TYPES(ENTRY, avx2)},
    [MTP_ISA_AVXVNNI] = {MTP_WEIGHT_TYPES(VNNI_ENTRY, )},
    [MTP_ISA_AVX512] = {MTP_WEIGHT_TYPES(ENTRY, avx512)},
    [MTP_ISA_AMX] = {MTP_WEIGHT_TYPES(ENTRY, avx512)},
#elif defined(__aarch64__)
    [MTP_ISA_NEON] = {MTP_WEIGHT_TYPES(ENTRY, neon)},
    [MTP_ISA_I8MM] = {MTP_WEIGHT_TYPES(I8MM_ENTRY, )},
#endif
};

_Thread_local int mtp_fetch_way MTP_FETCH_TLS;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* What unpacks once for so many tokens; NULL where that does not pay. */
static const mtp_unpacked_kernel *unpacked_kernel(int32_t type, int64_t n_tokens)
{
#if defined(__x86_64__)
    static const mtp_unpacked_kernel *const table[MTP_ISA_COUNT] = {
        [MTP_ISA_AVX2] = mtp_unpacked_avx2,
        [MTP_ISA_AVXVNNI] = mtp_unpacked_avxvnni,
        [MTP_ISA_AVX512] = mtp_unpacked_avx512,
        [MTP_ISA_AMX] = mtp_unpacked_avx512,
    };
    const mtp_unpacked_kernel *kernels = table[mtp_isa()];
    if (kernels != NULL && kernels[type].unpack != NULL && n_tokens > kernels[type].most_direct)
        return kernels + type;
#endif
    (void)type, (void)n_tokens;
    return NULL;
}

/* What a matmul works on. */
typedef struct {
    const mtp_matrix *w;
    const char *prepared;
    int64_t n_tokens, token_bytes, width, n_blocks; /* width: of a full tile */
    float *y;
    int64_t y_stride;
    const int32_t *out_rows;
} job;

static float *result_of(const job *job, int64_t token, int64_t row)
{
    return job->y + (job->out_rows ? job->out_rows[token] : token) * job->y_stride + row;
}

static void store_rows(const job *job, int64_t first, int64_t n, float (*out)[32], int64_t row,
                       size_t row_bytes)
{
    for (int64_t t = 0; t < n; t++) {
        float *to = result_of(job, first + t, row);
        if (row_bytes == sizeof out[t]) /* a few moves; all but the last group */
            memcpy(to, out[t], sizeof out[t]);
        else
            memcpy(to, out[t], row_bytes);
    }
}

/* The same, and one NaN for all, as the kernels have it. */
static void store_sums(const job *job, int64_t first, int64_t n, float (*sums)[32], int64_t row,
                       size_t row_bytes)
{
    for (int64_t t = 0; t < n; t++) {
        _Alignas(64) float out[1][MTP_GROUP_ROWS];
        for (int r = 0; r < MTP_GROUP_ROWS; r++)
            out[0][r] = sums[t][r] == sums[t][r] ? sums[t][r] : mtp_float_from_bits(0x7fc00000u);
        store_rows(job, first + t, 1, out, row, row_bytes);
    }
}

/* Ask for the lines of results before they are made: they lie a row apart, so nothing else does. */
static void expect_rows(const job *job, int64_t first, int64_t n, int64_t row)
{
    for (int64_t t = 0; t < n; t++) {
        const float *out = result_of(job, first + t, row);
        __builtin_prefetch(out, 1);
        __builtin_prefetch(out + 16, 1);
    }
}

/* Multiply a group tile by tile: the kernels unpack as they go. */
static void direct(const job *job, const char *group, int64_t begin, int64_t end, int64_t row,
                   size_t row_bytes)
{
    const mtp_kernel *kernels = tables[mtp_isa()][job->w->type];
    _Alignas(64) float out[MTP_TILE][MTP_GROUP_ROWS];
    for (int64_t first = begin; first < end; first += job->width) {
        const int64_t n = smaller(job->width, job->n_tokens - first);
        expect_rows(job, first, n, row);
        kernels[n - 1](group, job->n_blocks, job->prepared + first * job->token_bytes, out);
        store_rows(job, first, n, out, row, row_bytes);
    }
}

/* Multiply a group block by block, each unpacked once for all tiles. */
static void unpacked(const job *job, const mtp_unpacked_kernel *kernel, const char *group,
                     int64_t begin, int64_t end, int64_t row, size_t row_bytes)
{
    _Alignas(64) float sums[MOST_SUMS][MTP_GROUP_ROWS];
    _Alignas(64) mtp_unpacked block;
    const int64_t block_bytes = mtp_block256_bytes(job->w->type);
    memset(sums, 0, (size_t)(end - begin) * sizeof sums[0]);
    for (int64_t b = 0; b < job->n_blocks; b++) {
        kernel->unpack(group, job->n_blocks, b, &block);
        for (int64_t first = begin; first < end; first += job->width) {
            const int64_t n = smaller(job->width, job->n_tokens - first);
            const char *words = job->prepared + first * job->token_bytes;
            words += b * n * MTP_ACT256_WORDS * (int64_t)sizeof(int32_t);
            if (b == job->n_blocks - 1)
                expect_rows(job, first, n, row);
            /* Ahead of the block's two halves, with the first two tiles. */
            const int64_t half = (first - begin) / job->width;
            const char *packed = group + (half * job->n_blocks + b) * block_bytes;
            kernel->multiply[n - 1](&block, (const int32_t *)words, sums + (first - begin),
                                    half < 2 ? packed : NULL);
        }
    }
    store_sums(job, begin, end - begin, sums, row, row_bytes);
}

#if defined(__x86_64__)
/* The same in tile registers. */
static void in_tile_registers(const job *job, const char *group, int64_t begin, int64_t end,
                              int64_t row, size_t row_bytes)
{
    _Alignas(64) float sums[MOST_SUMS][MTP_GROUP_ROWS];
    memset(sums, 0, (size_t)(end - begin) * sizeof sums[0]);
    const char *prepared = job->prepared + begin * job->token_bytes;
    const int64_t n_tokens = end - begin;
    if (mtp_type_block(job->w->type) == 32)
        mtp_multiply_block32_amx(job->w->type, group, job->n_blocks, prepared, n_tokens, sums);
    else
        mtp_multiply_block256_amx(job->w->type, group, job->n_blocks, prepared, n_tokens, sums);
    for (int64_t first = begin; first < end; first += MTP_TILE_REGISTER) {
        const int64_t n = smaller(MTP_TILE_REGISTER, end - first);
        const int64_t next = smaller(first + n, end);
        expect_rows(job, next, smaller(MTP_TILE_REGISTER, end - next), row);
        store_sums(job, first, n, sums + (first - begin), row, row_bytes);
    }
}
#endif

/* Whether all groups of rows are packed by now. */
static int are_packed(const mtp_matrix *w, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row += MTP_GROUP_ROWS)
        if (w->packing == NULL || mtp_packing_group(w->packing, row) == NULL)
            return 0;
    return 1;
}

mtp_matrix mtp_matrix_part(const mtp_matrix *w, int64_t begin, int64_t end)
{
    mtp_matrix part = {w->type, w->is_mapped, end - begin, w->n_cols, w->data, NULL};
    if (w->is_mapped && are_packed(w, begin, end)) {
        part.is_mapped = 0;
        part.data = mtp_packing_group(w->packing, begin);
    } else if (w->is_mapped) {
        part.data = (const char *)w->data + begin * mtp_row_bytes(w->type, w->n_cols);
    } else {
        part.data = (const char *)w->data + mtp_packed_bytes(w->type, begin, w->n_cols);
    }
    return part;
}

size_t mtp_matmul_scratch_bytes(const mtp_matrix *w)
{
    return w->is_mapped ? (size_t)mtp_group_bytes(w->type, w->n_cols) : 0;
}

/* The group that begins with a row, made in scratch where the matrix is not packed. */
static const void *group_of(const mtp_matrix *w, int64_t row, void *scratch)
{
    if (!w->is_mapped)
        return (const char *)w->data + row / MTP_GROUP_ROWS * mtp_group_bytes(w->type, w->n_cols);
    const void *packed = w->packing ? mtp_packing_group(w->packing, row) : NULL;
    if (packed != NULL)
        return packed;
    mtp_pack_group(w->type, w->n_rows, w->n_cols, w->data, row, scratch);
    return scratch;
}

void mtp_matmul(const mtp_matrix *w, const void *prepared, int64_t n_prepared, int64_t n_tokens,
                float *y, int64_t y_stride, const int32_t *out_rows, int64_t row_begin,
                int64_t row_end, void *scratch, int fetch, mtp_interrupt *interrupt)
{
    mtp_fetch_way = fetch;
    const int activation = mtp_type_activation(w->type);
    const job job = {w,
                     prepared,
                     n_tokens,
                     mtp_token_bytes(activation, w->n_cols),
                     mtp_tile_width(activation, n_prepared),
                     w->n_cols / mtp_type_block(w->type),
                     y,
                     y_stride,
                     out_rows};
    const mtp_unpacked_kernel *kernel = unpacked_kernel(w->type, n_tokens);
    const int in_tiles = mtp_uses_tile_registers(activation, n_prepared);
    const int64_t whole = in_tiles ? 2 * MTP_TILE_REGISTER : MTP_TILE; /* steps are multiples */
    const int64_t bytes = in_tiles ? TILE_BLOCK_BYTES : TOKEN_BLOCK_BYTES;
    const int64_t tokens = (bytes / (job.token_bytes * whole + 1) + 1) * whole;
    const int64_t step = kernel || in_tiles ? smaller(tokens, MOST_SUMS) : tokens;

    for (int64_t begin = 0; begin < n_tokens && !mtp_is_interrupted(interrupt); begin += step) {
        const int64_t end = smaller(begin + step, n_tokens);
        for (int64_t row = row_begin; row < row_end; row += MTP_GROUP_ROWS) {
            const void *group = group_of(w, row, scratch);
            const size_t row_bytes = (size_t)smaller(MTP_GROUP_ROWS, row_end - row) * sizeof(float);
#if defined(__x86_64__)
            if (in_tiles) {
                in_tile_registers(&job, group, begin, end, row, row_bytes);
                continue;
            }
#endif
            if (kernel)
                unpacked(&job, kernel, group, begin, end, row, row_bytes);
            else
                direct(&job, group, begin, end, row, row_bytes);
        }
    }
}
