/* y = what a head attends to: the sums of its ranges (attention.cu), taken together in order, and
 * divided by the sum of weights. A sink is one more score, of a value of zeros.
 *
 * Where BLOCK is not 0, the row of all heads becomes codes (quantise.cuh), BLOCK values to a warp, and
 * there is no y. Grid: (rows, heads), or (rows, blocks of a row / 8 rounded up). Block: 256.
 */
#include "early.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "visible.cuh"

#define THREADS 256

/* Entry d of a head, whose ranges' sums lie one after the other. */
static __device__ __forceinline__ float merged(const float *range, int n, int v_width, int d,
                                               const float *sink)
{
    float top = __uint_as_float(0xff800000u), total = 0.0f, out = 0.0f;
    for (int i = 0; i < n; i++) {
        const float *own = range + (size_t)i * (v_width + 2);
        const float top_of_own = own[v_width], total_of_own = own[v_width + 1];
        if (i == 0) {
            top = top_of_own, total = total_of_own, out = own[d];
            continue;
        }
        const float highest = top_of_own > top ? top_of_own : top;
        const float before = exponential(top - highest);
        const float now = exponential(top_of_own - highest);
        total = total * before + total_of_own * now;
        out = fmaf(own[d], now, out * before);
        top = highest;
    }
    if (sink) {
        const float highest = *sink > top ? *sink : top;
        const float factor = exponential(top - highest);
        total = total * factor + exponential(*sink - highest);
        out *= factor;
    }
    return __fdiv_rn(out, total);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    merge(const float *__restrict__ sums, const Visible *__restrict__ visible_of_rows,
          const float *__restrict__ sinks, float *__restrict__ y, signed char *__restrict__ codes,
          float *__restrict__ scales, short *__restrict__ sums_of_codes, int first_row,
          int n_ranges, int n_heads, int v_width)
{
    let_next_begin();
    const int row = blockIdx.x, t = first_row + row;
    const Visible visible = visible_of_rows[t];
    const int n = visible.begin < visible.end
                      ? (visible.end - 1) / RANGE - visible.begin / RANGE + 1
                      : 0;
    const size_t pitch = (size_t)n_ranges * (v_width + 2);
    const float *of_row = sums + (size_t)row * n_heads * pitch;
#if BLOCK
    const int n_blocks = n_heads * v_width / BLOCK;
    const int block = blockIdx.y * (THREADS / 32) + (threadIdx.x >> 5);
    if (block >= n_blocks) /* a whole warp */
        return;
    float value[BLOCK / 32];
#pragma unroll
    for (int i = 0; i < BLOCK / 32; i++) {
        const int at = block * BLOCK + (threadIdx.x & 31) * (BLOCK / 32) + i, head = at / v_width;
        value[i] =
            merged(of_row + head * pitch, n, v_width, at % v_width, sinks ? sinks + head : 0);
    }
    store_block(value, (size_t)t * n_blocks + block, codes, scales, sums_of_codes);
#else
    const int head = blockIdx.y;
    for (int d = threadIdx.x; d < v_width; d += THREADS)
        y[((size_t)t * n_heads + head) * v_width + d] =
            merged(of_row + head * pitch, n, v_width, d, sinks ? sinks + head : 0);
#endif
}
