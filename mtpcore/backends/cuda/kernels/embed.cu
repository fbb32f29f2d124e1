/* y[t] = factor * row of the table, or given[t] where there is no token: the values that the table's
 * type stands for, rounded as its own definition does.
 *
 * Row t has n_ids ids. One is a token: of part positions[t] - first of the table (the nearest there
 * is), or of the whole; where it is negative the row is `given`'s, or that of the id `absent`, and
 * where its part lacks it, zeros. Where IS_SUM the ids are codes, each of a part of its own, and their
 * rows are added from zero in order; one that is no row of its part adds nothing. The first part has
 * rows_of_first rows. The table is of a float TYPE, or as matmul.cu reads it. Grid: (rows, columns / 256 rounded up). Block: 256.
 */
#include "float16.cuh"

#define THREADS 256

#ifdef TYPE
#if TYPE == 0
typedef float Low;
#else
typedef unsigned short Low;
#endif
typedef void High;
typedef void Scale;

/* Rows are filled up to whole fours of columns. */
static __device__ __forceinline__ float value_of(const Low *low, const High *, const unsigned *,
                                                 const Scale *, int row, int column, int n_cols)
{
    const Low value = low[(size_t)row * ((n_cols + 3) / 4 * 4) + column];
#if TYPE == 0
    return value;
#elif TYPE == 1
    return widen(value);
#else
    return __uint_as_float((unsigned)value << 16);
#endif
}
#else
#include "quantised.cuh"

/* Of a lane's product with 32 columns, the byte that is this row's and column's. */
static __device__ __forceinline__ float value_of(const Low *low, const High *high,
                                                 const unsigned *subs, const Scale *scales, int row,
                                                 int column, int n_cols)
{
    const int g = row % 8, half = row % 16 / 8, q = column % 16 / 4;
    const size_t block = (size_t)(row / 16) * (n_cols / BLOCK) + column / BLOCK;
    unsigned a[4];
    unpack(a, low, high, (block * STEPS + column % BLOCK / 32) * 32 + 4 * g + q);
    const int byte = (signed char)(a[column % 32 / 16 * 2 + half] >> column % 4 * 8);
    const float code = (float)(byte - OFFSET);

    const Scale *own = scales + block * (MINIMA ? 32 : 16) + row % 16;
    float scale = scale_of(own[0]), minimum = -1.0f;
#if SUB
    const unsigned char *factor = (const unsigned char *)subs +
                                  (block * SETS * 16 + row % 16) * PARTS + column % BLOCK / SUB;
    scale *= (float)factor_of(*factor);
    minimum = (float)(NIBBLES ? *factor >> 4 : MINIMA ? factor[16 * PARTS] : 0);
#endif
    return MINIMA ? scale * code - scale_of(own[16]) * minimum : scale * code;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    embed(const int *__restrict__ ids, const int *__restrict__ positions,
          const float *__restrict__ given, const Low *__restrict__ low,
          const High *__restrict__ high, const unsigned *__restrict__ subs,
          const Scale *__restrict__ scales, float *__restrict__ y, int n_cols, int rows_of_part,
          int rows_of_first, int n_ids, int stride, int first, int n_parts, int absent, float factor)
{
    const int column = blockIdx.y * THREADS + threadIdx.x;
    const size_t t = blockIdx.x;
    if (column >= n_cols)
        return;
    float value = 0.0f;
    if (IS_SUM) {
        for (int i = 0; i < n_ids; i++) {
            const int id = ids[t * n_ids + i];
            const int begin = i > 0 ? rows_of_first + (i - 1) * rows_of_part : 0;
            if (id >= 0 && id < (i > 0 ? rows_of_part : rows_of_first))
                value += value_of(low, high, subs, scales, begin + id, column, n_cols);
        }
    } else {
        int part = positions ? positions[t * stride] - first : 0;
        part = part < 0 ? 0 : part < n_parts ? part : n_parts - 1;
        const int begin = part > 0 ? rows_of_first + (part - 1) * rows_of_part : 0;
        const int id = ids[t] < 0 ? absent : ids[t];
        if (id >= 0 && id < (part > 0 ? rows_of_part : rows_of_first))
            value = value_of(low, high, subs, scales, begin + id, column, n_cols);
        if (factor != 1.0f)
            value *= factor;
        if (id < 0 && given)
            value = given[t * n_cols + column];
    }
    y[t * n_cols + column] = value;
}
